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

absl::Status ReadLabels(const ZipArchive& archive, absl::string_view array, int64_t num_classes,
                        int64_t memory_limit_bytes, bool keep, NpzSplit& split) {
  absl::StatusOr<const ZipMember*> member = MemberNamed(archive, array);
  if (!member.ok()) return member.status();
  absl::StatusOr<OpenedArray> labels = OpenArray(archive, **member);
  if (!labels.ok()) return labels.status();
  const NpyHeader& header = labels->header;
  const std::string& name = labels->source->file();
  if (header.kind == NpyKind::kFloat) {
    return InvalidSpec(absl::StrCat(name, ": type '", header.descr, "', want integers (classes)"));
  }
  const bool fits = header.shape.size() == 1 || (header.shape.size() == 2 && header.shape[1] == 1);
  if (!fits || header.count != split.count) {
    return InvalidSpec(absl::StrCat(name, ": array of ", ShapeText(header.shape), ", but ",
                                    split.name, " has ", split.count, " samples"));
  }
  if (header.count > memory_limit_bytes / static_cast<int64_t>(sizeof(int32_t))) {
    return InvalidSpec(absl::StrCat(name, ": ", header.count, " labels of 4 bytes need more than ",
                                    "the limit of memory, ", memory_limit_bytes, " bytes"));
  }
  std::vector<uint8_t> bytes(
      static_cast<size_t>(std::min(header.count, kNumbersAtATime) * header.item_bytes));
  std::vector<int64_t> numbers(static_cast<size_t>(std::min(header.count, kNumbersAtATime)));
  // Grows as bytes arrive, so that a claim alone costs nothing.
  for (int64_t done = 0; done < header.count;) {
    const int64_t take = std::min(header.count - done, kNumbersAtATime);
    const auto size = static_cast<size_t>(take * header.item_bytes);
    absl::StatusOr<size_t> got = labels->source->Read(bytes.data(), size);
    if (!got.ok()) return got.status();
    if (*got != size) return Damaged(name, "ends inside its numbers");
    NpyToIntegers(header, bytes.data(), take, numbers.data());
    for (int64_t i = 0; i < take; ++i) {
      if (numbers[i] < 0 || numbers[i] >= num_classes) {
        return InvalidSpec(absl::StrCat(name, ": label ", numbers[i], " of sample ", done + i,
                                        ", want 0 to ", num_classes - 1, " (num_classes is ",
                                        num_classes, ")"));
      }
      if (keep) split.labels.push_back(static_cast<int32_t>(numbers[i]));
    }
    done += take;
  }
  return absl::OkStatus();
}

// Calls `take(first, count, bytes)` for all numbers of the images, block by block.
template <typename Take>
absl::Status ForEachBlock(const ZipArchive& archive, const NpzSplit& split, Take take) {
  absl::StatusOr<OpenedArray> array = OpenArray(archive, split.member);
  if (!array.ok()) return array.status();
  const int64_t item = array->header.item_bytes;
  std::vector<uint8_t> bytes(
      static_cast<size_t>(std::min(array->header.count, kNumbersAtATime) * item));
  for (int64_t done = 0; done < array->header.count;) {
    const int64_t count = std::min(array->header.count - done, kNumbersAtATime);
    absl::StatusOr<size_t> got =
        array->source->Read(bytes.data(), static_cast<size_t>(count * item));
    if (!got.ok()) return got.status();
    if (static_cast<int64_t>(*got) != count * item) {
      return Damaged(split.name, "ends inside its numbers");
    }
    absl::Status status = take(done, count, bytes.data());
    if (!status.ok()) return status;
    done += count;
  }
  return absl::OkStatus();
}

absl::Status NotFinite(const NpzSplit& split, int64_t number) {
  return Damaged(split.name,
                 absl::StrCat("number ", number % split.image_size(), " of sample ",
                              number / split.image_size(), " is not finite as float32"));
}

}  // namespace

int64_t NpzSplit::held_bytes() const {
  const int64_t numbers = image_size() * (header.is_bytes() ? 1 : 4) + 4;  // below 2^45
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return count > kMost / numbers ? kMost : count * numbers;
}

absl::StatusOr<NpzSplit> ReadNpzSplit(const ZipArchive& archive, bool train, int64_t num_classes,
                                      int64_t memory_limit_bytes, bool keep_labels) {
  NpzSplit split;
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
  if (status.ok() && split.member.method != kZipStored && split.held_bytes() > memory_limit_bytes) {
    status = InvalidSpec(absl::StrCat(
        split.name, ": ", split.count, " samples of ", split.channels, " x ", split.height, " x ",
        split.width, " need ", split.held_bytes(), " bytes of memory, limit ", memory_limit_bytes,
        "; numpy.savez stores arrays unpacked, and they are read when they are needed"));
  }
  if (status.ok()) {
    status = ReadLabels(archive, train ? "y_train" : "y_test", num_classes, memory_limit_bytes,
                        keep_labels, split);
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
        return good == count ? absl::OkStatus() : NotFinite(split, first + good);
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
    return good == count ? absl::OkStatus() : NotFinite(split, first + good);
  });
}

}  // namespace capstan::data
