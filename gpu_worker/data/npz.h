// A data set in one .npz file, as numpy.savez and savez_compressed write it, with Keras's names:
//
//   x_train, x_test   uint8, float32 or float64; [N, F], [N, rows, columns] or
//                     [N, channels, rows, columns]. float64 becomes the nearest float32.
//   y_train, y_test   integers [N] or [N, 1], the classes from 0; where targets are numbers,
//                     float32 or float64 [N, K], or [N] for K = 1
//
// Other members are not read. Sizes are checked against the file and the limits before any
// allocation. Errors name the file and the member and carry a reason (failure.h).
// Threads: functions that use only the archive.
#ifndef CAPSTAN_GPU_WORKER_DATA_NPZ_H_
#define CAPSTAN_GPU_WORKER_DATA_NPZ_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/data/npy.h"
#include "gpu_worker/data/zip.h"

namespace capstan::data {

// One split, with its labels and without its images.
struct NpzSplit {
  NpyHeader header;  // of the images
  ZipMember member;  // likewise
  std::string name;  // "<file>: x_train.npy"
  int64_t count = 0;
  int64_t channels = 0;  // 1 for vectors and for images without this dimension
  int64_t height = 0;    // 1 for vectors
  int64_t width = 0;
  std::vector<int32_t> labels;
  int64_t target_size = 0;     // NpzSplitOptions::target_size
  std::vector<float> targets;  // [count, target_size]

  int64_t image_size() const { return channels * height * width; }
  // Memory for images (a byte or a float for each number) and labels or targets; at most 2^63 - 1.
  int64_t held_bytes() const;
};

struct NpzSplitOptions {
  int64_t num_classes = 10;
  int64_t target_size = 0;  // numbers of a sample's target; 0: it is a class
  int64_t memory_limit_bytes = int64_t{4} << 30;
  bool keep_labels = true;  // false: labels and targets are checked and not kept
};

// Reads labels and the header of the images. DataLoss, DataMissing: an array is absent or damaged.
// InvalidArgument, InvalidSpec: types or shapes that are not those above, different numbers of
// images and labels, a class that is not below `num_classes`, classes where numbers are wanted and
// the reverse, or labels beyond `memory_limit_bytes`, or packed images and labels beyond them.
// Throws bad_alloc.
absl::StatusOr<NpzSplit> ReadNpzSplit(const ZipArchive& archive, bool train,
                                      const NpzSplitOptions& options);

// Read all images, which needs held_bytes(), and check the CRC. The first is for bytes, the second
// for floats. DataLoss: damage, or a number that is not finite. ResourceExhausted: the allocation
// failed.
absl::StatusOr<std::unique_ptr<uint8_t[]>> ReadNpzBytes(const ZipArchive& archive,
                                                        const NpzSplit& split);
absl::StatusOr<std::unique_ptr<float[]>> ReadNpzFloats(const ZipArchive& archive,
                                                       const NpzSplit& split);

// The same checks for images that stay in the file. Uses 2 MiB.
absl::Status CheckNpzImages(const ZipArchive& archive, const NpzSplit& split);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_NPZ_H_
