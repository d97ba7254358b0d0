#include "gpu_worker/data/stored_dataset.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <new>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/pixels.h"

namespace capstan::data {
namespace {

class ByteDataset final : public Dataset {
 public:
  // `tokens`: a byte stands for itself, else for a 255th of it.
  ByteDataset(const DatasetInfo& info, std::unique_ptr<ImageBytes> images, bool tokens)
      : info_(info), images_(std::move(images)), tokens_(tokens) {
    std::array<uint8_t, kByteValues> bytes;
    std::iota(bytes.begin(), bytes.end(), uint8_t{0});
    ToFloats(bytes.data(), bytes.size(), byte_values_.data());
  }

  const DatasetInfo& info() const override { return info_; }

  absl::Status Read(absl::Span<const int64_t> indices, int64_t, float* images,
                    int32_t* labels) const override {
    absl::Status status = CheckIndices(indices, info_.count);
    if (!status.ok()) return status;
    const int64_t size = info_.image_size();
    std::vector<uint8_t> scratch(size);
    for (size_t i = 0; i < indices.size(); ++i) {
      absl::StatusOr<const uint8_t*> bytes = images_->Image(indices[i], scratch.data());
      if (!bytes.ok()) return bytes.status();
      ToFloats(*bytes, size, images + static_cast<int64_t>(i) * size);
      labels[i] = images_->Label(indices[i]);
    }
    return absl::OkStatus();
  }

  absl::Span<const float> byte_values() const override { return byte_values_; }

  absl::Status ReadBytes(absl::Span<const int64_t> indices, int64_t, uint8_t* images,
                         int32_t* labels) const override {
    absl::Status status = CheckIndices(indices, info_.count);
    if (!status.ok()) return status;
    const int64_t size = info_.image_size();
    for (size_t i = 0; i < indices.size(); ++i) {
      uint8_t* const to = images + static_cast<int64_t>(i) * size;
      absl::StatusOr<const uint8_t*> bytes = images_->Image(indices[i], to);
      if (!bytes.ok()) return bytes.status();
      if (*bytes != to) std::copy(*bytes, *bytes + size, to);
      labels[i] = images_->Label(indices[i]);
    }
    return absl::OkStatus();
  }

 private:
  void ToFloats(const uint8_t* bytes, size_t size, float* out) const {
    if (tokens_) {
      std::copy_n(bytes, size, out);
    } else {
      BytesToFloats(bytes, size, out);
    }
  }

  const DatasetInfo info_;
  const std::unique_ptr<ImageBytes> images_;
  const bool tokens_;
  std::array<float, kByteValues> byte_values_;
};

class FloatDataset final : public Dataset {
 public:
  FloatDataset(const DatasetInfo& info, std::unique_ptr<ImageFloats> images)
      : info_(info), images_(std::move(images)) {}

  const DatasetInfo& info() const override { return info_; }

  absl::Status Read(absl::Span<const int64_t> indices, int64_t, float* images,
                    int32_t* labels) const override {
    absl::Status status = CheckIndices(indices, info_.count);
    for (size_t i = 0; status.ok() && i < indices.size(); ++i) {
      status = images_->Copy(indices[i], images + static_cast<int64_t>(i) * info_.image_size());
      labels[i] = images_->Label(indices[i]);
    }
    return status;
  }

 private:
  const DatasetInfo info_;
  const std::unique_ptr<ImageFloats> images_;
};

class NumberedDataset final : public Dataset {
 public:
  NumberedDataset(std::unique_ptr<Dataset> source, std::vector<float> targets)
      : source_(std::move(source)), targets_(std::move(targets)) {}

  const DatasetInfo& info() const override { return source_->info(); }
  bool varies() const override { return source_->varies(); }
  absl::Status Read(absl::Span<const int64_t> indices, int64_t epoch, float* images,
                    int32_t* labels) const override {
    return source_->Read(indices, epoch, images, labels);
  }
  absl::Span<const float> byte_values() const override { return source_->byte_values(); }
  absl::Status ReadBytes(absl::Span<const int64_t> indices, int64_t epoch, uint8_t* images,
                         int32_t* labels) const override {
    return source_->ReadBytes(indices, epoch, images, labels);
  }

