// Runs a trained network on the samples of a data set.
#ifndef CAPSTAN_CLIENT_PREDICT_PREDICT_H_
#define CAPSTAN_CLIENT_PREDICT_PREDICT_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gpu_worker/data/dataset.h"
#include "gpu_worker/engine/device/device.h"
#include "training/chunks/flat_layout.h"
#include "training/graph/graph.h"

namespace capstan::client {

inline constexpr int32_t kNoClass = -1;

// What the network says about one sample. Where targets are numbers, only `sample`, `targets` and
// `logits` are set.
struct Prediction {
  int64_t sample = 0;  // its place in the data set
  int32_t label = 0;
  // The class with the largest logit, the first of equal ones. kNoClass: a logit is NaN.
  int32_t predicted = kNoClass;
  double probability = 0;           // softmax of the logits at `predicted`; NaN without a class
  absl::Span<const float> logits;   // [classes], the input of the loss; valid during the call
  absl::Span<const float> targets;  // as many as logits, or none; valid during the call
};

struct ClassCounts {
  int64_t samples = 0;    // with this label
  int64_t predicted = 0;  // taken for this class
  int64_t correct = 0;    // both
};

struct PredictionSums {
  int64_t samples = 0;
  int64_t correct = 0;
  // Cross-entropy of the labels in nats, without label smoothing. Where targets are numbers, the
  // squared error of each sample, averaged over its numbers.
  double loss_sum = 0;
  std::vector<ClassCounts> classes;  // empty where targets are numbers
};

struct PredictOptions {
  int64_t max_batch = 64;  // samples computed at a time, >= 1
  int threads = 1;         // CPU threads, 1 to 1024
  int64_t limit = 0;       // only the first samples of the set; 0: all
};

// Computes the samples of `dataset` in their order, as an evaluation does: random transforms do
// nothing, running statistics are read. The classes predicted are those that the evaluation of a
// job counts on the same kind of device. `weights` is the flat vector of `layout`. Calls `each`
// once per sample, and returns its error if it has one. Other errors are those of Device::Compile
// and Dataset::Read. Memory: one batch. Blocks.
absl::StatusOr<PredictionSums> Predict(engine::Device& device, const training::Graph& graph,
                                       const training::FlatLayout& layout,
                                       absl::Span<const float> weights,
                                       const data::Dataset& dataset, const PredictOptions& options,
                                       const std::function<absl::Status(const Prediction&)>& each);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_PREDICT_PREDICT_H_
