// Feeds any bytes to the readers of npz, CSV and libsvm files. The first byte chooses: 0 npz, 1 CSV,
// 2 libsvm; with 4 added, the text is gzip, and with 8 added, targets are numbers.
//
// Besides not crashing, an error must have a reason that the job can show, and what was read must
// be as large as it says and within the memory limit.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "gpu_worker/data/csv.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/libsvm.h"
#include "gpu_worker/data/npz.h"
#include "gpu_worker/data/test_memory_source.h"
#include "services/check/check.h"

namespace {

namespace cd = capstan::data;

constexpr int64_t kMostMemory = 4 << 20;
constexpr int64_t kMostClasses = 10;

void CheckHasReason(const absl::Status& status) {
  CAPSTAN_CHECK(absl::IsResourceExhausted(status) || !cd::FailureReason(status).empty());
}

void CheckLabels(const std::vector<int32_t>& labels, int64_t count) {
  CAPSTAN_CHECK(static_cast<int64_t>(labels.size()) == count && count >= 1);
  for (const int32_t label : labels) CAPSTAN_CHECK(label >= 0 && label < kMostClasses);
}

void CheckTargets(const std::vector<float>& targets, int64_t count) {
  CAPSTAN_CHECK(static_cast<int64_t>(targets.size()) == count && count >= 1);
  for (const float target : targets) CAPSTAN_CHECK(std::isfinite(target));
}

void Npz(absl::string_view bytes) {
  const absl::StatusOr<cd::ZipArchive> archive =
      cd::ZipArchive::Open(std::make_unique<cd::MemorySource>("input", bytes));
  if (!archive.ok()) return CheckHasReason(archive.status());
  for (const bool train : {true, false}) {
    constexpr int64_t kOutputs = 2;
    const auto numbers = cd::ReadNpzSplit(
        *archive, train, {.target_size = kOutputs, .memory_limit_bytes = kMostMemory});
    if (!numbers.ok()) CheckHasReason(numbers.status());
    if (numbers.ok()) CheckTargets(numbers->targets, numbers->count * kOutputs);
    const auto split = cd::ReadNpzSplit(
        *archive, train, {.num_classes = kMostClasses, .memory_limit_bytes = kMostMemory});
    if (!split.ok()) {
      CheckHasReason(split.status());
      continue;
    }
    CheckLabels(split->labels, split->count);
    CAPSTAN_CHECK(split->count * split->image_size() == split->header.count);
    const absl::Status checked = cd::CheckNpzImages(*archive, *split);
    if (!checked.ok()) CheckHasReason(checked);
    if (split->held_bytes() > kMostMemory) continue;
    if (split->header.is_bytes()) {
      const auto read = cd::ReadNpzBytes(*archive, *split);
      CAPSTAN_CHECK(read.ok() == checked.ok());
      continue;
    }
    const auto read = cd::ReadNpzFloats(*archive, *split);
    CAPSTAN_CHECK(read.ok() == checked.ok());
    if (!read.ok()) continue;
    for (int64_t i = 0; i < split->header.count; ++i) CAPSTAN_CHECK(std::isfinite((*read)[i]));
  }
}

void Csv(cd::ByteSource& source, bool numbers) {
  const auto table = cd::ReadCsv(
      source, {.num_classes = kMostClasses, .numbers = numbers, .memory_limit_bytes = kMostMemory});
  if (!table.ok()) return CheckHasReason(table.status());
  if (numbers) CheckTargets(table->targets, table->count);
  if (!numbers) CheckLabels(table->labels, table->count);
  CAPSTAN_CHECK(table->rows.count() == table->count);
  CAPSTAN_CHECK(table->count * (table->features + 1) * 4 <= kMostMemory);
  for (int64_t i = 0; i < table->count; ++i) {
    for (int64_t j = 0; j < table->features; ++j) {
      CAPSTAN_CHECK(std::isfinite(table->rows.Row(i)[j]));
    }
  }
}

// `again` has the same bytes.
void Libsvm(cd::ByteSource& source, cd::ByteSource& again, bool numbers) {
  const auto scan = cd::ScanLibsvm(source, 1 << 20, kMostMemory, numbers);
  if (!scan.ok()) return CheckHasReason(scan.status());
  const absl::StatusOr<cd::LibsvmRule> rule =
      numbers ? cd::LibsvmRule::kNumbers : cd::RuleOfLabels(*scan, *scan, kMostClasses);
  if (!rule.ok()) return CheckHasReason(rule.status());
  if (scan->highest_index == 0 || scan->count > kMostMemory / 4 / (scan->highest_index + 1)) {
    return;
  }
  const auto table = cd::FillLibsvm(again, *scan, *rule, scan->highest_index);
  CAPSTAN_CHECK(table.ok() && table->rows.count() == scan->count);
  if (numbers) CheckTargets(table->targets, scan->count);
  if (!numbers) CheckLabels(table->labels, scan->count);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto open = [&] {
    std::unique_ptr<cd::ByteSource> source = std::make_unique<cd::MemorySource>("input", bytes);
    return (data[0] & 4) != 0 ? cd::GzipSource(std::move(source)) : std::move(source);
  };
  const bool numbers = (data[0] & 8) != 0;  // targets are numbers
  switch (data[0] & 3) {
    case 0:
      Npz(bytes);
      break;
    case 1:
      Csv(*open(), numbers);
      break;
    default:
      Libsvm(*open(), *open(), numbers);
  }
  return 0;
}
