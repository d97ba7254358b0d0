// A data set: images by index, as bytes or as the floats that they stand for. The job may have them
// transformed (transform.h). The target of a sample is a class, its label, or some numbers.
//
// `idx` reads a folder with the four standard file names. `cifar10_bin` reads one with
// data_batch_1.bin to data_batch_5.bin and test_batch.bin (cifar.h). Each file may be plain, .gz or
// .xz. `synthetic_digits` draws its images from a seed (synthetic_digits.h). A pixel becomes
// float32(byte) / 255.
//
// `npz` reads one file with four arrays of numpy (npz.h). `csv` (csv.h) and `libsvm` (libsvm.h)
// read a folder with a training and a test file, which may also be packed. Their numbers, and
// floats of npz, are not scaled. A sample without rows and columns is an image of 1 x 1 x F. `text`
// (text.h) reads a folder with a text; its bytes are tokens, which are not scaled either.
//
// `image_folder` (image_folder.h) and `rec` (record_io.h) have JPEG and PNG files. Each is
// decoded to bytes when it is read, and brought to one size (picture.h).
//
// Small sets are held in memory, as bytes or floats. The plain files of a larger set stay on the
// disk, and each image is read when it is needed, so such a set may be larger than memory. Labels
// are always held. Packed files are unpacked into memory, or refused if they are too large. So are
// tables, which are text.
//
// The last training batches of `cifar10_bin` may be absent. The set is then smaller, and
// DatasetInfo::batches says so. If a batch is absent before a present one, the error is
// DataMissing, so equal counts mean equal files.
#ifndef CAPSTAN_GPU_WORKER_DATA_DATASET_H_
#define CAPSTAN_GPU_WORKER_DATA_DATASET_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gpu_worker/data/transform.h"

namespace capstan::data {

enum class Format {
  kIdx,
  kCifar10Bin,
  kNpz,
  kCsv,
  kLibsvm,
  kImageFolder,
  kRec,
  kText,
  kSyntheticDigits
};
enum class Split { kTrain = 0, kTest = 1 };  // the numbers go into synthetic images

// The format that `data.format` names, or nothing.
std::optional<Format> FormatNamed(absl::string_view name);

struct DatasetOptions {
  Format format = Format::kIdx;
  // For formats with files: the folder, for kNpz the file; or file:// with it.
  std::string path_or_uri;
  std::vector<std::string> roots;  // the folder must lie in one; empty: anywhere
  // 1 .. 2^31 - 1; each label is below it. The classes of kText are the characters that it has.
  int64_t num_classes = 10;
  // kNpz, kCsv and kLibsvm: numbers of a sample's target, 1 .. training::kMaxOutputs; of the last two
  // 1. 0: the target is a class. Otherwise num_classes is not read, and all labels are 0.
  int64_t target_size = 0;
  // Limits of one split, counting a byte per pixel and label; for kNpz, kCsv and kLibsvm 4 bytes
  // per label, target and float. Beyond hold_bytes, images of plain files are read when they are
  // needed. A set that must be held beyond memory_limit_bytes is refused.
  int64_t hold_bytes = int64_t{256} << 20;
  int64_t memory_limit_bytes = int64_t{4} << 30;
  uint64_t seed = 0;              // for synthetic images and random transforms
  int64_t train_samples = 60000;  // kSyntheticDigits, as the next one: 1 .. kMaxSyntheticSamples
  int64_t test_samples = 10000;
  // kCsv and kLibsvm: a shape's product is the number of features; {}: 1 x 1 x F. kImageFolder and
  // kRec: the size that each image is brought to, 1 or 3 channels; {}: 3 x 224 x 224.
  ImageShape shape;
  // In the folder, for kCsv, kLibsvm, kRec and kText; empty: train.csv, train.libsvm, train.rec and
  // so on. Of kText: input.txt, and no test file.
  std::string train_file, test_file;
  std::string label_column = "0";  // kCsv: an index, -1 for the last one, or a name
  int64_t features = 0;            // kLibsvm; 0: the shape's, or the highest index of both files
  int64_t sequence_length = 64;    // kText: characters of a sample, 1 .. kMaxSequenceLength
  double test_fraction = 0.1;      // kText without test_file: above 0, at most kMaxTestFraction
  bool tokens = false;             // kNpz: bytes are tokens, not pixels, and are not divided by 255
  std::vector<Transform> transforms;  // not for kText; in this order; the test set as in evaluation
  bool as_evaluation = false;         // the training set, too
};

constexpr int64_t kMaxSyntheticSamples = 1'000'000'000;
constexpr double kMaxTestFraction = 0.9;

struct DatasetInfo {
  int64_t count = 0;  // images of this split
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t num_classes = 0;  // 0 where targets are numbers
  int32_t batches = 0;      // kCifar10Bin, training: files present, of kCifarBatches; else 0
  int64_t target_size = 0;  // DatasetOptions::target_size

