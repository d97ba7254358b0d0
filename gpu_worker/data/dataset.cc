#include "gpu_worker/data/dataset.h"

#include <algorithm>
#include <limits>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/cifar.h"
#include "gpu_worker/data/data_path.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/idx.h"
#include "gpu_worker/data/sample_limits.h"
#include "gpu_worker/data/stored_dataset.h"
#include "gpu_worker/data/synthetic_digits.h"
#include "gpu_worker/data/text.h"
#include "training/ops/limits.h"

namespace capstan::data {
namespace {

class SyntheticImages final : public ImageBytes {
 public:
  explicit SyntheticImages(const SyntheticDigits& digits) : digits_(digits) {}

  absl::StatusOr<const uint8_t*> Image(int64_t index, uint8_t* scratch) const override {
    digits_.Draw(index, scratch);
    return scratch;
  }
  int32_t Label(int64_t index) const override { return digits_.Label(index); }

 private:
  const SyntheticDigits digits_;
};

class TransformedDataset final : public Dataset {
 public:
  TransformedDataset(std::unique_ptr<Dataset> source, Transforms transforms, Split split)
      : source_(std::move(source)), transforms_(std::move(transforms)), split_(split) {
    info_ = source_->info();
    info_.height = transforms_.output().height;
    info_.width = transforms_.output().width;
  }

  const DatasetInfo& info() const override { return info_; }
  bool varies() const override { return split_ == Split::kTrain && transforms_.random(); }

  absl::Status Read(absl::Span<const int64_t> indices, int64_t epoch, float* images,
                    int32_t* labels) const override {
    absl::Status status = CheckIndices(indices, info_.count);
    if (!status.ok()) return status;
    return ReadEach<float>(indices, epoch, images, labels, &Dataset::Read);
  }

  absl::Span<const float> byte_values() const override {
    if (source_->byte_values().empty()) return {};
    return transforms_.byte_values();
  }

  absl::Status ReadBytes(absl::Span<const int64_t> indices, int64_t epoch, uint8_t* images,
                         int32_t* labels) const override {
    if (byte_values().empty()) return Dataset::ReadBytes(indices, epoch, images, labels);
    absl::Status status = CheckIndices(indices, info_.count);
    if (!status.ok()) return status;
    return ReadEach<uint8_t>(indices, epoch, images, labels, &Dataset::ReadBytes);
  }

  absl::Status ReadTargets(absl::Span<const int64_t> indices, float* targets) const override {
    return source_->ReadTargets(indices, targets);
  }

