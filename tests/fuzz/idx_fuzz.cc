// Feeds any bytes to the IDX and CIFAR-10 readers. The first byte chooses: bit 0 labels or images,
// bit 1 gzip or plain, bit 2 CIFAR-10, bit 3 xz.
//
// Besides not crashing, an error must have a reason that the job can show, and what was read must
// be as large as the header says and within the memory limit.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "gpu_worker/data/cifar.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/idx.h"
#include "gpu_worker/data/test_memory_source.h"
#include "services/check/check.h"

namespace {

constexpr int64_t kMemoryBytes = 16 << 20;
constexpr int64_t kNumClasses = 10;

void CheckReason(const absl::Status& status) {
  CAPSTAN_CHECK(absl::IsResourceExhausted(status) || !capstan::data::FailureReason(status).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace cd = capstan::data;
  if (size < 1) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::unique_ptr<cd::ByteSource> source = std::make_unique<cd::MemorySource>("input", bytes);
  if ((data[0] & 2) != 0) source = cd::GzipSource(std::move(source));
  if ((data[0] & 8) != 0) source = cd::XzSource(std::move(source));

  if ((data[0] & 4) != 0) {
    cd::CifarImages images;
    const absl::Status status =
        cd::ReadCifarBatch(*source, cd::CifarPixels::kKeep, kMemoryBytes, images);
    if (!status.ok()) CheckReason(status);
    const size_t count = images.labels.size();
    CAPSTAN_CHECK(images.pixels.size() == count * cd::kCifarImageBytes);
    CAPSTAN_CHECK(count * cd::kCifarRecordBytes <= size_t{kMemoryBytes});
    for (const uint8_t label : images.labels) CAPSTAN_CHECK(label < cd::kCifarClasses);
    CAPSTAN_CHECK(!status.ok() || count > 0);
    return 0;
  }
  if ((data[0] & 1) != 0) {
    const auto labels = cd::ReadIdxLabels(*source, kNumClasses, kMemoryBytes);
    if (!labels.ok()) {
      CheckReason(labels.status());
      return 0;
    }
    CAPSTAN_CHECK(!labels->empty() && static_cast<int64_t>(labels->size()) <= kMemoryBytes);
    for (const uint8_t label : *labels) CAPSTAN_CHECK(label < kNumClasses);
    return 0;
  }
  const auto header = cd::ReadIdxImagesHeader(*source);
  if (!header.ok()) {
    CheckReason(header.status());
    return 0;
  }
  const auto pixels = cd::ReadIdxPixels(*source, *header, kMemoryBytes);
  if (!pixels.ok()) {
    CheckReason(pixels.status());
    return 0;
  }
  CAPSTAN_CHECK(header->pixels() >= 1 && header->pixels() <= kMemoryBytes);
  uint32_t sum = 0;  // reads every byte
  for (int64_t i = 0; i < header->pixels(); ++i) sum += (*pixels)[i];
  return sum == 0xFFFFFFFF ? 1 : 0;
}
