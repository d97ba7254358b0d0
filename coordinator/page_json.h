// The JSON of the status page. It uses the messages of JobService with their own field names, so
// that `-o json` and the page agree.
//
// Pure. Values are copied on the strand and formatted off it.
#ifndef CAPSTAN_COORDINATOR_PAGE_JSON_H_
#define CAPSTAN_COORDINATOR_PAGE_JSON_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "capstan/job/v1/admin_service.pb.h"
#include "capstan/job/v1/job_service.pb.h"

namespace capstan::coordinator {

inline constexpr int kPageJobs = 100;      // on the first page, newest first
inline constexpr int kPageNodes = 200;     // by name
inline constexpr int kPageEvents = 200;    // of a job, the newest
inline constexpr int kPageLogLines = 100;  // likewise
inline constexpr int kPagePoints = 600;    // at most, of a curve

// Is part of every answer.
struct PageHead {
  absl::Time time;
  job::v1::ClusterInfo cluster;
  bool open = false;  // no sign-in is needed
};

struct OverviewPage {
  PageHead head;
  std::vector<job::v1::Job> jobs;
  std::vector<job::v1::NodeInfo> nodes;
};

struct JobPage {
  PageHead head;
  job::v1::Job job;
  std::vector<job::v1::NodeInfo> nodes;  // of the job's members
  bool log_is_shown = true;              // false: only the owner may see it
  std::vector<job::v1::LogLine> log;
  std::vector<job::v1::MetricPoint> points;
};

// {"time", "cluster", "open", "jobs": [...], "nodes": [...]}
// A job is the message without its specs, with "numeric_targets": it has no accuracy.
std::string OverviewJson(const OverviewPage& page);
// {"time", "cluster", "open", "job", "summary", "steps_per_epoch", "nodes", "log_is_shown", "log":
// [{"time", "who", "level", "text"}], "metrics": {"step": [...], "loss": [...], ...}, "breakdown":
// of the last points together, or null}
std::string JobPageJson(const JobPage& page);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_PAGE_JSON_H_
