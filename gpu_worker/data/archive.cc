#include "gpu_worker/data/archive.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gpu_worker/data/byte_source.h"
#include "gpu_worker/data/failure.h"
#include "services/files/files.h"
#include "training/codec/sha256.h"

namespace capstan::data {
namespace {

constexpr absl::string_view kSums = "SHA256SUMS";
constexpr int64_t kMaxSumsBytes = 1 << 16;
constexpr int64_t kTarBlock = 512;
constexpr int64_t kCopyBytes = 1 << 20;
constexpr int64_t kMaxMemberBytes = int64_t{1} << 40;

// Fields of a ustar header: offset and length.
struct TarField {
  size_t offset, size;
};
constexpr TarField kTarName = {0, 100}, kTarSize = {124, 12}, kTarSum = {148, 8},
                   kTarType = {156, 1}, kTarPrefix = {345, 155};

absl::string_view TextOf(const uint8_t* header, TarField field) {
  const char* text = reinterpret_cast<const char*>(header) + field.offset;
  return {text, strnlen(text, field.size)};
}

constexpr size_t kTarMagic = 257;

// The value of octal digits between blanks; -1 for anything else.
int64_t OctalOf(const uint8_t* header, TarField field) {
  absl::string_view text = absl::StripAsciiWhitespace(TextOf(header, field));
  int64_t value = 0;
  if (text.empty()) return -1;
  for (const char digit : text) {
    if (digit < '0' || digit > '7') return -1;
    value = value * 8 + (digit - '0');  // at most 36 bits
  }
  return value;
}

bool SumIsRight(const uint8_t* header) {
  int64_t sum = 0;
  for (size_t i = 0; i < kTarBlock; ++i) {
    const bool inside = i >= kTarSum.offset && i < kTarSum.offset + kTarSum.size;
    sum += inside ? ' ' : header[i];
  }
  return sum == OctalOf(header, kTarSum);
}

class TarReader {
 public:
  TarReader(std::unique_ptr<ByteSource> source, const CatalogEntry& entry,
            const std::string& folder)
      : source_(std::move(source)), entry_(entry), folder_(folder) {}

  absl::Status Unpack() {
    uint8_t header[kTarBlock];
    for (;;) {
      const int64_t at = offset_;
      absl::Status status = Read(header, kTarBlock);
      if (!status.ok()) return status;
      if (std::all_of(header, header + kTarBlock, [](uint8_t byte) { return byte == 0; })) break;
      const int64_t size = OctalOf(header, kTarSize);
      if (!SumIsRight(header) || size < 0 || size > kMaxMemberBytes) {
        return Damaged(source_->file(), absl::StrCat("no tar header at offset ", at));
      }
      const CatalogMember* member = MemberOf(header);
      status = member == nullptr ? Skip(size) : Write(*member, header[kTarType.offset], size);
      if (status.ok()) status = Skip((kTarBlock - size % kTarBlock) % kTarBlock);
      if (!status.ok()) return status;
    }
    std::string sums;
    for (const CatalogMember& member : entry_.members) {
      const auto found = hashes_.find(member.name);
      if (found == hashes_.end()) {
        return Damaged(source_->file(), absl::StrCat("has no ", member.name));
      }
      absl::StrAppend(&sums, found->second, "  ", member.name, "\n");
    }
    return services::WriteFileAtomically(absl::StrCat(folder_, "/", kSums), sums);
  }

 private:
  absl::Status Read(uint8_t* to, int64_t size) {
    absl::StatusOr<size_t> got = source_->Read(to, static_cast<size_t>(size));
    if (!got.ok()) return got.status();
    offset_ += static_cast<int64_t>(*got);
    if (static_cast<int64_t>(*got) == size) return absl::OkStatus();
    return Damaged(source_->file(), absl::StrCat("the tar data end at offset ", offset_));
  }

  absl::Status Skip(int64_t size) {
    for (int64_t left = size; left > 0; left -= kCopyBytes) {
      absl::Status status = Read(buffer_.data(), std::min(left, kCopyBytes));
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // Null for a member that is not expected.
  const CatalogMember* MemberOf(const uint8_t* header) const {
    // Other kinds of tar use this place for something else.
    const bool posix = std::memcmp(header + kTarMagic, "ustar", 6) == 0;
    const absl::string_view prefix = posix ? TextOf(header, kTarPrefix) : "";
    const std::string path =
        absl::StrCat(prefix, prefix.empty() ? "" : "/", TextOf(header, kTarName));
    for (const CatalogMember& member : entry_.members) {
      const std::string want = absl::StrCat(entry_.archive_folder, "/", member.name);
      if (absl::StripPrefix(path, "./") == want) return &member;
    }
    return nullptr;
  }

  absl::Status Write(const CatalogMember& member, uint8_t type, int64_t size) {
    if (type != '0' && type != 0) {
      return Damaged(source_->file(), absl::StrCat(member.name, " is not a regular file"));
    }
    if (size != member.size_bytes) {
      return Damaged(source_->file(),
                     absl::StrCat(member.name, " has ", size, " bytes, want ", member.size_bytes));
    }
    if (hashes_.count(std::string(member.name)) > 0) {
      return Damaged(source_->file(), absl::StrCat(member.name, " comes twice"));
    }
    auto file = services::AtomicFile::Create(absl::StrCat(folder_, "/", member.name));
    if (!file.ok()) return file.status();
    training::Sha256 hash;
    for (int64_t left = size; left > 0; left -= kCopyBytes) {
      const int64_t take = std::min(left, kCopyBytes);
      absl::Status status = Read(buffer_.data(), take);
      if (status.ok()) {
        hash.Update(buffer_.data(), take);
        status = (*file)->Append(
            {reinterpret_cast<const char*>(buffer_.data()), static_cast<size_t>(take)});
      }
      if (!status.ok()) return status;
    }
    hashes_[std::string(member.name)] = hash.FinishHex();
    return (*file)->Commit();
  }

  const std::unique_ptr<ByteSource> source_;
  const CatalogEntry& entry_;
  const std::string folder_;
  int64_t offset_ = 0;                                      // number of unpacked bytes read
  std::map<std::string, std::string, std::less<>> hashes_;  // of the members written
  std::vector<uint8_t> buffer_ = std::vector<uint8_t>(kCopyBytes);
};

}  // namespace

absl::Status UnpackMembers(const std::string& path, const CatalogEntry& entry,
                           const std::string& folder) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return services::ErrnoStatus(errno, "open", path);
  absl::StatusOr<std::unique_ptr<ByteSource>> file = FileSource(path, descriptor);
  if (!file.ok()) return file.status();
  return TarReader(GzipSource(*std::move(file)), entry, folder).Unpack();
}

absl::Status VerifyMembers(const std::string& folder, const CatalogEntry& entry) {
  const std::string path = absl::StrCat(folder, "/", kSums);
  absl::StatusOr<std::string> sums = services::ReadWholeFile(path, kMaxSumsBytes);
  if (!sums.ok()) return sums.status();
  std::map<std::string, std::string, std::less<>> hashes;
  for (const absl::string_view line : absl::StrSplit(*sums, '\n', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits("  ", 1));
    hashes[std::string(parts.second)] = std::string(parts.first);
  }
  for (const CatalogMember& member : entry.members) {
    const auto hash = hashes.find(member.name);
    if (hash == hashes.end()) return Damaged(path, absl::StrCat("has no line for ", member.name));
    absl::Status status =
        VerifyFile(folder, {member.name, member.size_bytes, /*md5=*/"", hash->second});
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace capstan::data
