#include "gpu_worker/data/transform.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/pixels.h"
#include "services/check/check.h"

namespace capstan::data {
namespace {

// In [0, bound); bound <= 2^32.
int64_t Below(uint32_t word, int64_t bound) {
  return static_cast<int64_t>((uint64_t{word} * static_cast<uint64_t>(bound)) >> 32);
}

// The position of an output row or column between two rows or columns of the input.
struct Between {
  int64_t first, second;
  float part;  // weight of the second
};

std::vector<Between> Places(int64_t in, int64_t out) {
  std::vector<Between> places;
  for (int64_t i = 0; i < out; ++i) {
    const double at = std::max(
        0.0,
        (static_cast<double>(i) + 0.5) * static_cast<double>(in) / static_cast<double>(out) - 0.5);
    const auto first = std::min(static_cast<int64_t>(at), in - 1);
    places.push_back(
        {first, std::min(first + 1, in - 1), static_cast<float>(at - static_cast<double>(first))});
  }
  return places;
}

// Rows and columns of a crop's window.
std::pair<int64_t, int64_t> WindowOf(const RandomCrop& crop, const ImageShape& shape) {
  if (crop.size == 0) return {shape.height, shape.width};
  return {crop.size, crop.size};
}

absl::StatusOr<ImageShape> After(const RandomCrop& crop, const ImageShape& shape) {
  const auto [rows, columns] = WindowOf(crop, shape);
  const int64_t most_rows = shape.height + 2 * crop.padding;
  const int64_t most_columns = shape.width + 2 * crop.padding;
  if (crop.size < 0 || crop.padding < 0 || rows > most_rows || columns > most_columns) {
    return InvalidSpec(absl::StrCat("random_crop: a window of ", rows, " x ", columns,
                                    " in an image of ", most_rows, " x ", most_columns,
                                    " with padding ", crop.padding));
  }
  return ImageShape{shape.channels, rows, columns};
}

absl::StatusOr<ImageShape> After(const RandomFlip&, const ImageShape& shape) { return shape; }

absl::StatusOr<ImageShape> After(const Normalize& normalize, const ImageShape& shape) {
  const auto count = static_cast<int64_t>(normalize.mean.size());
  if ((count != 1 && count != shape.channels) ||
      normalize.mean.size() != normalize.deviation.size()) {
    return InvalidSpec(absl::StrCat("normalize: ", count, " means and ", normalize.deviation.size(),
                                    " deviations, want 1 or ", shape.channels,
                                    " of each (channels)"));
  }
  for (const float deviation : normalize.deviation) {
    if (!(deviation > 0)) {
      return InvalidSpec(absl::StrCat("normalize: deviation ", deviation, ", want above 0"));
    }
  }
  return shape;
}

absl::StatusOr<ImageShape> After(const Resize& resize, const ImageShape& shape) {
  if (resize.size < 1) return InvalidSpec(absl::StrCat("resize: size ", resize.size, ", want 1"));
  return ImageShape{shape.channels, resize.size, resize.size};
}

absl::StatusOr<ImageShape> After(const Cutout& cutout, const ImageShape& shape) {
  if (cutout.size < 1) return InvalidSpec(absl::StrCat("cutout: size ", cutout.size, ", want 1"));
  return shape;
}

bool IsRandom(const Transform& transform) {
  return std::holds_alternative<RandomCrop>(transform) ||
         std::holds_alternative<RandomFlip>(transform) || std::holds_alternative<Cutout>(transform);
}

// After a normalize no byte stands for 0, so nothing may write zeros. A resize makes numbers that
// no byte stands for.
bool KeepsBytes(const std::vector<Transform>& list) {
  bool normalized = false;
  for (const Transform& transform : list) {
    const auto* const crop = std::get_if<RandomCrop>(&transform);
    const bool zeros =
        std::holds_alternative<Cutout>(transform) || (crop != nullptr && crop->padding > 0);
    if (std::holds_alternative<Resize>(transform) || (normalized && zeros)) return false;
    normalized = normalized || std::holds_alternative<Normalize>(transform);
  }
  return true;
}

// The final number for each byte, by the arithmetic of the floats. All other transforms only move
// numbers.
std::vector<float> ValuesOfBytes(const std::vector<Transform>& list, int64_t channels) {
  const ImageShape table{channels, 1, static_cast<int64_t>(kByteValues)};
  std::vector<uint8_t> bytes(table.size());
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i % kByteValues);
  std::vector<float> values(bytes.size());
  BytesToFloats(bytes.data(), bytes.size(), values.data());
  for (const Transform& transform : list) {
    if (const auto* const normalize = std::get_if<Normalize>(&transform)) {
      NormalizeImage(values.data(), table, *normalize);
    }
  }
  return values;
}

// Applies one transform in place; `words` is null in evaluation. On bytes, byte_values does a
// normalize, and there is no resize.
template <typename T>
class TransformStep {
 public:
  TransformStep(const ImageShape& shape, const training::PhiloxBlock* words,
                Transforms::ScratchOf<T>& scratch)
      : shape_(shape), words_(words), scratch_(scratch) {}

