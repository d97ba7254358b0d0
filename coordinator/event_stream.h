// JobService.StreamEvents, for one job or for all.
#ifndef CAPSTAN_COORDINATOR_EVENT_STREAM_H_
#define CAPSTAN_COORDINATOR_EVENT_STREAM_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>

#include "coordinator/core/newest_events.h"
#include "coordinator/job_streams.h"

namespace capstan::coordinator {

// Sends past events, oldest first. With `follow` it also sends new events, for one job until the
// job has ended. A slow reader gets every event that the jobs still hold.
class EventStream final : public JobStream<job::v1::StreamEventsResponse> {
 public:
  // Empty `job_id`: all jobs, but at most the newest kMostOfAll of their events.
  static constexpr size_t kMostOfAll = 10000;
  static EventStream* Start(Coordinator& coordinator, std::string job_id, bool follow,
                            const absl::Status& status);
  void OnJobChanged(const std::string& job_id) override;

 private:
  EventStream(Coordinator& coordinator, std::string job_id, bool follow)
      : JobStream(coordinator, std::move(job_id)), follow_(follow) {}
  void WriteNext() override;
  void TakeAll();
  void TakeNew(const core::Job& job);
  // Fills message_ with the first event of the queue. False: its job does not hold it any more.
  bool FillNext();
  void ForgetTheForgotten();

  const bool follow_;
  bool begun_ = false;
  std::set<std::string> changed_;        // jobs that may have new events
  std::map<std::string, int64_t> seen_;  // number of the last event taken
  size_t most_seen_ = 1000;
  std::deque<core::EventPlace> queue_;  // to be written; the jobs hold the events themselves
  job::v1::StreamEventsResponse message_;
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_EVENT_STREAM_H_
