#include "coordinator/log_filter.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace capstan::coordinator {

bool IsEarlier(const job::v1::LogLine& a, const job::v1::LogLine& b) {
  const google::protobuf::Timestamp& x = a.time();
  const google::protobuf::Timestamp& y = b.time();
  return x.seconds() != y.seconds() ? x.seconds() < y.seconds() : x.nanos() < y.nanos();
}

absl::StatusOr<LogFilter> LogFilter::Create(const job::v1::StreamLogsRequest& request) {
  LogFilter filter;
  for (const int role : request.roles()) {
    if (role != common::v1::ROLE_WORKER && role != common::v1::ROLE_PARAM_STORE &&
        role != common::v1::ROLE_COORDINATOR) {
      return absl::InvalidArgumentError(
          absl::StrCat("roles: want WORKER, PARAM_STORE or COORDINATOR, got ", role));
    }
    filter.roles_.insert(static_cast<common::v1::Role>(role));
  }
  if (request.has_index()) {
    if (request.index() < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("index: want at least 0, got ", request.index()));
    }
    filter.index_ = request.index();
  }
  if (request.tail() < 0) {
    return absl::InvalidArgumentError(absl::StrCat("tail: want at least 0, got ", request.tail()));
  }
  filter.tail_ = request.tail();
  if (!request.level().empty()) {
    const absl::StatusOr<services::LogLevel> level = services::ParseLogLevel(request.level());
    if (!level.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("level: ", level.status().message()));
    }
    filter.level_ = *level;
  }
  if (request.has_since()) {
    filter.since_ = absl::FromUnixSeconds(request.since().seconds()) +
                    absl::Nanoseconds(request.since().nanos());
  }
  return filter;
}

bool LogFilter::Matches(const job::v1::LogLine& line) const {
  if (!roles_.empty() && roles_.count(line.role()) == 0) return false;
  // The coordinator's lines have no index, so a filter for rank 0 does not mean them.
  if (index_.has_value() &&
      (line.role() == common::v1::ROLE_COORDINATOR || line.index() != *index_)) {
    return false;
  }
  if (level_.has_value()) {
    // An unknown level is shown rather than lost.
    const absl::StatusOr<services::LogLevel> level = services::ParseLogLevel(line.level());
    if (level.ok() && *level < *level_) return false;
  }
  if (since_.has_value()) {
    const absl::Time time =
        absl::FromUnixSeconds(line.time().seconds()) + absl::Nanoseconds(line.time().nanos());
    if (time < *since_) return false;
  }
  return true;
}

std::vector<int64_t> LogFilter::InOrder(const core::LogBuffer& logs) const {
  std::vector<int64_t> numbers;
  for (int64_t number = logs.dropped(); number < logs.next(); ++number) {
    if (Matches(*logs.Find(number))) numbers.push_back(number);
  }
  std::stable_sort(numbers.begin(), numbers.end(), [&logs](int64_t a, int64_t b) {
    return IsEarlier(*logs.Find(a), *logs.Find(b));
  });
  const auto tail = static_cast<std::ptrdiff_t>(tail_);
  if (has_tail() && std::ssize(numbers) > tail)
    numbers.erase(numbers.begin(), numbers.end() - tail);
  return numbers;
}

}  // namespace capstan::coordinator
