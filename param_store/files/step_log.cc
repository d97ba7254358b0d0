#include "param_store/files/step_log.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "services/logging/log.h"

namespace capstan::param_store {

using services::LineFile;

constexpr absl::Duration kSendEvery = absl::Milliseconds(500);

StepLog::StepLog(services::Strand& files, std::string job_id, std::string folder, JobFiles* way)
    : files_(files), job_id_(std::move(job_id)), folder_(std::move(folder)), way_(way) {}

bool StepLog::Sends() const { return way_ != nullptr && way_->SendsLog(); }

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
  if (Sends()) {
    if (unsent_.size() + line.size() > LineFile::kMaxKeptBytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "metrics.jsonl: ", unsent_.size(), " bytes could not be sent to the coordinator, limit ",
          LineFile::kMaxKeptBytes, "; the line is dropped"));
    }
    absl::StrAppend(&unsent_, absl::StripSuffix(line, "\n"), "\n");
    if (!std::exchange(send_is_due_, true)) {
      files_.PostAfter(kSendEvery, [this] {
        send_is_due_ = false;
        Flush();
      });
    }
    return absl::OkStatus();
  }
  if (file_ == nullptr) {
    if (absl::Status status = services::EnsureDir(folder_); !status.ok()) return status;
    auto file = LineFile::Open(absl::StrCat(folder_, "/metrics.jsonl"));
    if (!file.ok()) return file.status();
    file_ = *std::move(file);
  }
  const absl::Status status = file_->Append(absl::StripSuffix(line, "\n"));
  return status.ok() ? file_->Flush() : status;
}

absl::Status StepLog::Send() {
  const absl::Status status = way_->AppendLog(lineage_, unsent_);
  // The lines are of a lineage that the job has left, or another process writes them now. Drop
  // them.
  if (absl::IsFailedPrecondition(status) || absl::IsPermissionDenied(status)) unsent_.clear();
  return status;
}

void StepLog::Flush() {
  if (unsent_.empty()) return;
  const absl::Status status = Send();
  Say(status);
  if (status.ok() || unsent_.empty() || std::exchange(send_is_due_, true)) return;
  files_.PostAfter(kSendEvery, [this] {
    send_is_due_ = false;
    Flush();
  });
}

void StepLog::Close() {
  Flush();
  file_.reset();
}

void StepLog::Say(const absl::Status& status) {
  // The error may be a full disk. Training continues, and so does the log later.
  const bool fails = !status.ok();
  if (failed_.exchange(fails) == fails) return;
  services::Log(fails ? services::kError : services::kInfo,
                fails ? "step_log_failed" : "step_log_back")
      .Kv("job", job_id_)
      .Kv("status", status);
}

}  // namespace capstan::param_store
