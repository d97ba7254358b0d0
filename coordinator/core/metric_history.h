// What a job's lead and workers reported over its steps: bounded, and of the present weights alone.
//
// A point per report. Beyond `max_points` every second point is taken out, and from then on it
// takes twice as many reports to make one: a job of any length keeps between half of `max_points`
// and all, evenly over its steps. The newest report is always there. A breakdown that goes is put
// into the next one by its steps, so means over any stretch stay what they were.
//
// For the journal it falls into pages of consecutive points; those that changed are saved again.
#ifndef CAPSTAN_COORDINATOR_CORE_METRIC_HISTORY_H_
#define CAPSTAN_COORDINATOR_CORE_METRIC_HISTORY_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "capstan/job/v1/job_service.pb.h"

namespace capstan::coordinator::core {

// The mean over the steps of both.
job::v1::StepBreakdown Joined(const job::v1::StepBreakdown& a, const job::v1::StepBreakdown& b);

// Not thread-safe.
class MetricHistory {
 public:
  // 2 or more.
  explicit MetricHistory(int max_points) : max_points_(max_points) {}

  // Points of its step and later ones are dropped: these steps were taken back by a fault.
  void Add(job::v1::MetricPoint point);
  // Halves until at most `max_points` are left.
  void Shrink(int max_points);

  // Steps grow.
  const std::vector<job::v1::MetricPoint>& points() const { return points_; }
  // Exactly `max_points` of them, evenly over the points there are, the newest included. All of them if
  // there are no more, and for 0.
  std::vector<job::v1::MetricPoint> Thinned(int max_points) const;

  // The pages that are not as they were at the last call, serialized; empty: gone.
  std::vector<std::pair<int64_t, std::string>> TakeChangedPages();
  // Pages as they were saved, by their numbers, before anything else. False: damaged.
  bool LoadPage(int64_t number, const std::string& page);

 private:
  void Halve();

  const int max_points_;
  std::vector<job::v1::MetricPoint> points_;
  int64_t stride_ = 1;       // reports that become one point
  int64_t in_last_ = 0;      // reports in the last point
  size_t changed_from_ = 0;  // points before this are saved
  int64_t saved_pages_ = 0;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_METRIC_HISTORY_H_
