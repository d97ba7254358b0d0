#include "gpu_worker/data/text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/failure.h"

namespace capstan::data {

int64_t Vocabulary::size() const { return std::count(there_.begin(), there_.end(), true); }

std::array<uint8_t, 256> Vocabulary::Tokens() const {
  std::array<uint8_t, 256> tokens = {};
  uint8_t next = 0;
  for (size_t byte = 0; byte < there_.size(); ++byte) {
    if (there_[byte]) tokens[byte] = next++;
  }
  return tokens;
}

absl::StatusOr<TextScan> ScanText(ByteSource& source, bool keep, int64_t memory_limit_bytes,
                                  Vocabulary& vocabulary) {
  TextScan scan;
  std::vector<uint8_t> block(size_t{1} << 20);
  if (keep && !source.compressed()) {
    scan.bytes.reserve(
        static_cast<size_t>(std::clamp<int64_t>(source.stored_bytes(), 0, memory_limit_bytes)));
  }
  for (;;) {
    const absl::StatusOr<size_t> got = source.Read(block.data(), block.size());
    if (!got.ok()) return got.status();
    scan.count += static_cast<int64_t>(*got);
    if (scan.count > memory_limit_bytes) {
      return InvalidSpec(absl::StrCat(source.file(), ": more than ", memory_limit_bytes,
                                      " characters, the limit of a text, which is held in memory"));
    }
    for (size_t i = 0; i < *got; ++i) vocabulary.Add(block[i]);
    if (keep) scan.bytes.insert(scan.bytes.end(), block.begin(), block.begin() + *got);
    if (*got < block.size()) return scan;
  }
}

int64_t TestCharacters(int64_t count, double fraction) {
  return std::clamp<int64_t>(static_cast<int64_t>(static_cast<double>(count) * fraction), 0, count);
}

}  // namespace capstan::data
