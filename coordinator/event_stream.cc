#include "coordinator/event_stream.h"

#include <algorithm>
#include <utility>

namespace capstan::coordinator {
namespace {

constexpr size_t kMaxBegin = 10000;  // events that a stream of all jobs begins with

bool Earlier(const job::v1::StreamEventsResponse& a, const job::v1::StreamEventsResponse& b) {
  const auto& left = a.event().time();
  const auto& right = b.event().time();
  return std::pair(left.seconds(), left.nanos()) < std::pair(right.seconds(), right.nanos());
}

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
  for (size_t i = 0; i < job.events.size(); ++i) {
    if (job.event_numbers[i] <= seen) continue;
    job::v1::StreamEventsResponse response;
    response.set_job_id(job.id);
    *response.mutable_event() = job.events[i];
    queue_.push_back(std::move(response));
  }
  if (!job.event_numbers.empty()) seen = job.event_numbers.back();
}

void EventStream::TakeAll() {
  coordinator_.core().ForEachJob([this](const core::JobRecord& job) { TakeNew(job); });
  std::stable_sort(queue_.begin(), queue_.end(), Earlier);
  if (queue_.size() > kMaxBegin) queue_.erase(queue_.begin(), queue_.end() - kMaxBegin);
}

void EventStream::WriteNext() {
  if (!begun_) {
    begun_ = true;
    if (job_id_.empty()) {
      TakeAll();
    } else if (const core::JobRecord* job = coordinator_.core().Peek(job_id_); job != nullptr) {
      TakeNew(*job);
    }
  } else if (!queue_.empty()) {
    queue_.pop_front();  // it has been written
  }
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
  }
  if (!queue_.empty()) {
    Write(queue_.front());
  } else if (!follow_ || (!job_id_.empty() && coordinator_.core().HasEnded(job_id_)) ||
             (!job_id_.empty() && coordinator_.core().Peek(job_id_) == nullptr)) {
    End(grpc::Status::OK);
  }
}

}  // namespace capstan::coordinator
