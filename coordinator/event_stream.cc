#include "coordinator/event_stream.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace capstan::coordinator {
namespace {

// An event of a job, by its place there.
struct At {
  const core::JobRecord* job = nullptr;
  size_t index = 0;

  std::pair<int64_t, int64_t> time() const {
    const auto& stamp = job->events[index].time();
    return {stamp.seconds(), stamp.nanos()};
  }
  // The later one is popped from a heap first; of one instant that of the younger job.
  bool operator<(const At& other) const {
    return std::pair(time(), job->sequence) < std::pair(other.time(), other.job->sequence);
  }
};

}  // namespace

EventStream* EventStream::Start(Coordinator& coordinator, std::string job_id, bool follow,
                                const absl::Status& status) {
  std::shared_ptr<EventStream> stream(new EventStream(coordinator, std::move(job_id), follow));
  stream->Begin(status);
  return stream.get();
}

void EventStream::OnJobChanged(const std::string& job_id) {
  if (ended_ || !follow_) return;
  changed_.insert(job_id);
  Continue();
}

void EventStream::TakeNew(const core::JobRecord& job) {
  int64_t& seen = seen_[job.id];
  const auto& numbers = job.event_numbers;
  for (auto it = std::upper_bound(numbers.begin(), numbers.end(), seen); it != numbers.end();
       ++it) {
    queue_.push_back({job.id, *it});
  }
  if (!numbers.empty()) seen = std::max(seen, numbers.back());
}

// From the newest back, job by job as their last events come: what is older is not looked at.
void EventStream::TakeAll() {
  std::vector<At> heap;
  coordinator_.core().ForEachJob([this, &heap](const core::JobRecord& job) {
    if (job.events.empty()) return;
    seen_[job.id] = job.event_numbers.back();
    heap.push_back({&job, job.events.size() - 1});
  });
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty() && queue_.size() < kMostOfAll) {
    std::pop_heap(heap.begin(), heap.end());
    At& newest = heap.back();
    queue_.push_front({newest.job->id, newest.job->event_numbers[newest.index]});
    if (newest.index == 0) {
      heap.pop_back();
    } else {
      --newest.index;
      std::push_heap(heap.begin(), heap.end());
    }
  }
}

// Nobody tells a stream that a job is forgotten.
void EventStream::ForgetTheForgotten() {
  if (seen_.size() < most_seen_) return;
  for (auto it = seen_.begin(); it != seen_.end();) {
    it = coordinator_.core().Peek(it->first) == nullptr ? seen_.erase(it) : std::next(it);
  }
  most_seen_ = 2 * seen_.size() + 1000;
}

bool EventStream::FillNext() {
  const Taken next = std::move(queue_.front());
  queue_.pop_front();
  const core::JobRecord* const job = coordinator_.core().Peek(next.job_id);
  if (job == nullptr) return false;
  const auto& numbers = job->event_numbers;
  const auto at = std::lower_bound(numbers.begin(), numbers.end(), next.number);
  if (at == numbers.end() || *at != next.number) return false;
  message_.set_job_id(next.job_id);
  message_.set_number(next.number);
  *message_.mutable_event() = job->events[static_cast<size_t>(at - numbers.begin())];
  return true;
}

void EventStream::WriteNext() {
  if (!begun_) {
    begun_ = true;
    if (job_id_.empty()) {
      TakeAll();
    } else if (const core::JobRecord* job = coordinator_.core().Peek(job_id_); job != nullptr) {
      TakeNew(*job);
    }
  }
  do {
    if (queue_.empty()) {
      for (const std::string& id : changed_) {
        const core::JobRecord* job = coordinator_.core().Peek(id);
        if (job != nullptr) {
          TakeNew(*job);
        } else {
          seen_.erase(id);
        }
      }
      changed_.clear();
      ForgetTheForgotten();
    }
    if (!queue_.empty() && FillNext()) return Write(message_);
  } while (!queue_.empty());
  if (!follow_ || (!job_id_.empty() && coordinator_.core().HasEnded(job_id_)) ||
      (!job_id_.empty() && coordinator_.core().Peek(job_id_) == nullptr)) {
    End(grpc::Status::OK);
  }
}

}  // namespace capstan::coordinator
