#include "gpu_worker/task/file_reports.h"

#include <utility>

namespace capstan::gpu_worker {

void FileReports::Reset(int64_t lineage) {
  lineage_ = lineage;
  versions_.clear();
}

FileReports::Version* FileReports::Find(int64_t step) {
  for (Version& version : versions_) {
    if (version.files.step() == step) return &version;
  }
  return nullptr;
}

void FileReports::Expect(int64_t step, bool last) {
  Version* version = Find(step);
  if (version == nullptr) {
    version = &versions_.emplace_back();
    version->files.set_lineage(lineage_);
    version->files.set_step(step);
  }
  version->last = last;
  ++version->missing;
}

void FileReports::Written(int64_t step, const common::v1::FileInfo& file) {
  Version* const version = Find(step);
  if (version == nullptr) return;
  // The error of another file of the version stays until that is written too.
  if (--version->missing == 0) version->files.clear_error();
  *version->files.add_files() = file;
}

void FileReports::SetLead(int64_t step, std::string snapshot) {
  if (Version* const version = Find(step)) version->files.set_lead_snapshot(std::move(snapshot));
}

void FileReports::SetWeights(int64_t step, std::string weights_sha256) {
  if (Version* const version = Find(step)) version->weights_sha256 = std::move(weights_sha256);
}

bool FileReports::Failed(int64_t step, const std::string& error) {
  Version* const version = Find(step);
  if (version == nullptr) return false;
  version->files.set_error(error);
  return version->last;
}

void FileReports::Taken(int64_t lineage, int64_t step) {
  if (lineage != lineage_) return;
  for (auto it = versions_.begin(); it != versions_.end(); ++it) {
    if (it->files.step() != step) continue;
    if (it->last && it->missing > 0) return;  // must be written in any case
    versions_.erase(it);
    return;
  }
}

void FileReports::Fill(node::v1::TaskState& state) const {
  state.clear_files();
  state.clear_weights_sha256();
  for (const Version& version : versions_) {
    const bool failed = !version.files.error().empty();
    if (version.missing > 0 && !failed) continue;
    *state.mutable_files() = version.files;
    if (failed) {
      state.mutable_files()->clear_files();
      state.mutable_files()->clear_lead_snapshot();
    } else {
      state.set_weights_sha256(version.weights_sha256);
    }
    return;
  }
}

}  // namespace capstan::gpu_worker
