#include "gpu_worker/data/zip.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gpu_worker/data/failure.h"

namespace capstan::data {
namespace {

constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kDirectoryHeader = 0x02014b50;
constexpr uint32_t kEndRecord = 0x06054b50;
constexpr uint32_t kEnd64Record = 0x06064b50;
constexpr uint32_t kEnd64Locator = 0x07064b50;
constexpr int64_t kLocalHeaderBytes = 30;
constexpr int64_t kDirectoryHeaderBytes = 46;
constexpr int64_t kEndRecordBytes = 22;
constexpr int64_t kEnd64RecordBytes = 56;
constexpr int64_t kEnd64LocatorBytes = 20;
constexpr int64_t kMaxCommentBytes = 0xffff;

constexpr uint16_t kEncrypted = 1 << 0 | 1 << 6 | 1 << 13;
constexpr uint16_t kSizesFollow = 1 << 3;  // the local header does not have them
constexpr uint16_t kPatch = 1 << 5;
constexpr uint16_t kZip64Extra = 1;
constexpr uint32_t kIn64 = 0xffffffff;  // the real number is in the zip64 field

// Deflate cannot do better than 1032 to 1 (zlib's technical notes). A block has some bytes more.
constexpr int64_t kMostPerByte = 1032;

uint64_t Little(const uint8_t* bytes, int count) {
  uint64_t value = 0;
  for (int i = 0; i < count; ++i) value |= uint64_t{bytes[i]} << (8 * i);
  return value;
}
uint16_t Little16(const uint8_t* bytes) { return static_cast<uint16_t>(Little(bytes, 2)); }
uint32_t Little32(const uint8_t* bytes) { return static_cast<uint32_t>(Little(bytes, 4)); }

// Sizes and the offset of a header, from their 32 bits or from the zip64 field.
struct ZipSizes {
  uint64_t bytes, packed_bytes, offset;
};

// Replaces what `sizes` says is in the zip64 field. False: the field is absent or too short.
bool ReadZip64(const uint8_t* extra, size_t extra_bytes, ZipSizes& sizes) {
  uint64_t* wanted[3];
  size_t count = 0;
  for (uint64_t* size : {&sizes.bytes, &sizes.packed_bytes, &sizes.offset}) {
    if (*size == kIn64) wanted[count++] = size;
  }
  if (count == 0) return true;
  while (extra_bytes >= 4) {
    const size_t field_bytes = Little16(extra + 2);
    if (field_bytes > extra_bytes - 4) return false;
    if (Little16(extra) == kZip64Extra) {
      if (field_bytes < 8 * count) return false;
      for (size_t i = 0; i < count; ++i) *wanted[i] = Little(extra + 4 + 8 * i, 8);
      return true;
    }
    extra += 4 + field_bytes;
    extra_bytes -= 4 + field_bytes;
  }
  return false;
}

// The unpacked bytes of one member.
class FromZip final : public ByteSource {
 public:
  FromZip(const ByteSource& archive, const ZipMember& member, int64_t offset)
      : ByteSource(absl::StrCat(archive.file(), ": ", member.name), member.packed_bytes),
        archive_(archive),
        deflated_(member.method == kZipDeflated),
        bytes_(member.bytes),
        crc_wanted_(member.crc),
        next_(offset),
        end_(offset + member.packed_bytes) {
    std::memset(&stream_, 0, sizeof(stream_));
    // Negative: the data have neither header nor trailer of their own.
    ready_ = !deflated_ || inflateInit2(&stream_, -15) == Z_OK;
  }
  ~FromZip() override {
    if (deflated_ && ready_) inflateEnd(&stream_);
  }

  int64_t max_bytes() const override { return bytes_; }
  bool compressed() const override { return true; }

  absl::StatusOr<size_t> Read(uint8_t* to, size_t size) override {
    if (!ready_) return absl::ResourceExhaustedError(absl::StrCat(file(), ": no memory to unpack"));
    const auto want = static_cast<size_t>(
        std::min(static_cast<uint64_t>(size), static_cast<uint64_t>(bytes_ - unpacked_)));
    absl::Status status = deflated_ ? Unpack(to, want) : Copy(to, want);
    if (!status.ok()) return status;
    for (size_t done = 0; done < want;) {  // zlib's lengths have 32 bits
      const size_t take = std::min(want - done, size_t{1} << 30);
      crc_ = static_cast<uint32_t>(crc32(crc_, to + done, static_cast<uInt>(take)));
      done += take;
    }
    unpacked_ += static_cast<int64_t>(want);
    if (unpacked_ == bytes_ && !checked_) {
      status = CheckEnd();
      if (!status.ok()) return status;
      checked_ = true;
    }
    return want;
  }

