// Selects stored log lines by a person's request.
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

// Compares the times in two lines.
bool IsEarlier(const job::v1::LogLine& a, const job::v1::LogLine& b);

class LogFilter {
 public:
  // InvalidArgument names a field with an invalid role, level, index, tail or time.
  static absl::StatusOr<LogFilter> Create(const job::v1::StreamLogsRequest& request);

  bool Matches(const job::v1::LogLine& line) const;
  // Numbers of the matching stored lines, by the time in each line, which may differ from the order
  // of arrival. With `tail` only the last so many.
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
