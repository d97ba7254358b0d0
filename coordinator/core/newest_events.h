// The newest events of all jobs.
#ifndef CAPSTAN_COORDINATOR_CORE_NEWEST_EVENTS_H_
#define CAPSTAN_COORDINATOR_CORE_NEWEST_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/core.h"

namespace capstan::coordinator::core {

// Where an event lies: its job, and its number there.
struct EventPlace {
  std::string job_id;
  int64_t number = 0;

  friend bool operator==(const EventPlace& a, const EventPlace& b) {
    return a.job_id == b.job_id && a.number == b.number;
  }
};

// The `most` newest, oldest first; of one instant that of the older job first. Nothing is sorted, no
// event is copied and none that is older is looked at: the cost is that of `most` and of the number
// of jobs, not of their events.
std::vector<EventPlace> NewestEvents(const CoordinatorCore& core, size_t most);

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_NEWEST_EVENTS_H_
