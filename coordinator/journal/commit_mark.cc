#include "coordinator/journal/commit_mark.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "services/clock/clock.h"
#include "services/files/files.h"
#include "training/codec/crc32c.h"

namespace capstan::coordinator {
namespace {

constexpr char kHead[] = "capstan-journal-1";
constexpr size_t kSlotBytes = 512;  // a disk writes this many bytes whole or not at all
constexpr size_t kLineBytes = 65;   // part of a slot, with its newline; the rest is spaces
constexpr int64_t kMaxMarkBytes = 1 << 20;

// "capstan-journal-1 <journal, 16 hex> <commits, 20 digits> <crc32c, 8 hex>"
std::string SlotOf(const CommitCount& count) {
  const std::string body = absl::StrFormat("%s %016x %020d", kHead, count.journal, count.commits);
  std::string slot = absl::StrFormat("%s %08x\n", body, training::Crc32c(body));
  slot.resize(kSlotBytes - 1, ' ');
  return slot + "\n";
}

std::optional<CommitCount> ParseSlot(absl::string_view slot) {
  const absl::string_view line = slot.substr(0, slot.find('\n'));
  const std::vector<absl::string_view> parts = absl::StrSplit(line, ' ');
  CommitCount count;
  uint64_t journal = 0;
  if (parts.size() != 4 || !absl::SimpleHexAtoi(parts[1], &journal) ||
      !absl::SimpleAtoi(parts[2], &count.commits)) {
    return std::nullopt;
  }
  count.journal = static_cast<int64_t>(journal);
  // Compares all bytes, so that only what was written is accepted.
  if (SlotOf(count).substr(0, line.size() + 1) != slot.substr(0, line.size() + 1)) {
    return std::nullopt;
  }
  return count;
}

absl::Status WriteAt(int fd, const std::string& path, absl::string_view bytes, off_t at) {
  ssize_t wrote = 0;
  do {
    wrote = ::pwrite(fd, bytes.data(), bytes.size(), at);
  } while (wrote < 0 && errno == EINTR);
  if (wrote == static_cast<ssize_t>(bytes.size())) return absl::OkStatus();
  return services::ErrnoStatus(wrote < 0 ? errno : ENOSPC, "write", path);
}

}  // namespace

absl::StatusOr<std::optional<CommitCount>> CommitMark::Read(const std::string& path) {
  const absl::StatusOr<std::string> text = services::ReadWholeFile(path, kMaxMarkBytes);
  if (absl::IsNotFound(text.status())) return std::optional<CommitCount>();
  if (!text.ok() && !absl::IsInvalidArgument(text.status())) return text.status();
  std::optional<CommitCount> newest;
  for (size_t slot = 0; text.ok() && slot < 2 && slot * kSlotBytes < text->size(); ++slot) {
    const auto count = ParseSlot(absl::string_view(*text).substr(slot * kSlotBytes, kSlotBytes));
    if (!count.has_value()) continue;
    if (!newest.has_value() || count->commits > newest->commits) newest = count;
  }
  if (!newest.has_value()) return absl::DataLossError(absl::StrCat(path, ": is damaged"));
  return newest;
}

absl::StatusOr<std::unique_ptr<CommitMark>> CommitMark::Create(const std::string& path,
                                                               const CommitCount& count) {
  const absl::Status status = services::WriteFileAtomically(path, Text(count), {.mode = 0600});
  if (!status.ok()) return status;
  return Open(path, count);
}

std::string CommitMark::Text(const CommitCount& count) { return SlotOf(count) + SlotOf(count); }

absl::StatusOr<std::unique_ptr<CommitMark>> CommitMark::Open(const std::string& path,
                                                             const CommitCount& count) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return services::ErrnoStatus(errno, "open", path);
  return std::unique_ptr<CommitMark>(new CommitMark(path, fd, count));
}

CommitMark::CommitMark(std::string path, int fd, const CommitCount& count)
    : path_(std::move(path)), fd_(fd), count_(count), synced_(MonotonicNow()) {}

CommitMark::~CommitMark() {
  (void)::fdatasync(fd_);
  ::close(fd_);
}

absl::Status CommitMark::Count() {
  ++count_.commits;
  const std::string slot = SlotOf(count_);
  const size_t at = static_cast<size_t>(count_.commits & 1) * kSlotBytes;
  const absl::Status status =
      WriteAt(fd_, path_, absl::string_view(slot).substr(0, kLineBytes), static_cast<off_t>(at));
  if (!status.ok() || MonotonicNow() - synced_ < kMarkSync) return status;
  synced_ = MonotonicNow();
  if (::fdatasync(fd_) != 0) return services::ErrnoStatus(errno, "fdatasync", path_);
  return absl::OkStatus();
}

namespace {

constexpr size_t kWalHeaderBytes = 32;
constexpr size_t kFrameHeaderBytes = 24;
constexpr uint32_t kWalMagic = 0x377f0682;  // last bit set: sums of big-endian words

uint32_t BigEndian(const std::string& bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

struct WalSum {
  bool big_endian = false;
  uint32_t first = 0;
  uint32_t second = 0;
  // `size` is a multiple of 8.
  void Add(const std::string& bytes, size_t at, size_t size) {
    const auto word = [&](size_t i) {
      const uint32_t value = BigEndian(bytes, i);
      return big_endian ? value : __builtin_bswap32(value);
    };
    for (size_t i = at; i < at + size; i += 8) {
      first += word(i) + second;
      second += word(i + 4) + first;
    }
  }
  bool Is(const std::string& bytes, size_t at) const {
    return BigEndian(bytes, at) == first && BigEndian(bytes, at + 4) == second;
  }
};

}  // namespace

std::string DescribeWal(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  const absl::StatusOr<std::string> read = services::ReadWholeFile(path, int64_t{1} << 30);
  if (absl::IsNotFound(read.status())) return absl::StrCat(name, " does not exist");
  if (!read.ok()) return std::string(read.status().message());
  const std::string& wal = *read;
  if (wal.empty()) return absl::StrCat(name, " is empty");
  if (wal.size() < kWalHeaderBytes) return absl::StrCat(name, " is cut off");
  const uint32_t magic = BigEndian(wal, 0);
  const size_t page = BigEndian(wal, 8);
  WalSum sum{(magic & 1) != 0};
  sum.Add(wal, 0, 24);
  if ((magic & ~1u) != kWalMagic || !sum.Is(wal, 24) || page < 512 || page > 65536) {
    return absl::StrCat(name, ": its header is damaged");
  }
  const size_t frame_bytes = kFrameHeaderBytes + page;
  const size_t frames = (wal.size() - kWalHeaderBytes) / frame_bytes;
  size_t commits = 0;
  for (size_t i = 0; i < frames; ++i) {
    const size_t at = kWalHeaderBytes + i * frame_bytes;
    sum.Add(wal, at, 8);
    sum.Add(wal, at + kFrameHeaderBytes, page);
    if (wal.compare(at + 8, 8, wal, 16, 8) != 0 || !sum.Is(wal, at + 16)) {
      return absl::StrCat(name, " is intact up to frame ", i, " of ", frames, ", byte ", at,
                          ", with ", commits, " commits");
    }
    if (BigEndian(wal, at + 4) != 0) ++commits;
  }
  return absl::StrCat(name, " is intact: ", frames, " frames with ", commits, " commits");
}

}  // namespace capstan::coordinator
