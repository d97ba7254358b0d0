// Which stored log lines a person asked for.
#ifndef CAPSTAN_COORDINATOR_LOG_FILTER_H_
#define CAPSTAN_COORDINATOR_LOG_FILTER_H_

#include <cstdint>
#include <optional>
#include <set>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "capstan/job/v1/job_service.pb.h"
#include "coordinator/core/log_buffer.h"
#include "services/logging/log.h"

namespace capstan::coordinator {

class LogFilter {
 public:
  // InvalidArgument, naming the field: a role, level, index, tail or time that is none.
  static absl::StatusOr<LogFilter> Create(const job::v1::StreamLogsRequest& request);

  bool Matches(const job::v1::LogLine& line) const;
  // Number of the first line to send: with `tail` that of the last so many that match, else 0.
  int64_t Begin(const core::LogBuffer& logs) const;

 private:
  std::set<common::v1::Role> roles_;
  std::optional<int32_t> index_;
  int32_t tail_ = 0;
  std::optional<services::LogLevel> level_;
  std::optional<absl::Time> since_;
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_LOG_FILTER_H_
