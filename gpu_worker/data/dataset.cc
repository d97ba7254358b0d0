#include "gpu_worker/data/dataset.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/cifar.h"
#include "gpu_worker/data/data_path.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/idx.h"
#include "gpu_worker/data/pixels.h"
#include "gpu_worker/data/synthetic_digits.h"

namespace capstan::data {
namespace {

absl::Status CheckIndices(absl::Span<const int64_t> indices, int64_t count) {
  for (const int64_t index : indices) {
    if (index < 0 || index >= count) {
      return absl::InvalidArgumentError(absl::StrCat("sample ", index, " of a set of ", count));
    }
  }
  return absl::OkStatus();
}

// All bytes in memory.
class StoredDataset final : public Dataset {
 public:
  StoredDataset(const DatasetInfo& info, std::unique_ptr<uint8_t[]> pixels,
                std::vector<uint8_t> labels)
      : info_(info), owned_(std::move(pixels)), pixels_(owned_.get()), labels_(std::move(labels)) {}
  StoredDataset(const DatasetInfo& info, CifarImages images)
      : info_(info),
        owned_bytes_(std::move(images.pixels)),
        pixels_(owned_bytes_.data()),
        labels_(std::move(images.labels)) {}

  const DatasetInfo& info() const override { return info_; }

  absl::Status Read(absl::Span<const int64_t> indices, int64_t, float* images,
                    int32_t* labels) const override {
    absl::Status status = CheckIndices(indices, info_.count);
    if (!status.ok()) return status;
    const int64_t size = info_.image_size();
    for (size_t i = 0; i < indices.size(); ++i) {
      BytesToFloats(&pixels_[indices[i] * size], size, images + static_cast<int64_t>(i) * size);
      labels[i] = labels_[indices[i]];
    }
    return absl::OkStatus();
  }

 private:
  const DatasetInfo info_;
  const std::unique_ptr<uint8_t[]> owned_;  // or
  const std::vector<uint8_t> owned_bytes_;
  const uint8_t* const pixels_;
  const std::vector<uint8_t> labels_;
};

// Draws an image when it is first read and keeps its bytes, for every epoch reads it again. A
// worker that owns some lanes draws little more than their images.
class SyntheticDataset final : public Dataset {
 public:
  // Keeps nothing where `kept` is null.
  SyntheticDataset(const DatasetInfo& info, const SyntheticDigits& digits,
                   std::unique_ptr<uint8_t[]> kept, std::unique_ptr<std::atomic<uint8_t>[]> states)
      : info_(info), digits_(digits), kept_(std::move(kept)), states_(std::move(states)) {}

  const DatasetInfo& info() const override { return info_; }

  absl::Status Read(absl::Span<const int64_t> indices, int64_t, float* images,
                    int32_t* labels) const override {
    absl::Status status = CheckIndices(indices, info_.count);
    if (!status.ok()) return status;
    std::array<uint8_t, SyntheticDigits::kPixels> drawn;
    for (size_t i = 0; i < indices.size(); ++i) {
      BytesToFloats(Image(indices[i], drawn.data()), SyntheticDigits::kPixels,
                    images + i * SyntheticDigits::kPixels);
      labels[i] = digits_.Label(indices[i]);
    }
    return absl::OkStatus();
  }

 private:
  enum State : uint8_t { kAbsent, kBeingDrawn, kKept };

  // The image's bytes: kept ones, or drawn into `scratch` while another thread draws the same one.
  const uint8_t* Image(int64_t index, uint8_t* scratch) const {
    if (kept_ == nullptr) {
      digits_.Draw(index, scratch);
      return scratch;
    }
    uint8_t* const place = &kept_[index * SyntheticDigits::kPixels];
    std::atomic<uint8_t>& state = states_[index];
    uint8_t seen = state.load(std::memory_order_acquire);
    if (seen == kKept) return place;
    if (seen == kAbsent && state.compare_exchange_strong(seen, kBeingDrawn)) {
      digits_.Draw(index, place);
      state.store(kKept, std::memory_order_release);
      return place;
    }
    digits_.Draw(index, scratch);
    return scratch;
  }

  const DatasetInfo info_;
  const SyntheticDigits digits_;
  const std::unique_ptr<uint8_t[]> kept_;
  const std::unique_ptr<std::atomic<uint8_t>[]> states_;
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
    Transforms::Scratch scratch;
    scratch.image.resize(transforms_.scratch_size());
    scratch.other.resize(transforms_.scratch_size());
    for (size_t i = 0; i < indices.size(); ++i) {
      status = source_->Read(indices.subspan(i, 1), epoch, scratch.image.data(), labels + i);
      if (!status.ok()) return status;
      std::optional<Transforms::Draw> draw;
      if (split_ == Split::kTrain) draw = {epoch, indices[i]};
      transforms_.Apply(draw, scratch, images + static_cast<int64_t>(i) * info_.image_size());
    }
    return absl::OkStatus();
  }