  absl::Status ReadTargets(absl::Span<const int64_t> indices, float* targets) const override {
    absl::Status status = CheckIndices(indices, info().count);
    if (!status.ok()) return status;
    const int64_t size = info().target_size;
    for (const int64_t index : indices) {
      targets = std::copy_n(targets_.begin() + index * size, size, targets);
    }
    return status;
  }

 private:
  const std::unique_ptr<Dataset> source_;
  const std::vector<float> targets_;
};

class KeptImages final : public ImageBytes {
 public:
  KeptImages(std::unique_ptr<ImageBytes> source, int64_t image_size,
             std::unique_ptr<uint8_t[]> kept, std::unique_ptr<std::atomic<uint8_t>[]> states)
      : source_(std::move(source)),
        image_size_(image_size),
        kept_(std::move(kept)),
        states_(std::move(states)) {}

  absl::StatusOr<const uint8_t*> Image(int64_t index, uint8_t* scratch) const override {
    uint8_t* const place = &kept_[index * image_size_];
    std::atomic<uint8_t>& state = states_[index];
    uint8_t seen = state.load(std::memory_order_acquire);
    if (seen == kKept) return place;
    if (seen == kAbsent && state.compare_exchange_strong(seen, kBeingMade)) {
      absl::StatusOr<const uint8_t*> made = source_->Image(index, place);
      state.store(made.ok() ? kKept : kAbsent, std::memory_order_release);
      return made;
    }
    // Another thread is making the same image.
    return source_->Image(index, scratch);
  }
  int32_t Label(int64_t index) const override { return source_->Label(index); }

 private:
  enum State : uint8_t { kAbsent, kBeingMade, kKept };

  const std::unique_ptr<ImageBytes> source_;
  const int64_t image_size_;
  const std::unique_ptr<uint8_t[]> kept_;
  const std::unique_ptr<std::atomic<uint8_t>[]> states_;
};

}  // namespace

absl::Status CheckIndices(absl::Span<const int64_t> indices, int64_t count) {
  for (const int64_t index : indices) {
    if (index < 0 || index >= count) {
      return absl::InvalidArgumentError(absl::StrCat("sample ", index, " of a set of ", count));
    }
  }
  return absl::OkStatus();
}

bool MayHold(const DatasetOptions& options, int64_t held, int64_t bytes) {
  return bytes <= std::min(options.hold_bytes, options.memory_limit_bytes) - held;
}

std::unique_ptr<ImageBytes> KeepImages(std::unique_ptr<ImageBytes> source, int64_t count,
                                       int64_t image_size) {
  std::unique_ptr<uint8_t[]> kept(new (std::nothrow) uint8_t[count * image_size]);
  std::unique_ptr<std::atomic<uint8_t>[]> states(new (std::nothrow) std::atomic<uint8_t>[count]());
  if (kept == nullptr || states == nullptr) return source;
  return std::make_unique<KeptImages>(std::move(source), image_size, std::move(kept),
                                      std::move(states));
}

std::shared_ptr<const uint8_t> Shared(std::vector<uint8_t> bytes) {
  const auto owner = std::make_shared<const std::vector<uint8_t>>(std::move(bytes));
  return {owner, owner->data()};
}
std::shared_ptr<const uint8_t> Shared(std::unique_ptr<uint8_t[]> bytes) {
  const std::shared_ptr<uint8_t[]> owner(std::move(bytes));
  return {owner, owner.get()};
}

std::unique_ptr<Dataset> MakeByteDataset(const DatasetInfo& info,
                                         std::unique_ptr<ImageBytes> images) {
  return std::make_unique<ByteDataset>(info, std::move(images), /*tokens=*/false);
}

std::unique_ptr<Dataset> MakeTokenDataset(const DatasetInfo& info,
                                          std::unique_ptr<ImageBytes> images) {
  return std::make_unique<ByteDataset>(info, std::move(images), /*tokens=*/true);
}

std::unique_ptr<Dataset> WithTargets(std::unique_ptr<Dataset> source, std::vector<float> targets) {
  if (source->info().target_size == 0) return source;
  return std::make_unique<NumberedDataset>(std::move(source), std::move(targets));
}

std::unique_ptr<Dataset> MakeFloatDataset(const DatasetInfo& info,
                                          std::unique_ptr<ImageFloats> images) {
  return std::make_unique<FloatDataset>(info, std::move(images));
}

}  // namespace capstan::data
