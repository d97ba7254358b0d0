#include "services/logging/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "services/clock/clock.h"
#include "services/sync/mutex.h"
#include "services/visible_text/visible_text.h"

namespace capstan::services {
namespace {

constexpr size_t kMaxLimitedKeys = 1024;

std::atomic<int> g_level{static_cast<int>(LogLevel::kInfo)};
std::atomic<bool> g_to_stderr{true};
thread_local bool t_in_sink = false;

struct SinkEntry {
  explicit SinkEntry(LogSink fn) : sink(std::move(fn)) {}
  const LogSink sink;
  int running = 0;  // guarded by State's mutex
};

struct LimitEntry {
  absl::Duration last;  // MonotonicNow() of the last line
  int64_t suppressed = 0;
};

struct State {
  Mutex mu;
  CondVar idle;
  int next_id ABSL_GUARDED_BY(mu) = 1;
  std::map<int, std::shared_ptr<SinkEntry>> sinks ABSL_GUARDED_BY(mu);
  std::map<std::string, LimitEntry> limits ABSL_GUARDED_BY(mu);
};

// Never destroyed, because static destructors of other files may still log.
State& GetState() {
  static State* const state = new State;
  return *state;
}

void WriteAll(absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody reads standard error, so there is no place to complain
    text.remove_prefix(static_cast<size_t>(written));
  }
}

void CallSinks(const LogRecord& record) {
  if (t_in_sink) return;
  State& state = GetState();
  std::vector<std::shared_ptr<SinkEntry>> sinks;
  {
    MutexLock lock(state.mu);
    if (state.sinks.empty()) return;
    for (const auto& [id, entry] : state.sinks) {
      ++entry->running;
      sinks.push_back(entry);
    }
  }
  t_in_sink = true;
  for (const auto& entry : sinks) entry->sink(record);
  t_in_sink = false;
  MutexLock lock(state.mu);
  for (const auto& entry : sinks) --entry->running;
  state.idle.NotifyAll();
}

}  // namespace

absl::string_view LogLevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "unknown";
}

absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name) {
  for (const LogLevel level : {kDebug, kInfo, kWarning, kError}) {
    if (name == LogLevelName(level)) return level;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("log level: got '", name, "', want debug, info, warning or error"));
}

void SetLogLevel(LogLevel level) { g_level.store(static_cast<int>(level)); }

bool LogEnabled(LogLevel level) {
  return static_cast<int>(level) >= g_level.load(std::memory_order_relaxed);
}

int AddLogSink(LogSink sink) {
  State& state = GetState();
  MutexLock lock(state.mu);
  const int id = state.next_id++;
  state.sinks.emplace(id, std::make_shared<SinkEntry>(std::move(sink)));
  return id;
}

void RemoveLogSink(int id) {
  State& state = GetState();
  MutexLock lock(state.mu);
  const auto it = state.sinks.find(id);
  if (it == state.sinks.end()) return;
  const std::shared_ptr<SinkEntry> entry = it->second;
  state.sinks.erase(it);
  while (entry->running > 0) state.idle.Wait(state.mu);
}

void SetLogToStderr(bool on) { g_to_stderr.store(on); }

std::string QuoteLogValue(absl::string_view value) {
  bool bare = !value.empty();
  for (const char c : value) {
    if (c <= ' ' || c > '~' || c == '"' || c == '=' || c == '\\') bare = false;
  }
  if (bare) return std::string(value);
  std::string quoted = "\"";
  while (!value.empty()) {
    size_t size = 1;
    switch (const char c = value[0]) {
      case '"':
        quoted += "\\\"";
        break;
      case '\\':
        quoted += "\\\\";
        break;
      case '\n':
        quoted += "\\n";
        break;
      case '\r':
        quoted += "\\r";
        break;
      case '\t':
        quoted += "\\t";
        break;
      default:
        // The service may run on a terminal. Characters that a terminal would obey or hide are
        // escaped byte by byte, because a partial character would not be valid UTF-8.
        if (const size_t shown = SizeIfShown(value); shown > 0) {
          quoted.append(value.data(), size = shown);
        } else {
          absl::StrAppendFormat(&quoted, "\\x%02x", static_cast<unsigned char>(c));
        }
    }
    value.remove_prefix(size);
  }
  return quoted + "\"";
}

Log::Log(LogLevel level, absl::string_view event)
    : level_(level), enabled_(LogEnabled(level)), event_(event) {}

Log::~Log() {
  if (!enabled_) return;
  const absl::Time now = absl::Now();
  std::string line =
      absl::StrCat("time=", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", now, absl::UTCTimeZone()),
                   " level=", LogLevelName(level_), " event=", event_);
  for (const auto& [key, value] : fields_) {
    absl::StrAppend(&line, " ", key, "=", QuoteLogValue(value));
  }
  CallSinks({.time = now, .level = level_, .event = event_, .fields = fields_, .line = line});
  if (g_to_stderr.load(std::memory_order_relaxed)) WriteAll(absl::StrCat(line, "\n"));
}

Log& Log::Kv(absl::string_view key, absl::string_view value) {
  if (!enabled_) return *this;
  std::string text(value.substr(0, kMaxLogValueBytes));
  if (value.size() > kMaxLogValueBytes) text += "...";
  fields_.emplace_back(std::string(key), std::move(text));
  return *this;
}

Log& Log::Kv(absl::string_view key, double value) {
  return enabled_ ? Kv(key, absl::StrFormat("%.9g", value)) : *this;
}

Log& Log::Kv(absl::string_view key, absl::Duration value) {
  return Kv(key, absl::ToDoubleSeconds(value));
}

Log& Log::Kv(absl::string_view key, const absl::Status& status) {
  if (!enabled_) return *this;
  if (status.ok()) return Kv(key, "OK");
  // Not ToString(), because payloads do not belong in a line.
  return Kv(key, absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message()));
}

Log& Log::KvSigned(absl::string_view key, int64_t value) {
  return enabled_ ? Kv(key, absl::StrCat(value)) : *this;
}

Log& Log::KvUnsigned(absl::string_view key, uint64_t value) {
  return enabled_ ? Kv(key, absl::StrCat(value)) : *this;
}

Log& Log::Limit(absl::string_view key, absl::Duration every) {
  if (!enabled_) return *this;
  const absl::Duration now = MonotonicNow();
  int64_t suppressed = 0;
  {
    State& state = GetState();
    MutexLock lock(state.mu);
    if (state.limits.size() >= kMaxLimitedKeys) state.limits.clear();
    const auto [it, added] = state.limits.try_emplace(absl::StrCat(event_, "\n", key));
    LimitEntry& entry = it->second;
    if (!added && now - entry.last < every) {
      ++entry.suppressed;
      enabled_ = false;
      return *this;
    }
    suppressed = std::exchange(entry.suppressed, 0);
    entry.last = now;
  }
  return suppressed > 0 ? Kv("suppressed", suppressed) : *this;
}

}  // namespace capstan::services
