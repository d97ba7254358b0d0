// A data set: images by index, as bytes or as the floats that they stand for, transformed where the
// job says so (transform.h).
//
// `idx` reads a folder with the four standard file names, `cifar10_bin` one with data_batch_1.bin to
// data_batch_5.bin and test_batch.bin (cifar.h), each plain or with .gz or .xz; `synthetic_digits`
// draws its images from a seed (synthetic_digits.h). A pixel becomes float32(byte) / 255.
//
// Small sets are held in memory, as bytes. Of a larger one plain files stay where they are, and each
// image is read when it is wanted, so such a set may be larger than the memory; labels are held in
// any case. What is packed is unpacked into memory, or refused where it is too much.
//
// The last training batches of `cifar10_bin` may be absent: the set is smaller then, and
// DatasetInfo::batches says so. One that is absent before one that is there is DataMissing, so equal
// counts mean equal files.
#ifndef CAPSTAN_GPU_WORKER_DATA_DATASET_H_
#define CAPSTAN_GPU_WORKER_DATA_DATASET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gpu_worker/data/transform.h"

namespace capstan::data {

enum class Format { kIdx, kCifar10Bin, kSyntheticDigits };
enum class Split { kTrain = 0, kTest = 1 };  // the numbers go into synthetic images

struct DatasetOptions {
  Format format = Format::kIdx;
  std::string path_or_uri;         // of formats with files: the folder, or file:// with it
  std::vector<std::string> roots;  // the folder must lie in one; empty: anywhere
  int64_t num_classes = 10;        // 1 .. 2^31 - 1; each label is below it
  // Of one split, as bytes per pixel and label: what is held at most of plain files, whose images are
  // read when they are wanted beyond that, and what is held at all, else the set is refused.
  int64_t hold_bytes = int64_t{256} << 20;
  int64_t memory_limit_bytes = int64_t{4} << 30;
  uint64_t seed = 0;              // of synthetic images and of random transforms
  int64_t train_samples = 60000;  // kSyntheticDigits, as the next: 1 .. kMaxSyntheticSamples
  int64_t test_samples = 10000;
  std::vector<Transform> transforms;  // in this order; the test set as in evaluation
};

constexpr int64_t kMaxSyntheticSamples = 1'000'000'000;

struct DatasetInfo {
  int64_t count = 0;  // images of this split
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t num_classes = 0;
  int32_t batches = 0;  // kCifar10Bin, training: files that are there, of kCifarBatches; else 0

  int64_t image_size() const { return channels * height * width; }  // floats of one image
};

// One split. Immutable: Read may be called from any number of threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual const DatasetInfo& info() const = 0;

  // Whether an image is another one in another epoch.
  virtual bool varies() const { return false; }

  // Writes images [indices.size(), channels, height, width] and labels [indices.size()], in the
  // order of the indices; the caller owns both. `epoch`, from 0, is what random transforms are drawn
  // by; nothing else reads it. InvalidArgument: an index outside [0, count); nothing is written.
  // DataLoss, DataMissing: a file that is read as it is wanted cannot be, or has been changed.
  virtual absl::Status Read(absl::Span<const int64_t> indices, int64_t epoch, float* images,
                            int32_t* labels) const = 0;

  // The numbers that the bytes of ReadBytes stand for, of the very bits that Read gives: [256], or
  // [channels, 256]. Empty: these images are no bytes, and there is Read alone.
  virtual absl::Span<const float> byte_values() const { return {}; }
  // As Read. FailedPrecondition: byte_values() is empty.
  virtual absl::Status ReadBytes(absl::Span<const int64_t> indices, int64_t epoch, uint8_t* images,
                                 int32_t* labels) const;
};

// Opens one split and reads all of it that is held (synthetic images are drawn when they are read
// first). Of what stays in files labels and sizes are checked.
// Errors name file and offset and carry a reason (failure.h):
//   NotFound, PermissionDenied, FailedPrecondition, DataLoss   DataMissing: absent, unreadable,
//                                                              damaged
//   InvalidArgument     InvalidSpec: an option out of range, a label not below num_classes, an
//                       empty set, images and labels that differ in number, more than
//                       memory_limit_bytes in packed files, transforms that do not fit the images
//   ResourceExhausted   the allocation failed
absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const DatasetOptions& options, Split split);

struct DatasetProbe {
  DatasetInfo train;
  DatasetInfo test;
};

// What OpenDataset would say of both splits, before any transform. Of `idx` from the images' headers and the labels alone,
// which is cheap enough for a plan: damage inside the images is found by OpenDataset only.
// `cifar10_bin` has the labels between the images: all is read, 0.1 s of plain files and one to two seconds
// for each .xz. Errors as above; besides InvalidSpec: the two splits have images of different sizes.
absl::StatusOr<DatasetProbe> ProbeDataset(const DatasetOptions& options);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_DATASET_H_
