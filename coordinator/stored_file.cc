#include "coordinator/stored_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <random>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "services/files/beneath.h"
#include "services/files/files.h"

namespace capstan::coordinator {
namespace {

constexpr size_t kHashBlockBytes = size_t{1} << 20;
constexpr size_t kSendBlockBytes = size_t{512} << 10;
constexpr char kLookPrefix[] = ".capstan-look-";
constexpr size_t kNonceBytes = 16;
constexpr size_t kProcessBytes = 8;
constexpr int kMostLooked = 10000;  // entries read of a job's folder, which has few

std::string RandomBytes(size_t count) {
  std::random_device device;  // the kernel's random numbers
  std::string bytes;
  while (bytes.size() < count) bytes.push_back(static_cast<char>(device()));
  return bytes;
}

// The prefix of this process's files. Nobody waits for files of another process any more.
const std::string& OwnLookPrefix() {
  static const std::string prefix =
      absl::StrCat(kLookPrefix, absl::BytesToHexString(RandomBytes(kProcessBytes)), "-");
  return prefix;
}

absl::Status LeadsOut(absl::string_view path) {
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": a link leads out of the folder that the operator allowed"));
}

absl::Status OpenError(int error, const std::string& path) {
  return error == EXDEV ? LeadsOut(path) : services::ErrnoStatus(error, "open", path);
}

absl::Status UnderNoRoot(absl::string_view path) {
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": is not under any folder that the operator allows now"));
}

// Closes `fd`.
int RemoveOldLooksIn(int fd) {
  DIR* const folder = fd < 0 ? nullptr : ::fdopendir(fd);
  if (folder == nullptr) {
    if (fd >= 0) ::close(fd);
    return 0;
  }
  std::vector<std::string> old;
  int left = kMostLooked;
  for (const dirent* entry = ::readdir(folder); entry != nullptr && left > 0;
       entry = ::readdir(folder), --left) {
    const absl::string_view name = entry->d_name;
    if (absl::StartsWith(name, kLookPrefix) && !absl::StartsWith(name, OwnLookPrefix())) {
      old.emplace_back(name);
    }
  }
  int removed = 0;
  for (const std::string& name : old) removed += ::unlinkat(fd, name.c_str(), 0) == 0 ? 1 : 0;
  ::closedir(folder);
  return removed;
}

}  // namespace

absl::Status WriteAt(int fd, const std::string& path, absl::string_view bytes, int64_t offset) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return services::ErrnoStatus(errno, "write", path);
    bytes.remove_prefix(static_cast<size_t>(written));
    offset += written;
  }
  return absl::OkStatus();
}

