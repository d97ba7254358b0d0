#include "param_store/checkpoint/file_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/files/files.h"
#include "training/codec/sha256.h"

namespace capstan::param_store {
namespace {

class LocalFile final : public InputFile {
 public:
  static absl::StatusOr<std::unique_ptr<InputFile>> Open(const std::string& path, int flags) {
    // O_NONBLOCK: opening a FIFO must not block before the check below.
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags);
    if (fd < 0) return services::ErrnoStatus(errno, "open", path);
    std::unique_ptr<LocalFile> file(new LocalFile(fd, path));
    struct stat st;
    if (fstat(fd, &st) != 0) return services::ErrnoStatus(errno, "stat", path);
    if (!S_ISREG(st.st_mode))
      return absl::DataLossError(absl::StrCat(path, ": not a regular file"));
    file->size_bytes_ = st.st_size;
    return std::unique_ptr<InputFile>(std::move(file));
  }
  ~LocalFile() override { close(fd_); }

  int64_t size_bytes() const override { return size_bytes_; }
  absl::Status ReadAt(int64_t offset, char* out, int64_t size_bytes) override {
    while (size_bytes > 0) {
      const ssize_t n = pread(fd_, out, static_cast<size_t>(size_bytes), offset);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        const absl::Status status = services::ErrnoStatus(errno, "read", path_);
        return absl::Status(status.code(), absl::StrCat(status.message(), " at offset ", offset));
      }
      if (n == 0) return absl::DataLossError(absl::StrCat(path_, ": ends at offset ", offset));
      out += n;
      offset += n;
      size_bytes -= n;
    }
    return absl::OkStatus();
  }

 private:
  LocalFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  const int fd_;
  const std::string path_;
  int64_t size_bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<InputFile>> LocalFileStore::OpenCheckpointFile(
    const std::string& folder, const std::string& name) {
  return LocalFile::Open(absl::StrCat(folder, "/", name), O_NOFOLLOW);
}

absl::StatusOr<std::unique_ptr<InputFile>> LocalFileStore::OpenInitialWeights(
    const std::string& path, const std::string& name) {
  return LocalFile::Open(name.empty() ? path : absl::StrCat(path, "/", name), 0);
}

absl::StatusOr<common::v1::FileInfo> LocalFileStore::Write(
    const std::string& folder, const std::string& name, absl::Span<const absl::string_view> parts) {
  if (absl::Status status = services::EnsureDir(folder); !status.ok()) return status;
  int64_t bytes = 0;
  for (const absl::string_view part : parts) bytes += static_cast<int64_t>(part.size());
  if (absl::Status status = services::LeaveFree(folder, bytes); !status.ok()) return status;
  auto file = services::AtomicFile::Create(absl::StrCat(folder, "/", name));
  if (!file.ok()) return file.status();
  training::Sha256 sha;
  for (const absl::string_view part : parts) {
    sha.Update(part);
    if (absl::Status status = (*file)->Append(part); !status.ok()) return status;
  }
  if (absl::Status status = (*file)->Commit(); !status.ok()) return status;
  common::v1::FileInfo info;
  info.set_name(name);
  info.set_size_bytes((*file)->size_bytes());
  const auto digest = sha.Finish();
  info.set_sha256(digest.data(), digest.size());
  return info;
}

FileStore& LocalFiles() {
  static LocalFileStore* const files = new LocalFileStore();
  return *files;
}

}  // namespace capstan::param_store
