#include "client/text/notices.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/text/exit_codes.h"
#include "client/text/job_view.h"

namespace capstan::client {
std::string Notices::Next(const job::v1::Job& job, bool sees_state, absl::Duration now) {
  return absl::StrCat(sees_state ? "" : Waiting(job, now), SaveTroubles(job));
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

// Told once when it begins, again when it delays the end of the job, and once when it is over.
std::string Notices::SaveTroubles(const job::v1::Job& job) {
  if (IsTerminal(job.state())) return "";
  const SaveTrouble trouble = SaveTroubleOf(job);
  const int grade = trouble.text.empty() ? 0 : trouble.at_end ? 2 : 1;
  const int before = std::exchange(said_trouble_, grade);
  if (grade > before) {
    return absl::StrCat("capstan: ", job.job_id(), ": ", Printable(trouble.text), "\n");
  }
  if (grade == 0 && before > 0) {
    return absl::StrCat("capstan: ", job.job_id(), ": checkpoints are saved again\n");
  }
  return "";
}

}  // namespace capstan::client
