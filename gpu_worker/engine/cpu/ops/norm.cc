// Batch normalization over a lane: sums per channel, block by block in order, then the channel in
// one go.
//
// Sums of a block are float; those of a channel are double. Source: Ioffe & Szegedy 2015,
// arXiv:1502.03167.
#include <cmath>
#include <vector>

#include "gpu_worker/engine/cpu/blocked/kernel.h"
#include "training/ops/add/add.h"
#include "training/ops/batch_normalization/batch_normalization.h"
#include "training/ops/relu/relu.h"

namespace capstan::engine {
namespace {

using training::BatchNormalization;

// The operators after the norm in the run: Add, whose other summand is the second input, and Relu.
struct Behind {
  bool add = false, relu = false;
};

class NormKernel {
 public:
  NormKernel(const training::Graph& graph, int node, Behind behind, const NodePlaces& places)
      : op_(BatchNormalization::Read(graph.instance(node).attributes)),
        channels_(graph.instance(node).x[0].shape[0]),
        plane_(graph.value_elements(graph.output_of(node)) / channels_ * kSideBySide),
        behind_(behind),
        places_(places) {}

  void Make(NodePhases& phases, const std::shared_ptr<NormKernel>& self) const {
    phases.kernel = "by channel";
    phases.one_lane = true;
    if (behind_.add) phases.kernel += ", with Add";
    if (behind_.relu) phases.kernel += ", with Relu";
    phases.forward.push_back(
        {0, FixedPieces(channels_),
         [self](const BatchRun& run, int64_t channel, char*) { self->Forward(run, channel); }});
    if (places_.backward) {
      phases.backward.push_back(
          {0, FixedPieces(channels_),
           [self](const BatchRun& run, int64_t channel, char*) { self->Backward(run, channel); }});
    }
  }

 private:
  enum { kWeight, kBias, kRunningMean, kRunningVariance };

  int64_t Offset(int64_t block, int64_t channel) const {
    return (block * channels_ + channel) * plane_;
  }
  float Parameter(const BatchRun& run, int which, int64_t channel) const {
    return run.weights[places_.parameters[which] + channel];
  }
  // Adds the sums of a block's samples to those of a channel. Missing samples do not count.
  static void AddSamples(const BatchRun& run, int64_t block, const float* sums, double& total) {
    const int64_t there = run.InBlock(block);
    for (int64_t l = 0; l < there; ++l) total += sums[l];
  }
  // The sum over a channel of the results of `sums_of_block(offset, sums)`.
  template <typename SumsOfBlock>
  double ChannelSum(const BatchRun& run, int64_t channel, SumsOfBlock sums_of_block) const {
    alignas(64) float sums[kSideBySide];
    double total = 0;
    for (int64_t block = 0; block < run.blocks; ++block) {
      sums_of_block(Offset(block, channel), sums);
      AddSamples(run, block, sums, total);
    }
    return total;
  }
  double Elements(const BatchRun& run) const {
    const int64_t pixels = plane_ / kSideBySide;
    return static_cast<double>(run.samples.count) * static_cast<double>(pixels);
  }

  void Forward(const BatchRun& run, int64_t channel) const {
    float mean = 0;
    double variance = 0;
    if (run.samples.training) {
      mean = static_cast<float>(ChannelSum(run, channel,
                                           [&](int64_t at, float* sums) {
                                             places_.math->sum(plane_, places_.x[0] + at, sums);
                                           }) /
                                Elements(run));
      variance = ChannelSum(run, channel,
                            [&](int64_t at, float* sums) {
                              places_.math->square_sum(plane_, places_.x[0] + at, mean, sums);
                            }) /
                 Elements(run);
      if (run.gradient != nullptr) SetStatistics(run, channel, mean, variance);
    } else {
      mean = Parameter(run, kRunningMean, channel);
      variance = Parameter(run, kRunningVariance, channel);
    }
    const auto inverse = static_cast<float>(1 / std::sqrt(variance + op_.epsilon));
    places_.saved[0][channel] = mean;
    places_.saved[1][channel] = inverse;
    NormalizeCall call;
    call.size = plane_;
    call.mean = mean;
    call.scale = Parameter(run, kWeight, channel) * inverse;
    call.shift = Parameter(run, kBias, channel);
    call.relu = behind_.relu;
    for (int64_t block = 0; block < run.blocks; ++block) {
      const int64_t at = Offset(block, channel);
      call.x = places_.x[0] + at;
      if (behind_.add) call.other = places_.x[1] + at;
      call.y = places_.y + at;
      places_.math->normalize(call);
    }
  }

  // Rule R3: the batch's statistic, weighted by its samples.
  void SetStatistics(const BatchRun& run, int64_t channel, double mean, double variance) const {
    const double share = static_cast<double>(run.samples.count) * run.loss_scale;
    const double elements = Elements(run);
    if (elements > 1) variance *= elements / (elements - 1);
    run.gradient[places_.parameters[kRunningMean] + channel] = static_cast<float>(mean * share);
    run.gradient[places_.parameters[kRunningVariance] + channel] =
        static_cast<float>(variance * share);
  }

