// LayerNormalization: rows of each sample, with a weight and a bias for each place of a row.
//
// A sample's sums along a row are four sums of every fourth number, added at the end. The gradients
// by weight and bias are summed row by row in float, and then as block_sums.h says.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/engine/cpu/ops/layer_normalization.cc"
#include "training/ops/layer_normalization/layer_normalization.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

#include "gpu_worker/engine/cpu/blocked/block_sums.h"
#include "gpu_worker/engine/cpu/blocked/instruction_sets.h"
#include "gpu_worker/engine/cpu/blocked/kernel.h"
#include "gpu_worker/engine/cpu/blocked/runs.h"
#include "hwy/foreach_target.h"  // NOLINT(build/include): must come before highway.h
#include "hwy/highway.h"

// Once, even though this file is included several times.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_OPS_LAYER_NORMALIZATION_LOOPS_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_OPS_LAYER_NORMALIZATION_LOOPS_
namespace capstan::engine {

// A row of `size` vectors of 16 samples. With z = (x - mean) * scale and g = weight * dy:
struct NormalizedRow {
  int64_t size = 0;
  float epsilon = 0;
  const float* x = nullptr;
  const float* dy = nullptr;      // null: forward
  const float* weight = nullptr;  // [size]
  const float* bias = nullptr;    // [size]
  float* y = nullptr;             // weight * z + bias
  float* dx = nullptr;            // scale * (g - mean of g - z * mean of g * z); may be dy
  bool add = false;               // dx: to the old values
  // By sample, for the whole row.
  alignas(64) float mean[kSideBySide], scale[kSideBySide];
  alignas(64) float mean_g[kSideBySide], mean_gz[kSideBySide];
};

struct NormalizedRowLoops {
  // Sets mean and scale; with dy also the means of g.
  void (*moments)(NormalizedRow& row);
  void (*forward)(const NormalizedRow& row);
  // to[i] = dy * z for `count` places from `first` on.
  void (*products)(const NormalizedRow& row, int64_t first, int64_t count, float* to);
  void (*backward)(const NormalizedRow& row);
};

}  // namespace capstan::engine
#endif

HWY_BEFORE_NAMESPACE();
namespace capstan::engine {
namespace HWY_NAMESPACE {
namespace {

#include "gpu_worker/engine/cpu/blocked/vectors-inl.h"

template <typename Value>
HWY_INLINE V SumOfRow(int64_t size, Value value) {
  V sums[4];
  for (V& sum : sums) sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 <= size; i += 4) {
    for (int64_t k = 0; k < 4; ++k) sums[k] = hn::Add(sums[k], value(i + k));
  }
  for (int64_t k = 0; i < size; ++i, ++k) sums[k] = hn::Add(sums[k], value(i));
  return hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
}

HWY_INLINE V NormalOf(const NormalizedRow& row, int64_t i, int part) {
  const V x = hn::Load(d, row.x + i * 16 + part * kLanes);
  return hn::Mul(hn::Sub(x, hn::Load(d, row.mean + part * kLanes)),
                 hn::Load(d, row.scale + part * kLanes));
}

HWY_INLINE V WeightedOf(const NormalizedRow& row, int64_t i, int part) {
  return hn::Mul(hn::Set(d, row.weight[i]), hn::Load(d, row.dy + i * 16 + part * kLanes));
}

void Moments(NormalizedRow& row) {
  const V count = hn::Set(d, static_cast<float>(row.size));
  const V one = hn::Set(d, 1.0f), epsilon = hn::Set(d, row.epsilon);
  for (int part = 0; part < kParts; ++part) {
    const float* const x = row.x + part * kLanes;
    const V mean = hn::Div(
        SumOfRow(row.size, [&](int64_t i) HWY_ATTR { return hn::Load(d, x + i * 16); }), count);
    const V variance = hn::Div(SumOfRow(row.size,
                                        [&](int64_t i) HWY_ATTR {
                                          const V v = hn::Sub(hn::Load(d, x + i * 16), mean);
                                          return hn::Mul(v, v);
                                        }),
                               count);
    hn::Store(mean, d, row.mean + part * kLanes);
    hn::Store(hn::Div(one, hn::Sqrt(hn::Add(variance, epsilon))), d, row.scale + part * kLanes);
    if (row.dy == nullptr) continue;
    const V g = SumOfRow(row.size, [&](int64_t i) HWY_ATTR { return WeightedOf(row, i, part); });
    const V gz = SumOfRow(row.size, [&](int64_t i) HWY_ATTR {
      return hn::Mul(WeightedOf(row, i, part), NormalOf(row, i, part));
    });
    hn::Store(hn::Div(g, count), d, row.mean_g + part * kLanes);
    hn::Store(hn::Div(gz, count), d, row.mean_gz + part * kLanes);
  }
}

void ForwardRow(const NormalizedRow& row) {
  for (int part = 0; part < kParts; ++part) {
    for (int64_t i = 0; i < row.size; ++i) {
      const V y = Fma(hn::Set(d, row.weight[i]), NormalOf(row, i, part), hn::Set(d, row.bias[i]));
      hn::Store(y, d, row.y + i * 16 + part * kLanes);
    }
  }
}

void RowProducts(const NormalizedRow& row, int64_t first, int64_t count, float* to) {
  for (int part = 0; part < kParts; ++part) {
    for (int64_t i = 0; i < count; ++i) {
      const V dy = hn::Load(d, row.dy + (first + i) * 16 + part * kLanes);
      hn::Store(hn::Mul(dy, NormalOf(row, first + i, part)), d, to + i * 16 + part * kLanes);
    }
  }
}

void BackwardRow(const NormalizedRow& row) {
  for (int part = 0; part < kParts; ++part) {
    const V scale = hn::Load(d, row.scale + part * kLanes);
    const V mean_g = hn::Load(d, row.mean_g + part * kLanes);
    const V mean_gz = hn::Load(d, row.mean_gz + part * kLanes);
    for (int64_t i = 0; i < row.size; ++i) {
      const V z = NormalOf(row, i, part);
      const V rest = hn::Sub(hn::Sub(WeightedOf(row, i, part), mean_g), hn::Mul(z, mean_gz));
      const V v = hn::Mul(scale, rest);
      float* const to = row.dx + i * 16 + part * kLanes;
      hn::Store(row.add ? hn::Add(hn::Load(d, to), v) : v, d, to);
    }
  }
}

constexpr NormalizedRowLoops kRowLoops = {Moments, ForwardRow, RowProducts, BackwardRow};

}  // namespace

const NormalizedRowLoops* ThisNormalizedRow() { return &kRowLoops; }

}  // namespace HWY_NAMESPACE
}  // namespace capstan::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::engine {
namespace {

class LayerNormKernel {
 public:
  LayerNormKernel(const training::OpInstance& op, const NodePlaces& places)
      : loops_(*CAPSTAN_FORM_OF(ThisNormalizedRow, *places.math)()),
        size_(training::Elements(op.inferred.parameters[0].shape)),
        rows_(training::Elements(op.x[0].shape) / size_),
        epsilon_(static_cast<float>(training::LayerNormalization::Read(op.attributes).epsilon)),
        places_(places) {}