 private:
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
  std::unique_ptr<ByteSource> images;  // stands at the first pixel
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
  if (needed_bytes > options.memory_limit_bytes) {
    return InvalidSpec(absl::StrCat((*images)->file(), ": ", header->count, " images of ",
                                    header->rows, " x ", header->columns, " need ", needed_bytes,
                                    " bytes of memory, limit ", options.memory_limit_bytes));
  }
  result.info = {header->count, 1, header->rows, header->columns, options.num_classes};
  result.header = *header;
  result.labels = *std::move(labels);
  result.images = *std::move(images);
  return result;
}

struct CifarSplit {
  DatasetInfo info;
  CifarImages images;
};

absl::StatusOr<CifarSplit> OpenCifarSplit(const DatasetOptions& options, Split split,
                                          bool keep_pixels) {
  absl::StatusOr<std::string> folder = ParseDataUri(options.path_or_uri);
  if (!folder.ok()) return folder.status();
  CifarSplit result;
  const auto read = [&](const std::string& name) -> absl::Status {
    absl::StatusOr<std::unique_ptr<ByteSource>> source = OpenDataFile(*folder, name, options.roots);
    if (!source.ok()) return source.status();
    try {
      return ReadCifarBatch(**source, keep_pixels, options.memory_limit_bytes, result.images);
    } catch (const std::bad_alloc&) {
      return HostOutOfMemory((*source)->file());
    }
  };
  if (split == Split::kTest) {
    absl::Status status = read("test_batch.bin");
    if (!status.ok()) return status;
  } else {
    absl::Status absent;  // the first batch that is
    for (int batch = 1; batch <= kCifarBatches; ++batch) {
      if (!absent.ok()) {
        const auto later = OpenDataFile(*folder, BatchName(batch), options.roots);
        if (absl::IsNotFound(later.status())) continue;
        return InFront(absl::StrCat(BatchName(batch), " is there without those before it"), absent);
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
  result.info.count = static_cast<int64_t>(result.images.labels.size());
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

absl::Status CheckOptions(const DatasetOptions& options) {
  absl::Status status =
      CheckRange("num_classes", options.num_classes, 1, std::numeric_limits<int32_t>::max());
  if (!status.ok()) return status;
  if (options.format == Format::kCifar10Bin && options.num_classes < kCifarClasses) {
    return InvalidSpec(
        absl::StrCat("num_classes is ", options.num_classes, ", cifar10_bin has ", kCifarClasses));
  }
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
  std::unique_ptr<uint8_t[]> kept;
  std::unique_ptr<std::atomic<uint8_t>[]> states;
  // Without room the images are drawn each time: slower, never refused.
  if (info.count * (SyntheticDigits::kPixels + 1) <= options.memory_limit_bytes) {
    kept.reset(new (std::nothrow) uint8_t[info.count * SyntheticDigits::kPixels]);
    states.reset(new (std::nothrow) std::atomic<uint8_t>[info.count]());
    if (states == nullptr) kept.reset();
  }
  return std::make_unique<SyntheticDataset>(
      info, SyntheticDigits(options.seed, static_cast<uint32_t>(split)), std::move(kept),
      std::move(states));
}

// Before any transform.
absl::StatusOr<std::unique_ptr<Dataset>> OpenPlain(const DatasetOptions& options, Split split) {
  if (options.format == Format::kSyntheticDigits) return OpenSynthetic(options, split);
  if (options.format == Format::kCifar10Bin) {
    absl::StatusOr<CifarSplit> images = OpenCifarSplit(options, split, /*keep_pixels=*/true);
    if (!images.ok()) return images.status();
    return std::make_unique<StoredDataset>(images->info, std::move(images->images));
  }
  absl::StatusOr<IdxSplit> opened = OpenIdxSplit(options, split);
  if (!opened.ok()) return opened.status();
  absl::StatusOr<std::unique_ptr<uint8_t[]>> pixels =
      ReadIdxPixels(*opened->images, opened->header, options.memory_limit_bytes);
  if (!pixels.ok()) return pixels.status();
  return std::make_unique<StoredDataset>(opened->info, *std::move(pixels),
                                         std::move(opened->labels));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const DatasetOptions& options, Split split) {
  absl::Status status = CheckOptions(options);
  if (!status.ok()) return status;
  absl::StatusOr<std::unique_ptr<Dataset>> set = OpenPlain(options, split);
  if (!set.ok() || options.transforms.empty()) return set;
  const DatasetInfo& info = (*set)->info();
  absl::StatusOr<Transforms> transforms = Transforms::Create(
      {info.channels, info.height, info.width}, options.transforms, options.seed);
  if (!transforms.ok()) return transforms.status();
  return std::make_unique<TransformedDataset>(*std::move(set), *std::move(transforms), split);
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
