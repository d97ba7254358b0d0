#include "gpu_worker/engine/cuda/ops/loop_plan.h"

#include <algorithm>
#include <cstdlib>

#include "training/ops/places.h"

namespace capstan::engine::cuda {
namespace {

template <int kTensors>
struct LoopAxis {
  int64_t size = 1;
  std::array<int64_t, kTensors> strides = {};
};

// Whether `outer` goes on where `inner` ends, in all tensors.
template <int kTensors>
bool IsOneRun(const LoopAxis<kTensors>& outer, const LoopAxis<kTensors>& inner) {
  for (int t = 0; t < kTensors; ++t) {
    if (outer.strides[t] != inner.strides[t] * inner.size) return false;
  }
  return true;
}

}  // namespace

Strided StridedValue(const training::Shape& shape, bool channels_last) {
  Strided value = {training::Elements(shape), training::StridesOf(shape)};
  if (channels_last) value.strides = {1, shape[0] * shape[2], shape[0]};
  return value;
}

Strided BroadcastTo(const Strided& value, const training::Shape& shape, const training::Shape& to) {
  Strided broadcast = {value.batch, std::vector<int64_t>(to.size(), 0)};
  const size_t missing = to.size() - shape.size();
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] > 1) broadcast.strides[missing + i] = value.strides[i];
  }
  return broadcast;
}

template <int kTensors>
Loop<kTensors> MakeLoop(int64_t n, const training::Shape& shape,
                        const std::array<Strided, kTensors>& tensors) {
  std::vector<LoopAxis<kTensors>> axes;
  for (size_t i = 0; i <= shape.size(); ++i) {
    LoopAxis<kTensors> axis;
    axis.size = i > 0 ? shape[i - 1] : std::max<int64_t>(n, 1);
    for (int t = 0; t < kTensors; ++t) {
      axis.strides[t] = i > 0 ? tensors[t].strides[i - 1] : tensors[t].batch;
    }
    if (axis.size > 1) axes.push_back(axis);
  }
  std::stable_sort(axes.begin(), axes.end(),
                   [](const LoopAxis<kTensors>& a, const LoopAxis<kTensors>& b) {
                     return std::abs(a.strides[0]) > std::abs(b.strides[0]);
                   });
  Loop<kTensors> loop;
  std::vector<LoopAxis<kTensors>> merged;
  for (const LoopAxis<kTensors>& axis : axes) {
    if (!merged.empty() && IsOneRun(merged.back(), axis)) {
      const int64_t size = merged.back().size * axis.size;
      merged.back() = axis;
      merged.back().size = size;
    } else {
      merged.push_back(axis);
    }
  }
  for (const LoopAxis<kTensors>& axis : merged) {
    loop.size[loop.axes] = static_cast<int32_t>(axis.size);
    for (int t = 0; t < kTensors; ++t) {
      loop.stride[t][loop.axes] = static_cast<int32_t>(axis.strides[t]);
    }
    loop.elements *= loop.size[loop.axes++];
  }
  return loop;
}

template Loop<2> MakeLoop<2>(int64_t, const training::Shape&, const std::array<Strided, 2>&);
template Loop<3> MakeLoop<3>(int64_t, const training::Shape&, const std::array<Strided, 3>&);
template Loop<4> MakeLoop<4>(int64_t, const training::Shape&, const std::array<Strided, 4>&);

}  // namespace capstan::engine::cuda
