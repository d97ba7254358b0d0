#include "gpu_worker/data/idx.h"

#include <algorithm>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gpu_worker/data/failure.h"

namespace capstan::data {
namespace {

constexpr uint32_t kImagesMagic = 0x00000803;
constexpr uint32_t kLabelsMagic = 0x00000801;
constexpr int64_t kLabelsHeaderBytes = 8;
constexpr int64_t kLabelsBlockBytes = 1 << 20;

uint32_t BigEndian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

// Reads exactly `size` bytes, which begin at `offset`.
absl::Status ReadAll(ByteSource& source, int64_t offset, int64_t size, const char* what,
                     uint8_t* to) {
  absl::StatusOr<size_t> got = source.Read(to, static_cast<size_t>(size));
  if (!got.ok()) return got.status();
  if (static_cast<int64_t>(*got) == size) return absl::OkStatus();
  return Damaged(source.file(),
                 absl::StrCat(what, " from offset ", offset, " to ", offset + size,
                              " wanted, the data end at ", offset + static_cast<int64_t>(*got)));
}

absl::Status CheckMagic(ByteSource& source, const uint8_t* header, uint32_t want) {
  const uint32_t got = BigEndian(header);
  if (got == want) return absl::OkStatus();
  const char* hint = "";
  if (got == kImagesMagic) hint = " (these are images)";
  if (got == kLabelsMagic) hint = " (these are labels)";
  if (got >> 16 == 0x1F8B) hint = " (gzip without .gz in its name)";
  return Damaged(source.file(),
                 absl::StrFormat("magic 0x%08x at offset 0, want 0x%08x%s", got, want, hint));
}

// Checks that `payload` bytes after a header fit the file and the memory limit.
absl::Status CheckSize(ByteSource& source, const std::string& what, int64_t header_bytes,
                       __int128 payload) {
  const int64_t room = source.max_bytes() - header_bytes;
  const std::string needs = payload > INT64_MAX - header_bytes
                                ? std::string("2^63 or more")
                                : absl::StrCat(static_cast<int64_t>(payload) + header_bytes);
  if (payload > room) {
    return Damaged(
        source.file(),
        source.compressed()
            ? absl::StrCat(what, " needs ", needs, " bytes, ", source.stored_bytes(),
                           " bytes of gzip hold at most ", source.max_bytes())
            : absl::StrCat(what, " needs ", needs, " bytes, file has ", source.stored_bytes()));
  }
  if (!source.compressed() && payload < room) {
    return Damaged(source.file(),
                   absl::StrCat(what, " needs ", needs, " bytes, file has ", source.stored_bytes(),
                                ": bytes follow at offset ", needs));
  }
  return absl::OkStatus();
}

absl::Status CheckMemory(ByteSource& source, int64_t bytes, int64_t limit_bytes) {
  if (bytes <= limit_bytes) return absl::OkStatus();
  return InvalidSpec(
      absl::StrCat(source.file(), ": needs ", bytes, " bytes of memory, limit ", limit_bytes));
}

// Checks that the source is at its end. For gzip this also checks length and checksum.
absl::Status CheckEnd(ByteSource& source, int64_t offset) {
  uint8_t extra = 0;
  absl::StatusOr<size_t> got = source.Read(&extra, 1);
  if (!got.ok()) return got.status();
  if (*got == 0) return absl::OkStatus();
  return Damaged(source.file(), absl::StrCat("bytes follow the data at offset ", offset));
}

}  // namespace

absl::StatusOr<IdxImagesHeader> ReadIdxImagesHeader(ByteSource& source) {
  uint8_t raw[kIdxImagesHeaderBytes];
  absl::Status status = ReadAll(source, 0, 4, "magic", raw);
  if (status.ok()) status = CheckMagic(source, raw, kImagesMagic);
  if (status.ok()) status = ReadAll(source, 4, kIdxImagesHeaderBytes - 4, "header", raw + 4);
  if (!status.ok()) return status;

  IdxImagesHeader header;
  header.count = BigEndian(raw + 4);
  header.rows = BigEndian(raw + 8);
  header.columns = BigEndian(raw + 12);
  // In 128 bits, because it is a product of three 32-bit factors.
  const __int128 pixels = static_cast<__int128>(header.count) * header.rows * header.columns;
  status = CheckSize(source,
                     absl::StrCat("image count ", header.count, " of ", header.rows, " x ",
                                  header.columns, " pixels"),
                     kIdxImagesHeaderBytes, pixels);
  if (!status.ok()) return status;
  if (header.count == 0) return InvalidSpec(absl::StrCat(source.file(), ": holds no image"));
  if (header.rows < 1 || header.rows > kIdxMaxSide || header.columns < 1 ||
      header.columns > kIdxMaxSide) {
    return InvalidSpec(absl::StrCat(source.file(), ": images of ", header.rows, " x ",
                                    header.columns, " pixels, want 1 to ", kIdxMaxSide,
                                    " each way"));
  }
  return header;
}

absl::StatusOr<std::unique_ptr<uint8_t[]>> ReadIdxPixels(ByteSource& source,
                                                         const IdxImagesHeader& header,
                                                         int64_t memory_limit_bytes) {
  const int64_t size = header.pixels();
  absl::Status status = CheckMemory(source, size, memory_limit_bytes);
  if (!status.ok()) return status;
  // The memory is not initialised. Untouched pages cost nothing until a gzip with a false claim is
  // detected.
  std::unique_ptr<uint8_t[]> pixels(new (std::nothrow) uint8_t[size]);
  if (pixels == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat(source.file(), ": no memory for ", size, " bytes"));
  }
  status = ReadAll(source, kIdxImagesHeaderBytes, size, "pixels", pixels.get());
  if (status.ok()) status = CheckEnd(source, kIdxImagesHeaderBytes + size);
  if (!status.ok()) return status;
  return pixels;
}

