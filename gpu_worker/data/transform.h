// Transforms of an image between the data set and the network: crop, flip, normalise, resize, cut
// out. They are pure functions of the image; random ones also depend on (seed, epoch, sample, place
// in the list). The bits are the same whoever reads the sample, in whatever order (rule R4).
//
// An image is float32 [channels, height, width], byte / 255 before the first transform. Most lists
// can also run on its bytes, with the same bits in the end (Transforms::byte_values). Random
// transforms draw from Philox with purpose kAugment and counter (place in the list, sample, low and
// high word of the epoch), one block each. A number below n is floor(word * n / 2^32), which
// differs from uniform by less than n / 2^32.
//
// In evaluation nothing is random: a crop takes the middle, flips and cutouts do nothing.
//
// Reasons: docs/decisions/2026-11-23-image-transforms.md. Threads: everything is immutable or
// stateless.
#ifndef CAPSTAN_GPU_WORKER_DATA_TRANSFORM_H_
#define CAPSTAN_GPU_WORKER_DATA_TRANSFORM_H_

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "training/random/philox.h"

namespace capstan::data {

struct ImageShape {
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;

  int64_t size() const { return channels * height * width; }
  friend bool operator==(const ImageShape&, const ImageShape&) = default;
};

// A window of the image with `padding` zeros on each side. Words 0 and 1 give top and left.
struct RandomCrop {
  int64_t size = 0;     // rows and columns of the window; 0: as the image
  int64_t padding = 0;  // >= 0
};
// Mirrored with probability 1/2: the highest bit of word 0.
struct RandomFlip {
  bool vertical = false;  // rows from bottom to top; else columns from right to left
};
// (x - mean) / deviation, by channel.
struct Normalize {
  std::vector<float> mean;       // one, or one per channel
  std::vector<float> deviation;  // equally many, each > 0
};
// Bilinear between the centers of pixels, with repeated edges. As PyTorch's interpolate with
// align_corners=False, without antialiasing.
struct Resize {
  int64_t size = 0;  // rows and columns, >= 1
};
// A square of zeros around the pixel given by words 0 (row) and 1 (column), clipped to the image.
// Source: DeVries & Taylor 2017, arXiv:1708.04552.
struct Cutout {
  int64_t size = 0;  // >= 1
};
using Transform = std::variant<RandomCrop, RandomFlip, Normalize, Resize, Cutout>;

// ---- One transform on one image. Ranges do not overlap; the caller owns them. T: float, uint8_t
// ----

// out [channels, rows, columns] is the window whose top left pixel is (top, left) of the padded
// image.
struct CropWindow {
  int64_t top = 0;
  int64_t left = 0;
  int64_t rows = 0;
  int64_t columns = 0;
};
template <typename T>
void CropImage(const T* in, const ImageShape& shape, int64_t padding, const CropWindow& window,
               T* out);
template <typename T>
void FlipImage(T* image, const ImageShape& shape, bool vertical);
void NormalizeImage(float* image, const ImageShape& shape, const Normalize& normalize);
void ResizeImage(const float* in, const ImageShape& shape, int64_t size, float* out);
// Rows [row - size / 2, row - size / 2 + size), columns likewise.
template <typename T>
void CutOutOfImage(T* image, const ImageShape& shape, int64_t size, int64_t row, int64_t column);

// ---- A list of transforms ----

class Transforms {
 public:
  // What the random draws of one sample depend on. Absent in evaluation.
  struct Draw {
    int64_t epoch = 0;
    int64_t sample = 0;  // in the training set, below 2^32
  };

  // InvalidArgument, InvalidSpec: an option out of range, a window larger than the padded image, or
  // means that are neither one nor one per channel.
  static absl::StatusOr<Transforms> Create(const ImageShape& input, std::vector<Transform> list,
                                           uint64_t seed);

  const ImageShape& input() const { return shapes_.front(); }
  const ImageShape& output() const { return shapes_.back(); }
  // Whether an image may differ between epochs.
  bool random() const { return random_; }

  // [channels, 256]: the final number for each byte of an image after the list has run on bytes.
  // Empty: the list cannot run on bytes, because it resizes, or writes zeros after a normalize.
  const std::vector<float>& byte_values() const { return byte_values_; }

  // Buffers of one caller, reused from image to image.
  template <typename T>
  struct ScratchOf {
    std::vector<T> image, other;
  };
  using Scratch = ScratchOf<float>;
  // `scratch.image` contains the input. `out` gets output().size() numbers, or bytes, which is only
  // allowed for lists with byte_values.
  void Apply(const std::optional<Draw>& draw, Scratch& scratch, float* out) const;
  void Apply(const std::optional<Draw>& draw, ScratchOf<uint8_t>& scratch, uint8_t* out) const;
  // Number of elements that each of the two buffers must have.
  int64_t scratch_size() const { return scratch_size_; }

 private:
  explicit Transforms(uint64_t seed) : philox_(seed, training::Purpose::kAugment) {}
  template <typename T>
  void Carry(const std::optional<Draw>& draw, ScratchOf<T>& scratch, T* out) const;

  std::vector<Transform> list_;
  std::vector<ImageShape> shapes_;  // before each transform, and after the last
  training::Philox philox_;
  std::vector<float> byte_values_;
  bool random_ = false;
  int64_t scratch_size_ = 0;
};

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_TRANSFORM_H_
