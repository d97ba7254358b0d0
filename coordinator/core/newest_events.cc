#include "coordinator/core/newest_events.h"

#include <algorithm>
#include <utility>

namespace capstan::coordinator::core {
namespace {

// An event of a job, by its place there.
struct EventAt {
  const Job* job = nullptr;
  size_t index = 0;

  std::pair<int64_t, int64_t> time() const {
    const auto& stamp = job->events()[index].event.time();
    return {stamp.seconds(), stamp.nanos()};
  }
  // The later one is popped from a heap first; of one instant that of the younger job.
  bool operator<(const EventAt& other) const {
    return std::pair(time(), job->sequence()) < std::pair(other.time(), other.job->sequence());
  }
};

}  // namespace

// From the newest back, job by job as their last events come.
std::vector<EventPlace> NewestEvents(const CoordinatorCore& core, size_t most) {
  std::vector<EventAt> heap;
  core.ForEachJob([&heap](const Job& job) {
    if (!job.events().empty()) heap.push_back({&job, job.events().size() - 1});
  });
  std::make_heap(heap.begin(), heap.end());
  std::vector<EventPlace> found;
  while (!heap.empty() && found.size() < most) {
    std::pop_heap(heap.begin(), heap.end());
    EventAt& newest = heap.back();
    found.push_back({newest.job->id(), newest.job->events()[newest.index].number});
    if (newest.index == 0) {
      heap.pop_back();
    } else {
      --newest.index;
      std::push_heap(heap.begin(), heap.end());
    }
  }
  std::reverse(found.begin(), found.end());
  return found;
}

}  // namespace capstan::coordinator::core
