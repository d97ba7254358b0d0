// Helpers for the rules of a job specification. Each message names the key, the value and the
// limit.
//
// Long groups of rules have their own files. validate.cc calls them all.
#ifndef CAPSTAN_TRAINING_SPEC_RULES_H_
#define CAPSTAN_TRAINING_SPEC_RULES_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "training/spec/validate.h"

namespace capstan::training::spec {

inline constexpr int64_t kMaxSteps = int64_t{1} << 53;  // exact in a double and in JSON
inline constexpr int64_t kMaxStepLanes = 4096;
inline constexpr int64_t kMaxAccumulateSteps = 1024;
inline constexpr int64_t kMaxLocalSteps = 1024;

// On CPUs, the overhead of lanes shows below this number.
inline constexpr int64_t kFewSamplesPerLane = 16;
// The default lanes of a batch, without the exceptions of DefaultLanes.
inline int32_t LanesOfBatch(int64_t global_batch) {
  const int64_t most = std::clamp<int64_t>(global_batch / kFewSamplesPerLane, 1, 8);
  return static_cast<int32_t>(std::bit_floor(static_cast<uint64_t>(most)));
}

inline std::string Text(int64_t value) { return absl::StrCat(value); }
inline std::string Text(double value) { return absl::StrCat(value); }
inline std::string Text(const std::string& value) { return absl::StrCat("'", value, "'"); }

// Printable UTF-8 is not checked further. A control character would break a terminal or a log line.
inline bool HasControl(absl::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) { return absl::ascii_iscntrl(c); });
}

// Collects violations. Each helper states the value and the limit.
class Rules {
 public:
  explicit Rules(std::vector<Violation>& out) : out_(out) {}

  void Fail(absl::string_view path, absl::string_view rest) {
    out_.push_back({std::string(path), absl::StrCat("'", path, "' ", rest)});
  }
  // The same for a value that is wrong whatever the other keys are.
  void Wrong(absl::string_view path, absl::string_view rest) {
    Fail(path, rest);
    out_.back().alone = true;
  }
  void Required(absl::string_view path, bool present) {
    if (!present) out_.push_back({std::string(path), absl::StrCat("'", path, "' is required")});
  }
  // A NaN is outside every range.
  template <class T>
  void Range(absl::string_view path, T value, T low, T high) {
    if (!(value >= low && value <= high)) {
      Wrong(path, absl::StrCat("must be between ", low, " and ", high, ", found ", Text(value)));
    }
  }
  void Finite(absl::string_view path, double value, double low, bool low_allowed) {
    if (!std::isfinite(value) || value < low || (!low_allowed && value == low)) {
      Wrong(path, absl::StrCat("must be a finite number ", low_allowed ? "of at least " : "above ",
                               low, ", found ", Text(value)));
    }
  }
  void Fraction(absl::string_view path, double value) {
    if (!(value >= 0 && value < 1)) {
      Wrong(path, absl::StrCat("must be at least 0 and below 1, found ", value));
    }
  }
  void OneOf(absl::string_view path, const std::string& value,
             const std::vector<std::string>& allowed, const std::vector<std::string>& later = {}) {
    for (const std::string& name : allowed) {
      if (name == value) return;
    }
    for (const std::string& name : later) {
      if (name == value)
        return Wrong(path,
                     absl::StrCat("'", value, "' is not supported in this version; supported: ",
                                  absl::StrJoin(allowed, ", ")));
    }
    Wrong(path,
          absl::StrCat("must be one of ", absl::StrJoin(allowed, ", "), ", found ", Text(value)));
  }
  void Steps(absl::string_view path, const job::v1::Period& period) {
    if (period.has_epochs()) {
      Range<int64_t>(path, period.epochs(), 1, 1000000);
    } else if (period.has_steps()) {
      Range<int64_t>(path, period.steps(), 1, kMaxSteps);
    } else {
      Wrong(path, "must be a number of steps or epochs, like '10 epochs'");
    }
  }

 private:
  std::vector<Violation>& out_;
};

// schedule_rules.cc: `lr_schedule` of `training.optimizer`, and its defaults that are newer than
// 0.1.0.
void CheckSchedule(const job::v1::Optimizer& optimizer, Rules& rules);
void FillScheduleDefaults(job::v1::Optimizer& optimizer);

// optimizer_rules.cc: `training.optimizer` and `training.gradient_clip_value`, and their defaults
// that are newer than 0.1.0.
void CheckOptimizer(const job::v1::Training& training, Rules& rules);
void FillOptimizerDefaults(job::v1::Optimizer& optimizer);

// loss_rules.cc: `training.loss`, `evaluation.metric`, `model.num_outputs`, and that they fit each
// other and the data. Their defaults, all newer than 0.1.0.
inline constexpr char kMeanSquaredError[] = "mean_squared_error";
void CheckLoss(const job::v1::JobSpec& spec, Rules& rules);
void FillLossDefaults(job::v1::JobSpec& spec);

// data_rules.cc: `data`, and its defaults that are newer than 0.1.0.
void CheckData(const job::v1::JobSpec& spec, Rules& rules);
void FillDataDefaults(job::v1::Data& data);
// Whether the samples are vectors of features, i.e. no images with rows and columns.
bool HasVectors(const job::v1::Data& data, const common::v1::DatasetInfo& dataset);

// transforms.cc: `data.transforms`, and their defaults.
void CheckTransforms(const job::v1::Data& data, Rules& rules);
void FillTransformDefaults(job::v1::Data& data);
// The shape of the network's input, [channels, height, width], i.e. the data set's after the
// transforms. `data` must be valid. InvalidArgument: a transform does not fit the data set.
absl::StatusOr<std::vector<int64_t>> InputShape(const job::v1::Data& data,
                                                const common::v1::DatasetInfo& dataset);

}  // namespace capstan::training::spec

#endif  // CAPSTAN_TRAINING_SPEC_RULES_H_
