// Memory for tensors, aligned to 64 bytes and zeroed. A lack of memory is an error, not an
// exception.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_ALIGNED_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_ALIGNED_H_

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace capstan::engine {

inline constexpr int64_t kTensorAlignBytes = 64;

inline int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

struct FreeDeleter {
  void operator()(void* memory) const { std::free(memory); }
};
using AlignedBytes = std::unique_ptr<char[], FreeDeleter>;

// The value of each byte of new memory: 0. Tests set 0xff, which makes NaNs, to detect reads of
// unwritten memory.
inline std::atomic<unsigned char>& NewMemoryByte() {
  static std::atomic<unsigned char> byte = 0;
  return byte;
}

// ResourceExhausted: not enough memory. The message begins with `what`.
inline absl::StatusOr<AlignedBytes> AllocateAligned(int64_t bytes, absl::string_view what) {
  const int64_t rounded = RoundUp(bytes > 0 ? bytes : 1, kTensorAlignBytes);
  void* const memory = std::aligned_alloc(kTensorAlignBytes, static_cast<size_t>(rounded));
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(what, ": no memory for ", rounded, " bytes"));
  }
  std::memset(memory, NewMemoryByte(), static_cast<size_t>(rounded));
  return AlignedBytes(static_cast<char*>(memory));
}

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_ALIGNED_H_
