// Data sets of images that a format has found: as bytes or as floats, in memory or in a file.
// dataset.cc and the files of the formats use these, nobody else.
#ifndef CAPSTAN_GPU_WORKER_DATA_STORED_DATASET_H_
#define CAPSTAN_GPU_WORKER_DATA_STORED_DATASET_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gpu_worker/data/byte_source.h"
#include "gpu_worker/data/dataset.h"

namespace capstan::data {

absl::Status CheckIndices(absl::Span<const int64_t> indices, int64_t count);

// Whether `bytes` more of a plain file may be held, in addition to the `held` ones.
bool MayHold(const DatasetOptions& options, int64_t held, int64_t bytes);

// A label, or 0 where no labels are held because targets are numbers.
template <typename LabelType>
int32_t LabelAt(const std::vector<LabelType>& labels, int64_t index) {
  return labels.empty() ? 0 : labels[static_cast<size_t>(index)];
}

// The bytes of a split's images, and the labels. Thread-safe.
class ImageBytes {
 public:
  virtual ~ImageBytes() = default;
  // The place of an image's bytes: in memory, or in `scratch`, which must have room for them.
  virtual absl::StatusOr<const uint8_t*> Image(int64_t index, uint8_t* scratch) const = 0;
  virtual int32_t Label(int64_t index) const = 0;
};

// The same for images that consist of floats.
class ImageFloats {
 public:
  virtual ~ImageFloats() = default;
  virtual absl::Status Copy(int64_t index, float* image) const = 0;
  virtual int32_t Label(int64_t index) const = 0;
};

// The images of one file: all of them in memory, or all still in the file.
struct FileImages {
  int64_t first = 0;                    // index in the split
  std::shared_ptr<const uint8_t> held;  // null: in the file; no other object has it
  std::unique_ptr<ByteSource> file;
  int64_t offset = 0, stride = 0;  // of the first image in the file, and from one to the next
};

// Label: uint8_t or int32_t.
template <typename LabelType>
class StoredImages final : public ImageBytes {
 public:
  // `files` in their order; at least one. `labels` may be empty where targets are numbers.
  StoredImages(std::vector<FileImages> files, int64_t image_size, std::vector<LabelType> labels)
      : files_(std::move(files)), image_size_(image_size), labels_(std::move(labels)) {}

  absl::StatusOr<const uint8_t*> Image(int64_t index, uint8_t* scratch) const override {
    auto file = files_.rbegin();
    while (file->first > index) ++file;
    const int64_t place = index - file->first;
    if (file->held != nullptr) return file->held.get() + place * image_size_;
    absl::Status status = file->file->ReadAt(file->offset + place * file->stride, scratch,
                                             static_cast<size_t>(image_size_));
    if (!status.ok()) return status;
    return scratch;
  }
  int32_t Label(int64_t index) const override { return LabelAt(labels_, index); }

 private:
  const std::vector<FileImages> files_;
  const int64_t image_size_;
  const std::vector<LabelType> labels_;
};

// Keeps each image of `source`, which writes into `scratch`, when it is first read, because every
// epoch reads it again. A worker that owns some lanes makes and keeps little more than their
// images. Returns `source` itself if there is no memory for `count` images, which is slower and
// never refused.
std::unique_ptr<ImageBytes> KeepImages(std::unique_ptr<ImageBytes> source, int64_t count,
                                       int64_t image_size);

// For FileImages::held.
std::shared_ptr<const uint8_t> Shared(std::vector<uint8_t> bytes);
std::shared_ptr<const uint8_t> Shared(std::unique_ptr<uint8_t[]> bytes);

// A data set of bytes, each of which stands for float32(byte) / 255.
std::unique_ptr<Dataset> MakeByteDataset(const DatasetInfo& info,
                                         std::unique_ptr<ImageBytes> images);
// A data set of bytes, each of which is a token, i.e. stands for float32(byte).
std::unique_ptr<Dataset> MakeTokenDataset(const DatasetInfo& info,
                                          std::unique_ptr<ImageBytes> images);
// A data set whose numbers are the floats themselves.
std::unique_ptr<Dataset> MakeFloatDataset(const DatasetInfo& info,
                                          std::unique_ptr<ImageFloats> images);

// `source` with targets that are numbers, [info().count, info().target_size]. `source` itself if
// info().target_size is 0.
std::unique_ptr<Dataset> WithTargets(std::unique_ptr<Dataset> source, std::vector<float> targets);

// Formats with files of their own, before any transform (npz_dataset.cc, picture_dataset.cc,
// table_dataset.cc, text_dataset.cc). The options have been checked. Errors as OpenDataset and
// ProbeDataset.
absl::StatusOr<std::unique_ptr<Dataset>> OpenNpz(const DatasetOptions& options, Split split);
absl::StatusOr<DatasetProbe> ProbeNpz(const DatasetOptions& options);
absl::StatusOr<std::unique_ptr<Dataset>> OpenPictures(const DatasetOptions& options, Split split);
absl::StatusOr<DatasetProbe> ProbePictures(const DatasetOptions& options);
absl::StatusOr<std::unique_ptr<Dataset>> OpenTable(const DatasetOptions& options, Split split);
absl::StatusOr<DatasetProbe> ProbeTable(const DatasetOptions& options);
absl::StatusOr<std::unique_ptr<Dataset>> OpenText(const DatasetOptions& options, Split split);
absl::StatusOr<DatasetProbe> ProbeText(const DatasetOptions& options);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_STORED_DATASET_H_
