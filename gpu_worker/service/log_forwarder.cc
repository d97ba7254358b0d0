#include "gpu_worker/service/log_forwarder.h"

#include <algorithm>
#include <utility>

#include "services/status/status.h"

namespace capstan::gpu_worker {
namespace {

std::string LevelOf(absl::string_view line) {
  const size_t at = line.find("level=");
  // Our own lines begin with time and level. Anything later may be foreign text.
  if (line.substr(0, 5) != "time=" || at == absl::string_view::npos || at > 40) return "warning";
  absl::string_view level = line.substr(at + 6);
  level = level.substr(0, level.find(' '));
  for (const absl::string_view known : {"debug", "info", "warning", "error"}) {
    if (level == known) return std::string(known);
  }
  return "warning";
}

}  // namespace

LogForwarder::LogForwarder(std::string job_id, int32_t rank, std::string host, LogLimits limits)
    : job_id_(std::move(job_id)),
      rank_(rank),
      host_(std::move(host)),
      limits_(limits),
      tokens_(limits.burst_lines) {}

void LogForwarder::Add(absl::string_view line, absl::Duration now, absl::Time time) {
  const double seconds = absl::ToDoubleSeconds(now - filled_at_);
  filled_at_ = now;
  tokens_ = std::min(limits_.burst_lines, tokens_ + seconds * limits_.lines_per_second);
  if (tokens_ < 1 || batch_.lines_size() >= limits_.max_batch_lines) {
    batch_.set_dropped(batch_.dropped() + 1);
    return;
  }
  tokens_ -= 1;
  job::v1::LogLine& out = *batch_.add_lines();
  const int64_t nanos = absl::ToUnixNanos(time);
  out.mutable_time()->set_seconds(nanos / 1000000000);
  out.mutable_time()->set_nanos(static_cast<int32_t>(nanos % 1000000000));
  out.set_role(common::v1::ROLE_WORKER);
  out.set_index(rank_);
  out.set_host(host_);
  out.set_level(LevelOf(line));
  out.set_text(services::CutText(line, limits_.max_line_bytes));
}

std::optional<node::v1::LogBatch> LogForwarder::Take() {
  if (batch_.lines_size() == 0 && batch_.dropped() == 0) return std::nullopt;
  node::v1::LogBatch batch = std::move(batch_);
  batch_.Clear();
  batch.set_job_id(job_id_);
  return batch;
}

}  // namespace capstan::gpu_worker