  void Backward(const BatchRun& run, int64_t channel) const {
    const float mean = places_.saved[0][channel];
    const float inverse = places_.saved[1][channel];
    double sum = 0, product = 0;
    alignas(64) float sums[kSideBySide], products[kSideBySide];
    for (int64_t block = 0; block < run.blocks; ++block) {
      const int64_t at = Offset(block, channel);
      places_.math->normalize_sums(
          {plane_, places_.dy + at, Y(at), places_.x[0] + at, mean, sums, products});
      AddSamples(run, block, sums, sum);
      AddSamples(run, block, products, product);
    }
    run.gradient[places_.parameters[kWeight] + channel] = static_cast<float>(product * inverse);
    run.gradient[places_.parameters[kBias] + channel] = static_cast<float>(sum);
    float* const other = behind_.add ? places_.dx[1].data : nullptr;
    if (places_.dx[0].data == nullptr && other == nullptr) return;
    // dx = weight / deviation * (dz - mean(dz) - (x - mean) / variance * mean(dz * (x - mean)))
    const double scale = static_cast<double>(Parameter(run, kWeight, channel)) * inverse;
    const double elements = Elements(run);
    NormalizeBackwardCall call;
    call.size = plane_;
    call.mean = mean;
    call.a = static_cast<float>(scale);
    call.b = static_cast<float>(-scale * inverse * inverse * product / elements);
    call.c = static_cast<float>(-scale * sum / elements);
    call.add = places_.dx[0].add;
    call.add_other = other != nullptr && places_.dx[1].add;
    for (int64_t block = 0; block < run.blocks; ++block) {
      const int64_t at = Offset(block, channel);
      call.dy = places_.dy + at;
      call.y = Y(at);
      call.x = places_.x[0] + at;
      if (places_.dx[0].data != nullptr) call.dx = places_.dx[0].data + at;
      if (other != nullptr) call.other = other + at;
      places_.math->normalize_backward(call);
      ClearAbsent(run, block, call.dx);
    }
  }

  // Sets missing samples to zeros. Null: nothing to do.
  void ClearAbsent(const BatchRun& run, int64_t block, float* dx) const {
    const int64_t there = run.InBlock(block);
    if (there == kSideBySide || dx == nullptr) return;
    for (int64_t i = 0; i < plane_; i += kSideBySide) {
      for (int64_t l = there; l < kSideBySide; ++l) dx[i + l] = 0;
    }
  }

  // The output that shows where a gradient passes the Relu. Null if there is no Relu.
  const float* Y(int64_t at) const { return behind_.relu ? places_.y + at : nullptr; }

  const BatchNormalization op_;
  const int64_t channels_, plane_;
  const Behind behind_;
  const NodePlaces places_;
};

absl::StatusOr<NodePhases> MakeNorm(const training::Graph& graph, int node, Behind behind,
                                    const NodePlaces& places) {
  NodePhases phases;
  const auto kernel = std::make_shared<NormKernel>(graph, node, behind, places);
  kernel->Make(phases, kernel);
  return phases;
}

// The same tensors as the norm alone saves.
std::vector<training::SavedTensor> NormSaved(const training::Graph& graph, int first) {
  return graph.instance(first).inferred.saved;
}

bool AlwaysFits(const training::Graph&, int) { return true; }

// Whether the sum behind the norm at `first` broadcasts nothing.
bool SumHasOneShape(const training::Graph& graph, int first) {
  const std::vector<training::ValueType>& x = graph.instance(first + 1).x;
  return x[0].shape == x[1].shape;
}

}  // namespace

absl::StatusOr<NodePhases> MakeNormPhases(const training::Graph& graph, int node,
                                          const NodePlaces& places) {
  return MakeNorm(graph, node, {}, places);
}

FusionPattern NormReluPattern() {
  return {{BatchNormalization::kName, training::Relu::kName},
          AlwaysFits,
          {.x = true, .y = true},
          NormSaved};
}

absl::StatusOr<NodePhases> MakeNormReluPhases(const training::Graph& graph, int first,
                                              const NodePlaces& places) {
  return MakeNorm(graph, first, {.relu = true}, places);
}

FusionPattern NormAddReluPattern() {
  return {{BatchNormalization::kName, training::Add::kName, training::Relu::kName},
          SumHasOneShape,
          {.x = true, .y = true},
          NormSaved,
          /*in_place_input=*/1};
}

absl::StatusOr<NodePhases> MakeNormAddReluPhases(const training::Graph& graph, int first,
                                                 const NodePlaces& places) {
  return MakeNorm(graph, first, {.add = true, .relu = true}, places);
}

}  // namespace capstan::engine
