#include "tests/sim/disk.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace capstan::sim {

void SimDisk::SetName(int host, const std::string& path, std::shared_ptr<Inode> inode) {
  const auto known = names_.find(path);
  changes_.push_back({host, path, known == names_.end() ? nullptr : known->second});
  if (inode == nullptr) {
    names_.erase(path);
  } else {
    names_[path] = std::move(inode);
  }
}

absl::Status SimDisk::Write(int host, const std::string& path, std::string bytes) {
  if (random_.Chance(full_)) {
    effects_.Saw(FaultClass::kDiskFull);
    return absl::ResourceExhaustedError("no space left on device");
  }
  auto inode = std::make_shared<Inode>();
  inode->bytes = std::move(bytes);
  inode->host = host;
  SetName(host, path, std::move(inode));
  return absl::OkStatus();
}

absl::Status SimDisk::Sync(const std::string& path) {
  const auto file = names_.find(path);
  if (file == names_.end()) return absl::NotFoundError(path);
  if (!file->second->synced && random_.Chance(sync_)) {
    effects_.Saw(FaultClass::kSyncError);
    Inode& inode = *file->second;
    inode.bytes.resize(random_.Below(static_cast<int64_t>(inode.bytes.size()) + 1));
    inode.synced = true;  // as on Linux, a second sync returns OK
    return absl::InternalError(absl::StrCat(path, ": input/output error"));
  }
  file->second->synced = true;
  return absl::OkStatus();
}

absl::Status SimDisk::Link(int host, const std::string& from, const std::string& to) {
  const auto file = names_.find(from);
  if (file == names_.end()) return absl::NotFoundError(from);
  if (names_.count(to) > 0) return absl::AlreadyExistsError(to);
  SetName(host, to, file->second);
  return absl::OkStatus();
}

absl::Status SimDisk::Rename(int host, const std::string& from, const std::string& to) {
  const auto file = names_.find(from);
  if (file == names_.end()) return absl::NotFoundError(from);
  SetName(host, to, file->second);
  SetName(host, from, nullptr);
  return absl::OkStatus();
}

void SimDisk::Remove(const std::string& path) {
  if (names_.count(path) > 0) SetName(0, path, nullptr);
}

void SimDisk::SyncFolder(const std::string& folder) {
  changes_.erase(std::remove_if(changes_.begin(), changes_.end(),
                                [&](const NameChange& change) {
                                  return absl::StartsWith(change.path, folder + "/");
                                }),
                 changes_.end());
}

absl::StatusOr<std::string> SimDisk::Read(const std::string& path) const {
  const auto file = names_.find(path);
  if (file == names_.end()) return absl::NotFoundError(path);
  return file->second->bytes;
}

std::vector<std::string> SimDisk::List(const std::string& prefix) const {
  std::vector<std::string> paths;
  for (auto it = names_.lower_bound(prefix); it != names_.end(); ++it) {
    if (!absl::StartsWith(it->first, prefix)) break;
    paths.push_back(it->first);
  }
  return paths;
}

void SimDisk::FlipBit(const std::string& suffix) {
  std::vector<Inode*> files;
  for (const auto& entry : names_) {
    if (absl::EndsWith(entry.first, suffix) && !entry.second->bytes.empty())
      files.push_back(entry.second.get());
  }
  if (files.empty()) return;
  effects_.Saw(FaultClass::kDamage);
  std::string& bytes = files[random_.Below(static_cast<int64_t>(files.size()))]->bytes;
  bytes[random_.Below(static_cast<int64_t>(bytes.size()))] ^=
      static_cast<char>(1 << random_.Below(8));
}

void SimDisk::PowerCut(int host) {
  // Some of the unsynced changes of names are undone, the newest first.
  for (auto change = changes_.rbegin(); change != changes_.rend(); ++change) {
    if (change->host != host || random_.Chance(0.5)) continue;
    effects_.Saw(FaultClass::kPowerCut);
    if (change->before == nullptr) {
      names_.erase(change->path);
    } else {
      names_[change->path] = change->before;
    }
  }
  changes_.erase(std::remove_if(changes_.begin(), changes_.end(),
                                [&](const NameChange& change) { return change.host == host; }),
                 changes_.end());
  for (const auto& entry : names_) {
    Inode& inode = *entry.second;
    if (inode.host != host || inode.synced) continue;
    effects_.Saw(FaultClass::kPowerCut);
    inode.bytes.resize(random_.Below(static_cast<int64_t>(inode.bytes.size()) + 1));
    inode.synced = true;
  }
}

}  // namespace capstan::sim
