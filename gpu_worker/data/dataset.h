// A data set in memory: images by index, as the engine wants them.
//
// `idx` reads a folder with the four standard file names, each with .gz or without;
// `synthetic_digits` draws its images from a seed (synthetic_digits.h). A pixel becomes
// float32(byte) / 255.
#ifndef CAPSTAN_GPU_WORKER_DATA_DATASET_H_
#define CAPSTAN_GPU_WORKER_DATA_DATASET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace capstan::data {

enum class Format { kIdx, kSyntheticDigits };
enum class Split { kTrain = 0, kTest = 1 };  // the numbers go into synthetic images

struct DatasetOptions {
  Format format = Format::kIdx;
  std::string path_or_uri;         // kIdx: the folder, or file:// with it
  std::vector<std::string> roots;  // kIdx: the folder must lie in one; empty: anywhere
  int64_t num_classes = 10;        // 1 .. 2^31 - 1; each label is below it
  int64_t memory_limit_bytes = int64_t{4} << 30;  // for one split, as bytes per pixel and label
  uint64_t seed = 0;                              // kSyntheticDigits, as the next two
  int64_t train_samples = 60000;                  // 1 .. kMaxSyntheticSamples
  int64_t test_samples = 10000;
};

constexpr int64_t kMaxSyntheticSamples = 1'000'000'000;

struct DatasetInfo {
  int64_t count = 0;  // images of this split
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t num_classes = 0;

  int64_t image_size() const { return channels * height * width; }  // floats of one image
};

// One split. Immutable: Read may be called from any number of threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual const DatasetInfo& info() const = 0;

  // Writes images [indices.size(), channels, height, width] and labels [indices.size()], in the
  // order of the indices; the caller owns both. InvalidArgument: an index outside [0, count);
  // nothing is written.
  virtual absl::Status Read(absl::Span<const int64_t> indices, float* images,
                            int32_t* labels) const = 0;
};

// Opens one split and reads all of it (synthetic images are drawn when they are read first).
// Errors name file and offset and carry a reason (failure.h):
//   NotFound, PermissionDenied, FailedPrecondition, DataLoss   DataMissing: absent, unreadable,
//                                                              damaged
//   InvalidArgument     InvalidSpec: an option out of range, a label not below num_classes, an
//                       empty set, images and labels that differ in number, more than
//                       memory_limit_bytes
//   ResourceExhausted   the allocation failed
absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const DatasetOptions& options, Split split);

struct DatasetProbe {
  DatasetInfo train;
  DatasetInfo test;
};

// What OpenDataset would say of both splits, from the images' headers and the labels alone: cheap
// enough for a plan. Damage inside the images is found by OpenDataset only. Errors as above;
// besides InvalidSpec: the two splits have images of different sizes.
absl::StatusOr<DatasetProbe> ProbeDataset(const DatasetOptions& options);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_DATASET_H_