  absl::Status Make(NodePhases& phases, const std::shared_ptr<LayerNormKernel>& self) {
    phases.kernel = "rows";
    const int64_t cuts = std::min(rows_, CeilDivide(rows_ * size_ * kSideBySide, kPieceFloats));
    phases.forward.push_back({0, [cuts](const BatchRun& run) { return run.blocks * cuts; },
                              [self, cuts](const BatchRun& run, int64_t piece, char*) {
                                const int64_t first = piece / cuts * self->rows_,
                                              cut = piece % cuts;
                                for (int64_t row = self->rows_ * cut / cuts;
                                     row < self->rows_ * (cut + 1) / cuts; ++row) {
                                  self->Forward(run, first + row);
                                }
                              }});
    if (!places_.backward) return absl::OkStatus();
    absl::StatusOr<BlockSums> sums = BlockSums::Make(phases, places_, 2 * size_);
    if (!sums.ok()) return sums.status();
    phases.backward.push_back(
        {kAtOnce * (kSideBySide + 1) * 4, [](const BatchRun& run) { return run.blocks; },
         [self, sums = *sums](const BatchRun& run, int64_t block, char* scratch) {
           self->Backward(run, block, sums.of(block), reinterpret_cast<float*>(scratch));
         }});
    phases.backward.push_back(sums->Gradient(places_, 0, size_, places_.parameters[Op::kWeight]));
    phases.backward.push_back(sums->Gradient(places_, size_, size_, places_.parameters[Op::kBias]));
    phases.backward.back().joins = true;
    return absl::OkStatus();
  }

 private:
  using Op = training::LayerNormalization;
  static constexpr int64_t kAtOnce = 256;  // products that are summed together

  NormalizedRow RowOf(const BatchRun& run, int64_t row) const {
    NormalizedRow of;
    of.size = size_;
    of.epsilon = epsilon_;
    of.x = places_.x[0] + row * size_ * kSideBySide;
    of.weight = run.weights + places_.parameters[Op::kWeight];
    of.bias = run.weights + places_.parameters[Op::kBias];
    return of;
  }

  void Forward(const BatchRun& run, int64_t row) const {
    NormalizedRow of = RowOf(run, row);
    of.y = places_.y + row * size_ * kSideBySide;
    loops_.moments(of);
    loops_.forward(of);
  }

  // `sums`: those of the weight's gradient, then those of the bias's.
  void Backward(const BatchRun& run, int64_t block, float* sums, float* scratch) const {
    float* const totals = scratch + kAtOnce * kSideBySide;
    const auto add = [&](const float* from, int64_t count, float* to) {
      places_.math->sum_samples(count, from, totals);
      for (int64_t i = 0; i < count; ++i) to[i] += totals[i];
    };
    std::fill_n(sums, 2 * size_, 0.0f);
    for (int64_t row = block * rows_; row < (block + 1) * rows_; ++row) {
      NormalizedRow of = RowOf(run, row);
      of.dy = places_.dy + row * size_ * kSideBySide;
      loops_.moments(of);
      for (int64_t first = 0; first < size_; first += kAtOnce) {
        const int64_t count = std::min(kAtOnce, size_ - first);
        loops_.products(of, first, count, scratch);
        add(scratch, count, sums + first);
        add(of.dy + first * kSideBySide, count, sums + size_ + first);
      }
      if (places_.dx[0].data == nullptr) continue;
      of.dx = places_.dx[0].data + row * size_ * kSideBySide;
      of.add = places_.dx[0].add;
      loops_.backward(of);
    }
  }

  const NormalizedRowLoops loops_;
  const int64_t size_, rows_;  // of a row; of a block
  const float epsilon_;
  const NodePlaces places_;
};

}  // namespace

absl::StatusOr<NodePhases> MakeLayerNormalizationPhases(const training::Graph& graph, int node,
                                                        const NodePlaces& places) {
  NodePhases phases;
  const auto kernel = std::make_shared<LayerNormKernel>(graph.instance(node), places);
  const absl::Status status = kernel->Make(phases, kernel);
  if (!status.ok()) return status;
  return phases;
}

}  // namespace capstan::engine
#endif  // HWY_ONCE
