#include "coordinator/core/job_events.h"

#include <algorithm>
#include <utility>

namespace capstan::coordinator::core {

JobEvents::Iterator JobEvents::After(int64_t number) const {
  return std::upper_bound(
      events_.begin(), events_.end(), number,
      [](int64_t before, const Numbered& event) { return before < event.number; });
}

const job::v1::Event* JobEvents::Find(int64_t number) const {
  const Iterator at = After(number - 1);
  return at == events_.end() || at->number != number ? nullptr : &at->event;
}

void JobEvents::Add(job::v1::Event event) {
  if (events_.size() >= most_) {
    const auto middle = events_.begin() + static_cast<std::ptrdiff_t>(most_ / 2);
    dropped_.push_back(middle->number);
    events_.erase(middle);
  }
  events_.push_back({++last_number_, std::move(event)});
}

void JobEvents::Load(int64_t number, const job::v1::Event& event) {
  events_.push_back({number, event});
  last_number_ = saved_number_ = number;
}

JobEvents::Unsaved JobEvents::TakeUnsaved() {
  Unsaved unsaved;
  unsaved.added.assign(After(saved_number_), end());
  std::reverse(unsaved.added.begin(), unsaved.added.end());
  unsaved.dropped = std::exchange(dropped_, {});
  saved_number_ = last_number_;
  return unsaved;
}

}  // namespace capstan::coordinator::core
