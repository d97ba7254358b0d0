// Batch normalization over a lane: sums per channel, block by block in order, then the channel at once.
//
// Sums of a block are float, those of a channel double. Source: Ioffe & Szegedy 2015, arXiv:1502.03167.
#include <cmath>
#include <utility>

#include "gpu_worker/engine/cpu/blocked/kernel.h"
#include "training/ops/batch_normalization/batch_normalization.h"

namespace capstan::engine {
namespace {

using training::BatchNormalization;

class NormKernel {
 public:
  NormKernel(const training::Graph& graph, int node, const NodePlaces& places)
      : op_(BatchNormalization::Read(graph.instance(node).attributes)),
        channels_(graph.instance(node).x[0].shape[0]),
        plane_(graph.value_elements(graph.output_of(node)) / channels_ * kSideBySide),
        places_(places) {}

  void Make(NodePhases& phases, const std::shared_ptr<NormKernel>& self) const {
    phases.kernel = "by channel";
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
  // The sum over a channel of what `sums_of_block(offset, sums)` gives; samples that are not there count
  // for nothing.
  template <typename SumsOfBlock>
  double ChannelSum(const BatchRun& run, int64_t channel, SumsOfBlock sums_of_block) const {
    alignas(64) float sums[kSideBySide];
    double total = 0;
    for (int64_t block = 0; block < run.blocks; ++block) {
      sums_of_block(Offset(block, channel), sums);
      const int64_t there = run.InBlock(block);
      for (int64_t l = 0; l < there; ++l) total += sums[l];
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
    const float scale = Parameter(run, kWeight, channel) * inverse;
    const float shift = Parameter(run, kBias, channel);
    for (int64_t block = 0; block < run.blocks; ++block) {
      const int64_t at = Offset(block, channel);
      places_.math->normalize(plane_, places_.x[0] + at, mean, scale, shift, places_.y + at);
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
    const double sum = ChannelSum(run, channel, [&](int64_t at, float* sums) {
      places_.math->sum(plane_, places_.dy + at, sums);
    });
    const double product = ChannelSum(run, channel, [&](int64_t at, float* sums) {
      places_.math->product_sum(plane_, places_.dy + at, places_.x[0] + at, mean, sums);
    });
    run.gradient[places_.parameters[kWeight] + channel] = static_cast<float>(product * inverse);
    run.gradient[places_.parameters[kBias] + channel] = static_cast<float>(sum);
    if (places_.dx[0].data == nullptr) return;
    // dx = weight / deviation * (dy - mean(dy) - (x - mean) / variance * mean(dy * (x - mean)))
    const double scale = static_cast<double>(Parameter(run, kWeight, channel)) * inverse;
    const double elements = Elements(run);
    const auto by_dy = static_cast<float>(scale);
    const auto by_x = static_cast<float>(-scale * inverse * inverse * product / elements);
    const auto constant = static_cast<float>(-scale * sum / elements);
    for (int64_t block = 0; block < run.blocks; ++block) {
      const int64_t at = Offset(block, channel);
      float* const dx = places_.dx[0].data + at;
      places_.math->normalize_backward(plane_, places_.dy + at, places_.x[0] + at, mean, by_dy,
                                       by_x, constant, dx, places_.dx[0].add);
      const int64_t there = run.InBlock(block);
      if (there == kSideBySide) continue;
      for (int64_t i = 0; i < plane_; i += kSideBySide) {
        for (int64_t l = there; l < kSideBySide; ++l) dx[i + l] = 0;
      }
    }
  }

  const BatchNormalization op_;
  const int64_t channels_, plane_;
  const NodePlaces places_;
};

}  // namespace

absl::StatusOr<NodePhases> MakeNormPhases(const training::Graph& graph, int node,
                                          const NodePlaces& places) {
  NodePhases phases;
  const auto kernel = std::make_shared<NormKernel>(graph, node, places);
  kernel->Make(phases, kernel);
  return phases;
}

}  // namespace capstan::engine
