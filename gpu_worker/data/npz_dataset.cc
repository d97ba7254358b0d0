#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/data_path.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/npz.h"
#include "gpu_worker/data/stored_dataset.h"

namespace capstan::data {
namespace {

// The floats of a split: all of them in memory, or all still in the file.
class NpzFloats final : public ImageFloats {
 public:
  NpzFloats(NpzSplit split, std::unique_ptr<float[]> held)
      : split_(std::move(split)), held_(std::move(held)) {}
  // `offset`: of the first number in the file.
  NpzFloats(NpzSplit split, std::unique_ptr<ByteSource> file, int64_t offset)
      : split_(std::move(split)), file_(std::move(file)), offset_(offset) {}

  absl::Status Copy(int64_t index, float* image) const override {
    const int64_t size = split_.image_size();
    if (held_ != nullptr) {
      std::copy(held_.get() + index * size, held_.get() + (index + 1) * size, image);
      return absl::OkStatus();
    }
    const int64_t bytes = size * split_.header.item_bytes;
    std::vector<uint8_t> scratch(static_cast<size_t>(bytes));
    absl::Status status = file_->ReadAt(offset_ + index * bytes, scratch.data(), scratch.size());
    if (!status.ok()) return status;
    if (NpyToFloats(split_.header, scratch.data(), size, image) == size) return status;
    return Damaged(split_.name, absl::StrCat("sample ", index, " is not finite as float32"));
  }
  int32_t Label(int64_t index) const override { return LabelAt(split_.labels, index); }

 private:
  const NpzSplit split_;
  const std::unique_ptr<float[]> held_;
  const std::unique_ptr<ByteSource> file_;
  const int64_t offset_ = 0;
};

absl::StatusOr<ZipArchive> OpenArchive(const DatasetOptions& options) {
  absl::StatusOr<std::string> path = ParseDataUri(options.path_or_uri);
  if (!path.ok()) return path.status();
  absl::StatusOr<std::unique_ptr<ByteSource>> file = OpenDataPath(*path, options.roots);
  if (!file.ok()) return file.status();
  return ZipArchive::Open(*std::move(file));
}

struct OpenedNpz {
  NpzSplit split;
  bool hold = false;  // whether to keep the images in memory
};

absl::StatusOr<OpenedNpz> OpenNpzSplit(const ZipArchive& archive, const DatasetOptions& options,
                                       Split which, bool keep_labels) {
  absl::StatusOr<NpzSplit> split = ReadNpzSplit(archive, which == Split::kTrain,
                                                {.num_classes = options.num_classes,
                                                 .target_size = options.target_size,
                                                 .memory_limit_bytes = options.memory_limit_bytes,
                                                 .keep_labels = keep_labels});
  if (!split.ok()) return split.status();
  OpenedNpz opened;
  const bool packed = split->member.method != kZipStored;
  opened.hold = packed || MayHold(options, 0, split->held_bytes());
  opened.split = *std::move(split);
  return opened;
}

DatasetInfo NpzInfo(const NpzSplit& split, const DatasetOptions& options) {
  DatasetInfo info = {split.count, split.channels, split.height, split.width};
  info.target_size = options.target_size;
  if (info.target_size == 0) info.num_classes = options.num_classes;
  return info;
}

// The samples of an opened split, without targets that are numbers.
absl::StatusOr<std::unique_ptr<Dataset>> OpenNpzImages(ZipArchive& archive, OpenedNpz opened,
                                                       const DatasetOptions& options) {
  NpzSplit& split = opened.split;
  const DatasetInfo info = NpzInfo(split, options);
  std::vector<FileImages> files(1);
  std::unique_ptr<float[]> floats;
  if (!opened.hold) {
    absl::Status status = CheckNpzImages(archive, split);
    if (!status.ok()) return status;
    absl::StatusOr<int64_t> offset = archive.DataOffset(split.member);
    if (!offset.ok()) return offset.status();
    files[0].offset = *offset + split.header.header_bytes;
    files[0].stride = info.image_size();
    files[0].file = archive.TakeFile();
  } else if (split.header.is_bytes()) {
    absl::StatusOr<std::unique_ptr<uint8_t[]>> bytes = ReadNpzBytes(archive, split);
    if (!bytes.ok()) return bytes.status();
    files[0].held = Shared(*std::move(bytes));
  } else {
    absl::StatusOr<std::unique_ptr<float[]>> read = ReadNpzFloats(archive, split);
    if (!read.ok()) return read.status();
    floats = *std::move(read);
  }
  if (split.header.is_bytes()) {
    auto bytes = std::make_unique<StoredImages<int32_t>>(std::move(files), info.image_size(),
                                                         std::move(split.labels));
    return options.tokens ? MakeTokenDataset(info, std::move(bytes))
                          : MakeByteDataset(info, std::move(bytes));
  }
  if (opened.hold) {
    return MakeFloatDataset(info, std::make_unique<NpzFloats>(std::move(split), std::move(floats)));
  }
  return MakeFloatDataset(info, std::make_unique<NpzFloats>(
                                    std::move(split), std::move(files[0].file), files[0].offset));
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenNpzOrThrow(const DatasetOptions& options,
                                                        Split which) {
  absl::StatusOr<ZipArchive> archive = OpenArchive(options);
  if (!archive.ok()) return archive.status();
  absl::StatusOr<OpenedNpz> opened = OpenNpzSplit(*archive, options, which, /*keep_labels=*/true);
  if (!opened.ok()) return opened.status();
  std::vector<float> targets = std::exchange(opened->split.targets, {});
  absl::StatusOr<std::unique_ptr<Dataset>> set =
      OpenNpzImages(*archive, *std::move(opened), options);
  if (!set.ok()) return set.status();
  return WithTargets(*std::move(set), std::move(targets));
}

absl::StatusOr<DatasetProbe> ProbeNpzOrThrow(const DatasetOptions& options) {
  absl::StatusOr<ZipArchive> archive = OpenArchive(options);
  if (!archive.ok()) return archive.status();
  absl::StatusOr<OpenedNpz> train =
      OpenNpzSplit(*archive, options, Split::kTrain, /*keep_labels=*/false);
  if (!train.ok()) return train.status();
  absl::StatusOr<OpenedNpz> test =
      OpenNpzSplit(*archive, options, Split::kTest, /*keep_labels=*/false);
  if (!test.ok()) return test.status();
  const DatasetProbe probe{NpzInfo(train->split, options), NpzInfo(test->split, options)};
  const NpyHeader& a = train->split.header;
  const NpyHeader& b = test->split.header;
  if (probe.train.channels != probe.test.channels || probe.train.height != probe.test.height ||
      probe.train.width != probe.test.width || a.is_bytes() != b.is_bytes()) {
    return InvalidSpec(absl::StrCat(train->split.name, ": array of ", ShapeText(a.shape), " '",
                                    a.descr, "', but ", test->split.name, " has ",
                                    ShapeText(b.shape), " '", b.descr,
                                    "'; want samples of one shape, all of bytes or all of floats"));
  }
  return probe;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenNpz(const DatasetOptions& options, Split split) {
  try {
    return OpenNpzOrThrow(options, split);
  } catch (const std::bad_alloc&) {
    return HostOutOfMemory(options.path_or_uri);
  }
}

absl::StatusOr<DatasetProbe> ProbeNpz(const DatasetOptions& options) {
  try {
    return ProbeNpzOrThrow(options);
  } catch (const std::bad_alloc&) {
    return HostOutOfMemory(options.path_or_uri);
  }
}

}  // namespace capstan::data