  int64_t image_size() const { return channels * height * width; }  // floats of one image
};

// One split. Immutable: any number of threads may call Read at the same time.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual const DatasetInfo& info() const = 0;

  // Whether an image may differ between epochs.
  virtual bool varies() const { return false; }

  // Writes images [indices.size(), channels, height, width] and labels [indices.size()], in the
  // order of the indices. The caller owns both. Only random transforms use `epoch`, which counts
  // from 0. InvalidArgument: an index outside [0, count); nothing is written. DataLoss,
  // DataMissing: a file on the disk cannot be read or has been changed.
  virtual absl::Status Read(absl::Span<const int64_t> indices, int64_t epoch, float* images,
                            int32_t* labels) const = 0;

  // The numbers that the bytes of ReadBytes stand for, with exactly the bits of Read: [256], or
  // [channels, 256]. Empty: these images are not bytes, so only Read works.
  virtual absl::Span<const float> byte_values() const { return {}; }
  // As Read. FailedPrecondition: byte_values() is empty.
  virtual absl::Status ReadBytes(absl::Span<const int64_t> indices, int64_t epoch, uint8_t* images,
                                 int32_t* labels) const;

  // Writes the targets of samples, [indices.size(), info().target_size], all finite. They do not
  // depend on an epoch. InvalidArgument as Read. FailedPrecondition: the targets are classes.
  virtual absl::Status ReadTargets(absl::Span<const int64_t> indices, float* targets) const;
};

// Opens one split and reads everything that is held. (Synthetic images are drawn when they are
// first read.) For images that stay in files, checks labels and sizes, and the CRC of `npz`.
// Errors name file and offset and carry a reason (failure.h):
//   NotFound, PermissionDenied, FailedPrecondition, DataLoss   DataMissing: absent, unreadable,
//                                                              damaged
//   InvalidArgument     InvalidSpec: an option out of range, a label not below num_classes, an
//                       empty set, images and labels that differ in number, more than
//                       memory_limit_bytes in packed files and tables, transforms that do not fit
//                       the images
//   ResourceExhausted   the allocation failed
absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const DatasetOptions& options, Split split);

struct DatasetProbe {
  DatasetInfo train;
  DatasetInfo test;
};

// What OpenDataset would say of both splits, before any transform. For `idx` and `npz` it reads
// only the images' headers and the labels, which is cheap enough for a plan. Only OpenDataset
// finds damage inside the images. Of `image_folder` it reads the names and the first image of
// each split; of `rec` the index, or without one the headers of all records, and the first image.
// `cifar10_bin` has its labels between the images, so everything is read: 0.1 s for plain files,
// and one to two seconds for each .xz. Tables and texts are read as a whole. Errors as above. It is
// also InvalidSpec if the two splits have images of different sizes, or if the headers of CSV files
// differ.
absl::StatusOr<DatasetProbe> ProbeDataset(const DatasetOptions& options);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_DATASET_H_
