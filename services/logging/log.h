// Log lines of key=value pairs, one per state change, to standard error and to sinks:
//
//   Log(kInfo, "job_state").Kv("job", id).Kv("from", "PENDING").Kv("to", "STARTING");
//   -> time=2026-05-02T09:14:03.123Z level=info event=job_state job=j7 from=PENDING to=STARTING
//
// The line is written when the statement ends, as one write. A value is quoted if it is empty or
// holds anything except printable ASCII without space, '"', '=' and '\'. Inside quotes \" \\ \n \r
// \t and \xNN are used as escapes, so a hostile value can neither end a line nor forge a key.
// Values are cut to kMaxLogValueBytes. A line must not contain a tensor or a secret.
//
// Thread-safe. The logging thread calls sinks without holding a lock.
#ifndef CAPSTAN_SERVICES_LOGGING_LOG_H_
#define CAPSTAN_SERVICES_LOGGING_LOG_H_

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace capstan::services {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };
inline constexpr LogLevel kDebug = LogLevel::kDebug;
inline constexpr LogLevel kInfo = LogLevel::kInfo;
inline constexpr LogLevel kWarning = LogLevel::kWarning;
inline constexpr LogLevel kError = LogLevel::kError;

inline constexpr size_t kMaxLogValueBytes = 1024;

// "debug", "info", "warning", "error".
absl::string_view LogLevelName(LogLevel level);
// InvalidArgument: not one of the four names.
absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name);
// Lines below `level` are dropped before they are built. The initial level is kInfo.
void SetLogLevel(LogLevel level);
bool LogEnabled(LogLevel level);

// A sink's argument. Its views are valid only during the call.
struct LogRecord {
  absl::Time time;
  LogLevel level;
  absl::string_view event;
  const std::vector<std::pair<std::string, std::string>>& fields;  // raw values, in order
  absl::string_view line;                                          // as written, without '\n'
};
using LogSink = std::function<void(const LogRecord&)>;

// The sink gets every written line until RemoveLogSink. That call waits for calls in flight, so a
// sink must not call it. Lines that a sink logs go to standard error only.
int AddLogSink(LogSink sink);
void RemoveLogSink(int id);
// Stops (or starts again) writing to standard error, for tests and for live displays on a terminal.
void SetLogToStderr(bool on);

class Log {
 public:
  // `event` and the keys below are snake_case literals of ours.
  Log(LogLevel level, absl::string_view event);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  Log& Kv(absl::string_view key, absl::string_view value);
  Log& Kv(absl::string_view key, const char* value) { return Kv(key, absl::string_view(value)); }
  Log& Kv(absl::string_view key, const std::string& value) {
    return Kv(key, absl::string_view(value));
  }
  Log& Kv(absl::string_view key, bool value) {
    return Kv(key, absl::string_view(value ? "true" : "false"));
  }
  Log& Kv(absl::string_view key, double value);                // %.9g
  Log& Kv(absl::string_view key, absl::Duration value);        // in seconds, a plain number
  Log& Kv(absl::string_view key, const absl::Status& status);  // "OK" or "NOT_FOUND: text"
  template <typename T,
            std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int> = 0>
  Log& Kv(absl::string_view key, T value) {
    if constexpr (std::is_signed_v<T>) {
      return KvSigned(key, value);
    } else {
      return KvUnsigned(key, value);
    }
  }

  // Writes at most one line per (event, key) in `every`; the next one carries suppressed=N.
  // Remembers up to 1024 keys, then starts with an empty table.
  Log& Limit(absl::string_view key, absl::Duration every = absl::Seconds(10));

 private:
  Log& KvSigned(absl::string_view key, int64_t value);
  Log& KvUnsigned(absl::string_view key, uint64_t value);

  const LogLevel level_;
  bool enabled_;
  absl::string_view event_;
  std::vector<std::pair<std::string, std::string>> fields_;
};

// The value as it appears in a line: bare or quoted.
std::string QuoteLogValue(absl::string_view value);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_LOGGING_LOG_H_
