#include "training/onnx/scan.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace capstan::training::onnx {
namespace {

// The messages of protos/capstan/onnx/v1/onnx.proto that contain others or lists of whole numbers.
enum class Message {
  kModel,
  kGraph,
  kNode,
  kAttribute,
  kTensor,
  kValueInfo,
  kType,
  kTensorType,
  kShape,
  kFlat,  // any other: its fields are counted
};

struct Part {
  Message of;
  uint64_t field;
  Message part;
};

constexpr Part kParts[] = {
    {Message::kModel, 7, Message::kGraph},      {Message::kModel, 8, Message::kFlat},
    {Message::kGraph, 1, Message::kNode},       {Message::kGraph, 5, Message::kTensor},
    {Message::kGraph, 11, Message::kValueInfo}, {Message::kGraph, 12, Message::kValueInfo},
    {Message::kGraph, 13, Message::kValueInfo}, {Message::kNode, 5, Message::kAttribute},
    {Message::kAttribute, 5, Message::kTensor}, {Message::kValueInfo, 2, Message::kType},
    {Message::kType, 1, Message::kTensorType},  {Message::kTensorType, 2, Message::kShape},
    {Message::kShape, 1, Message::kFlat},
};

// Lists of whole numbers of up to 64 bits: one byte of the file may become eight.
bool IsListOfNumbers(Message message, uint64_t field) {
  return (message == Message::kAttribute && field == 8) ||
         (message == Message::kTensor && (field == 1 || field == 7));
}

// Reads wire format from the front of `bytes`.
class WireReader {
 public:
  explicit WireReader(absl::string_view bytes) : bytes_(bytes) {}
  bool done() const { return at_ == bytes_.size(); }
  size_t at() const { return at_; }

  bool Varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (done()) return false;
      const uint8_t byte = static_cast<uint8_t>(bytes_[at_++]);
      if (shift < 64) value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }
  bool Skip(uint64_t count) {
    if (count > bytes_.size() - at_) return false;
    at_ += count;
    return true;
  }

 private:
  absl::string_view bytes_;
  size_t at_ = 0;
};

}  // namespace

absl::Status ScanFields(absl::string_view bytes, int64_t max_fields) {
  struct Open {
    Message message;
    size_t end;
  };
  // The deepest is a tensor of an attribute, or a dimension of a type: both within 7 levels.
  std::array<Open, 8> open = {};
  size_t depth = 0;
  open[0] = {Message::kModel, bytes.size()};
  WireReader reader(bytes);
  int64_t fields = 0;
  const auto error = [&reader](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("file: not an ONNX model: ", what, " at byte ", reader.at()));
  };
  while (!reader.done()) {
    while (reader.at() == open[depth].end) --depth;
    const Open& in = open[depth];
    uint64_t key = 0;
    if (!reader.Varint(key)) return error("a field is cut off");
    const uint64_t field = key >> 3;
    uint64_t size = 0;
    switch (key & 7) {
      case 0: {
        uint64_t value = 0;
        if (!reader.Varint(value)) return error("a number is cut off");
        break;
      }
      case 1:
        size = 8;
        break;
      case 2:
        if (!reader.Varint(size)) return error("a length is cut off");
        break;
      case 5:
        size = 4;
        break;
      default:
        return error("a field of an unknown kind");
    }
    if (field == 0) return error("field 0");
    if (size > in.end - std::min(in.end, reader.at())) {
      return error(absl::StrCat("a field of ", size, " bytes ends after its message"));
    }
    fields += 1;
    if ((key & 7) == 2 && IsListOfNumbers(in.message, field)) fields += static_cast<int64_t>(size);
    if (fields > max_fields) {
      return absl::InvalidArgumentError(
          absl::StrCat("file: more than ", max_fields, " fields up to byte ", reader.at()));
    }
    const Part* part = nullptr;
    for (const Part& candidate : kParts) {
      if (candidate.of == in.message && candidate.field == field) part = &candidate;
    }
    if (part != nullptr && (key & 7) == 2) {
      open[++depth] = {part->part, reader.at() + static_cast<size_t>(size)};
    } else if (!reader.Skip(size)) {
      return error("a field is cut off");
    }
    if (reader.at() > open[depth].end) return error("a field ends after its message");
  }
  return absl::OkStatus();
}

}  // namespace capstan::training::onnx
