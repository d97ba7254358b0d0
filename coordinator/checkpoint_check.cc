#include "coordinator/checkpoint_check.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace capstan::coordinator {
namespace {

constexpr int64_t kMaxManifestSize = int64_t{16} << 20;

}  // namespace

CheckpointCheck::CheckpointCheck(const job::v1::SavedCheckpoint& saved)
    : folder_(absl::StripPrefix(saved.uri(), "file://")),
      lineage_(saved.lineage()),
      step_(saved.step()),
      files_(static_cast<size_t>(saved.files_size())) {}

absl::Status CheckpointCheck::Next() {
  if (file_ == nullptr) return Open();
  if (!file_->at_end()) {
    if (absl::Status status = file_->Next(block_); !status.ok()) return status;
    if (has_manifest_) {
      sha_.Update(block_);
    } else {
      text_ += block_;
    }
    if (!file_->at_end()) return absl::OkStatus();
  }
  file_ = nullptr;
  return has_manifest_ ? OnFile() : OnManifest();
}

std::string CheckpointCheck::Path() const {
  return absl::StrCat(folder_, "/",
                      has_manifest_ ? manifest_.files[next_].name : std::string("manifest.json"));
}

absl::Status CheckpointCheck::Open() {
  // No link may lead out of the job's folder, and the file must not be a link.
  const std::string path = Path();
  auto opened =
      OutgoingFile::Open({.path = path, .roots = {folder_.substr(0, folder_.rfind('/'))}});
  const absl::Status status = opened.status();
  const bool lost =
      absl::IsFailedPrecondition(status) || (has_manifest_ && absl::IsNotFound(status));
  if (lost) return absl::DataLossError(status.message());
  if (!status.ok()) return status;
  const int64_t size = (*opened)->size_bytes();
  if (has_manifest_ && size != manifest_.files[next_].size_bytes) {
    return absl::DataLossError(absl::StrCat(path, ": ", size, " bytes, the manifest says ",
                                            manifest_.files[next_].size_bytes));
  }
  if (!has_manifest_ && size > kMaxManifestSize) {
    return absl::DataLossError(
        absl::StrCat(path, ": ", size, " bytes, want at most ", kMaxManifestSize));
  }
  file_ = *std::move(opened);
  return absl::OkStatus();
}

absl::Status CheckpointCheck::OnManifest() {
  const std::string path = Path();
  absl::StatusOr<training::Manifest> manifest = training::ParseManifest(path, text_);
  if (!manifest.ok()) return manifest.status();
  if (manifest->lineage != lineage_ || manifest->step != step_ ||
      manifest->files.size() != files_) {
    return absl::DataLossError(absl::StrCat(path, ": is that of lineage ", manifest->lineage,
                                            ", step ", manifest->step, ", ", manifest->files.size(),
                                            " files; want lineage ", lineage_, ", step ", step_,
                                            ", ", files_, " files"));
  }
  manifest_ = *std::move(manifest);
  text_.clear();
  has_manifest_ = true;
  done_ = manifest_.files.empty();
  return absl::OkStatus();
}

absl::Status CheckpointCheck::OnFile() {
  const std::string hash = sha_.FinishHex();
  if (hash != manifest_.files[next_].sha256) {
    return absl::DataLossError(absl::StrCat(Path(), ": SHA-256 is ", hash, ", the manifest says ",
                                            manifest_.files[next_].sha256));
  }
  ++next_;
  done_ = next_ == manifest_.files.size();
  return absl::OkStatus();
}

}  // namespace capstan::coordinator