 private:
  absl::Status Copy(uint8_t* to, size_t size) {
    if (size == 0) return absl::OkStatus();
    absl::Status status = archive_.ReadAt(next_, to, size);
    if (status.ok()) next_ += static_cast<int64_t>(size);
    return status;
  }

  // Unpacks exactly `size` bytes.
  absl::Status Unpack(uint8_t* to, size_t size) {
    for (size_t done = 0; done < size;) {
      const size_t room = std::min(size - done, size_t{1} << 30);
      absl::StatusOr<size_t> made = Inflate(to + done, room);
      if (!made.ok()) return made.status();
      done += *made;
      if (ended_ && done < size) {
        return Damaged(file(), absl::StrCat("unpacks to ", unpacked_ + static_cast<int64_t>(done),
                                            " bytes, the directory says ", bytes_));
      }
    }
    return absl::OkStatus();
  }

  // One call of inflate, which makes up to `room` bytes.
  absl::StatusOr<size_t> Inflate(uint8_t* to, size_t room) {
    if (stream_.avail_in == 0 && next_ < end_) {
      const int64_t take = std::min(end_ - next_, static_cast<int64_t>(input_.size()));
      absl::Status status = archive_.ReadAt(next_, input_.data(), static_cast<size_t>(take));
      if (!status.ok()) return status;
      next_ += take;
      stream_.next_in = input_.data();
      stream_.avail_in = static_cast<uInt>(take);
    }
    const bool all_given = stream_.avail_in == 0;
    stream_.next_out = to;
    stream_.avail_out = static_cast<uInt>(room);
    const int result = inflate(&stream_, Z_NO_FLUSH);
    const size_t made = room - stream_.avail_out;
    ended_ = result == Z_STREAM_END;
    if (!ended_ && result != Z_OK && result != Z_BUF_ERROR) {
      return Damaged(file(),
                     absl::StrCat("deflate data damaged at offset ", next_ - stream_.avail_in, ": ",
                                  stream_.msg == nullptr ? "no reason given" : stream_.msg));
    }
    if (!ended_ && made == 0 && all_given) {
      return Damaged(file(), absl::StrCat("deflate data truncated at offset ", next_));
    }
    return made;
  }

  absl::Status CheckEnd() {
    while (deflated_ && !ended_) {
      uint8_t extra = 0;
      absl::StatusOr<size_t> more = Inflate(&extra, 1);
      if (!more.ok()) return more.status();
      if (*more > 0) {
        return Damaged(file(), absl::StrCat("unpacks to more than the ", bytes_,
                                            " bytes that the directory says"));
      }
    }
    const int64_t at = next_ - static_cast<int64_t>(stream_.avail_in);
    if (at != end_) {
      return Damaged(file(), absl::StrCat(end_ - at, " bytes follow its data at offset ", at));
    }
    if (crc_ != crc_wanted_) {
      return Damaged(file(), absl::StrCat("CRC-32 ", absl::Hex(crc_, absl::kZeroPad8), ", want ",
                                          absl::Hex(crc_wanted_, absl::kZeroPad8)));
    }
    return absl::OkStatus();
  }

