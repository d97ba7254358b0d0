#include "gpu_worker/data/record_io.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/picture.h"
#include "gpu_worker/data/text_lines.h"

namespace capstan::data {
namespace {

constexpr uint32_t kRecordMagic = 0xced7230a;
constexpr int64_t kPartHeaderBytes = 8;
constexpr int64_t kMaxRecordBytes = kMaxPictureFileBytes + kImageHeaderBytes;
constexpr int64_t kOffsetBytes = 12;  // memory for a record: its offset and its label
constexpr uint32_t kPartBits = 29;

enum PartKind : uint32_t { kWhole = 0, kFirst = 1, kMiddle = 2, kLast = 3 };

uint32_t LittleEndian32(const uint8_t* bytes) {
  return uint32_t{bytes[0]} | uint32_t{bytes[1]} << 8 | uint32_t{bytes[2]} << 16 |
         uint32_t{bytes[3]} << 24;
}

float FloatAt(const uint8_t* bytes) {
  const uint32_t bits = LittleEndian32(bytes);
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

absl::Status TooManyRecords(absl::string_view place, int64_t count, int64_t limit) {
  return InvalidSpec(absl::StrCat(place, ": with this one ", count, " records need ",
                                  count * kOffsetBytes, " bytes of memory or more, limit ", limit));
}

}  // namespace

std::string RecordPlace(const ByteSource& file, int64_t offset) {
  return absl::StrCat(file.file(), ": record at offset ", offset);
}

absl::StatusOr<IoRecord> ReadRecord(const ByteSource& file, int64_t offset, int64_t keep_bytes) {
  const auto wrong = [&](absl::string_view what) {
    return Damaged(RecordPlace(file, offset), what);
  };
  IoRecord record;
  record.next = offset;
  const auto keep = [&record, keep_bytes](int64_t bytes) {
    return std::max<int64_t>(
        0, std::min(bytes, keep_bytes - static_cast<int64_t>(record.data.size())));
  };
  for (bool first = true;; first = false) {
    const int64_t left = file.stored_bytes() - record.next;
    if (record.next < 0 || left < kPartHeaderBytes) {
      return wrong(absl::StrCat("no part at offset ", record.next, ", the file has ",
                                file.stored_bytes(), " bytes"));
    }
    uint8_t header[kPartHeaderBytes];
    absl::Status status = file.ReadAt(record.next, header, sizeof(header));
    if (!status.ok()) return status;
    const uint32_t magic = LittleEndian32(header);
    const uint32_t kind = LittleEndian32(header + 4) >> kPartBits;
    const int64_t length = LittleEndian32(header + 4) & ((uint32_t{1} << kPartBits) - 1);
    if (magic != kRecordMagic) {
      return wrong(absl::StrFormat("begins with %08x at offset %d, want %08x", magic, record.next,
                                   kRecordMagic));
    }
    if (kind > kLast || (kind == kWhole || kind == kFirst) != first) {
      return wrong(absl::StrCat("has a part of kind ", kind, " at offset ", record.next, ", want ",
                                first ? "0 or 1" : "2 or 3"));
    }
    const int64_t padded = (length + 3) / 4 * 4;
    if (padded > left - kPartHeaderBytes) {
      return wrong(absl::StrCat("has a part of ", length, " bytes at offset ", record.next,
                                ", the file has ", file.stored_bytes(), " bytes"));
    }
    const int64_t joint = first ? 0 : 4;
    if (record.size + joint + length > kMaxRecordBytes) {
      return InvalidSpec(absl::StrCat(RecordPlace(file, offset), ": more than ", kMaxRecordBytes,
                                      " bytes of data, which is the limit"));
    }
    if (joint > 0) {
      const uint8_t* const mark = header;  // the magic, which this part was cut at
      record.data.insert(record.data.end(), mark, mark + keep(joint));
    }
    const int64_t take = keep(length);
    const size_t had = record.data.size();
    record.data.resize(had + static_cast<size_t>(take));
    if (take > 0) {
      status = file.ReadAt(record.next + kPartHeaderBytes, record.data.data() + had,
                           static_cast<size_t>(take));
      if (!status.ok()) return status;
    }
    record.size += joint + length;
    record.next += kPartHeaderBytes + padded;
    if (kind == kWhole || kind == kLast) return record;
  }
}

absl::StatusOr<ImageHeader> ReadImageHeader(const IoRecord& record, int64_t num_classes) {
  constexpr int64_t kFixedBytes = 24;
  const auto too_short = [&record](int64_t bytes) {
    return DataMissing(absl::StatusCode::kDataLoss,
                       absl::StrCat("header and image have ", record.size,
                                    " bytes, the header alone has ", bytes));
  };
  if (record.size < kFixedBytes) return too_short(kFixedBytes);
  const uint8_t* const data = record.data.data();
  const uint32_t flag = LittleEndian32(data);
  if (flag > 1) {
    return InvalidSpec(absl::StrCat("has ", flag, " labels, want one, which is the class"));
  }
  ImageHeader header;
  header.image = kFixedBytes + 4 * int64_t{flag};
  if (record.size < header.image) return too_short(header.image);
  const float label = FloatAt(flag == 0 ? data + 4 : data + kFixedBytes);
  // Also false for NaN. Every class is below 2^31.
  if (!(label >= 0 && label < 2147483648.0f) ||
      static_cast<float>(static_cast<int32_t>(label)) != label ||
      static_cast<int32_t>(label) >= num_classes) {
    return InvalidSpec(absl::StrCat("has the label ", label, ", want a whole number from 0 to ",
                                    num_classes - 1, " (num_classes is ", num_classes, ")"));
  }
  header.label = static_cast<int32_t>(label);
  return header;
}

absl::StatusOr<std::vector<int64_t>> ReadRecordIndex(ByteSource& index, int64_t file_bytes,
                                                     const RecordOptions& options) {
  std::vector<int64_t> result;
  TextLines lines(index);
  std::optional<int64_t> blank;  // number of the first blank line
  for (;;) {
    absl::StatusOr<std::optional<absl::string_view>> line = lines.Next();
    if (!line.ok()) return line.status();
    if (!line->has_value()) break;
    if ((*line)->empty()) {
      if (!blank.has_value()) blank = lines.number();
      continue;
    }
    if (blank.has_value()) {
      return Damaged(absl::StrCat(index.file(), ": line ", *blank), "is blank, and records follow");
    }
    const size_t tab = (*line)->find('\t');
    int64_t key = 0, offset = 0;
    if (tab == absl::string_view::npos || !absl::SimpleAtoi((*line)->substr(0, tab), &key) ||
        !absl::SimpleAtoi((*line)->substr(tab + 1), &offset)) {
      return lines.Wrong(absl::StrCat(Excerpt(**line), ", want a key, a tab and an offset"));
    }
    if (offset < 0 || offset % 4 != 0 || offset > file_bytes - kPartHeaderBytes) {
      return lines.Wrong(absl::StrCat("offset ", offset,
                                      ", want a multiple of 4 in a file of records of ", file_bytes,
                                      " bytes"));
    }
    const int64_t count = static_cast<int64_t>(result.size()) + 1;
    if (count > options.memory_limit_bytes / kOffsetBytes) {
      return TooManyRecords(lines.Place(), count, options.memory_limit_bytes);
    }
    result.push_back(offset);
  }
  if (result.empty()) return InvalidSpec(absl::StrCat(index.file(), ": names no record"));
  // The order of the file, whichever the index has: hosts with and without an index agree.
  std::sort(result.begin(), result.end());
  return result;
}

absl::StatusOr<std::vector<int64_t>> ScanRecords(const ByteSource& file,
                                                 const RecordOptions& options) {
  std::vector<int64_t> result;
  for (int64_t offset = 0; offset < file.stored_bytes();) {
    const int64_t count = static_cast<int64_t>(result.size()) + 1;
    if (count > options.memory_limit_bytes / kOffsetBytes) {
      return TooManyRecords(RecordPlace(file, offset), count, options.memory_limit_bytes);
    }
    absl::StatusOr<IoRecord> record = ReadRecord(file, offset, kImageHeaderBytes);
    if (!record.ok()) return record.status();
    absl::StatusOr<ImageHeader> header = ReadImageHeader(*record, options.num_classes);
    if (!header.ok()) return InFront(RecordPlace(file, offset), header.status());
    result.push_back(offset);
    offset = record->next;
  }
  if (result.empty()) return InvalidSpec(absl::StrCat(file.file(), ": holds no record"));
  return result;
}

}  // namespace capstan::data
