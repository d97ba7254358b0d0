#include "coordinator/event_stream.h"

#include <iterator>
#include <utility>

namespace capstan::coordinator {

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

void EventStream::TakeNew(const core::Job& job) {
  int64_t& seen = seen_[job.id()];
  for (auto it = job.events().After(seen); it != job.events().end(); ++it) {
    queue_.push_back({job.id(), it->number});
    seen = it->number;
  }
}

void EventStream::TakeAll() {
  coordinator_.core().ForEachJob([this](const core::Job& job) {
    if (!job.events().empty()) seen_[job.id()] = job.events().last_number();
  });
  for (core::EventPlace& place : core::NewestEvents(coordinator_.core(), kMostOfAll)) {
    queue_.push_back(std::move(place));
  }
}

// Needed because streams are not told when a job is forgotten.
void EventStream::ForgetTheForgotten() {
  if (seen_.size() < most_seen_) return;
  for (auto it = seen_.begin(); it != seen_.end();) {
    it = coordinator_.core().Peek(it->first) == nullptr ? seen_.erase(it) : std::next(it);
  }
  most_seen_ = 2 * seen_.size() + 1000;
}

bool EventStream::FillNext() {
  const core::EventPlace next = std::move(queue_.front());
  queue_.pop_front();
  const core::Job* const job = coordinator_.core().Peek(next.job_id);
  if (job == nullptr) return false;
  const job::v1::Event* const event = job->events().Find(next.number);
  if (event == nullptr) return false;
  message_.set_job_id(next.job_id);
  message_.set_number(next.number);
  *message_.mutable_event() = *event;
  return true;
}

void EventStream::WriteNext() {
  if (!begun_) {
    begun_ = true;
    if (job_id_.empty()) {
      TakeAll();
    } else if (const core::Job* job = coordinator_.core().Peek(job_id_); job != nullptr) {
      TakeNew(*job);
    }
  }
  do {
    if (queue_.empty()) {
      for (const std::string& id : changed_) {
        const core::Job* job = coordinator_.core().Peek(id);
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