  const ByteSource& archive_;
  const bool deflated_;
  const int64_t bytes_;
  const uint32_t crc_wanted_;
  int64_t next_;  // the next packed byte that is read from the archive
  const int64_t end_;
  z_stream stream_;
  bool ready_ = false;
  bool ended_ = false;    // the deflate data have ended
  bool checked_ = false;  // size and CRC are right
  int64_t unpacked_ = 0;
  uint32_t crc_ = 0;
  std::array<uint8_t, 64 << 10> input_;
};

}  // namespace

absl::StatusOr<ZipArchive> ZipArchive::Open(std::unique_ptr<ByteSource> file) {
  ZipArchive archive(std::move(file));
  absl::Status status = archive.ReadDirectory();
  if (!status.ok()) return status;
  return archive;
}

const ZipMember* ZipArchive::Find(absl::string_view name) const {
  for (const ZipMember& member : members_) {
    if (member.name == name) return &member;
  }
  return nullptr;
}

absl::Status ZipArchive::ReadDirectory() {
  const int64_t size = file_->stored_bytes();
  // The end record is the last one whose comment reaches exactly to the end of the file.
  const int64_t tail_bytes = std::min(size, kEndRecordBytes + kMaxCommentBytes);
  std::vector<uint8_t> tail(static_cast<size_t>(tail_bytes));
  if (tail_bytes > 0) {
    absl::Status status = file_->ReadAt(size - tail_bytes, tail.data(), tail.size());
    if (!status.ok()) return status;
  }
  int64_t place = tail_bytes - kEndRecordBytes;
  for (; place >= 0; --place) {
    const uint8_t* const record = tail.data() + place;
    if (Little32(record) == kEndRecord &&
        place + kEndRecordBytes + Little16(record + 20) == tail_bytes) {
      break;
    }
  }
  if (place < 0) return Damaged(file(), "no end of a zip directory: not a zip, or truncated");
  const uint8_t* const record = tail.data() + place;
  int64_t directory_end = size - tail_bytes + place;
  bool one_part = Little16(record + 4) == 0 && Little16(record + 6) == 0 &&
                  Little16(record + 8) == Little16(record + 10);
  uint64_t count = Little16(record + 10);
  uint64_t bytes = Little32(record + 12);
  uint64_t offset = Little32(record + 16);

  if (count == 0xffff || bytes == kIn64 || offset == kIn64) {
    uint8_t locator[kEnd64LocatorBytes], record64[kEnd64RecordBytes];
    const int64_t locator_at = directory_end - kEnd64LocatorBytes;
    const int64_t record_at = locator_at - kEnd64RecordBytes;
    if (record_at < 0) return Damaged(file(), "no room for a zip64 directory");
    absl::Status status = file_->ReadAt(locator_at, locator, sizeof(locator));
    if (status.ok()) status = file_->ReadAt(record_at, record64, sizeof(record64));
    if (!status.ok()) return status;
    if (Little32(locator) != kEnd64Locator || Little32(record64) != kEnd64Record ||
        Little(locator + 8, 8) != static_cast<uint64_t>(record_at)) {
      return Damaged(file(), absl::StrCat("no end of a zip64 directory at offset ", record_at));
    }
    one_part = Little32(locator + 4) == 0 && Little32(record64 + 16) == 0 &&
               Little32(record64 + 20) == 0 && Little(record64 + 24, 8) == Little(record64 + 32, 8);
    count = Little(record64 + 32, 8);
    bytes = Little(record64 + 40, 8);
    offset = Little(record64 + 48, 8);
    directory_end = record_at;
  }
  if (!one_part) return Damaged(file(), "a zip in several parts");
  const auto end = static_cast<uint64_t>(directory_end);
  if (offset > end || bytes != end - offset) {
    return Damaged(file(), absl::StrCat("zip directory of ", bytes, " bytes at offset ", offset,
                                        ", want its end at offset ", directory_end));
  }
  if (bytes > static_cast<uint64_t>(kZipMaxDirectoryBytes)) {
    return InvalidSpec(absl::StrCat(file(), ": zip directory of ", bytes, " bytes, limit ",
                                    kZipMaxDirectoryBytes));
  }
  if (count > bytes / kDirectoryHeaderBytes) {
    return Damaged(file(), absl::StrCat(count, " zip members in a directory of ", bytes, " bytes"));
  }
  directory_offset_ = static_cast<int64_t>(offset);
  std::vector<uint8_t> directory(static_cast<size_t>(bytes));
  if (bytes > 0) {
    absl::Status status = file_->ReadAt(directory_offset_, directory.data(), directory.size());
    if (!status.ok()) return status;
  }
  return AddMembers(directory, static_cast<int64_t>(count));
}

absl::Status ZipArchive::AddMembers(const std::vector<uint8_t>& directory, int64_t count) {
  const auto damaged = [this](size_t at, absl::string_view what) {
    return Damaged(file(), absl::StrCat("zip directory damaged at offset ",
                                        directory_offset_ + static_cast<int64_t>(at), ": ", what));
  };
  std::set<std::string, std::less<>> names;
  size_t at = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t* const header = directory.data() + at;
    const size_t left = directory.size() - at;
    if (left < kDirectoryHeaderBytes || Little32(header) != kDirectoryHeader) {
      return damaged(at, "no header of a member");
    }
    const size_t name_bytes = Little16(header + 28), extra_bytes = Little16(header + 30);
    const size_t all_bytes =
        kDirectoryHeaderBytes + name_bytes + extra_bytes + Little16(header + 32);
    if (all_bytes > left) return damaged(at, "a member reaches beyond the directory");
    const uint8_t* const name = header + kDirectoryHeaderBytes;
    ZipSizes sizes = {Little32(header + 24), Little32(header + 20), Little32(header + 42)};
    if (!ReadZip64(name + name_bytes, extra_bytes, sizes)) {
      return damaged(at, "zip64 sizes are missing");
    }
    const auto limit = static_cast<uint64_t>(directory_offset_);
    constexpr uint64_t kMostBytes = std::numeric_limits<int64_t>::max();
    if (sizes.offset > limit || sizes.packed_bytes > limit - sizes.offset ||
        sizes.bytes > kMostBytes) {
      return damaged(at, absl::StrCat("a member of ", sizes.packed_bytes, " bytes at offset ",
                                      sizes.offset, " does not end before the directory"));
    }
    ZipMember member;
    member.name.assign(reinterpret_cast<const char*>(name), name_bytes);
    member.flags = Little16(header + 8);
    member.method = Little16(header + 10);
    member.crc = Little32(header + 16);
    member.packed_bytes = static_cast<int64_t>(sizes.packed_bytes);
    member.bytes = static_cast<int64_t>(sizes.bytes);
    member.header_offset = static_cast<int64_t>(sizes.offset);
    if (!names.insert(member.name).second) {
      return damaged(at, absl::StrCat("two members are named '",
                                      absl::CHexEscape(member.name.substr(0, 80)), "'"));
    }
    members_.push_back(std::move(member));
    at += all_bytes;
  }
  if (at != directory.size()) return damaged(at, "bytes follow the last member");
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ZipArchive::DataOffset(const ZipMember& member) const {
  const auto damaged = [this, &member](absl::string_view what) {
    return Damaged(absl::StrCat(file(), ": ", member.name), what);
  };
  if ((member.flags & kEncrypted) != 0) return damaged("is encrypted");
  if ((member.flags & kPatch) != 0) return damaged("is a patch, not data");
  if (member.method != kZipStored && member.method != kZipDeflated) {
    return damaged(
        absl::StrCat("is packed by method ", member.method, ", want 0 (stored) or 8 (deflate)"));
  }
  if (member.method == kZipStored && member.bytes != member.packed_bytes) {
    return damaged(absl::StrCat("is stored with ", member.packed_bytes,
                                " bytes, the directory says ", member.bytes));
  }
  if (member.method == kZipDeflated && member.bytes / kMostPerByte > member.packed_bytes) {
    return damaged(absl::StrCat("the directory says ", member.bytes, " bytes, ",
                                member.packed_bytes, " of deflate hold at most ", kMostPerByte,
                                " times as many"));
  }
  uint8_t header[kLocalHeaderBytes];
  const int64_t room = directory_offset_ - member.header_offset - member.packed_bytes;
  if (room < kLocalHeaderBytes) return damaged("no room for its header");
  absl::Status status = file_->ReadAt(member.header_offset, header, sizeof(header));
  if (!status.ok()) return status;
  const int64_t name_bytes = Little16(header + 26), extra_bytes = Little16(header + 28);
  if (Little32(header) != kLocalHeader || room < kLocalHeaderBytes + name_bytes + extra_bytes) {
    return damaged(absl::StrCat("no header at offset ", member.header_offset));
  }
  std::vector<uint8_t> rest(static_cast<size_t>(name_bytes + extra_bytes));
  if (!rest.empty()) {
    status = file_->ReadAt(member.header_offset + kLocalHeaderBytes, rest.data(), rest.size());
    if (!status.ok()) return status;
  }
  const absl::string_view name(reinterpret_cast<const char*>(rest.data()),
                               static_cast<size_t>(name_bytes));
  const uint16_t flags = Little16(header + 6);
  ZipSizes sizes = {Little32(header + 22), Little32(header + 18), 0};
  bool same = name == member.name && (flags & kEncrypted) == 0 &&
              Little16(header + 8) == member.method &&
              ReadZip64(rest.data() + name_bytes, static_cast<size_t>(extra_bytes), sizes);
  if ((flags & kSizesFollow) == 0) {
    same = same && Little32(header + 14) == member.crc &&
           sizes.bytes == static_cast<uint64_t>(member.bytes) &&
           sizes.packed_bytes == static_cast<uint64_t>(member.packed_bytes);
  }
  if (!same) {
    return damaged(
        absl::StrCat("its header at offset ", member.header_offset, " contradicts the directory"));
  }
  return member.header_offset + kLocalHeaderBytes + name_bytes + extra_bytes;
}

absl::StatusOr<std::unique_ptr<ByteSource>> ZipArchive::OpenMember(const ZipMember& member) const {
  absl::StatusOr<int64_t> offset = DataOffset(member);
  if (!offset.ok()) return offset.status();
  return std::make_unique<FromZip>(*file_, member, *offset);
}

}  // namespace capstan::data
