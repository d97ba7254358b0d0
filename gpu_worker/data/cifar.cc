#include "gpu_worker/data/cifar.h"

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/failure.h"

namespace capstan::data {
namespace {

constexpr int64_t kRecordsAtATime = 512;  // 1.5 MiB

}  // namespace

absl::Status ReadCifarBatch(ByteSource& source, CifarPixels pixels, int64_t memory_limit_bytes,
                            CifarImages& to) {
  const bool keep_pixels = pixels == CifarPixels::kKeep;
  const int64_t record_bytes = pixels == CifarPixels::kLeave ? 1 : kCifarRecordBytes;
  const auto not_whole = [&source](int64_t bytes) {
    return Damaged(source.file(), absl::StrCat(bytes, " bytes, want a multiple of ",
                                               kCifarRecordBytes, " (a record), at least one"));
  };
  if (!source.compressed()) {
    const int64_t bytes = source.stored_bytes();
    if (bytes == 0 || bytes % kCifarRecordBytes != 0) return not_whole(bytes);
    // If the file is too large, nothing is reserved, so its claim costs no memory.
    if (keep_pixels && bytes <= memory_limit_bytes) to.pixels.reserve(to.pixels.size() + bytes);
  }
  std::vector<uint8_t> block(kRecordsAtATime * kCifarRecordBytes);
  int64_t offset = 0;
  for (bool more = true; more;) {
    absl::StatusOr<size_t> got = source.Read(block.data(), block.size());
    if (!got.ok()) return got.status();
    more = *got == block.size();
    const int64_t bytes = static_cast<int64_t>(*got);
    if (bytes % kCifarRecordBytes != 0 || offset + bytes == 0) return not_whole(offset + bytes);
    const int64_t records = bytes / kCifarRecordBytes;
    const int64_t needed = to.needed_bytes + records * record_bytes;
    if (needed > memory_limit_bytes) {
      return InvalidSpec(absl::StrCat(source.file(), ": with this file the images need ", needed,
                                      " bytes of memory or more, limit ", memory_limit_bytes,
                                      source.compressed() ? kUnpackIt : ""));
    }
    for (int64_t i = 0; i < records; ++i) {
      const uint8_t* const record = block.data() + i * kCifarRecordBytes;
      if (record[0] >= kCifarClasses) {
        return Damaged(source.file(), absl::StrCat("label ", record[0], " at offset ",
                                                   offset + i * kCifarRecordBytes, ", want 0 to ",
                                                   kCifarClasses - 1));
      }
      to.labels.push_back(record[0]);
      if (keep_pixels) to.pixels.insert(to.pixels.end(), record + 1, record + kCifarRecordBytes);
    }
    to.needed_bytes = needed;
    offset += bytes;
  }
  return absl::OkStatus();
}

}  // namespace capstan::data
