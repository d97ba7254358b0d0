#include "gpu_worker/data/npy.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "gpu_worker/data/failure.h"

namespace capstan::data {
namespace {

static_assert(std::endian::native == std::endian::little,
              "numbers of files are copied as they are");

constexpr absl::string_view kNpyMagic = "\x93NUMPY";

// Reads the dict of a header without recursion. Every method returns false at the first character
// that does not belong there.
class NpyDict {
 public:
  explicit NpyDict(absl::string_view text) : rest_(text) {}

  bool Parse() {
    if (!Take('{')) return false;
    while (!Take('}')) {
      std::string key;
      if (!TakeText(key) || !Take(':')) return false;
      bool first = false;
      if (key == "descr") {
        first = !std::exchange(has_descr_, true);
        // A list describes a record. The caller names it, so the rest need not be read.
        if (Peek() == '[') return structured_ = true;
        if (!TakeText(descr_)) return false;
      } else if (key == "fortran_order") {
        first = !std::exchange(has_order_, true);
        if (!TakeBool(fortran_)) return false;
      } else if (key == "shape") {
        first = !std::exchange(has_shape_, true);
        if (!TakeShape()) return false;
      }
      if (!first) return false;
      if (!Take(',') && Peek() != '}') return false;
    }
    return has_descr_ && has_order_ && has_shape_ && absl::StripAsciiWhitespace(rest_).empty();
  }

  const std::string& descr() const { return descr_; }
  bool structured() const { return structured_; }
  bool fortran() const { return fortran_; }
  const std::vector<int64_t>& shape() const { return shape_; }

