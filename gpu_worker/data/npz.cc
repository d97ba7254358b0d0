#include "gpu_worker/data/npz.h"

#include <algorithm>
#include <limits>
#include <new>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/sample_limits.h"

namespace capstan::data {
namespace {

constexpr int64_t kNumbersAtATime = int64_t{1} << 17;  // 1 MiB of float64

struct OpenedArray {
  std::unique_ptr<ByteSource> source;  // at the first number
  NpyHeader header;
};

absl::StatusOr<OpenedArray> OpenArray(const ZipArchive& archive, const ZipMember& member) {
  OpenedArray array;
  absl::StatusOr<std::unique_ptr<ByteSource>> source = archive.OpenMember(member);
  if (!source.ok()) return source.status();
  absl::StatusOr<NpyHeader> header = ReadNpyHeader(**source);
  if (!header.ok()) return header.status();
  array.source = *std::move(source);
  array.header = *std::move(header);
  return array;
}

absl::StatusOr<const ZipMember*> MemberNamed(const ZipArchive& archive, absl::string_view array) {
  const std::string name = absl::StrCat(array, ".npy");
  const ZipMember* const member = archive.Find(name);
  if (member != nullptr) return member;
  return Damaged(archive.file(),
                 absl::StrCat("has no array ", array, ", want x_train, y_train, x_test, y_test"));
}

absl::Status ReadShape(NpzSplit& split) {
  const std::vector<int64_t>& shape = split.header.shape;
  const auto wrong = [&](absl::string_view want) {
    return InvalidSpec(absl::StrCat(split.name, ": array of ", ShapeText(shape), ", want ", want));
  };
  if (shape.size() < 2 || shape.size() > 4) {
    return wrong(
        "samples x features, samples x rows x columns or samples x channels x rows x "
        "columns");
  }
  if (shape[0] == 0) return InvalidSpec(absl::StrCat(split.name, ": holds no sample"));
  split.count = shape[0];
  split.width = shape.back();
  split.height = shape.size() > 2 ? shape[shape.size() - 2] : 1;
  split.channels = shape.size() > 3 ? shape[1] : 1;
  const int64_t most = shape.size() == 2 ? kMaxSampleFeatures : kMaxSampleSide;
  for (const int64_t side : {split.channels, split.height, split.width}) {
    if (side < 1 || side > most) {
      return wrong(absl::StrCat("1 to ", most, shape.size() == 2 ? " features" : " each way"));
    }
  }
  if (split.image_size() > kMaxSamplePixels) {
    return wrong(absl::StrCat("at most ", kMaxSamplePixels, " numbers in a sample"));
  }
  return absl::OkStatus();
}

// Calls `take(first, count, bytes)` for all numbers of an array, block by block.
template <typename Take>
absl::Status ForEachBlock(OpenedArray& array, Take take) {
  const NpyHeader& header = array.header;
  std::vector<uint8_t> bytes(
      static_cast<size_t>(std::min(header.count, kNumbersAtATime) * header.item_bytes));
  for (int64_t done = 0; done < header.count;) {
    const int64_t count = std::min(header.count - done, kNumbersAtATime);
    const auto size = static_cast<size_t>(count * header.item_bytes);
    absl::StatusOr<size_t> got = array.source->Read(bytes.data(), size);
    if (!got.ok()) return got.status();
    if (*got != size) return Damaged(array.source->file(), "ends inside its numbers");
    absl::Status status = take(done, count, bytes.data());
    if (!status.ok()) return status;
    done += count;
  }
  return absl::OkStatus();
}

// The same for the images.
template <typename Take>
absl::Status ForEachBlock(const ZipArchive& archive, const NpzSplit& split, Take take) {
  absl::StatusOr<OpenedArray> array = OpenArray(archive, split.member);
  if (!array.ok()) return array.status();
  return ForEachBlock(*array, take);
}

absl::Status NotFinite(absl::string_view name, int64_t sample_size, int64_t number) {
  return Damaged(name, absl::StrCat("number ", number % sample_size, " of sample ",
                                    number / sample_size, " is not finite as float32"));
}

// Checks the number of samples of labels or targets, and their memory.
absl::Status CheckAnswers(const OpenedArray& array, bool fits, const char* what,
                          const NpzSplitOptions& options, const NpzSplit& split) {
  const NpyHeader& header = array.header;
  const std::string& name = array.source->file();
  if (!fits || header.shape[0] != split.count) {
    return InvalidSpec(absl::StrCat(name, ": array of ", ShapeText(header.shape), ", but ",
                                    split.name, " has ", split.count, " samples"));
  }
  if (header.count <= options.memory_limit_bytes / static_cast<int64_t>(sizeof(int32_t))) {
    return absl::OkStatus();
  }
  return InvalidSpec(absl::StrCat(name, ": ", header.count, " ", what,
                                  " of 4 bytes need more than ", "the limit of memory, ",
                                  options.memory_limit_bytes, " bytes"));
}

absl::Status ReadLabels(OpenedArray& array, const NpzSplitOptions& options, NpzSplit& split) {
  const NpyHeader& header = array.header;
  const std::string& name = array.source->file();
  if (header.kind == NpyKind::kFloat) {
    return InvalidSpec(
        absl::StrCat(name, ": type '", header.descr,
                     "', want integers (classes), or 'training.loss' mean_squared_error"));
  }
  const bool fits = header.shape.size() == 1 || (header.shape.size() == 2 && header.shape[1] == 1);
  absl::Status status = CheckAnswers(array, fits, "labels", options, split);
  if (!status.ok()) return status;
  std::vector<int64_t> numbers(static_cast<size_t>(std::min(header.count, kNumbersAtATime)));
  // Grows as bytes arrive, so that a claim alone costs nothing.
  return ForEachBlock(array, [&](int64_t first, int64_t count, const uint8_t* bytes) {
    NpyToIntegers(header, bytes, count, numbers.data());
    for (int64_t i = 0; i < count; ++i) {
      if (numbers[i] < 0 || numbers[i] >= options.num_classes) {
        return InvalidSpec(absl::StrCat(name, ": label ", numbers[i], " of sample ", first + i,
                                        ", want 0 to ", options.num_classes - 1,
                                        " (num_classes is ", options.num_classes, ")"));
      }
      if (options.keep_labels) split.labels.push_back(static_cast<int32_t>(numbers[i]));
    }
    return absl::OkStatus();
  });
}

absl::Status ReadTargets(OpenedArray& array, const NpzSplitOptions& options, NpzSplit& split) {
  const NpyHeader& header = array.header;
  const std::string& name = array.source->file();
  if (header.kind != NpyKind::kFloat) {
    return InvalidSpec(absl::StrCat(
        name, ": type '", header.descr,
        "' (classes), want float32 or float64, as 'training.loss' is mean_squared_error"));
  }
  const bool fits = header.shape.size() == 1 || header.shape.size() == 2;
  absl::Status status = CheckAnswers(array, fits, "targets", options, split);
  if (!status.ok()) return status;
  const int64_t size = header.shape.size() == 2 ? header.shape[1] : 1;
  if (size != options.target_size) {
    return InvalidSpec(absl::StrCat(name, ": array of ", ShapeText(header.shape), ", ", size,
                                    " numbers for each sample, 'model.num_outputs' is ",
                                    options.target_size));
  }
  std::vector<float> numbers(static_cast<size_t>(std::min(header.count, kNumbersAtATime)));
  // A false claim costs addresses only: the pages are touched as bytes arrive.
  if (options.keep_labels) split.targets.reserve(static_cast<size_t>(header.count));
  return ForEachBlock(array, [&](int64_t first, int64_t count, const uint8_t* bytes) {
    const int64_t good = NpyToFloats(header, bytes, count, numbers.data());
    if (good != count) return NotFinite(name, size, first + good);
    if (options.keep_labels) {
      split.targets.insert(split.targets.end(), numbers.begin(), numbers.begin() + count);
    }
    return absl::OkStatus();
  });
}

absl::Status ReadAnswers(const ZipArchive& archive, absl::string_view name,
                         const NpzSplitOptions& options, NpzSplit& split) {
  absl::StatusOr<const ZipMember*> member = MemberNamed(archive, name);
  if (!member.ok()) return member.status();
  absl::StatusOr<OpenedArray> array = OpenArray(archive, **member);
  if (!array.ok()) return array.status();
  return options.target_size > 0 ? ReadTargets(*array, options, split)
                                 : ReadLabels(*array, options, split);
}

}  // namespace

int64_t NpzSplit::held_bytes() const {
  const int64_t numbers =  // below 2^45
      image_size() * (header.is_bytes() ? 1 : 4) + 4 * std::max<int64_t>(1, target_size);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return count > kMost / numbers ? kMost : count * numbers;
}

absl::StatusOr<NpzSplit> ReadNpzSplit(const ZipArchive& archive, bool train,
                                      const NpzSplitOptions& options) {
  NpzSplit split;
  split.target_size = options.target_size;
  absl::StatusOr<const ZipMember*> member = MemberNamed(archive, train ? "x_train" : "x_test");
  if (!member.ok()) return member.status();
  split.member = **member;
  {
    absl::StatusOr<OpenedArray> images = OpenArray(archive, split.member);
    if (!images.ok()) return images.status();
    split.name = images->source->file();
    split.header = std::move(images->header);
  }
  if (!split.header.is_bytes() && split.header.kind != NpyKind::kFloat) {
    return InvalidSpec(absl::StrCat(split.name, ": type '", split.header.descr,
                                    "', want uint8, float32 or float64"));
  }
  absl::Status status = ReadShape(split);
  // Before the labels, which a small packed file may claim to have by the billion.
  const int64_t limit = options.memory_limit_bytes;
  if (status.ok() && split.member.method != kZipStored && split.held_bytes() > limit) {
    status = InvalidSpec(absl::StrCat(
        split.name, ": ", split.count, " samples of ", split.channels, " x ", split.height, " x ",
        split.width, " need ", split.held_bytes(), " bytes of memory, limit ", limit,
        "; numpy.savez stores arrays unpacked, and they are read when they are needed"));
  }
  if (status.ok()) {
    status = ReadAnswers(archive, train ? "y_train" : "y_test", options, split);
  }
  if (!status.ok()) return status;
  return split;
}

absl::StatusOr<std::unique_ptr<uint8_t[]>> ReadNpzBytes(const ZipArchive& archive,
                                                        const NpzSplit& split) {
  // The memory is not initialised. Untouched pages cost nothing until a false claim is detected.
  std::unique_ptr<uint8_t[]> all(new (std::nothrow) uint8_t[split.header.count]);
  if (all == nullptr) return HostOutOfMemory(split.name);
  absl::Status status =
      ForEachBlock(archive, split, [&all](int64_t first, int64_t count, const uint8_t* bytes) {
        std::copy(bytes, bytes + count, all.get() + first);
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  return all;
}

absl::StatusOr<std::unique_ptr<float[]>> ReadNpzFloats(const ZipArchive& archive,
                                                       const NpzSplit& split) {
  std::unique_ptr<float[]> all(new (std::nothrow) float[split.header.count]);
  if (all == nullptr) return HostOutOfMemory(split.name);
  absl::Status status =
      ForEachBlock(archive, split, [&](int64_t first, int64_t count, const uint8_t* bytes) {
        const int64_t good = NpyToFloats(split.header, bytes, count, all.get() + first);
        return good == count ? absl::OkStatus()
                             : NotFinite(split.name, split.image_size(), first + good);
      });
  if (!status.ok()) return status;
  return all;
}

absl::Status CheckNpzImages(const ZipArchive& archive, const NpzSplit& split) {
  std::vector<float> floats;
  if (!split.header.is_bytes()) floats.resize(static_cast<size_t>(kNumbersAtATime));
  return ForEachBlock(archive, split, [&](int64_t first, int64_t count, const uint8_t* bytes) {
    if (floats.empty()) return absl::OkStatus();
    const int64_t good = NpyToFloats(split.header, bytes, count, floats.data());
    return good == count ? absl::OkStatus()
                         : NotFinite(split.name, split.image_size(), first + good);
  });
}

}  // namespace capstan::data
