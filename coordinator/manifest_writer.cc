#include "coordinator/manifest_writer.h"

#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "services/files/files.h"
#include "services/version/version.h"
#include "training/codec/manifest.h"

namespace capstan::coordinator {
namespace {

constexpr int64_t kMaxManifestBytes = int64_t{16} << 20;

absl::Status CheckSize(const std::string& path, int64_t want_bytes) {
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR) {
      return absl::DataLossError(absl::StrCat(path, ": reported as written, is not there"));
    }
    return services::ErrnoStatus(error, "lstat", path);
  }
  if (!S_ISREG(info.st_mode))
    return absl::DataLossError(absl::StrCat(path, ": is no regular file"));
  if (info.st_size != want_bytes) {
    return absl::DataLossError(absl::StrCat(path, ": ", static_cast<int64_t>(info.st_size),
                                            " bytes, its writer reported ", want_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteManifestFile(const core::WriteManifest& write) {
  training::Manifest manifest;
  manifest.job_id = write.job_id;
  manifest.lineage = write.lineage;
  manifest.step = write.step;
  manifest.spec_digest = write.spec_digest_hex;
  manifest.training_digest = write.training_digest_hex;
  manifest.orders = write.orders;
  manifest.lead_snapshot = write.lead_snapshot;
  manifest.weights_sha256 = write.weights_sha256;
  manifest.optimizer = write.optimizer;
  manifest.samples_used = write.samples_used;
  manifest.created_by = absl::StrCat("capstan ", Version());
  for (const common::v1::FileInfo& file : write.files) {
    const absl::Status status =
        CheckSize(absl::StrCat(write.folder, "/", file.name()), file.size_bytes());
    if (!status.ok()) return status;
    manifest.files.push_back(
        {file.name(), file.size_bytes(), absl::BytesToHexString(file.sha256())});
  }
  const absl::StatusOr<std::string> text = training::EncodeManifest(manifest);
  if (!text.ok()) return text.status();
  const std::string path = absl::StrCat(write.folder, "/manifest.json");
  const absl::Status status =
      services::WriteFileAtomically(path, *text, {.replace = false, .mode = 0644, .sync = true});
  if (absl::IsAlreadyExists(status)) {
    const absl::StatusOr<std::string> there = services::ReadWholeFile(path, kMaxManifestBytes);
    if (!there.ok()) return there.status();
    if (*there != *text)
      return absl::DataLossError(absl::StrCat(path, ": another manifest is there"));
  } else if (!status.ok()) {
    return status;
  }
  // The folder itself is new in the one above it.
  return services::SyncDir(write.folder.substr(0, write.folder.rfind('/')));
}

ManifestWriter::ManifestWriter() : thread_([this] { Run(); }) {}

ManifestWriter::~ManifestWriter() { Stop(); }

void ManifestWriter::Write(core::WriteManifest write, std::function<void(absl::Status)> done) {
  MutexLock lock(mu_);
  if (stopping_) return;
  orders_.push_back({std::move(write), std::move(done)});
  changed_.NotifyOne();
}

void ManifestWriter::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyOne();
  }
  if (thread_.joinable()) thread_.join();
}

void ManifestWriter::Run() {
  for (;;) {
    Order order;
    {
      MutexLock lock(mu_);
      while (orders_.empty() && !stopping_) changed_.Wait(mu_);
      if (stopping_) return;
      order = std::move(orders_.front());
      orders_.pop_front();
    }
    order.done(WriteManifestFile(order.write));
  }
}

}  // namespace capstan::coordinator
