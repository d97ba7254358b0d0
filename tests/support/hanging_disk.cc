#include "tests/support/hanging_disk.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/files/files.h"

namespace capstan::tests {
namespace {

absl::Status WriteProc(const std::string& path, const std::string& line) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return services::ErrnoStatus(errno, "open", path);
  const bool written = write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  const int error = errno;
  close(fd);
  return written ? absl::OkStatus() : services::ErrnoStatus(error, "write", path);
}

// Mounts a file system and returns the descriptor that serves it.
absl::StatusOr<int> MountFuse(const std::string& folder) {
  const int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (device < 0) return services::ErrnoStatus(errno, "open", "/dev/fuse");
  const std::string options =
      absl::StrCat("fd=", device, ",rootmode=40000,user_id=", geteuid(), ",group_id=", getegid());
  if (mount("capstan-test", folder.c_str(), "fuse", 0, options.c_str()) != 0) {
    const int error = errno;
    close(device);
    return services::ErrnoStatus(error, "mount", folder);
  }
  return device;
}

constexpr size_t kRequestBytes = size_t{1} << 18;  // the kernel requires more than max_write
constexpr uint32_t kMaxWrite = 1 << 16;
constexpr int kLookMs = 20;  // between checks whether it should stop
constexpr int64_t kMaxFileBytes = int64_t{1} << 28;
constexpr uint64_t kForever = 1'000'000;  // seconds; the kernel may keep what it knows

// Inode 1 is the folder; 2 and up are the files in order.
fuse_attr AttributesOf(uint64_t inode, const std::map<std::string, std::string>& files) {
  fuse_attr attributes = {};
  attributes.ino = inode;
  attributes.mode = inode == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0644;
  attributes.nlink = 1;
  attributes.uid = geteuid();
  attributes.gid = getegid();
  attributes.blksize = 4096;
  if (inode != FUSE_ROOT_ID) {
    attributes.size = std::next(files.begin(), static_cast<int64_t>(inode) - 2)->second.size();
  }
  return attributes;
}

template <typename T>
T Argument(const std::string& request) {
  T argument = {};
  std::memcpy(&argument, request.data() + sizeof(fuse_in_header),
              std::min(sizeof(T), request.size() - sizeof(fuse_in_header)));
  return argument;
}

}  // namespace

absl::Status OwnMounts() {
  const uid_t uid = geteuid();
  const gid_t gid = getegid();
  if (unshare(CLONE_NEWNS | (uid != 0 ? CLONE_NEWUSER : 0)) != 0) {
    return services::ErrnoStatus(errno, "unshare", "a mount namespace");
  }
  if (uid != 0) {
    absl::Status status = WriteProc("/proc/self/setgroups", "deny");
    status.Update(WriteProc("/proc/self/uid_map", absl::StrCat(uid, " ", uid, " 1")));
    status.Update(WriteProc("/proc/self/gid_map", absl::StrCat(gid, " ", gid, " 1")));
    if (!status.ok()) return status;
  }
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return services::ErrnoStatus(errno, "mount", "/");
  }
  const int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (device < 0) return services::ErrnoStatus(errno, "open", "/dev/fuse");
  close(device);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<HangingDisk>> HangingDisk::Over(const std::string& folder) {
  const absl::StatusOr<int> device = MountFuse(folder);
  if (!device.ok()) return device.status();
  return std::unique_ptr<HangingDisk>(new HangingDisk(folder, *device));
}

void HangingDisk::Answer() {
  if (device_ < 0) return;
  close(std::exchange(device_, -1));
  (void)umount2(folder_.c_str(), MNT_DETACH);
}

