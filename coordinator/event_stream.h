// JobService.StreamEvents, of one job or of all.
#ifndef CAPSTAN_COORDINATOR_EVENT_STREAM_H_
#define CAPSTAN_COORDINATOR_EVENT_STREAM_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>

#include "coordinator/job_streams.h"

namespace capstan::coordinator {

// What has happened, oldest first; with `follow` also what happens, for one job until it has ended.
// A reader who is slow misses nothing that the jobs still hold.
class EventStream final : public JobStream<job::v1::StreamEventsResponse> {
 public:
  // An empty `job_id`: all jobs, at most the newest kMostOfAll of their events.
  static constexpr size_t kMostOfAll = 10000;
  static EventStream* Start(Coordinator& coordinator, std::string job_id, bool follow,
                            const absl::Status& status);
  void OnJobChanged(const std::string& job_id) override;

 private:
  EventStream(Coordinator& coordinator, std::string job_id, bool follow)
      : JobStream(coordinator, std::move(job_id)), follow_(follow) {}
  void WriteNext() override;
  void TakeAll();
  void TakeNew(const core::JobRecord& job);
  // The event that the queue begins with; false: its job does not hold it any more.
  bool FillNext();
  void ForgetTheForgotten();

  const bool follow_;
  bool begun_ = false;
  std::set<std::string> changed_;        // jobs that may have new events
  std::map<std::string, int64_t> seen_;  // number of the last event taken
  size_t most_seen_ = 1000;
  struct Taken {
    std::string job_id;
    int64_t number = 0;
  };
  std::deque<Taken> queue_;  // to be written; the jobs hold the events themselves
  job::v1::StreamEventsResponse message_;
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_EVENT_STREAM_H_
