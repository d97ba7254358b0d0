#include "client/checkpoint_name.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/job_name.h"

namespace capstan::client {
namespace {

constexpr size_t kMaxListedSteps = 20;
constexpr absl::string_view kBestCheckpoint = "best";

bool IsNumber(absl::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == absl::string_view::npos;
}

// "40" or "1-40".
bool IsStepOrId(absl::string_view text) {
  const size_t dash = text.find('-');
  return dash == absl::string_view::npos
             ? IsNumber(text)
             : IsNumber(text.substr(0, dash)) && IsNumber(text.substr(dash + 1));
}

}  // namespace

absl::StatusOr<CheckpointName> ParseCheckpointName(absl::string_view text) {
  const bool last = text == kLastJob || absl::StartsWith(text, absl::StrCat(kLastJob, "@"));
  const size_t at = text.find('@', last ? 1 : 0);
  CheckpointName name{std::string(text.substr(0, at)), ""};
  if (at != absl::string_view::npos) name.which = std::string(text.substr(at + 1));
  if (name.job_id.empty() ||
      (at != absl::string_view::npos && name.which != kBestCheckpoint && !IsStepOrId(name.which))) {
    return absl::InvalidArgumentError(
        absl::StrCat("want JOB, JOB@STEP, JOB@LINEAGE-STEP or JOB@best, got '", text, "'"));
  }
  return name;
}

bool IsCheckpointName(absl::string_view text) {
  if (absl::StrContains(text, '/') || !absl::StrContains(text, '@')) return false;
  return ParseCheckpointName(text).ok();
}

absl::StatusOr<const job::v1::SavedCheckpoint*> FindCheckpoint(const CheckpointName& name,
                                                               const SavedCheckpoints& saved) {
  if (name.which == kBestCheckpoint) {
    const job::v1::SavedCheckpoint* best = nullptr;  // `keep_best` may keep several
    for (const job::v1::SavedCheckpoint& checkpoint : saved) {
      if (!checkpoint.best()) continue;
      const bool smaller = checkpoint.smaller_is_better();
      if (best == nullptr ||
          (smaller ? checkpoint.metric() < best->metric() : checkpoint.metric() > best->metric())) {
        best = &checkpoint;
      }
    }
    if (best != nullptr) return best;
    return absl::NotFoundError(absl::StrCat(
        name.job_id,
        " has no best checkpoint: 'checkpoint.keep_best' of its job file is 0, or no checkpoint "
        "was evaluated yet"));
  }
  const bool by_id = absl::StrContains(name.which, '-');
  std::vector<std::string> there;
  for (const job::v1::SavedCheckpoint& checkpoint : saved) {
    const std::string key = by_id ? checkpoint.id() : absl::StrCat(checkpoint.step());
    if (name.which.empty() || name.which == key) return &checkpoint;
    if (there.size() < kMaxListedSteps) there.push_back(key);
    if (there.size() == kMaxListedSteps) there.back() = "...";
  }
  if (there.empty()) {
    return absl::NotFoundError(absl::StrCat(name.job_id, " has no checkpoint"));
  }
  return absl::NotFoundError(absl::StrCat(name.job_id, " has no checkpoint ",
                                          by_id ? "" : "of step ", name.which, "; it has ",
                                          by_id               ? ""
                                          : there.size() == 1 ? "one of step "
                                                              : "those of steps ",
                                          absl::StrJoin(there, ", ")));
}

}  // namespace capstan::client
