// Feeds any bytes to the parsers of a checkpoint's files: safetensors header and manifest.json.
//
// Besides not crashing, every error must be DataLoss and name the file, and what was read must be
// writable and read back the same.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "services/check/check.h"
#include "training/codec/manifest.h"
#include "training/codec/safetensors.h"

namespace {

void CheckRefusal(const absl::Status& status) {
  CAPSTAN_CHECK(absl::IsDataLoss(status));
  CAPSTAN_CHECK(absl::StartsWith(status.message(), "input: "));
}

void TryManifest(absl::string_view bytes) {
  namespace ct = capstan::training;
  const auto manifest = ct::ParseManifest("input", bytes);
  if (!manifest.ok()) {
    CheckRefusal(manifest.status());
    return;
  }
  const auto text = ct::EncodeManifest(*manifest);
  CAPSTAN_CHECK(text.ok());
  const auto again = ct::ParseManifest("input", *text);
  CAPSTAN_CHECK(again.ok() && *ct::EncodeManifest(*again) == *text);
}

void TrySafetensors(absl::string_view bytes, int64_t file_bytes) {
  namespace ct = capstan::training;
  const auto header = ct::ParseSafetensorsHeader("input", bytes, file_bytes);
  if (!header.ok()) {
    CheckRefusal(header.status());
    return;
  }
  int64_t covered = 0;
  for (const ct::SafetensorsTensor& tensor : header->tensors) {
    CAPSTAN_CHECK(tensor.begin == covered && tensor.end >= tensor.begin);
    covered = tensor.end;
  }
  CAPSTAN_CHECK(header->data_start + covered == file_bytes);
  const auto head = ct::EncodeSafetensorsHeader(header->tensors, header->metadata);
  // A file may have an empty tensor name, but we never write one.
  if (!head.ok()) {
    CAPSTAN_CHECK(header->Find("") != nullptr);
    return;
  }
  const int64_t again_bytes = static_cast<int64_t>(head->size()) + covered;
  const auto again = ct::ParseSafetensorsHeader("input", *head, again_bytes);
  CAPSTAN_CHECK(again.ok() && again->tensors.size() == header->tensors.size() &&
                again->metadata == header->metadata);
  for (size_t i = 0; i < again->tensors.size(); ++i) {
    CAPSTAN_CHECK(again->tensors[i].name == header->tensors[i].name);
    CAPSTAN_CHECK(again->tensors[i].shape == header->tensors[i].shape);
    CAPSTAN_CHECK(again->tensors[i].begin == header->tensors[i].begin);
  }
}

}  // namespace

// The first byte chooses. 'm' is a manifest. 'j' is two bytes of data size and the JSON of a
// safetensors header, so that a mutated JSON is not refused for its length first. Anything else is
// a whole safetensors file.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  absl::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == 'm') {
    TryManifest(bytes);
    return 0;
  }
  if (data[0] != 'j') {
    TrySafetensors(bytes, static_cast<int64_t>(bytes.size()));
    return 0;
  }
  if (bytes.size() < 2) return 0;
  const int64_t data_bytes = data[1] * 256 + data[2];
  bytes.remove_prefix(2);
  const uint64_t length = bytes.size();
  std::string head(sizeof(length), '\0');
  std::memcpy(head.data(), &length, sizeof(length));
  head.append(bytes.data(), bytes.size());
  TrySafetensors(head, static_cast<int64_t>(head.size()) + data_bytes);
  return 0;
}
