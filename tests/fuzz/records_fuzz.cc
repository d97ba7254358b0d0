// Feeds any bytes to the readers of RecordIO files. The first byte chooses: 0 a .rec file, which is
// scanned and then read record by record, 1 an .idx file, 2 a record at an offset that the second
// byte has.
//
// Besides not crashing, an error must have a reason that the job can show, records must lie one
// behind another in the file, and what is kept must be no more than what was asked for.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/picture.h"
#include "gpu_worker/data/record_io.h"
#include "gpu_worker/data/test_memory_source.h"
#include "services/check/check.h"

namespace {

namespace cd = capstan::data;

constexpr int64_t kClasses = 10;
constexpr cd::RecordOptions kLimits = {.num_classes = kClasses, .memory_limit_bytes = 1 << 20};

void CheckReasonOf(const absl::Status& status) {
  CAPSTAN_CHECK(!cd::FailureReason(status).empty());
}

void CheckRecord(const cd::ByteSource& file, int64_t offset, int64_t keep) {
  const auto record = cd::ReadRecord(file, offset, keep);
  if (!record.ok()) return CheckReasonOf(record.status());
  CAPSTAN_CHECK(record->next > offset && record->next <= file.stored_bytes());
  CAPSTAN_CHECK(record->size < record->next - offset);
  CAPSTAN_CHECK(static_cast<int64_t>(record->data.size()) == std::min(keep, record->size));
  if (keep < cd::kImageHeaderBytes) return;
  const auto header = cd::ReadImageHeader(*record, kClasses);
  if (!header.ok()) return CheckReasonOf(header.status());
  CAPSTAN_CHECK(header->label >= 0 && header->label < kClasses && header->image <= record->size);
}

void Scan(const cd::ByteSource& file) {
  const auto found = cd::ScanRecords(file, kLimits);
  if (!found.ok()) return CheckReasonOf(found.status());
  CAPSTAN_CHECK(!found->empty());
  int64_t end = 0;
  for (const int64_t offset : *found) {
    CAPSTAN_CHECK(offset == end);
    const auto record = cd::ReadRecord(file, end, 1 << 20);
    CAPSTAN_CHECK(record.ok());
    const auto header = cd::ReadImageHeader(*record, kClasses);
    CAPSTAN_CHECK(header.ok() && header->label < kClasses);
    end = record->next;
  }
  CAPSTAN_CHECK(end == file.stored_bytes());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  cd::MemorySource source("input",
                          absl::string_view(reinterpret_cast<const char*>(data) + 2, size - 2));
  switch (data[0] % 3) {
    case 0:
      Scan(source);
      break;
    case 1: {
      const auto index = cd::ReadRecordIndex(source, int64_t{data[1]} * 64, kLimits);
      if (!index.ok()) {
        CheckReasonOf(index.status());
        break;
      }
      CAPSTAN_CHECK(!index->empty());
      for (const int64_t offset : *index) {
        CAPSTAN_CHECK(offset >= 0 && offset % 4 == 0 && offset + 8 <= int64_t{data[1]} * 64);
      }
      break;
    }
    default:
      for (const int64_t keep : {0, 1, 27, 28, 1 << 20}) CheckRecord(source, data[1], keep);
  }
  return 0;
}
