#include "coordinator/core/waiting.h"

#include <utility>

namespace capstan::coordinator::core {

bool Waiting::Note(const std::vector<int64_t>& mark, absl::Duration now) {
  if (mark_.empty()) {
    mark_ = mark;
    since_ = now;
  }
  bool grown = false;
  for (size_t i = 0; i < mark.size(); ++i) {
    if (mark[i] <= mark_[i]) continue;
    mark_[i] = mark[i];
    grown = true;
  }
  if (grown) {
    since_ = now;
    logged_at_ = -absl::InfiniteDuration();
  }
  return grown;
}

bool Waiting::TimeToSay(absl::Duration now) {
  if (now - said_at_ < absl::Seconds(1)) return false;
  said_at_ = now;
  return true;
}

bool Waiting::TimeToLog(absl::Duration now) {
  if (now - logged_at_ < absl::Minutes(1)) return false;
  logged_at_ = now;
  return true;
}

bool Waiting::Say(std::string text) {
  if (text_ == text) return false;
  text_ = std::move(text);
  return true;
}

bool Waiting::SayNothing() {
  if (text_.empty()) return false;
  text_.clear();
  return true;
}

}  // namespace capstan::coordinator::core
