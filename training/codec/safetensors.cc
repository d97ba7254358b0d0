#include "training/codec/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "training/codec/strict_json.h"

namespace capstan::training {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "the length is copied as it lies in memory");

struct DtypeRow {
  SafetensorsDtype dtype;
  absl::string_view name;
  int64_t size_bytes;
};

constexpr DtypeRow kDtypes[] = {
    {SafetensorsDtype::kF64, "F64", 8},   {SafetensorsDtype::kF32, "F32", 4},
    {SafetensorsDtype::kF16, "F16", 2},   {SafetensorsDtype::kBF16, "BF16", 2},
    {SafetensorsDtype::kI64, "I64", 8},   {SafetensorsDtype::kI32, "I32", 4},
    {SafetensorsDtype::kI16, "I16", 2},   {SafetensorsDtype::kI8, "I8", 1},
    {SafetensorsDtype::kU64, "U64", 8},   {SafetensorsDtype::kU32, "U32", 4},
    {SafetensorsDtype::kU16, "U16", 2},   {SafetensorsDtype::kU8, "U8", 1},
    {SafetensorsDtype::kBool, "BOOL", 1},
};

constexpr absl::string_view kMetadataKey = "__metadata__";
constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();

const DtypeRow& Row(SafetensorsDtype dtype) {
  return *std::find_if(std::begin(kDtypes), std::end(kDtypes),
                       [dtype](const DtypeRow& row) { return row.dtype == dtype; });
}

// Bytes of a tensor, or -1 if they are 2^63 or more. Dimensions must not be negative.
int64_t TensorBytes(SafetensorsDtype dtype, const std::vector<int64_t>& shape) {
  __int128 bytes = SafetensorsDtypeBytes(dtype);
  // A zero anywhere makes the tensor empty, however large its other dimensions are.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  for (const int64_t dim : shape) {
    bytes *= dim;  // below 2^63 * 2^63
    if (bytes > kInt64Max) return -1;
  }
  return static_cast<int64_t>(bytes);
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
}

// An array of integers in [0, 2^63).
absl::StatusOr<std::vector<int64_t>> Integers(absl::string_view where, absl::string_view key,
                                              const json& array) {
  if (!array.is_array()) {
    return absl::DataLossError(absl::StrCat(where, ": '", key, "' is not an array"));
  }
  std::vector<int64_t> values;
  values.reserve(array.size());
  for (const json& item : array) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > static_cast<uint64_t>(kInt64Max)) {
      return absl::DataLossError(absl::StrCat(
          where, ": '", key, "' holds something else than integers from 0 to 2^63 - 1"));
    }
    values.push_back(item.get<int64_t>());
  }
  return values;
}

absl::StatusOr<SafetensorsTensor> ReadTensor(absl::string_view file, const std::string& name,
                                             const json& object) {
  const std::string where = absl::StrCat(file, ": tensor ", Quoted(name));
  absl::Status keys = CheckJsonKeys(where, "its entry", object, {"dtype", "shape", "data_offsets"});
  if (!keys.ok()) return keys;

  SafetensorsTensor tensor;
  tensor.name = name;
  absl::StatusOr<std::string> dtype = JsonString(where, object, "dtype");
  if (!dtype.ok()) return dtype.status();
  const auto* row = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                 [&dtype](const DtypeRow& r) { return r.name == *dtype; });
  if (row == std::end(kDtypes)) {
    return absl::DataLossError(absl::StrCat(where, ": unknown dtype ", Quoted(*dtype)));
  }
  tensor.dtype = row->dtype;

  absl::StatusOr<std::vector<int64_t>> shape = Integers(where, "shape", object["shape"]);
  if (!shape.ok()) return shape.status();
  if (static_cast<int64_t>(shape->size()) > kSafetensorsMaxRank) {
    return absl::DataLossError(
        absl::StrCat(where, ": ", shape->size(), " dimensions, limit ", kSafetensorsMaxRank));
  }
  tensor.shape = *std::move(shape);

  absl::StatusOr<std::vector<int64_t>> offsets =
      Integers(where, "data_offsets", object["data_offsets"]);
  if (!offsets.ok()) return offsets.status();
  if (offsets->size() != 2 || (*offsets)[0] > (*offsets)[1]) {
    return absl::DataLossError(absl::StrCat(where, ": data_offsets ", ShapeText(*offsets),
                                            " are not two ascending numbers"));
  }
  tensor.begin = (*offsets)[0];
  tensor.end = (*offsets)[1];

  const int64_t want_bytes = TensorBytes(tensor.dtype, tensor.shape);
  if (want_bytes != tensor.size_bytes()) {
    return absl::DataLossError(
        absl::StrCat(where, ": shape ", ShapeText(tensor.shape), " of ", row->name, " needs ",
                     want_bytes < 0 ? std::string("2^63 or more") : absl::StrCat(want_bytes),
                     " bytes, data_offsets give ", tensor.size_bytes()));
  }
  return tensor;
}

}  // namespace

absl::string_view SafetensorsDtypeName(SafetensorsDtype dtype) { return Row(dtype).name; }
int64_t SafetensorsDtypeBytes(SafetensorsDtype dtype) { return Row(dtype).size_bytes; }