  void operator()(const RandomCrop& crop) const {
    const auto [rows, columns] = WindowOf(crop, shape_);
    const int64_t down = shape_.height + 2 * crop.padding - rows;
    const int64_t right = shape_.width + 2 * crop.padding - columns;
    CropWindow window{down / 2, right / 2, rows, columns};
    if (words_ != nullptr) {
      window.top = Below((*words_)[0], down + 1);
      window.left = Below((*words_)[1], right + 1);
    }
    CropImage(scratch_.image.data(), shape_, crop.padding, window, scratch_.other.data());
    scratch_.image.swap(scratch_.other);
  }
  void operator()(const RandomFlip& flip) const {
    if (words_ != nullptr && (*words_)[0] >> 31 == 1) {
      FlipImage(scratch_.image.data(), shape_, flip.vertical);
    }
  }
  void operator()([[maybe_unused]] const Normalize& normalize) const {
    if constexpr (std::is_same_v<T, float>) {
      NormalizeImage(scratch_.image.data(), shape_, normalize);
    }
  }
  void operator()([[maybe_unused]] const Resize& resize) const {
    if constexpr (std::is_same_v<T, float>) {
      ResizeImage(scratch_.image.data(), shape_, resize.size, scratch_.other.data());
      scratch_.image.swap(scratch_.other);
    }
  }
  void operator()(const Cutout& cutout) const {
    if (words_ == nullptr) return;
    CutOutOfImage(scratch_.image.data(), shape_, cutout.size, Below((*words_)[0], shape_.height),
                  Below((*words_)[1], shape_.width));
  }

 private:
  const ImageShape& shape_;
  const training::PhiloxBlock* const words_;
  Transforms::ScratchOf<T>& scratch_;
};

}  // namespace

template <typename T>
void CropImage(const T* in, const ImageShape& shape, int64_t padding, const CropWindow& window,
               T* out) {
  // Columns of the window that lie inside the image.
  const int64_t left = window.left - padding;
  const int64_t begin = std::clamp<int64_t>(-left, 0, window.columns);
  const int64_t end = std::clamp<int64_t>(shape.width - left, begin, window.columns);
  for (int64_t channel = 0; channel < shape.channels; ++channel) {
    for (int64_t i = 0; i < window.rows; ++i) {
      T* const to = out + (channel * window.rows + i) * window.columns;
      const int64_t row = window.top + i - padding;
      if (row < 0 || row >= shape.height) {
        std::fill(to, to + window.columns, T{0});
        continue;
      }
      const T* const from = in + (channel * shape.height + row) * shape.width;
      std::fill(to, to + begin, T{0});
      if (begin < end) std::copy(from + (left + begin), from + (left + end), to + begin);
      std::fill(to + end, to + window.columns, T{0});
    }
  }
}

template <typename T>
void FlipImage(T* image, const ImageShape& shape, bool vertical) {
  for (int64_t channel = 0; channel < shape.channels; ++channel) {
    T* const plane = image + channel * shape.height * shape.width;
    if (vertical) {
      for (int64_t row = 0; row < shape.height / 2; ++row) {
        T* const upper = plane + row * shape.width;
        std::swap_ranges(upper, upper + shape.width,
                         plane + (shape.height - 1 - row) * shape.width);
      }
    } else {
      for (int64_t row = 0; row < shape.height; ++row) {
        std::reverse(plane + row * shape.width, plane + (row + 1) * shape.width);
      }
    }
  }
}

void NormalizeImage(float* image, const ImageShape& shape, const Normalize& normalize) {
  const int64_t plane = shape.height * shape.width;
  for (int64_t channel = 0; channel < shape.channels; ++channel) {
    const size_t which = normalize.mean.size() == 1 ? 0 : static_cast<size_t>(channel);
    const float mean = normalize.mean[which];
    const float deviation = normalize.deviation[which];
    float* const values = image + channel * plane;
    for (int64_t i = 0; i < plane; ++i) values[i] = (values[i] - mean) / deviation;
  }
}