absl::StatusOr<std::vector<uint8_t>> ReadIdxLabels(ByteSource& source, int64_t num_classes,
                                                   int64_t memory_limit_bytes) {
  uint8_t raw[kLabelsHeaderBytes];
  absl::Status status = ReadAll(source, 0, 4, "magic", raw);
  if (status.ok()) status = CheckMagic(source, raw, kLabelsMagic);
  if (status.ok()) status = ReadAll(source, 4, kLabelsHeaderBytes - 4, "header", raw + 4);
  if (!status.ok()) return status;
  const int64_t count = BigEndian(raw + 4);
  status = CheckSize(source, absl::StrCat("label count ", count), kLabelsHeaderBytes, count);
  if (!status.ok()) return status;
  if (count == 0) return InvalidSpec(absl::StrCat(source.file(), ": holds no label"));
  status = CheckMemory(source, count, memory_limit_bytes);
  if (!status.ok()) return status;

  // Block by block, so that a claim costs memory only as far as bytes arrive.
  std::vector<uint8_t> labels;
  for (int64_t done = 0; done < count; done = static_cast<int64_t>(labels.size())) {
    const int64_t take = std::min(count - done, kLabelsBlockBytes);
    labels.resize(done + take);
    status = ReadAll(source, kLabelsHeaderBytes + done, take, "labels", labels.data() + done);
    if (!status.ok()) return status;
  }
  status = CheckEnd(source, kLabelsHeaderBytes + count);
  if (!status.ok()) return status;
  for (int64_t i = 0; i < count; ++i) {
    if (labels[i] >= num_classes) {
      return InvalidSpec(absl::StrCat(source.file(), ": label ", labels[i], " at offset ",
                                      kLabelsHeaderBytes + i, ", want 0 to ", num_classes - 1,
                                      " (num_classes is ", num_classes, ")"));
    }
  }
  return labels;
}

}  // namespace capstan::data
