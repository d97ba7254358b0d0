// Which stored log lines a person asked for.
#ifndef CAPSTAN_COORDINATOR_LOG_FILTER_H_
#define CAPSTAN_COORDINATOR_LOG_FILTER_H_

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "capstan/job/v1/job_service.pb.h"
#include "coordinator/core/log_buffer.h"
#include "services/logging/log.h"

namespace capstan::coordinator {

// By the times that two lines carry.
bool IsEarlier(const job::v1::LogLine& a, const job::v1::LogLine& b);

class LogFilter {
 public:
  // InvalidArgument, naming the field: a role, level, index, tail or time that is none.
  static absl::StatusOr<LogFilter> Create(const job::v1::StreamLogsRequest& request);

  bool Matches(const job::v1::LogLine& line) const;
  // Numbers of the stored lines that match, by the time that each carries, which need not be the
  // order in which nodes sent them; with `tail` the last so many of these.
  std::vector<int64_t> InOrder(const core::LogBuffer& logs) const;
  bool has_tail() const { return tail_ > 0; }

 private:
  std::set<common::v1::Role> roles_;
  std::optional<int32_t> index_;
  int32_t tail_ = 0;
  std::optional<services::LogLevel> level_;
  std::optional<absl::Time> since_;
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_LOG_FILTER_H_