 private:
  char Peek() {
    rest_ = absl::StripLeadingAsciiWhitespace(rest_);
    return rest_.empty() ? '\0' : rest_[0];
  }
  bool Take(char c) {
    if (Peek() != c || c == '\0') return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool TakeText(std::string& text) {
    const char quote = Peek();
    if (quote != '\'' && quote != '"') return false;
    const size_t end = rest_.find(quote, 1);
    if (end == absl::string_view::npos) return false;
    text = std::string(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return text.find('\\') == std::string::npos;
  }
  bool TakeBool(bool& value) {
    Peek();
    for (const bool candidate : {true, false}) {
      const absl::string_view word = candidate ? "True" : "False";
      if (rest_.substr(0, word.size()) == word) {
        rest_.remove_prefix(word.size());
        value = candidate;
        return true;
      }
    }
    return false;
  }
  bool TakeShape() {
    if (!Take('(')) return false;
    while (!Take(')')) {
      Peek();
      size_t digits = 0;
      while (digits < rest_.size() && absl::ascii_isdigit(rest_[digits])) ++digits;
      int64_t side = 0;
      if (digits == 0 || static_cast<int64_t>(shape_.size()) == kNpyMaxDimensions ||
          !absl::SimpleAtoi(rest_.substr(0, digits), &side)) {
        return false;
      }
      rest_.remove_prefix(digits);
      shape_.push_back(side);
      if (!Take(',') && Peek() != ')') return false;
    }
    return true;
  }

  absl::string_view rest_;
  std::string descr_;
  std::vector<int64_t> shape_;
  bool structured_ = false, fortran_ = false;
  bool has_descr_ = false, has_order_ = false, has_shape_ = false;
};

absl::Status ReadExactly(ByteSource& source, uint8_t* to, size_t size) {
  absl::StatusOr<size_t> got = source.Read(to, size);
  if (!got.ok()) return got.status();
  if (*got == size) return absl::OkStatus();
  return Damaged(source.file(), "ends inside the header of an array");
}

// "<f4" and so on. InvalidSpec: a type that is not read.
absl::Status ReadDescr(const std::string& file, const std::string& descr, NpyHeader& header) {
  const absl::string_view type = descr;
  if (type.find('O') != absl::string_view::npos) {
    return InvalidSpec(absl::StrCat(file, ": holds Python objects (type '",
                                    absl::CHexEscape(descr.substr(0, 40)),
                                    "', pickle), which are never read"));
  }
  if (!type.empty() && type[0] == '>') {
    return InvalidSpec(absl::StrCat(file, ": type '", absl::CHexEscape(descr.substr(0, 40)),
                                    "' is big-endian, want little-endian"));
  }
  constexpr absl::string_view kTypes[] = {"|u1", "|i1", "<u1", "<i1", "<u2", "<i2",
                                          "<u4", "<i4", "<u8", "<i8", "<f4", "<f8"};
  if (std::find(std::begin(kTypes), std::end(kTypes), type) == std::end(kTypes)) {
    return InvalidSpec(absl::StrCat(file, ": type '", absl::CHexEscape(descr.substr(0, 40)),
                                    "' is not read, want integers, float32 or float64 (",
                                    absl::StrJoin(kTypes, " "), ")"));
  }
  header.kind = type[1] == 'f'   ? NpyKind::kFloat
                : type[1] == 'u' ? NpyKind::kUnsigned
                                 : NpyKind::kSigned;
  header.item_bytes = type[2] - '0';
  header.descr = descr;
  return absl::OkStatus();
}

template <typename T>
int64_t ToFloats(const uint8_t* bytes, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, bytes + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    out[i] = static_cast<float>(value);
    if (!std::isfinite(out[i])) return i;
  }
  return count;
}

template <typename T>
void ToIntegers(const uint8_t* bytes, int64_t count, int64_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, bytes + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    out[i] = std::in_range<int64_t>(value) ? static_cast<int64_t>(value)
                                           : std::numeric_limits<int64_t>::max();
  }
}

}  // namespace

std::string ShapeText(const std::vector<int64_t>& shape) {
  return shape.empty() ? "()" : absl::StrJoin(shape, " x ");
}

absl::StatusOr<NpyHeader> ReadNpyHeader(ByteSource& source) {
  const std::string& file = source.file();
  uint8_t start[12];
  absl::Status status = ReadExactly(source, start, 10);
  if (!status.ok()) return status;
  if (std::memcmp(start, kNpyMagic.data(), kNpyMagic.size()) != 0) {
    return Damaged(file, "does not begin with \\x93NUMPY: not an array");
  }
  const int major = start[6], minor = start[7];
  if (major < 1 || major > 3 || minor != 0) {
    return Damaged(file, absl::StrCat("format ", major, ".", minor, ", want 1.0, 2.0 or 3.0"));
  }
  int64_t length = start[8] | start[9] << 8;
  int64_t prefix = 10;
  if (major > 1) {
    status = ReadExactly(source, start + 10, 2);
    if (!status.ok()) return status;
    length |= int64_t{start[10]} << 16 | int64_t{start[11]} << 24;
    prefix = 12;
  }
  if (length > kNpyMaxHeaderBytes) {
    return Damaged(file, absl::StrCat("header of ", length, " bytes, limit ", kNpyMaxHeaderBytes));
  }
  std::string text(static_cast<size_t>(length), '\0');
  status = ReadExactly(source, reinterpret_cast<uint8_t*>(text.data()), text.size());
  if (!status.ok()) return status;
  NpyDict dict(text);
  const bool parsed = dict.Parse();
  if (dict.structured()) {
    return InvalidSpec(absl::StrCat(file, ": holds records, want numbers of one type"));
  }
  if (!parsed) {
    return Damaged(
        file, absl::StrCat(
                  "header '",
                  absl::CHexEscape(
                      absl::StripTrailingAsciiWhitespace(absl::string_view(text)).substr(0, 120)),
                  "' is not that of an array"));
  }
  NpyHeader header;
  header.shape = dict.shape();
  header.header_bytes = prefix + length;
  status = ReadDescr(file, dict.descr(), header);
  if (!status.ok()) return status;
  if (dict.fortran()) {
    return InvalidSpec(absl::StrCat(
        file, ": is in Fortran order, want C order (numpy.ascontiguousarray makes it so)"));
  }
  // In 128 bits, and with an end at 2^62, so that no product overflows.
  __int128 count = 1;
  for (const int64_t side : header.shape) {
    count *= side;
    if (count > int64_t{1} << 62) break;
  }
  if (count > int64_t{1} << 62 ||
      count * header.item_bytes != source.max_bytes() - header.header_bytes) {
    return Damaged(
        file, absl::StrCat("array of ", ShapeText(header.shape), " numbers of ", header.item_bytes,
                           " bytes in ", source.max_bytes() - header.header_bytes, " bytes"));
  }
  header.count = static_cast<int64_t>(count);
  return header;
}

int64_t NpyToFloats(const NpyHeader& header, const uint8_t* bytes, int64_t count, float* out) {
  return header.item_bytes == 4 ? ToFloats<float>(bytes, count, out)
                                : ToFloats<double>(bytes, count, out);
}

void NpyToIntegers(const NpyHeader& header, const uint8_t* bytes, int64_t count, int64_t* out) {
  const bool is_signed = header.kind == NpyKind::kSigned;
  switch (header.item_bytes) {
    case 1:
      return is_signed ? ToIntegers<int8_t>(bytes, count, out)
                       : ToIntegers<uint8_t>(bytes, count, out);
    case 2:
      return is_signed ? ToIntegers<int16_t>(bytes, count, out)
                       : ToIntegers<uint16_t>(bytes, count, out);
    case 4:
      return is_signed ? ToIntegers<int32_t>(bytes, count, out)
                       : ToIntegers<uint32_t>(bytes, count, out);
    default:
      return is_signed ? ToIntegers<int64_t>(bytes, count, out)
                       : ToIntegers<uint64_t>(bytes, count, out);
  }
}

}  // namespace capstan::data
