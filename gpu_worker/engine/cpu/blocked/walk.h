// Walks over up to three tensors of a block by strides, row by row. Axes along which all of them go
// on in equal steps are walked as one.
//
// Nothing is allocated in a step: a walk has fixed arrays, and copies of it are cheap.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_WALK_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_WALK_H_

#include <algorithm>
#include <array>
#include <cstdint>

#include "gpu_worker/engine/cpu/blocked/runs.h"
#include "training/graph/graph.h"
#include "training/ops/places.h"

namespace capstan::engine {

class RowWalk {
 public:
  using Places = std::array<int64_t, 3>;  // by tensor, in floats

  // strides[k]: of tensor k along the axes of `shape`, in its elements. An element has scale[k]
  // floats: 16, or 1 for weights. `first`: the places of index 0, in elements.
  RowWalk(const training::Shape& shape, const std::array<training::Strides, 3>& strides,
          const Places& scale, const Places& first = {}) {
    for (size_t k = 0; k < 3; ++k) first_[k] = first[k] * scale[k];
    for (size_t i = 0; i < shape.size(); ++i) {
      if (shape[i] == 1) continue;
      Axis axis = {shape[i], {}};
      for (size_t k = 0; k < 3; ++k) {
        if (!strides[k].empty()) axis.steps[k] = strides[k][i] * scale[k];
      }
      Append(axis);
    }
    if (count_ == 0) Append({1, {}});
  }

  // Length and steps of a row, the last axis.
  int64_t size() const { return axes_[count_ - 1].size; }
  int64_t step(size_t tensor) const { return axes_[count_ - 1].steps[tensor]; }

  // The longest axis along which tensor `k` goes on; the first one if there is none.
  size_t LongestAxis(size_t tensor) const {
    size_t longest = 0;
    for (size_t i = 0; i < count_; ++i) {
      const bool better = axes_[longest].steps[tensor] == 0 || axes_[i].size > axes_[longest].size;
      if (axes_[i].steps[tensor] != 0 && better) longest = i;
    }
    return longest;
  }
  // Into how many parts that axis is cut, so that a part visits about kPieceFloats floats.
  int64_t Parts(size_t tensor) const {
    const Axis& axis = axes_[LongestAxis(tensor)];
    if (axis.steps[tensor] == 0) return 1;
    int64_t floats = kSideBySide;
    for (size_t i = 0; i < count_; ++i) floats *= axes_[i].size;
    return std::min(axis.size, CeilDivide(floats, kPieceFloats));
  }
  RowWalk Part(size_t tensor, int64_t part, int64_t parts) const {
    RowWalk of = *this;
    if (parts == 1) return of;
    Axis& axis = of.axes_[LongestAxis(tensor)];
    const int64_t begin = axis.size * part / parts;
    for (size_t k = 0; k < 3; ++k) of.first_[k] += begin * axis.steps[k];
    axis.size = axis.size * (part + 1) / parts - begin;
    return of;
  }

  // The same walk over the places of one tensor: each once, without its repetitions.
  RowWalk Once(size_t tensor) const {
    RowWalk of = *this;
    for (size_t i = 0; i < of.count_; ++i) {
      if (of.axes_[i].steps[tensor] == 0) of.axes_[i].size = 1;
    }
    return of;
  }

  // Calls visit(places of its first elements) for each row, the last axis in front fastest.
  template <typename Visit>
  void ForRows(Visit visit) const {
    std::array<int64_t, training::kMaxAxes> index{};
    Places at = first_;
    while (true) {
      visit(at);
      size_t axis = count_ - 1;
      for (; axis > 0; --axis) {
        const Axis& of = axes_[axis - 1];
        const bool more = ++index[axis - 1] < of.size;
        for (size_t k = 0; k < 3; ++k) at[k] += more ? of.steps[k] : -of.steps[k] * (of.size - 1);
        if (more) break;
        index[axis - 1] = 0;
      }
      if (axis == 0) return;
    }
  }

 private:
  struct Axis {
    int64_t size = 1;
    Places steps{};
  };

  void Append(const Axis& axis) {
    bool goes_on = count_ > 0;
    for (size_t k = 0; goes_on && k < 3; ++k) {
      goes_on = axes_[count_ - 1].steps[k] == axis.size * axis.steps[k];
    }
    if (goes_on) {
      axes_[count_ - 1] = {axes_[count_ - 1].size * axis.size, axis.steps};
    } else {
      axes_[count_++] = axis;
    }
  }

  size_t count_ = 0;
  std::array<Axis, training::kMaxAxes> axes_;
  Places first_{};
};

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_WALK_H_
