#include "client/predict/predict.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <new>

#include "absl/strings/str_cat.h"
#include "training/math/portable_math.h"

namespace capstan::client {
namespace {

// Sets `predicted` and `probability`. Returns the cross-entropy of the label, NaN if a logit is.
double Judge(Prediction& prediction) {
  const absl::Span<const float> logits = prediction.logits;
  prediction.predicted = kNoClass;
  prediction.probability = std::numeric_limits<double>::quiet_NaN();
  if (std::any_of(logits.begin(), logits.end(), [](float logit) { return std::isnan(logit); })) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const auto largest = std::max_element(logits.begin(), logits.end());
  prediction.predicted = static_cast<int32_t>(largest - logits.begin());
  const double shift = static_cast<double>(*largest);
  double sum = 0;
  for (const float logit : logits) sum += training::PortableExp(static_cast<double>(logit) - shift);
  prediction.probability = 1 / sum;
  return training::PortableLog(sum) + shift - static_cast<double>(logits[prediction.label]);
}

// As training/ops/mean_squared_error.
double SquaredError(const Prediction& prediction) {
  double sum = 0;
  for (size_t k = 0; k < prediction.logits.size(); ++k) {
    const double error =
        static_cast<double>(prediction.logits[k]) - static_cast<double>(prediction.targets[k]);
    sum += error * error;
  }
  return sum / static_cast<double>(prediction.logits.size());
}

// Counts a sample whose target is a class.
void Count(Prediction& prediction, PredictionSums& sums) {
  sums.loss_sum += Judge(prediction);
  ++sums.classes[prediction.label].samples;
  if (prediction.predicted != kNoClass) ++sums.classes[prediction.predicted].predicted;
  if (prediction.predicted == prediction.label) {
    ++sums.correct;
    ++sums.classes[prediction.label].correct;
  }
}

// Samples computed at a time.
struct PredictBatch {
  std::vector<int64_t> indices;
  std::vector<float> images, logits, targets;
  std::vector<int32_t> labels;

  absl::Status Read(const data::Dataset& dataset) {
    if (!targets.empty()) {
      if (absl::Status status = dataset.ReadTargets(indices, targets.data()); !status.ok()) {
        return status;
      }
    }
    return dataset.Read(indices, /*epoch=*/0, images.data(), labels.data());
  }
};

}  // namespace

absl::StatusOr<PredictionSums> Predict(engine::Device& device, const training::Graph& graph,
                                       const training::FlatLayout& layout,
                                       absl::Span<const float> weights,
                                       const data::Dataset& dataset, const PredictOptions& options,
                                       const std::function<absl::Status(const Prediction&)>& each) {
  engine::PlanOptions compile;
  compile.max_batch = options.max_batch;
  compile.threads = options.threads;
  const absl::StatusOr<std::unique_ptr<engine::Plan>> plan = device.Compile(graph, layout, compile);
  if (!plan.ok()) return plan.status();
  if (absl::Status status = (*plan)->LoadWeights(weights.data()); !status.ok()) return status;

  const int64_t classes = graph.num_classes();
  PredictionSums sums;
  const int64_t targets = graph.target_size();
  if (targets == 0) sums.classes.resize(static_cast<size_t>(classes));
  const int64_t count =
      options.limit > 0 ? std::min(options.limit, dataset.info().count) : dataset.info().count;
  const int64_t size = std::min(count, options.max_batch);
  PredictBatch at;
  try {
    at.labels.resize(static_cast<size_t>(size));
    at.images.resize(static_cast<size_t>(size * dataset.info().image_size()));
    at.logits.resize(static_cast<size_t>(size * classes));
    at.targets.resize(static_cast<size_t>(size * targets));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", size, " samples at a time: give a smaller --batch"));
  }
  for (int64_t first = 0; first < count; first += size) {
    at.indices.clear();
    for (int64_t i = first; i < std::min(count, first + size); ++i) at.indices.push_back(i);
    absl::Status status = at.Read(dataset);
    if (!status.ok()) return status;
    engine::SampleBatch batch;
    batch.images = at.images.data();
    batch.labels = at.labels.data();
    batch.count = static_cast<int64_t>(at.indices.size());
    if (status = (*plan)->Predict(batch, at.logits.data()); !status.ok()) return status;
    for (int64_t i = 0; i < batch.count; ++i) {
      Prediction prediction;
      prediction.sample = at.indices[i];
      prediction.label = at.labels[i];
      const auto length = static_cast<size_t>(classes);
      prediction.logits = absl::MakeConstSpan(&at.logits[i * classes], length);
      ++sums.samples;
      if (targets > 0) {
        prediction.targets = absl::MakeConstSpan(&at.targets[i * targets], length);
        sums.loss_sum += SquaredError(prediction);
      } else {
        Count(prediction, sums);
      }
      if (status = each(prediction); !status.ok()) return status;
    }
  }
  return sums;
}

}  // namespace capstan::client