const SafetensorsTensor* SafetensorsHeader::Find(absl::string_view name) const {
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

absl::StatusOr<std::string> EncodeSafetensorsHeader(
    absl::Span<const SafetensorsTensor> tensors,
    const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) {
    AppendJsonString(kMetadataKey, text);
    text += ":{";
    for (auto it = metadata.begin(); it != metadata.end(); ++it) {
      if (!IsUtf8(it->first) || !IsUtf8(it->second)) {
        return absl::InvalidArgumentError(
            absl::StrCat("metadata ", Quoted(it->first), ": key or value is not UTF-8"));
      }
      if (it != metadata.begin()) text += ",";
      AppendJsonString(it->first, text);
      text += ":";
      AppendJsonString(it->second, text);
    }
    text += "}";
  }

  std::set<absl::string_view> names;
  int64_t offset = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    const std::string where = absl::StrCat("tensor ", Quoted(tensor.name));
    if (tensor.name.empty() || tensor.name == kMetadataKey || !IsUtf8(tensor.name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": name is empty, reserved or not UTF-8"));
    }
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": name given twice"));
    }
    if (static_cast<int64_t>(tensor.shape.size()) > kSafetensorsMaxRank) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": ", tensor.shape.size(),
                                                     " dimensions, limit ", kSafetensorsMaxRank));
    }
    for (const int64_t dim : tensor.shape) {
      if (dim < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat(where, ": negative dimension in ", ShapeText(tensor.shape)));
      }
    }
    const int64_t bytes = TensorBytes(tensor.dtype, tensor.shape);
    if (bytes < 0 || bytes > kInt64Max - offset) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": shape ", ShapeText(tensor.shape), " makes 2^63 bytes or more"));
    }
    if (text.size() > 1) text += ",";
    AppendJsonString(tensor.name, text);
    absl::StrAppend(&text, ":{\"dtype\":\"", SafetensorsDtypeName(tensor.dtype),
                    "\",\"shape\":", ShapeText(tensor.shape), ",\"data_offsets\":[", offset, ",",
                    offset + bytes, "]}");
    offset += bytes;
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (static_cast<int64_t>(text.size()) > kSafetensorsMaxHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("header of ", text.size(), " bytes, limit ", kSafetensorsMaxHeaderBytes));
  }

  const uint64_t length = text.size();
  std::string out(kSafetensorsPrefixBytes, '\0');
  std::memcpy(out.data(), &length, sizeof(length));
  return out + text;
}

absl::StatusOr<int64_t> SafetensorsHeaderEnd(absl::string_view file, absl::string_view prefix,
                                             int64_t file_bytes) {
  if (file_bytes < kSafetensorsPrefixBytes ||
      prefix.size() < static_cast<size_t>(kSafetensorsPrefixBytes)) {
    return absl::DataLossError(
        absl::StrCat(file, ": ", file_bytes, " bytes are too few for a safetensors file"));
  }
  uint64_t length = 0;
  std::memcpy(&length, prefix.data(), sizeof(length));
  if (length > static_cast<uint64_t>(kSafetensorsMaxHeaderBytes)) {
    return absl::DataLossError(
        absl::StrCat(file, ": header length ", length, ", limit ", kSafetensorsMaxHeaderBytes));
  }
  const int64_t end = kSafetensorsPrefixBytes + static_cast<int64_t>(length);
  if (end > file_bytes) {
    return absl::DataLossError(absl::StrCat(file, ": header length ", length,
                                            " does not fit into a file of ", file_bytes, " bytes"));
  }
  return end;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view file,
                                                         absl::string_view head,
                                                         int64_t file_bytes) {
  absl::StatusOr<int64_t> end = SafetensorsHeaderEnd(file, head, file_bytes);
  if (!end.ok()) return end.status();
  if (static_cast<int64_t>(head.size()) < *end) {
    return absl::DataLossError(
        absl::StrCat(file, ": got ", head.size(), " of ", *end, " bytes of its header"));
  }
  const absl::string_view text =
      head.substr(kSafetensorsPrefixBytes, *end - kSafetensorsPrefixBytes);
  if (text.empty() || text[0] != '{') {
    return absl::DataLossError(absl::StrCat(file, ": the header does not begin with '{'"));
  }
  JsonLimits limits;
  limits.max_bytes = kSafetensorsMaxHeaderBytes;
  limits.max_depth = 3;  // file, tensor, shape
  limits.max_values = kSafetensorsMaxJsonValues;
  absl::StatusOr<json> root = ParseStrictJson(file, text, limits);
  if (!root.ok()) return root.status();

  SafetensorsHeader header;
  header.data_start = *end;
  header.data_bytes = file_bytes - *end;
  header.tensors.reserve(root->size());
  for (const auto& item : root->items()) {
    if (item.key() != kMetadataKey) {
      absl::StatusOr<SafetensorsTensor> tensor = ReadTensor(file, item.key(), item.value());
      if (!tensor.ok()) return tensor.status();
      header.tensors.push_back(*std::move(tensor));
      continue;
    }
    if (!item.value().is_object()) {
      return absl::DataLossError(absl::StrCat(file, ": '__metadata__' is not an object"));
    }
    for (const auto& pair : item.value().items()) {
      if (!pair.value().is_string()) {
        return absl::DataLossError(
            absl::StrCat(file, ": '__metadata__' entry ", Quoted(pair.key()), " is not a string"));
      }
      header.metadata[pair.key()] = pair.value().get<std::string>();
    }
  }

  // Empty tensors share their offset with the next one. Sorting by `end` keeps them in front of it.
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  int64_t covered = 0;
  for (const SafetensorsTensor& tensor : header.tensors) {
    if (tensor.begin != covered) {
      return absl::DataLossError(absl::StrCat(
          file, ": tensor ", Quoted(tensor.name), " begins at ", tensor.begin,
          tensor.begin < covered ? ", inside another one that ends at " : ", but a hole begins at ",
          covered));
    }
    covered = tensor.end;
  }
  if (covered != header.data_bytes) {
    return absl::DataLossError(absl::StrCat(file, ": tensors take ", covered,
                                            " bytes after the header, the file has ",
                                            header.data_bytes));
  }
  return header;
}

}  // namespace capstan::training
