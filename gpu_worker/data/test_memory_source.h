// A ByteSource in memory, for tests and fuzzers.
#ifndef CAPSTAN_GPU_WORKER_DATA_TEST_MEMORY_SOURCE_H_
#define CAPSTAN_GPU_WORKER_DATA_TEST_MEMORY_SOURCE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gpu_worker/data/byte_source.h"

namespace capstan::data {

// Borrows `bytes`.
class MemorySource final : public ByteSource {
 public:
  MemorySource(absl::string_view file, absl::string_view bytes)
      : ByteSource(std::string(file), static_cast<int64_t>(bytes.size())), bytes_(bytes) {}

  absl::StatusOr<size_t> Read(uint8_t* to, size_t size) override {
    const size_t take = std::min(size, bytes_.size());
    if (take > 0) std::memcpy(to, bytes_.data(), take);
    bytes_.remove_prefix(take);
    return take;
  }

 private:
  absl::string_view bytes_;  // the bytes not yet read
};

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_TEST_MEMORY_SOURCE_H_
