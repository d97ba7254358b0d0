// A ByteSource in memory, for tests and fuzzers.
#ifndef CAPSTAN_GPU_WORKER_DATA_TEST_MEMORY_SOURCE_H_
#define CAPSTAN_GPU_WORKER_DATA_TEST_MEMORY_SOURCE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gpu_worker/data/byte_source.h"
#include "gpu_worker/data/failure.h"

namespace capstan::data {

// Borrows `bytes`.
class MemorySource final : public ByteSource {
 public:
  MemorySource(absl::string_view file, absl::string_view bytes)
      : ByteSource(std::string(file), static_cast<int64_t>(bytes.size())),
        whole_(bytes),
        bytes_(bytes) {}

  absl::StatusOr<size_t> Read(uint8_t* to, size_t size) override {
    const size_t take = std::min(size, bytes_.size());
    if (take > 0) std::memcpy(to, bytes_.data(), take);
    bytes_.remove_prefix(take);
    return take;
  }

  absl::Status ReadAt(int64_t offset, uint8_t* to, size_t size) const override {
    if (offset < 0 || offset > stored_bytes() ||
        size > static_cast<size_t>(stored_bytes() - offset)) {
      return Damaged(file(), "ends before that");
    }
    if (size > 0) std::memcpy(to, whole_.data() + offset, size);
    return absl::OkStatus();
  }

 private:
  const absl::string_view whole_;
  absl::string_view bytes_;  // the bytes not yet read
};

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_TEST_MEMORY_SOURCE_H_
