#include "gpu_worker/data/arrays.h"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <memory>
#include <new>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gpu_worker/data/data_path.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/npy.h"
#include "gpu_worker/data/zip.h"

namespace capstan::data {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they are");

constexpr int64_t kArrayBytesAtATime = int64_t{1} << 20;
constexpr uint64_t kMostZipBytes = std::numeric_limits<uint32_t>::max();

// Whole numbers to floats. Returns the index of the first one that float32 may not have; `count` if
// it has all.
int64_t WholeToFloats(const NpyHeader& header, const uint8_t* bytes, int64_t count, float* out) {
  constexpr int64_t kMost = int64_t{1} << 24;
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  NpyToIntegers(header, bytes, count, numbers.data());
  for (int64_t i = 0; i < count; ++i) {
    if (numbers[i] < -kMost || numbers[i] > kMost) return i;
    out[i] = static_cast<float>(numbers[i]);
  }
  return count;
}

absl::Status ReadNumbers(ByteSource& source, Array& array) {
  const absl::StatusOr<NpyHeader> header = ReadNpyHeader(source);
  if (!header.ok()) return header.status();
  const bool whole = header->kind != NpyKind::kFloat;
  if (whole && header->item_bytes < 4) {
    return InvalidSpec(absl::StrCat(source.file(), ": numbers of type '", header->descr,
                                    "', want float32 or float64 ('<f4' or '<f8'), or whole numbers "
                                    "of 32 or 64 bits"));
  }
  array.shape = header->shape;
  array.numbers.resize(static_cast<size_t>(header->count));
  const int64_t at_a_time = kArrayBytesAtATime / header->item_bytes;
  std::vector<uint8_t> bytes(
      static_cast<size_t>(std::min(at_a_time, header->count) * header->item_bytes));
  for (int64_t first = 0; first < header->count; first += at_a_time) {
    const int64_t count = std::min(at_a_time, header->count - first);
    const size_t size = static_cast<size_t>(count * header->item_bytes);
    const absl::StatusOr<size_t> got = source.Read(bytes.data(), size);
    if (!got.ok()) return got.status();
    if (*got < size) return Damaged(source.file(), "ends inside the numbers of an array");
    const int64_t fitting = (whole ? WholeToFloats : NpyToFloats)(*header, bytes.data(), count,
                                                                  array.numbers.data() + first);
    if (fitting < count) {
      return InvalidSpec(absl::StrCat(
          source.file(), ": number ", first + fitting,
          whole ? " is beyond 2^24, up to which float32 has all" : " is not finite as float32"));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadArchive(std::unique_ptr<ByteSource> file, std::vector<Array>& arrays) {
  const absl::StatusOr<ZipArchive> archive = ZipArchive::Open(std::move(file));
  if (!archive.ok()) return archive.status();
  for (const ZipMember& member : archive->members()) {
    if (!absl::EndsWith(member.name, ".npy")) {
      return InvalidSpec(absl::StrCat(archive->file(), ": member '",
                                      absl::CHexEscape(member.name.substr(0, 80)),
                                      "', want arrays, whose names end with .npy"));
    }
    const absl::StatusOr<std::unique_ptr<ByteSource>> source = archive->OpenMember(member);
    if (!source.ok()) return source.status();
    Array& array = arrays.emplace_back();
    array.name = std::string(absl::StripSuffix(member.name, ".npy"));
    const absl::Status status = ReadNumbers(**source, array);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void AppendNumber(std::string& bytes, uint64_t number, int size) {
  for (int i = 0; i < size; ++i) bytes.push_back(static_cast<char>(number >> (8 * i) & 0xFF));
}

// Everything of a .npy file before its numbers. Its size is a multiple of 64.
std::string NpyHead(const std::vector<int64_t>& shape) {
  std::string dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (";
  for (const int64_t side : shape) absl::StrAppend(&dict, side, ", ");
  dict = absl::StrCat(absl::StripSuffix(dict, " "), "), }");
  constexpr size_t kPrefix = 10;
  dict.append(63 - (kPrefix + dict.size()) % 64, ' ');
  dict.push_back('\n');
  std::string head("\x93NUMPY\x01\x00", 8);
  AppendNumber(head, dict.size(), 2);
  return head + dict;
}

absl::string_view NumberBytes(const Array& array) {
  return {reinterpret_cast<const char*>(array.numbers.data()),
          array.numbers.size() * sizeof(float)};
}

// Whether the bytes are UTF-8 (RFC 3629) without control characters.
bool IsVisibleUtf8(absl::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t at) {
      return at < text.size() ? static_cast<uint8_t>(text[at]) : uint8_t{0};
    };
    const uint8_t first = byte(i);
    const size_t more = first < 0x80 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
    if (first < 0x20 || first == 0x7F || (first >= 0x80 && first < 0xC2) || first > 0xF4) {
      return false;
    }
    uint32_t code = more == 0 ? first : first & (0x3Fu >> more);
    for (size_t k = 1; k <= more; ++k) {
      if ((byte(i + k) & 0xC0) != 0x80) return false;
      code = code << 6 | (byte(i + k) & 0x3F);
    }
    static constexpr uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
    if (code < kLeast[more] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
    if (code >= 0x80 && code < 0xA0) return false;
    i += more + 1;
  }
  return true;
}

absl::Status CheckNames(absl::Span<const Array> arrays) {
  std::set<absl::string_view> names;
  for (const Array& array : arrays) {
    const std::string shown =
        absl::StrCat("array '", absl::CHexEscape(array.name.substr(0, 80)), "'");
    if (array.name.empty() || !IsVisibleUtf8(array.name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(shown, ": want a name of UTF-8 without control characters"));
    }
    if (!names.insert(array.name).second) {
      return absl::InvalidArgumentError(absl::StrCat(shown, ": two arrays have this name"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool IsNpyName(absl::string_view path) { return absl::EndsWith(path, ".npy"); }

absl::StatusOr<std::vector<Array>> ReadArrays(const std::string& path) {
  const bool archive = absl::EndsWith(path, ".npz");
  if (!archive && !IsNpyName(path)) {
    return InvalidSpec(absl::StrCat(path, ": want a name that ends with .npz or .npy"));
  }
  absl::StatusOr<std::unique_ptr<ByteSource>> file = OpenDataPath(path, {});
  if (!file.ok()) return file.status();
  std::vector<Array> arrays;
  absl::Status status;
  try {
    status = archive ? ReadArchive(*std::move(file), arrays)
                     : ReadNumbers(**file, arrays.emplace_back());
  } catch (const std::bad_alloc&) {
    return HostOutOfMemory(path);
  }
  if (!status.ok()) return status;
  return arrays;
}

absl::Status WriteNpy(const Array& array, const WriteBytes& write) {
  absl::Status status = write(NpyHead(array.shape));
  if (status.ok()) status = write(NumberBytes(array));
  return status;
}

absl::Status WriteNpz(absl::Span<const Array> arrays, const WriteBytes& write) {
  absl::Status status = CheckNames(arrays);
  if (!status.ok()) return status;
  std::string directory;
  uint64_t offset = 0;
  for (const Array& array : arrays) {
    const std::string head = NpyHead(array.shape);
    const absl::string_view numbers = NumberBytes(array);
    const std::string name = array.name + ".npy";
    const uint64_t size = head.size() + numbers.size();
    if (offset + size + name.size() + directory.size() + 200 > kMostZipBytes ||
        arrays.size() > std::numeric_limits<uint16_t>::max() || name.size() > 0xFFFF) {
      return absl::ResourceExhaustedError(
          absl::StrCat("array '", absl::CHexEscape(array.name.substr(0, 80)),
                       "' exceeds the 4 GiB of an .npz file: give fewer samples"));
    }
    uLong crc = crc32_z(0, reinterpret_cast<const Bytef*>(head.data()), head.size());
    if (!numbers.empty()) {  // zlib begins anew where there is no address
      crc = crc32_z(crc, reinterpret_cast<const Bytef*>(numbers.data()), numbers.size());
    }
    // Version 2.0, names are UTF-8, stored, the first moment of 1980, CRC and both sizes.
    std::string common;
    AppendNumber(common, 20, 2);
    AppendNumber(common, 1 << 11, 2);
    AppendNumber(common, kZipStored, 2);
    AppendNumber(common, 0, 2);
    AppendNumber(common, 1 << 5 | 1, 2);
    AppendNumber(common, crc, 4);
    AppendNumber(common, size, 4);
    AppendNumber(common, size, 4);
    AppendNumber(common, name.size(), 2);
    AppendNumber(common, 0, 2);  // no extra field
    const std::string local = absl::StrCat("PK\x03\x04", common, name);
    // No comment, disk 0, no attributes.
    directory += "PK\x01\x02";
    AppendNumber(directory, 20, 2);
    absl::StrAppend(&directory, common, std::string(10, '\0'));
    AppendNumber(directory, offset, 4);
    directory += name;
    for (const absl::string_view part :
         {absl::string_view(local), absl::string_view(head), numbers}) {
      if (status.ok()) status = write(part);
    }
    if (!status.ok()) return status;
    offset += local.size() + size;
  }
  std::string end("PK\x05\x06\0\0\0\0", 8);
  AppendNumber(end, arrays.size(), 2);
  AppendNumber(end, arrays.size(), 2);
  AppendNumber(end, directory.size(), 4);
  AppendNumber(end, offset, 4);
  AppendNumber(end, 0, 2);
  return write(directory + end);
}

}  // namespace capstan::data