void ResizeImage(const float* in, const ImageShape& shape, int64_t size, float* out) {
  const std::vector<Between> rows = Places(shape.height, size);
  const std::vector<Between> columns = Places(shape.width, size);
  for (int64_t channel = 0; channel < shape.channels; ++channel) {
    const float* const plane = in + channel * shape.height * shape.width;
    for (const Between& row : rows) {
      const float* const upper = plane + row.first * shape.width;
      const float* const lower = plane + row.second * shape.width;
      for (const Between& column : columns) {
        const float a =
            upper[column.first] + (upper[column.second] - upper[column.first]) * column.part;
        const float b =
            lower[column.first] + (lower[column.second] - lower[column.first]) * column.part;
        *out++ = a + (b - a) * row.part;
      }
    }
  }
}

template <typename T>
void CutOutOfImage(T* image, const ImageShape& shape, int64_t size, int64_t row, int64_t column) {
  const int64_t top = std::max<int64_t>(0, row - size / 2);
  const int64_t bottom = std::min(shape.height, row - size / 2 + size);
  const int64_t left = std::max<int64_t>(0, column - size / 2);
  const int64_t right = std::min(shape.width, column - size / 2 + size);
  if (left >= right) return;
  for (int64_t channel = 0; channel < shape.channels; ++channel) {
    for (int64_t y = top; y < bottom; ++y) {
      T* const line = image + (channel * shape.height + y) * shape.width;
      std::fill(line + left, line + right, T{0});
    }
  }
}

template void CropImage<float>(const float*, const ImageShape&, int64_t, const CropWindow&, float*);
template void CropImage<uint8_t>(const uint8_t*, const ImageShape&, int64_t, const CropWindow&,
                                 uint8_t*);
template void FlipImage<float>(float*, const ImageShape&, bool);
template void FlipImage<uint8_t>(uint8_t*, const ImageShape&, bool);
template void CutOutOfImage<float>(float*, const ImageShape&, int64_t, int64_t, int64_t);
template void CutOutOfImage<uint8_t>(uint8_t*, const ImageShape&, int64_t, int64_t, int64_t);

absl::StatusOr<Transforms> Transforms::Create(const ImageShape& input, std::vector<Transform> list,
                                              uint64_t seed) {
  Transforms transforms(seed);
  transforms.shapes_.push_back(input);
  for (const Transform& transform : list) {
    absl::StatusOr<ImageShape> after =
        std::visit([&](const auto& t) { return After(t, transforms.shapes_.back()); }, transform);
    if (!after.ok()) return after.status();
    transforms.shapes_.push_back(*after);
    transforms.random_ = transforms.random_ || IsRandom(transform);
  }
  for (const ImageShape& shape : transforms.shapes_) {
    transforms.scratch_size_ = std::max(transforms.scratch_size_, shape.size());
  }
  if (KeepsBytes(list)) transforms.byte_values_ = ValuesOfBytes(list, input.channels);
  transforms.list_ = std::move(list);
  return transforms;
}

template <typename T>
void Transforms::Carry(const std::optional<Draw>& draw, ScratchOf<T>& scratch, T* out) const {
  for (size_t i = 0; i < list_.size(); ++i) {
    training::PhiloxBlock words;
    const bool drawn = draw.has_value() && IsRandom(list_[i]);
    if (drawn) {
      const auto epoch = static_cast<uint64_t>(draw->epoch);
      words = philox_.Block({static_cast<uint32_t>(i), static_cast<uint32_t>(draw->sample),
                             static_cast<uint32_t>(epoch), static_cast<uint32_t>(epoch >> 32)});
    }
    std::visit(TransformStep<T>(shapes_[i], drawn ? &words : nullptr, scratch), list_[i]);
  }
  std::memcpy(out, scratch.image.data(), output().size() * sizeof(T));
}

void Transforms::Apply(const std::optional<Draw>& draw, Scratch& scratch, float* out) const {
  Carry(draw, scratch, out);
}

void Transforms::Apply(const std::optional<Draw>& draw, ScratchOf<uint8_t>& scratch,
                       uint8_t* out) const {
  CAPSTAN_CHECK(!byte_values_.empty());
  Carry(draw, scratch, out);
}

}  // namespace capstan::data