namespace {

// Hashes all that `fd` contains. Returns the number of bytes.
absl::StatusOr<int64_t> HashAll(int fd, const std::string& path, training::Sha256& sha) {
  std::string block(kHashBlockBytes, '\0');
  int64_t offset = 0;
  for (;;) {
    const ssize_t got = ::pread(fd, block.data(), block.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return services::ErrnoStatus(errno, "read", path);
    if (got == 0) return offset;
    sha.Update(block.data(), static_cast<size_t>(got));
    offset += got;
  }
}

std::string Digest(training::Sha256& sha) {
  const auto digest = sha.Finish();
  return std::string(reinterpret_cast<const char*>(digest.data()), digest.size());
}

}  // namespace

bool IsTensorFileName(absl::string_view name) {
  if (name == "weights.safetensors") return true;
  const bool numbered =
      absl::ConsumePrefix(&name, "shard-") || absl::ConsumePrefix(&name, "residuals-");
  if (!numbered || !absl::ConsumeSuffix(&name, ".safetensors")) {
    return false;
  }
  int32_t index = -1;
  return absl::SimpleAtoi(name, &index) && index >= 0 && absl::StrCat(index) == name;
}

// ---- StoredFolder ----

absl::StatusOr<StoredFolder> StoredFolder::Make(const std::string& path,
                                                const std::vector<std::string>& roots) {
  absl::Status status = UnderNoRoot(path);
  for (const std::string& root : roots) {
    const std::optional<std::string> below = services::PathBelow(path, root);
    if (!below.has_value()) continue;
    status = services::EnsureDir(root);
    if (!status.ok()) continue;
    const int fd = services::MakeFolderBeneath(root, *below);
    if (fd >= 0) return StoredFolder(path, fd);
    status = errno == EXDEV ? LeadsOut(path) : services::ErrnoStatus(errno, "mkdir", path);
  }
  return status;
}

StoredFolder::~StoredFolder() {
  if (fd_ >= 0) ::close(fd_);
}

int StoredFolder::OpenFile(const std::string& name, int flags, mode_t mode) const {
  // O_NONBLOCK: opening a FIFO in place of a file must not block.
  return ::openat(fd_, name.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode);
}

void StoredFolder::Remove(const std::string& name) const {
  if (fd_ >= 0) (void)::unlinkat(fd_, name.c_str(), 0);
}

absl::Status StoredFolder::Rename(const std::string& from, const std::string& to) const {
  if (::renameat(fd_, from.c_str(), fd_, to.c_str()) == 0) return absl::OkStatus();
  return services::ErrnoStatus(errno, "rename", PathOf(to));
}

absl::Status StoredFolder::Sync() const {
  const int fd = ::openat(fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return services::ErrnoStatus(errno, "open", path_);
  // EINVAL: the file system has no fsync of folders, and nothing to lose without it.
  const bool synced = ::fsync(fd) == 0 || errno == EINVAL;
  const int error = errno;
  ::close(fd);
  return synced ? absl::OkStatus() : services::ErrnoStatus(error, "fsync", path_);
}

std::string StoredFolder::PathOf(const std::string& name) const {
  return absl::StrCat(path_, "/", name);
}

// ---- IncomingFile ----

IncomingFile::IncomingFile(const Announced& announced, StoredFolder folder)
    : announced_(announced),
      folder_(std::move(folder)),
      part_(absl::StrCat(".", announced.name, ".part")) {}

IncomingFile::~IncomingFile() {
  if (fd_ >= 0) ::close(fd_);
}

absl::StatusOr<std::unique_ptr<IncomingFile>> IncomingFile::Open(const Announced& announced) {
  absl::StatusOr<StoredFolder> folder = StoredFolder::Make(announced.folder, announced.roots);
  if (!folder.ok()) return folder.status();
  std::unique_ptr<IncomingFile> file(new IncomingFile(announced, *std::move(folder)));
  const StoredFolder& in = file->folder_;
  // The file may exist already, if only the answer was lost.
  const int there = in.OpenFile(announced.name, O_RDONLY);
  if (there >= 0) {
    const auto close_there = absl::MakeCleanup([there] { ::close(there); });
    training::Sha256 sha;
    const absl::StatusOr<int64_t> size = HashAll(there, in.PathOf(announced.name), sha);
    if (size.ok() && *size == announced.size_bytes && Digest(sha) == announced.sha256) {
      file->offset_ = *size;
      file->done_ = true;
      return file;
    }
  }
  const std::string part = in.PathOf(file->part_);
  file->fd_ = in.OpenFile(file->part_, O_RDWR | O_CREAT, 0644);
  if (file->fd_ < 0) return services::ErrnoStatus(errno, "open", part);
  absl::StatusOr<int64_t> size = HashAll(file->fd_, part, file->sha_);
  if (!size.ok()) return size.status();
  if (*size > announced.size_bytes) {
    if (::ftruncate(file->fd_, 0) != 0) {
      return services::ErrnoStatus(errno, "truncate", part);
    }
    file->sha_ = training::Sha256();
    size = 0;
  }
  file->offset_ = *size;
  if (file->offset_ < announced.size_bytes) {
    const int64_t left = announced.size_bytes - file->offset_;
    if (absl::Status status = services::LeaveFree(announced.folder, left); !status.ok()) {
      return status;
    }
    return file;
  }
  if (absl::Status status = file->Finish(); !status.ok()) return status;
  return file;
}

absl::Status IncomingFile::Append(absl::string_view bytes) {
  if (done_ || static_cast<int64_t>(bytes.size()) > announced_.size_bytes - offset_) {
    return absl::InvalidArgumentError(absl::StrCat(
        announced_.name, ": more than the ", announced_.size_bytes, " bytes that were announced"));
  }
  if (absl::Status status = WriteAt(fd_, folder_.PathOf(part_), bytes, offset_); !status.ok()) {
    // The part that a full disk holds is of no use.
    if (absl::IsResourceExhausted(status)) folder_.Remove(part_);
    return status;
  }
  sha_.Update(bytes);
  offset_ += static_cast<int64_t>(bytes.size());
  return offset_ == announced_.size_bytes ? Finish() : absl::OkStatus();
}

absl::Status IncomingFile::Finish() {
  if (Digest(sha_) != announced_.sha256) {
    folder_.Remove(part_);
    return absl::DataLossError(absl::StrCat(
        folder_.PathOf(announced_.name), ": the received bytes do not have the announced SHA-256"));
  }
  if (::fsync(fd_) != 0) {
    const absl::Status status = services::ErrnoStatus(errno, "fsync", folder_.PathOf(part_));
    folder_.Remove(part_);  // it is unknown how much of it is on the disk
    return status;
  }
  if (absl::Status status = folder_.Rename(part_, announced_.name); !status.ok()) return status;
  if (absl::Status status = folder_.Sync(); !status.ok()) return status;
  done_ = true;
  return absl::OkStatus();
}

// ---- OutgoingFile ----

absl::StatusOr<std::unique_ptr<OutgoingFile>> OutgoingFile::Open(const Wanted& wanted) {
  absl::Status status = UnderNoRoot(wanted.path);
  int fd = -1;
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | (wanted.follow_link ? 0 : O_NOFOLLOW);
  for (const std::string& root : wanted.roots) {
    const std::optional<std::string> below = services::PathBelow(wanted.path, root);
    if (!below.has_value()) continue;
    fd = services::OpenBeneath(root, *below, flags);
    if (fd >= 0) break;
    status = OpenError(errno, wanted.path);
  }
  if (fd < 0) return status;
  std::unique_ptr<OutgoingFile> file(new OutgoingFile(wanted.path, fd));
  struct stat info;
  if (::fstat(fd, &info) != 0) return services::ErrnoStatus(errno, "stat", wanted.path);
  if (!S_ISREG(info.st_mode)) {
    return absl::DataLossError(absl::StrCat(wanted.path, ": not a regular file"));
  }
  const int64_t size = info.st_size;
  if (wanted.offset < 0 || wanted.offset > size) {
    return absl::InvalidArgumentError(
        absl::StrCat("offset: got ", wanted.offset, ", want 0 to ", size));
  }
  if (wanted.length_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("length_bytes: got ", wanted.length_bytes, ", want 0 or more"));
  }
  file->size_bytes_ = size;
  file->at_ = wanted.offset;
  const int64_t rest = size - wanted.offset;
  file->end_ =
      wanted.offset + (wanted.length_bytes == 0 ? rest : std::min(rest, wanted.length_bytes));
  return file;
}

OutgoingFile::~OutgoingFile() { ::close(fd_); }

absl::Status OutgoingFile::Next(std::string& block) {
  block.resize(std::min(kSendBlockBytes, static_cast<size_t>(end_ - at_)));
  ssize_t got = -1;
  do {
    got = ::pread(fd_, block.data(), block.size(), at_);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return services::ErrnoStatus(errno, "read", path_);
  if (got == 0 && !block.empty()) {
    return absl::DataLossError(absl::StrCat(path_, ": ends at offset ", at_));
  }
  block.resize(static_cast<size_t>(got));
  at_ += got;
  return absl::OkStatus();
}

// ---- LookFile ----

absl::StatusOr<std::unique_ptr<LookFile>> LookFile::Make(const std::string& folder,
                                                         const std::vector<std::string>& roots) {
  absl::StatusOr<StoredFolder> in = StoredFolder::Make(folder, roots);
  if (!in.ok()) return in.status();
  (void)RemoveOldLooksIn(in->OpenFile(".", O_RDONLY | O_DIRECTORY));
  const std::string name =
      absl::StrCat(OwnLookPrefix(), absl::BytesToHexString(RandomBytes(kNonceBytes)));
  std::string nonce = RandomBytes(kNonceBytes);
  const std::string path = in->PathOf(name);
  const int fd = in->OpenFile(name, O_WRONLY | O_CREAT | O_EXCL, 0644);
  if (fd < 0) return services::ErrnoStatus(errno, "create", path);
  absl::Status status = WriteAt(fd, path, nonce, 0);
  if (absl::IsResourceExhausted(status)) {  // a full disk still takes a name, which is enough
    nonce.clear();
    status = ::ftruncate(fd, 0) == 0 ? absl::OkStatus() : status;
  }
  // Some file systems report only here that they are full. On NFS, others see the bytes only from
  // here.
  if (::close(fd) != 0 && status.ok()) status = services::ErrnoStatus(errno, "close", path);
  std::unique_ptr<LookFile> file(new LookFile(*std::move(in), name, std::move(nonce)));
  if (!status.ok()) return status;
  return file;
}

int RemoveOldLooks(const std::string& folder) {
  return RemoveOldLooksIn(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

// ---- The log ----

absl::StatusOr<int64_t> AppendToLog(const std::string& storage_path,
                                    const std::vector<std::string>& roots, int64_t offset,
                                    absl::string_view lines) {
  const absl::StatusOr<StoredFolder> folder = StoredFolder::Make(storage_path, roots);
  if (!folder.ok()) return folder.status();
  const std::string path = folder->PathOf("metrics.jsonl");
  const int fd = folder->OpenFile("metrics.jsonl", O_RDWR | O_CREAT, 0644);
  if (fd < 0) return services::ErrnoStatus(errno, "open", path);
  const auto close_fd = absl::MakeCleanup([fd] { ::close(fd); });
  struct stat info;
  if (::fstat(fd, &info) != 0) return services::ErrnoStatus(errno, "stat", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": not a regular file"));
  }
  // Cuts off half a line, which a process that died while writing has left.
  if (offset < 0) return services::CutHalfLine(fd, path);
  const int64_t size = info.st_size;
  // Checked before the sum, because an offset may be any number.
  if (offset > size || offset + static_cast<int64_t>(lines.size()) < size) {
    return absl::OutOfRangeError(absl::StrCat(path, ": has ", size, " bytes, the ", lines.size(),
                                              " bytes of lines are for ", offset));
  }
  const int64_t end = offset + static_cast<int64_t>(lines.size());
  absl::Status status = WriteAt(fd, path, lines.substr(static_cast<size_t>(size - offset)), size);
  if (!status.ok()) {
    (void)::ftruncate(fd, size);  // leaves no half line
    return status;
  }
  return end;
}

}  // namespace capstan::coordinator
