#include "coordinator/manifest_writer.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/files/files.h"
#include "services/logging/log.h"
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
      return absl::DataLossError(
          absl::StrCat(path, ": was reported as written, but does not exist"));
    }
    return services::ErrnoStatus(error, "lstat", path);
  }
  if (!S_ISREG(info.st_mode))
    return absl::DataLossError(absl::StrCat(path, ": is not a regular file"));
  if (info.st_size != want_bytes) {
    return absl::DataLossError(absl::StrCat(path, ": ", static_cast<int64_t>(info.st_size),
                                            " bytes, its writer reported ", want_bytes));
  }
  return absl::OkStatus();
}

// "<lineage>-<step>".
bool ReadFolderName(const std::string& name, int64_t& lineage, int64_t& step) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '-');
  return parts.size() == 2 && absl::SimpleAtoi(parts[0], &lineage) &&
         absl::SimpleAtoi(parts[1], &step) && name == absl::StrCat(lineage, "-", step);
}

std::string Above(const std::string& folder) {
  const size_t slash = folder.rfind('/');
  return slash == 0 ? "/" : folder.substr(0, slash);
}

// Makes the names of a job's folder and of the folder above it durable.
absl::Status SyncStorage(const std::string& storage_path) {
  if (absl::Status status = services::SyncDir(storage_path); !status.ok()) return status;
  const absl::Status status = services::SyncDir(Above(storage_path));
  // The folder of all jobs may not be readable, and then it is not ours to sync.
  return absl::IsPermissionDenied(status) ? absl::OkStatus() : status;
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
      return absl::DataLossError(absl::StrCat(path, ": another manifest exists there"));
    // The process that linked it may have failed or died before this sync.
    if (absl::Status synced = services::SyncDir(write.folder); !synced.ok()) return synced;
  } else if (!status.ok()) {
    return status;
  }
  // The checkpoint's folder is new in the job's folder, which may be new in the one above.
  return SyncStorage(Above(write.folder));
}

int SweepCheckpointFolders(const core::SweepCheckpoints& sweep) {
  DIR* dir = ::opendir(sweep.storage_path.c_str());
  if (dir == nullptr) return 0;
  const std::set<std::string> keep(sweep.keep.begin(), sweep.keep.end());
  std::vector<std::string> gone;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string name = entry->d_name;
    int64_t lineage = 0, step = 0;
    if (!ReadFolderName(name, lineage, step)) continue;
    const bool older = std::pair(lineage, step) < std::pair(sweep.lineage, sweep.step);
    if (older && keep.count(name) == 0) gone.push_back(name);
  }
  ::closedir(dir);
  int removed = 0;
  for (const std::string& name : gone) {
    if (RemoveCheckpointFolder(sweep.storage_path, name).ok()) ++removed;
  }
  return removed;
}

absl::Status RemoveCheckpointFolder(const std::string& storage_path,
                                    const std::string& checkpoint) {
  const std::string folder = absl::StrCat(storage_path, "/", checkpoint);
  const std::string manifest = absl::StrCat(folder, "/manifest.json");
  if (::unlink(manifest.c_str()) != 0 && errno != ENOENT) {
    return services::ErrnoStatus(errno, "unlink", manifest);
  }
  const absl::Status synced = services::SyncDir(folder);
  if (absl::IsNotFound(synced)) return absl::OkStatus();
  return synced.ok() ? services::RemoveTree(storage_path, folder) : synced;
}

std::vector<core::FoundManifest> FindManifests(const std::string& job_id,
                                               const std::string& storage_path) {
  std::vector<core::FoundManifest> out;
  DIR* folder = ::opendir(storage_path.c_str());
  if (folder == nullptr) return out;  // nothing was written yet
  while (const dirent* entry = ::readdir(folder)) {
    const std::string name = entry->d_name;
    int64_t lineage = 0, step = 0;
    if (!ReadFolderName(name, lineage, step)) continue;
    const std::string path = absl::StrCat(storage_path, "/", name, "/manifest.json");
    const absl::StatusOr<std::string> text = services::ReadWholeFile(path, kMaxManifestBytes);
    if (absl::IsNotFound(text.status())) continue;
    absl::StatusOr<training::Manifest> manifest =
        text.ok() ? training::ParseManifest(path, *text) : text.status();
    if (manifest.ok() &&
        (manifest->job_id != job_id || manifest->lineage != lineage || manifest->step != step)) {
      manifest = absl::DataLossError(absl::StrCat(path, ": is of job ", manifest->job_id, ", ",
                                                  manifest->lineage, "-", manifest->step));
    }
    if (manifest.ok()) {
      const absl::Status synced = services::SyncDir(absl::StrCat(storage_path, "/", name));
      if (!synced.ok()) manifest = synced;
    }
    if (!manifest.ok()) {
      services::Log(services::kWarning, "manifest_ignored").Kv("status", manifest.status());
      continue;
    }
    core::FoundManifest found;
    found.lineage = lineage;
    found.step = step;
    found.spec_digest = absl::HexStringToBytes(manifest->spec_digest);
    found.weights_sha256 = manifest->weights_sha256;
    found.samples_used = manifest->samples_used;
    found.orders = manifest->orders;
    for (const training::ManifestFile& file : manifest->files) {
      common::v1::FileInfo& info = found.files.emplace_back();
      info.set_name(file.name);
      info.set_size_bytes(file.size_bytes);
      info.set_sha256(absl::HexStringToBytes(file.sha256));
    }
    out.push_back(std::move(found));
  }
  ::closedir(folder);
  if (out.empty()) return out;
  if (absl::Status status = SyncStorage(storage_path); !status.ok()) {
    services::Log(services::kWarning, "manifest_ignored").Kv("status", status);
    return {};
  }
  std::sort(out.begin(), out.end(), [](const core::FoundManifest& a, const core::FoundManifest& b) {
    return std::pair(a.lineage, a.step) < std::pair(b.lineage, b.step);
  });
  return out;
}

int64_t HighestLineage(const std::string& storage_path) {
  DIR* folder = ::opendir(storage_path.c_str());
  if (folder == nullptr) return 0;
  int64_t highest = 0;
  while (const dirent* entry = ::readdir(folder)) {
    int64_t lineage = 0, step = 0;
    if (ReadFolderName(entry->d_name, lineage, step)) highest = std::max(highest, lineage);
  }
  ::closedir(folder);
  return highest;
}

}  // namespace capstan::coordinator