absl::StatusOr<std::unique_ptr<SlowDisk>> SlowDisk::Over(const std::string& folder,
                                                         absl::Duration pause) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    absl::StatusOr<std::string> bytes = services::ReadWholeFile(entry.path(), kMaxFileBytes);
    if (!bytes.ok()) return bytes.status();
    files[entry.path().filename()] = *std::move(bytes);
  }
  const absl::StatusOr<int> device = MountFuse(folder);
  if (!device.ok()) return device.status();
  return std::unique_ptr<SlowDisk>(new SlowDisk(folder, pause, std::move(files), *device));
}

SlowDisk::SlowDisk(std::string folder, absl::Duration pause,
                   std::map<std::string, std::string> files, int device)
    : folder_(std::move(folder)),
      pause_(pause),
      files_(std::move(files)),
      device_(device),
      thread_([this] { Serve(); }) {}

SlowDisk::~SlowDisk() {
  stopping_ = true;
  thread_.join();
  close(device_);
  (void)umount2(folder_.c_str(), MNT_DETACH);
}

void SlowDisk::Serve() {
  std::string request(kRequestBytes, '\0');
  while (!stopping_) {
    pollfd device = {.fd = device_, .events = POLLIN, .revents = 0};
    if (poll(&device, 1, kLookMs) <= 0) continue;
    const ssize_t got = read(device_, request.data(), request.size());
    if (got < static_cast<ssize_t>(sizeof(fuse_in_header))) continue;
    Answer(request.substr(0, static_cast<size_t>(got)));
  }
}

void SlowDisk::Answer(const std::string& request) {
  fuse_in_header header = {};
  std::memcpy(&header, request.data(), sizeof(header));
  const auto send = [&](const auto& answer) { Send(header.unique, 0, &answer, sizeof(answer)); };
  switch (header.opcode) {
    case FUSE_INIT: {
      fuse_init_out init = {};
      init.major = FUSE_KERNEL_VERSION;
      init.minor = std::min<uint32_t>(Argument<fuse_init_in>(request).minor, 31);
      init.max_write = kMaxWrite;
      return send(init);
    }
    case FUSE_LOOKUP: {
      const auto file = files_.find(request.c_str() + sizeof(header));
      if (file == files_.end()) return Send(header.unique, ENOENT, nullptr, 0);
      fuse_entry_out entry = {};
      entry.nodeid = static_cast<uint64_t>(std::distance(files_.begin(), file)) + 2;
      entry.entry_valid = entry.attr_valid = kForever;
      entry.attr = AttributesOf(entry.nodeid, files_);
      return send(entry);
    }
    case FUSE_GETATTR: {
      fuse_attr_out attributes = {};
      attributes.attr_valid = kForever;
      attributes.attr = AttributesOf(header.nodeid, files_);
      return send(attributes);
    }
    case FUSE_OPEN: {
      fuse_open_out opened = {};
      opened.open_flags = FOPEN_DIRECT_IO;  // no read-ahead
      return send(opened);
    }
    case FUSE_READ: {
      const auto wanted = Argument<fuse_read_in>(request);
      const std::string& bytes =
          std::next(files_.begin(), static_cast<int64_t>(header.nodeid) - 2)->second;
      const size_t from = std::min<size_t>(wanted.offset, bytes.size());
      absl::SleepFor(pause_);
      return Send(header.unique, 0, bytes.data() + from,
                  std::min<size_t>(wanted.size, bytes.size() - from));
    }
    case FUSE_RELEASE:
      return Send(header.unique, 0, nullptr, 0);
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
      return;  // these get no answer
    default:
      return Send(header.unique, ENOSYS, nullptr, 0);
  }
}

void SlowDisk::Send(uint64_t request, int error, const void* data, size_t size) const {
  fuse_out_header header = {};
  header.len = static_cast<uint32_t>(sizeof(header) + size);
  header.error = -error;
  header.unique = request;
  iovec parts[] = {{&header, sizeof(header)}, {const_cast<void*>(data), size}};
  // Errors are ignored: the asking process has given up.
  (void)!writev(device_, parts, size > 0 ? 2 : 1);
}

}  // namespace capstan::tests
