#include <algorithm>
#include <atomic>
#include <new>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gpu_worker/data/data_path.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/image_folder.h"
#include "gpu_worker/data/picture.h"
#include "gpu_worker/data/record_io.h"
#include "gpu_worker/data/stored_dataset.h"

namespace capstan::data {
namespace {

PictureShape WantedShape(const DatasetOptions& options) {
  if (options.shape == ImageShape{}) return {};
  return {options.shape.channels, options.shape.height, options.shape.width};
}

// Each image is a file, which is opened when the image is read.
class FolderImages final : public ImageBytes {
 public:
  FolderImages(ImageNames names, std::vector<std::string> roots, const PictureShape& shape)
      : names_(std::move(names)), roots_(std::move(roots)), shape_(shape) {}

  absl::StatusOr<const uint8_t*> Image(int64_t index, uint8_t* scratch) const override {
    const std::string path = names_.Path(index);
    try {
      return Decoded(path, scratch);
    } catch (const std::bad_alloc&) {
      return HostOutOfMemory(path);
    }
  }
  int32_t Label(int64_t index) const override { return names_.Label(index); }

 private:
  absl::StatusOr<const uint8_t*> Decoded(const std::string& path, uint8_t* scratch) const {
    absl::StatusOr<std::unique_ptr<ByteSource>> file = OpenDataPath(path, roots_);
    if (!file.ok()) return file.status();
    const int64_t size = (*file)->stored_bytes();
    if (size > kMaxPictureFileBytes) {
      return InvalidSpec(
          absl::StrCat(path, ": ", size, " bytes, want at most ", kMaxPictureFileBytes));
    }
    std::vector<uint8_t> bytes(static_cast<size_t>(size));
    absl::Status status = (*file)->ReadAt(0, bytes.data(), bytes.size());
    if (!status.ok()) return status;
    status = DecodePicture(bytes, shape_, scratch);
    if (!status.ok()) return InFront(path, status);
    return scratch;
  }

  const ImageNames names_;
  const std::vector<std::string> roots_;
  const PictureShape shape_;
};

// Each image is a record of one file.
class RecordImages final : public ImageBytes {
 public:
  // `labels` has room for one of each record.
  RecordImages(std::unique_ptr<ByteSource> file, std::vector<int64_t> offsets,
               std::unique_ptr<std::atomic<int32_t>[]> labels, int64_t num_classes,
               const PictureShape& shape)
      : file_(std::move(file)),
        offsets_(std::move(offsets)),
        labels_(std::move(labels)),
        num_classes_(num_classes),
        shape_(shape) {}

  absl::StatusOr<const uint8_t*> Image(int64_t index, uint8_t* scratch) const override {
    try {
      return Decoded(index, scratch);
    } catch (const std::bad_alloc&) {
      return HostOutOfMemory(RecordPlace(*file_, offsets_[index]));
    }
  }
  // Whoever asks has read the image, and the file does not change.
  int32_t Label(int64_t index) const override {
    return labels_[index].load(std::memory_order_relaxed);
  }

 private:
  absl::StatusOr<const uint8_t*> Decoded(int64_t index, uint8_t* scratch) const {
    const int64_t offset = offsets_[index];
    absl::StatusOr<IoRecord> record =
        ReadRecord(*file_, offset, kMaxPictureFileBytes + kImageHeaderBytes);
    if (!record.ok()) return record.status();
    absl::StatusOr<ImageHeader> header = ReadImageHeader(*record, num_classes_);
    if (!header.ok()) return InFront(RecordPlace(*file_, offset), header.status());
    labels_[index].store(header->label, std::memory_order_relaxed);
    absl::Status status =
        DecodePicture(absl::MakeConstSpan(record->data).subspan(static_cast<size_t>(header->image)),
                      shape_, scratch);
    if (!status.ok()) return InFront(RecordPlace(*file_, offset), status);
    return scratch;
  }