 private:
  // T is float or uint8_t, as `read` writes it.
  template <typename T>
  absl::Status ReadEach(absl::Span<const int64_t> indices, int64_t epoch, T* images,
                        int32_t* labels,
                        absl::Status (Dataset::*read)(absl::Span<const int64_t>, int64_t, T*,
                                                      int32_t*) const) const {
    Transforms::ScratchOf<T> scratch;
    scratch.image.resize(transforms_.scratch_size());
    scratch.other.resize(transforms_.scratch_size());
    for (size_t i = 0; i < indices.size(); ++i) {
      absl::Status status =
          (*source_.*read)(indices.subspan(i, 1), epoch, scratch.image.data(), labels + i);
      if (!status.ok()) return status;
      std::optional<Transforms::Draw> draw;
      if (split_ == Split::kTrain) draw = {epoch, indices[i]};
      transforms_.Apply(draw, scratch, images + static_cast<int64_t>(i) * info_.image_size());
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<Dataset> source_;
  const Transforms transforms_;
  const Split split_;
  DatasetInfo info_;
};

std::string BatchName(int batch) { return absl::StrCat("data_batch_", batch, ".bin"); }

// An IDX split with its labels read and its images still in the file.
struct IdxSplit {
  DatasetInfo info;
  std::vector<uint8_t> labels;
  IdxImagesHeader header;
  std::unique_ptr<ByteSource> images;  // at the first pixel
  bool hold = false;                   // whether to keep the images in memory
};

absl::StatusOr<IdxSplit> OpenIdxSplit(const DatasetOptions& options, Split split) {
  absl::StatusOr<std::string> folder = ParseDataUri(options.path_or_uri);
  if (!folder.ok()) return folder.status();
  const std::string prefix = split == Split::kTrain ? "train" : "t10k";
  absl::StatusOr<std::unique_ptr<ByteSource>> labels_source =
      OpenDataFile(*folder, prefix + "-labels-idx1-ubyte", options.roots);
  if (!labels_source.ok()) return labels_source.status();
  absl::StatusOr<std::unique_ptr<ByteSource>> images =
      OpenDataFile(*folder, prefix + "-images-idx3-ubyte", options.roots);
  if (!images.ok()) return images.status();

  IdxSplit result;
  absl::StatusOr<IdxImagesHeader> header = ReadIdxImagesHeader(**images);
  if (!header.ok()) return header.status();
  absl::StatusOr<std::vector<uint8_t>> labels =
      ReadIdxLabels(**labels_source, options.num_classes, options.memory_limit_bytes);
  if (!labels.ok()) return labels.status();
  if (static_cast<int64_t>(labels->size()) != header->count) {
    return InvalidSpec(absl::StrCat((*labels_source)->file(), ": ", labels->size(), " labels, but ",
                                    (*images)->file(), " has ", header->count, " images"));
  }
  const int64_t needed_bytes = header->pixels() + header->count;
  result.hold = (*images)->compressed() || MayHold(options, 0, needed_bytes);
  if (result.hold && needed_bytes > options.memory_limit_bytes) {
    return InvalidSpec(absl::StrCat(
        (*images)->file(), ": ", header->count, " images of ", header->rows, " x ", header->columns,
        " need ", needed_bytes, " bytes of memory, limit ", options.memory_limit_bytes, kUnpackIt));
  }
  result.info = {header->count, 1, header->rows, header->columns, options.num_classes};
  result.header = *header;
  result.labels = *std::move(labels);
  result.images = *std::move(images);
  return result;
}

struct CifarSplit {
  DatasetInfo info;
  std::vector<uint8_t> labels;
  std::vector<FileImages> files;
};

absl::StatusOr<CifarSplit> OpenCifarSplit(const DatasetOptions& options, Split split,
                                          bool keep_pixels) {
  absl::StatusOr<std::string> folder = ParseDataUri(options.path_or_uri);
  if (!folder.ok()) return folder.status();
  CifarSplit result;
  CifarImages images;
  const auto read = [&](const std::string& name) -> absl::Status {
    absl::StatusOr<std::unique_ptr<ByteSource>> source = OpenDataFile(*folder, name, options.roots);
    if (!source.ok()) return source.status();
    const bool hold =
        (*source)->compressed() || MayHold(options, images.needed_bytes, (*source)->stored_bytes());
    const CifarPixels pixels = !hold         ? CifarPixels::kLeave
                               : keep_pixels ? CifarPixels::kKeep
                                             : CifarPixels::kCount;
    FileImages file;
    file.first = static_cast<int64_t>(images.labels.size());
    try {
      absl::Status status = ReadCifarBatch(**source, pixels, options.memory_limit_bytes, images);
      if (!status.ok()) return status;
      if (pixels == CifarPixels::kKeep) file.held = Shared(std::move(images.pixels));
    } catch (const std::bad_alloc&) {
      return HostOutOfMemory((*source)->file());
    }
    images.pixels.clear();
    file.offset = 1;
    file.stride = kCifarRecordBytes;
    if (!hold) file.file = *std::move(source);
    result.files.push_back(std::move(file));
    return absl::OkStatus();
  };
  if (split == Split::kTest) {
    absl::Status status = read("test_batch.bin");
    if (!status.ok()) return status;
  } else {
    absl::Status absent;  // error of the first absent batch
    for (int batch = 1; batch <= kCifarBatches; ++batch) {
      if (!absent.ok()) {
        const auto later = OpenDataFile(*folder, BatchName(batch), options.roots);
        if (absl::IsNotFound(later.status())) continue;
        return InFront(absl::StrCat(BatchName(batch), " exists without those before it"), absent);
      }
      absl::Status status = read(BatchName(batch));
      if (status.ok()) {
        result.info.batches = batch;
      } else if (batch > 1 && absl::IsNotFound(status)) {
        absent = std::move(status);
      } else {
        return status;
      }
    }
  }
  result.labels = std::move(images.labels);
  result.info.count = static_cast<int64_t>(result.labels.size());
  result.info.channels = kCifarChannels;
  result.info.height = kCifarSide;
  result.info.width = kCifarSide;
  result.info.num_classes = options.num_classes;
  return result;
}

absl::Status CheckRange(const char* name, int64_t got, int64_t low, int64_t high) {
  if (got >= low && got <= high) return absl::OkStatus();
  return InvalidSpec(absl::StrCat(name, " is ", got, ", want ", low, " to ", high));
}

bool IsTable(Format format) { return format == Format::kCsv || format == Format::kLibsvm; }

bool HasPictures(Format format) { return format == Format::kImageFolder || format == Format::kRec; }

absl::Status CheckFileNames(const DatasetOptions& options) {
  for (const std::string* file : {&options.train_file, &options.test_file}) {
    if (file->find('/') != std::string::npos) {
      return InvalidSpec(absl::StrCat("data.train_file or data.test_file is '", *file,
                                      "', want the name of a file in the folder"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTextOptions(const DatasetOptions& options) {
  absl::Status status =
      CheckRange("data.sequence_length", options.sequence_length, 1, kMaxSequenceLength);
  if (!status.ok()) return status;
  if (!(options.test_fraction > 0 && options.test_fraction <= kMaxTestFraction)) {
    return InvalidSpec(absl::StrCat("data.test_fraction is ", options.test_fraction,
                                    ", want more than 0 and at most ", kMaxTestFraction));
  }
  if (!options.transforms.empty()) {
    return InvalidSpec("data.transforms are for images, the samples of a text are characters");
  }
  return CheckFileNames(options);
}

// Of the formats that have data.shape or names of files.
absl::Status CheckShapeAndFiles(const DatasetOptions& options) {
  const ImageShape& shape = options.shape;
  if (shape != ImageShape{}) {
    for (const int64_t side : {shape.channels, shape.height, shape.width}) {
      absl::Status status = CheckRange("a number of data.shape", side, 1, kMaxSampleSide);
      if (!status.ok()) return status;
    }
    absl::Status status =
        CheckRange("the product of data.shape", shape.size(), 1, kMaxSampleFeatures);
    if (!status.ok()) return status;
  }
  if (HasPictures(options.format) && shape != ImageShape{} && shape.channels != 1 &&
      shape.channels != 3) {
    return InvalidSpec(absl::StrCat("data.shape has ", shape.channels, " channels, want 1 or 3"));
  }
  if (options.features != 0) {
    absl::Status status = CheckRange("data.features", options.features, 1, kMaxSampleFeatures);
    if (!status.ok()) return status;
  }
  return CheckFileNames(options);
}

absl::Status CheckTargetSize(const DatasetOptions& options) {
  if (options.target_size == 0) return absl::OkStatus();
  if (options.format != Format::kNpz && !IsTable(options.format)) {
    return InvalidSpec("this data format has classes, want npz, csv or libsvm for numbers");
  }
  return CheckRange("model.num_outputs", options.target_size, 1,
                    IsTable(options.format) ? 1 : training::kMaxOutputs);
}

absl::Status CheckOptions(const DatasetOptions& options) {
  absl::Status status =
      CheckRange("num_classes", options.num_classes, 1, std::numeric_limits<int32_t>::max());
  if (status.ok()) status = CheckTargetSize(options);
  if (!status.ok()) return status;
  if (options.format == Format::kCifar10Bin && options.num_classes < kCifarClasses) {
    return InvalidSpec(
        absl::StrCat("num_classes is ", options.num_classes, ", cifar10_bin has ", kCifarClasses));
  }
  if (IsTable(options.format) || HasPictures(options.format)) return CheckShapeAndFiles(options);
  if (options.format == Format::kText) return CheckTextOptions(options);
  if (options.format != Format::kSyntheticDigits) return status;
  status = CheckRange("data.train_samples", options.train_samples, 1, kMaxSyntheticSamples);
  if (status.ok()) {
    status = CheckRange("data.test_samples", options.test_samples, 1, kMaxSyntheticSamples);
  }
  if (status.ok() && options.num_classes < SyntheticDigits::kClasses) {
    status = InvalidSpec(absl::StrCat("num_classes is ", options.num_classes,
                                      ", synthetic_digits has ", SyntheticDigits::kClasses));
  }
  return status;
}

DatasetInfo SyntheticInfo(const DatasetOptions& options, Split split) {
  return {split == Split::kTrain ? options.train_samples : options.test_samples, 1,
          SyntheticDigits::kSide, SyntheticDigits::kSide, options.num_classes};
}

std::unique_ptr<Dataset> OpenSynthetic(const DatasetOptions& options, Split split) {
  const DatasetInfo info = SyntheticInfo(options, split);
  std::unique_ptr<ImageBytes> images = std::make_unique<SyntheticImages>(
      SyntheticDigits(options.seed, static_cast<uint32_t>(split)));
  if (info.count * (SyntheticDigits::kPixels + 1) <= options.memory_limit_bytes) {
    images = KeepImages(std::move(images), info.count, SyntheticDigits::kPixels);
  }
  return MakeByteDataset(info, std::move(images));
}

// Opens a split before any transform.
absl::StatusOr<std::unique_ptr<Dataset>> OpenPlain(const DatasetOptions& options, Split split) {
  if (options.format == Format::kSyntheticDigits) return OpenSynthetic(options, split);
  if (options.format == Format::kNpz) return OpenNpz(options, split);
  if (IsTable(options.format)) return OpenTable(options, split);
  if (HasPictures(options.format)) return OpenPictures(options, split);
  if (options.format == Format::kText) return OpenText(options, split);
  if (options.format == Format::kCifar10Bin) {
    absl::StatusOr<CifarSplit> images = OpenCifarSplit(options, split, /*keep_pixels=*/true);
    if (!images.ok()) return images.status();
    return MakeByteDataset(
        images->info, std::make_unique<StoredImages<uint8_t>>(
                          std::move(images->files), kCifarImageBytes, std::move(images->labels)));
  }
  absl::StatusOr<IdxSplit> opened = OpenIdxSplit(options, split);
  if (!opened.ok()) return opened.status();
  std::vector<FileImages> files(1);
  files[0].offset = kIdxImagesHeaderBytes;
  files[0].stride = opened->info.image_size();
  if (opened->hold) {
    absl::StatusOr<std::unique_ptr<uint8_t[]>> pixels =
        ReadIdxPixels(*opened->images, opened->header, options.memory_limit_bytes);
    if (!pixels.ok()) return pixels.status();
    files[0].held = Shared(*std::move(pixels));
  } else {
    files[0].file = std::move(opened->images);
  }
  return MakeByteDataset(
      opened->info, std::make_unique<StoredImages<uint8_t>>(
                        std::move(files), opened->info.image_size(), std::move(opened->labels)));
}

}  // namespace

std::optional<Format> FormatNamed(absl::string_view name) {
  constexpr std::pair<absl::string_view, Format> kFormats[] = {
      {"idx", Format::kIdx},
      {"cifar10_bin", Format::kCifar10Bin},
      {"npz", Format::kNpz},
      {"csv", Format::kCsv},
      {"libsvm", Format::kLibsvm},
      {"image_folder", Format::kImageFolder},
      {"rec", Format::kRec},
      {"text", Format::kText},
      {"synthetic_digits", Format::kSyntheticDigits}};
  for (const auto& [known, format] : kFormats) {
    if (known == name) return format;
  }
  return std::nullopt;
}

absl::Status Dataset::ReadBytes(absl::Span<const int64_t>, int64_t, uint8_t*, int32_t*) const {
  return absl::FailedPreconditionError("the images of this data set are not bytes");
}

absl::Status Dataset::ReadTargets(absl::Span<const int64_t>, float*) const {
  return absl::FailedPreconditionError("the targets of this data set are classes");
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const DatasetOptions& options, Split split) {
  absl::Status status = CheckOptions(options);
  if (!status.ok()) return status;
  absl::StatusOr<std::unique_ptr<Dataset>> set = OpenPlain(options, split);
  if (!set.ok() || options.transforms.empty()) return set;
  const DatasetInfo& info = (*set)->info();
  absl::StatusOr<Transforms> transforms = Transforms::Create(
      {info.channels, info.height, info.width}, options.transforms, options.seed);
  if (!transforms.ok()) return transforms.status();
  return std::make_unique<TransformedDataset>(*std::move(set), *std::move(transforms),
                                              options.as_evaluation ? Split::kTest : split);
}

absl::StatusOr<DatasetProbe> ProbeDataset(const DatasetOptions& options) {
  absl::Status status = CheckOptions(options);
  if (!status.ok()) return status;
  DatasetProbe probe;
  if (options.format == Format::kSyntheticDigits) {
    probe.train = SyntheticInfo(options, Split::kTrain);
    probe.test = SyntheticInfo(options, Split::kTest);
    return probe;
  }
  if (options.format == Format::kNpz) return ProbeNpz(options);
  if (IsTable(options.format)) return ProbeTable(options);
  if (HasPictures(options.format)) return ProbePictures(options);
  if (options.format == Format::kText) return ProbeText(options);
  if (options.format == Format::kCifar10Bin) {
    for (const Split split : {Split::kTrain, Split::kTest}) {
      absl::StatusOr<CifarSplit> images = OpenCifarSplit(options, split, /*keep_pixels=*/false);
      if (!images.ok()) return images.status();
      (split == Split::kTrain ? probe.train : probe.test) = images->info;
    }
    return probe;
  }
  absl::StatusOr<IdxSplit> train = OpenIdxSplit(options, Split::kTrain);
  if (!train.ok()) return train.status();
  absl::StatusOr<IdxSplit> test = OpenIdxSplit(options, Split::kTest);
  if (!test.ok()) return test.status();
  probe.train = train->info;
  probe.test = test->info;
  if (probe.train.height != probe.test.height || probe.train.width != probe.test.width) {
    return InvalidSpec(absl::StrCat(train->images->file(), ": images of ", probe.train.height,
                                    " x ", probe.train.width, ", but ", test->images->file(),
                                    " has ", probe.test.height, " x ", probe.test.width));
  }
  return probe;
}

}  // namespace capstan::data
