#include "coordinator/core/standing.h"

namespace capstan::coordinator::core {

bool Standing::ended() const {
  return state_ == common::v1::JOB_STATE_SUCCEEDED || state_ == common::v1::JOB_STATE_FAILED ||
         state_ == common::v1::JOB_STATE_CANCELLED;
}

bool Standing::resting() const {
  return ended() || state_ == common::v1::JOB_STATE_SUSPENDED ||
         state_ == common::v1::JOB_STATE_PENDING;
}

void Standing::Set(common::v1::JobState state, const std::string& reason,
                   const std::string& message) {
  state_ = state;
  reason_ = reason;
  message_ = message;
}

bool Standing::Say(const std::string& reason, const std::string& message) {
  if (reason_ == reason && message_ == message) return false;
  Set(state_, reason, message);
  return true;
}

void Standing::AskCancel(absl::Duration now) {
  cancel_asked_ = true;
  cancel_since_ = now;
}

void Standing::NoteStarted(absl::Time wall) {
  if (!started()) started_at_ = wall;
}

void Standing::NoteEnded(absl::Time wall, absl::Duration now) {
  finished_at_ = wall;
  ended_at_ = now;
}

void Standing::Reopen() {
  cancel_asked_ = false;
  finished_at_ = absl::InfinitePast();
}

void Standing::Load(common::v1::JobState state, const std::string& reason, bool cancel_asked,
                    const Times& times, absl::Duration now) {
  state_ = state;
  reason_ = reason;
  cancel_asked_ = cancel_asked;
  cancel_since_ = now;
  submitted_at_ = times.submitted_at;
  started_at_ = times.started_at;
  finished_at_ = times.finished_at;
  ended_at_ = now;
}

}  // namespace capstan::coordinator::core
