#include "client/notices.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/exit_codes.h"
#include "client/job_view.h"

namespace capstan::client {
namespace {

constexpr char kDegradedCondition[] = "CHECKPOINT_DEGRADED";

}  // namespace

std::string Notices::Next(const job::v1::Job& job, bool sees_state, absl::Duration now) {
  return absl::StrCat(sees_state ? "" : Waiting(job, now), Degraded(job));
}

// "lenet-x3n9  PENDING  WaitingForSlots: needs 2 workers with 1 free device each, 1 is there".
std::string Notices::Waiting(const job::v1::Job& job, absl::Duration now) {
  if (job.state() != common::v1::JOB_STATE_PENDING) {
    pending_since_ = absl::InfiniteDuration();
    said_.clear();
    return "";
  }
  pending_since_ = std::min(pending_since_, now);
  std::string text = absl::StrCat(job.job_id(), "  ", StateLine(job));
  if (!job.message().empty()) absl::StrAppend(&text, ": ", Printable(job.message()));
  if (now - pending_since_ < kPatience || text == said_ || now - said_at_ < kInterval) return "";
  said_ = text;
  said_at_ = now;
  return text + "\n";
}

std::string Notices::Degraded(const job::v1::Job& job) {
  const bool degraded =
      std::any_of(job.conditions().begin(), job.conditions().end(),
                  [](const std::string& condition) { return condition == kDegradedCondition; });
  if (degraded == degraded_ || IsTerminal(job.state())) return "";
  degraded_ = degraded;
  if (!degraded) return absl::StrCat(job.job_id(), "  checkpoints are saved again\n");
  std::string why;  // the newest
  for (const job::v1::Event& event : job.events()) {
    if (event.type() == "CheckpointFailed") why = event.message();
  }
  return absl::StrCat(job.job_id(), "  ", kDegradedCondition, why.empty() ? "" : ": ",
                      Printable(why), "\n");
}

}  // namespace capstan::client