  const std::unique_ptr<ByteSource> file_;
  const std::vector<int64_t> offsets_;
  const std::unique_ptr<std::atomic<int32_t>[]> labels_;
  const int64_t num_classes_;
  const PictureShape shape_;
};

struct OpenedPictures {
  DatasetInfo info;
  std::unique_ptr<ImageBytes> images;
};

OpenedPictures OpenedSet(const DatasetOptions& options, int64_t count,
                         std::unique_ptr<ImageBytes> images) {
  const PictureShape shape = WantedShape(options);
  return {{count, shape.channels, shape.height, shape.width, options.num_classes},
          std::move(images)};
}

absl::StatusOr<OpenedPictures> OpenImageFolder(const DatasetOptions& options, Split split) {
  absl::StatusOr<std::string> folder = ParseDataUri(options.path_or_uri);
  if (!folder.ok()) return folder.status();
  absl::StatusOr<ImageNames> names =
      ListImageFolder({*folder, options.roots, options.num_classes, options.memory_limit_bytes},
                      split == Split::kTrain);
  if (!names.ok()) return names.status();
  const int64_t count = names->count();
  return OpenedSet(
      options, count,
      std::make_unique<FolderImages>(*std::move(names), options.roots, WantedShape(options)));
}

absl::StatusOr<OpenedPictures> OpenRec(const DatasetOptions& options, Split split) {
  absl::StatusOr<std::string> folder = ParseDataUri(options.path_or_uri);
  if (!folder.ok()) return folder.status();
  const bool train = split == Split::kTrain;
  std::string name = train ? options.train_file : options.test_file;
  if (name.empty()) name = train ? "train.rec" : "test.rec";
  const std::string path = absl::StrCat(*folder, absl::EndsWith(*folder, "/") ? "" : "/", name);
  absl::StatusOr<std::unique_ptr<ByteSource>> file = OpenDataPath(path, options.roots);
  if (!file.ok()) return file.status();
  const std::string index_path =
      absl::StrCat(absl::EndsWith(path, ".rec") ? path.substr(0, path.size() - 4) : path, ".idx");
  absl::StatusOr<std::unique_ptr<ByteSource>> index = OpenDataPath(index_path, options.roots);
  if (!index.ok() && !absl::IsNotFound(index.status())) return index.status();
  const RecordOptions limits = {options.num_classes, options.memory_limit_bytes};
  absl::StatusOr<std::vector<int64_t>> found =
      index.ok() ? ReadRecordIndex(**index, (*file)->stored_bytes(), limits)
                 : ScanRecords(**file, limits);
  if (!found.ok()) return found.status();
  const int64_t count = static_cast<int64_t>(found->size());
  auto labels = std::make_unique<std::atomic<int32_t>[]>(static_cast<size_t>(count));
  return OpenedSet(
      options, count,
      std::make_unique<RecordImages>(*std::move(file), *std::move(found), std::move(labels),
                                     options.num_classes, WantedShape(options)));
}

// Opens a split and decodes its first image, so that files of another kind are refused at once.
absl::StatusOr<OpenedPictures> OpenPicturesOrThrow(const DatasetOptions& options, Split split) {
  absl::StatusOr<OpenedPictures> opened =
      options.format == Format::kRec ? OpenRec(options, split) : OpenImageFolder(options, split);
  if (!opened.ok()) return opened;
  std::vector<uint8_t> scratch(static_cast<size_t>(opened->info.image_size()));
  absl::StatusOr<const uint8_t*> first = opened->images->Image(0, scratch.data());
  if (!first.ok()) return first.status();
  return opened;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenPictures(const DatasetOptions& options, Split split) {
  try {
    absl::StatusOr<OpenedPictures> opened = OpenPicturesOrThrow(options, split);
    if (!opened.ok()) return opened.status();
    const DatasetInfo& info = opened->info;
    std::unique_ptr<ImageBytes> images = std::move(opened->images);
    if (MayHold(options, 0, info.count * (info.image_size() + 1))) {
      images = KeepImages(std::move(images), info.count, info.image_size());
    }
    return MakeByteDataset(info, std::move(images));
  } catch (const std::bad_alloc&) {
    return HostOutOfMemory(options.path_or_uri);
  }
}

absl::StatusOr<DatasetProbe> ProbePictures(const DatasetOptions& options) {
  try {
    absl::StatusOr<OpenedPictures> train = OpenPicturesOrThrow(options, Split::kTrain);
    if (!train.ok()) return train.status();
    absl::StatusOr<OpenedPictures> test = OpenPicturesOrThrow(options, Split::kTest);
    if (!test.ok()) return test.status();
    return DatasetProbe{train->info, test->info};
  } catch (const std::bad_alloc&) {
    return HostOutOfMemory(options.path_or_uri);
  }
}

}  // namespace capstan::data
