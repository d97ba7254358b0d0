#include "param_store/step_log.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "services/logging/log.h"

namespace capstan::param_store {

using services::LineFile;

StepLog::StepLog(client::Strand& files, std::string job_id, std::string folder)
    : files_(files), job_id_(std::move(job_id)), folder_(std::move(folder)) {}

void StepLog::Append(std::string line) {
  const size_t size_bytes = line.size();
  if (waiting_bytes_ + size_bytes > LineFile::kMaxKeptBytes) {
    return Say(absl::ResourceExhaustedError(absl::StrCat(
        "append to ", folder_, "/metrics.jsonl: ", waiting_bytes_.load(),
        " bytes wait for the disk, limit ", LineFile::kMaxKeptBytes, "; the line is dropped")));
  }
  waiting_bytes_ += size_bytes;
  files_.Post([this, line = std::move(line)] {
    waiting_bytes_ -= line.size();
    Say(Write(line));
  });
}

absl::Status StepLog::Write(const std::string& line) {
  if (file_ == nullptr) {
    if (absl::Status status = services::EnsureDir(folder_); !status.ok()) return status;
    auto file = LineFile::Open(absl::StrCat(folder_, "/metrics.jsonl"));
    if (!file.ok()) return file.status();
    file_ = *std::move(file);
  }
  const absl::Status status = file_->Append(absl::StripSuffix(line, "\n"));
  return status.ok() ? file_->Flush() : status;
}

void StepLog::Say(const absl::Status& status) {
  // Of a full disk, say: training goes on, and so does the log later.
  const bool fails = !status.ok();
  if (failed_.exchange(fails) == fails) return;
  services::Log(fails ? services::kError : services::kInfo,
                fails ? "step_log_failed" : "step_log_back")
      .Kv("job", job_id_)
      .Kv("status", status);
}

}  // namespace capstan::param_store
