// The "binary version" of CIFAR-10: files of records without a header.
//
//   record: label (0 to 9), then 1024 red, 1024 green and 1024 blue bytes, each plane row by row,
//           32 x 32
// Source: cs.toronto.edu/~kriz/cifar.html, "Binary version".
//
// A file does not contain its number of records. The number follows from its size, which must be a
// whole number of records. Errors name the file and the offset (in unpacked bytes) and carry a
// reason (failure.h).
// Threads: functions that use only the source.
#ifndef CAPSTAN_GPU_WORKER_DATA_CIFAR_H_
#define CAPSTAN_GPU_WORKER_DATA_CIFAR_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "gpu_worker/data/byte_source.h"

namespace capstan::data {

inline constexpr int64_t kCifarChannels = 3;
inline constexpr int64_t kCifarSide = 32;  // rows and columns
inline constexpr int64_t kCifarImageBytes = kCifarChannels * kCifarSide * kCifarSide;
inline constexpr int64_t kCifarRecordBytes = 1 + kCifarImageBytes;
inline constexpr int kCifarClasses = 10;
inline constexpr int kCifarBatches = 5;  // files of the whole training set

enum class CifarPixels {
  kKeep,
  kCount,  // not kept, but counted as if they were
  kLeave,  // neither kept nor counted; they stay in the file
};

struct CifarImages {
  std::vector<uint8_t> labels;  // each below kCifarClasses
  std::vector<uint8_t> pixels;  // [kept images, 3, 32, 32]
  int64_t needed_bytes = 0;     // memory for labels and for pixels that are kept or counted
};

// Appends the records of a whole file. Always checks labels and the end of a packed file. DataLoss,
// DataMissing: not a whole number of records, no record, or a label above 9. InvalidArgument,
// InvalidSpec: to.needed_bytes would exceed `memory_limit_bytes`. Throws bad_alloc.
absl::Status ReadCifarBatch(ByteSource& source, CifarPixels pixels, int64_t memory_limit_bytes,
                            CifarImages& to);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_CIFAR_H_
