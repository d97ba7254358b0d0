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
  // An empty `job_id`: all jobs, at most the newest 10000 of their events.
  static EventStream* Start(Coordinator& coordinator, std::string job_id, bool follow,
                            const absl::Status& status);
  void OnJobChanged(const std::string& job_id) override;

 private:
  EventStream(Coordinator& coordinator, std::string job_id, bool follow)
      : JobStream(coordinator, std::move(job_id)), follow_(follow) {}
  void WriteNext() override;
  void TakeAll();
  void TakeNew(const core::JobRecord& job);

  const bool follow_;
  bool begun_ = false;
  std::set<std::string> changed_;                    // jobs that may have new events
  std::map<std::string, int64_t> seen_;              // number of the last event taken
  std::deque<job::v1::StreamEventsResponse> queue_;  // the first is being written
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_EVENT_STREAM_H_
