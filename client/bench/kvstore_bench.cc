#include "client/bench/kvstore_bench.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "services/timestamp/timestamp.h"
#include "training/spec/job_file.h"

namespace capstan::client {
namespace {

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;
constexpr int64_t kMostBytes = 1024 * kMiB;
constexpr int64_t kMostStepsPerSecond = 20000;

// Images of 8 x 8 pixels, `hidden` numbers, 10 classes. Small images, so that the hidden layer can
// have the size that is wanted to within 300 bytes.
constexpr absl::string_view kJob = R"(
version: 1
name: bench-kvstore
resources: {device: cpu}
model:
  num_classes: 10
  graph:
    nodes:
      - {name: flatten, op: Flatten}
      - {name: wide, op: Gemm, attributes: {out_features: $HIDDEN}}
      - {name: classes, op: Gemm, attributes: {out_features: 10}}
      - {name: loss, op: SoftmaxCrossEntropyLoss}
data: {format: synthetic_digits, train_samples: 8192, test_samples: 10, shuffle: false, transforms: [resize: {size: 8}]}
training:
  optimizer: {name: sgd, learning_rate: 1.0e-6, momentum: 0.9}
  seed: 1
checkpoint: {every: never}
limits: {ttl_after_finished: 60s}
)";
constexpr int64_t kPerHidden = 64 + 1 + 10;
constexpr int64_t kClasses = 10;

int64_t Hidden(int64_t bytes) {
  return std::max<int64_t>(1, (bytes / 4 - kClasses + kPerHidden / 2) / kPerHidden);
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> ReadSizes(absl::string_view list) {
  std::vector<int64_t> sizes;
  for (const absl::string_view part : absl::StrSplit(list, ',')) {
    absl::string_view number = part;
    const int64_t unit = absl::ConsumeSuffix(&number, "KiB")   ? kKiB
                         : absl::ConsumeSuffix(&number, "MiB") ? kMiB
                                                               : 0;
    int64_t count = 0;
    if (unit == 0 || !absl::SimpleAtoi(number, &count) || count < 1 || count > kMostBytes / unit) {
      return absl::InvalidArgumentError(absl::StrCat(
          "got '", part, "', want sizes from 1KiB to 1024MiB, such as 4KiB,64KiB,1MiB"));
    }
    sizes.push_back(count * unit);
  }
  return sizes;
}

int64_t WeightBytes(int64_t bytes) { return 4 * (kPerHidden * Hidden(bytes) + kClasses); }

absl::StatusOr<job::v1::JobSpec> MakeBenchJob(const KvstoreBench& bench, int64_t bytes) {
  if (bench.kvstore == "local" || bench.kvstore == "device") {
    return absl::InvalidArgumentError(
        absl::StrCat("kvstore '", bench.kvstore, "' exchanges nothing, want one with shards"));
  }
  const std::string workers = absl::StrCat(bench.workers);
  const int64_t steps = kMostStepsPerSecond * (absl::ToInt64Seconds(bench.length) + 10);
  const std::vector<std::pair<std::string, std::string>> keys = {
      {"resources.num_workers", workers},
      {"resources.num_shards", absl::StrCat(bench.shards)},
      {"resources.lanes", workers},
      {"training.global_batch_size", workers},
      {"training.max_steps", absl::StrCat(steps)},
      {"kvstore.type", bench.kvstore},
      {"kvstore.gradient_compression", bench.compression}};
  const training::spec::JobFile file = training::spec::ParseJobFile(
      absl::StrReplaceAll(kJob, {{"$HIDDEN", absl::StrCat(Hidden(bytes))}}), keys);
  if (file.errors.empty()) return file.spec;
  std::string errors;
  for (const training::spec::FileError& error : file.errors) {
    absl::StrAppend(&errors, errors.empty() ? "" : "\n", error.message);
  }
  return absl::InvalidArgumentError(errors);
}

std::optional<ExchangeFigures> FiguresOf(const std::vector<job::v1::MetricPoint>& points,
                                         absl::Duration warm_up, absl::Duration length) {
  const auto time = [](const job::v1::MetricPoint& point) { return TimeOf(point.time()); };
  const auto first = std::find_if(points.begin(), points.end(),
                                  [](const auto& point) { return point.has_breakdown(); });
  if (first == points.end()) return std::nullopt;
  const absl::Time begin = time(*first) + warm_up;
  bool complete = false;
  ExchangeFigures sum;
  for (auto point = first; point != points.end() && !complete; ++point) {
    if (!point->has_breakdown() || time(*point) <= begin) continue;
    complete = time(*point) >= begin + length;
    const job::v1::StepBreakdown& mean = point->breakdown();
    const auto steps = static_cast<double>(mean.steps());
    sum.steps += mean.steps();
    sum.step += steps * mean.total();
    sum.computing += steps * mean.forward_backward();
    sum.push += steps * mean.push();
    sum.wait += steps * mean.barrier_wait();
    sum.pull += steps * mean.pull();
  }
  if (!complete || sum.steps == 0) return std::nullopt;
  for (double* part : {&sum.step, &sum.computing, &sum.push, &sum.wait, &sum.pull}) {
    *part /= static_cast<double>(sum.steps);
  }
  return sum;
}

}  // namespace capstan::client
