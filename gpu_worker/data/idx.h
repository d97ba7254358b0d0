// The IDX format: unsigned bytes after a big-endian header.
//
//   images: magic 0x00000803, count, rows, columns, then count * rows * columns bytes
//   labels: magic 0x00000801, count, then count bytes
// Source: yann.lecun.com/exdb/mnist, "The IDX file format".
//
// Everything that the header claims is checked against the size of the file and the limits before
// any allocation. Errors name the file and the offset (in unpacked bytes) and carry a reason
// (failure.h). Impossible values are DataLoss, DataMissing; values that do not fit the job are
// InvalidArgument, InvalidSpec. Threads: functions that use only the source.
#ifndef CAPSTAN_GPU_WORKER_DATA_IDX_H_
#define CAPSTAN_GPU_WORKER_DATA_IDX_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/data/byte_source.h"

namespace capstan::data {

struct IdxImagesHeader {
  int64_t count = 0;  // >= 1
  int64_t rows = 0;   // 1 .. kIdxMaxSide
  int64_t columns = 0;

  int64_t pixels() const { return count * rows * columns; }  // below 2^61
};

constexpr int64_t kIdxMaxSide = 1 << 14;
constexpr int64_t kIdxImagesHeaderBytes = 16;  // before the first pixel

// Reads the header of an images file. The source is then at the first pixel.
absl::StatusOr<IdxImagesHeader> ReadIdxImagesHeader(ByteSource& source);

// Reads the pixels and the end of the file. Bytes after the pixels, or a damaged gzip trailer, are
// errors. InvalidArgument: more than `memory_limit_bytes`. ResourceExhausted: the allocation
// failed.
absl::StatusOr<std::unique_ptr<uint8_t[]>> ReadIdxPixels(ByteSource& source,
                                                         const IdxImagesHeader& header,
                                                         int64_t memory_limit_bytes);

// Reads a whole labels file. InvalidArgument: a label of `num_classes` or above, or too much
// memory.
absl::StatusOr<std::vector<uint8_t>> ReadIdxLabels(ByteSource& source, int64_t num_classes,
                                                   int64_t memory_limit_bytes);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_IDX_H_
