// The header of a safetensors file: its tensors and where they lie. No file is opened here.
//
// A file consists of 8 bytes with the length N of the header, little-endian; N bytes of JSON,
// padded with blanks so that the data start at a multiple of 8; then the tensors, without a gap, in
// the order of their offsets. The JSON maps a name to {"dtype", "shape", "data_offsets": [begin,
// end]}. Offsets count from the first byte after the header. "__metadata__" maps strings to
// strings.
// Source: github.com/huggingface/safetensors, README.md, "Format".
//
// Threads: pure functions. Values in the file are little-endian, as on the machines that we run on.
#ifndef CAPSTAN_TRAINING_CODEC_SAFETENSORS_H_
#define CAPSTAN_TRAINING_CODEC_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace capstan::training {

enum class SafetensorsDtype {
  kF64,
  kF32,
  kF16,
  kBF16,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool
};

// "F32" and so on, and the bytes of one element.
absl::string_view SafetensorsDtypeName(SafetensorsDtype dtype);
int64_t SafetensorsDtypeBytes(SafetensorsDtype dtype);

struct SafetensorsTensor {
  std::string name;  // UTF-8, not "__metadata__"
  SafetensorsDtype dtype = SafetensorsDtype::kF32;
  std::vector<int64_t> shape;  // empty for a scalar; a dimension may be 0
  int64_t begin = 0;           // bytes after the header; the builder sets begin and end itself
  int64_t end = 0;

  int64_t size_bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor>
      tensors;  // by offset: they cover [0, data_bytes) without gap or overlap
  std::map<std::string, std::string> metadata;
  int64_t data_start = 0;  // first byte of the data in the file
  int64_t data_bytes = 0;

  // nullptr: no tensor has this name. Linear in the number of tensors.
  const SafetensorsTensor* Find(absl::string_view name) const;
};

constexpr int64_t kSafetensorsPrefixBytes = 8;
constexpr int64_t kSafetensorsMaxHeaderBytes = 100'000'000;  // the limit of the format's own reader
constexpr int64_t kSafetensorsMaxJsonValues = 1'000'000;     // about ten for each tensor
constexpr int64_t kSafetensorsMaxRank = 16;

// Lays the tensors out one after the other, in the given order. Returns the header with its length
// in front, i.e. the first bytes of the file. Does not read `tensors[i].begin` and `.end`.
// InvalidArgument: a name that is repeated, empty, reserved or not UTF-8; a negative dimension; a
// size above 2^63.
absl::StatusOr<std::string> EncodeSafetensorsHeader(
    absl::Span<const SafetensorsTensor> tensors,
    const std::map<std::string, std::string>& metadata = {});

// How many bytes from the start of the file ParseSafetensorsHeader needs. `prefix` is the first 8
// bytes. DataLoss: the file is too short for its header, or the header is above the limit.
absl::StatusOr<int64_t> SafetensorsHeaderEnd(absl::string_view file, absl::string_view prefix,
                                             int64_t file_bytes);

// `head` holds the file's first bytes, at least SafetensorsHeaderEnd of them. `file_bytes` is the
// size of the whole file. `file` names it in messages. DataLoss, naming file, tensor and check: a
// length that does not fit, bad JSON or UTF-8, a repeated name, an unknown key or dtype, a shape
// that does not match its length, or offsets that overlap, leave a hole or do not end with the
// file.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view file,
                                                         absl::string_view head,
                                                         int64_t file_bytes);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_CODEC_SAFETENSORS_H_
