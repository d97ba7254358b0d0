// Pictures: JPEG and PNG files as bytes, brought to the size that a network reads.
//
// A picture is resized until it covers the wanted height and width, and the middle is cut out, as
// torchvision's Resize and CenterCrop do: with the scale s = max(H / h, W / w), one side becomes
// exactly H or W and the other floor(w * s) or floor(h * s). The cut begins at half of what is left
// over, rounded down.
// The filter is a triangle around the middle of each new pixel. When it enlarges, this is bilinear
// interpolation. When it shrinks, the triangle is as much wider as the picture shrinks
// (antialiasing), as PIL's BILINEAR. A picture of the wanted size is copied.
//
// The bits are the same on every processor, because all arithmetic is of whole numbers: weights are
// in units of 2^-14 and sum up to 1. A result differs from the exact one by less than 1
// if the new picture is at most 32 times smaller.
//
// Threads: pure functions. They throw bad_alloc. Messages do not name the file; callers put it in
// front (failure.h, InFront).
#ifndef CAPSTAN_GPU_WORKER_DATA_PICTURE_H_
#define CAPSTAN_GPU_WORKER_DATA_PICTURE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace capstan::data {

inline constexpr int64_t kMaxPictureSide = 1 << 14;    // rows, columns
inline constexpr int64_t kMaxPicturePixels = 1 << 26;  // rows x columns
inline constexpr int64_t kMaxPictureFileBytes = int64_t{128} << 20;

struct PictureShape {
  int64_t channels = 3;  // 1: grey, 3: red, green, blue
  int64_t height = 224;
  int64_t width = 224;

  int64_t size() const { return channels * height * width; }
};

struct Picture {
  PictureShape shape;
  std::unique_ptr<uint8_t[]> bytes;  // [height, width, channels]
};

// A picture whose bytes are not set yet, so a file that claims much costs no memory until it has
// filled it. The shape must be within the limits.
Picture NewPicture(const PictureShape& shape);

// Decodes a whole file, which is JPEG (jpeg.h) or PNG (png.h) by its first bytes, and writes
// [channels, height, width] of `want`. `want` has 1 or 3 channels and sides of 1..kMaxPictureSide.
// DataLoss, DataMissing: damaged. InvalidArgument, InvalidSpec: of another kind, or too large.
// ResourceExhausted, HostOutOfMemory.
absl::Status DecodePicture(absl::Span<const uint8_t> file, const PictureShape& want, uint8_t* to);

// Resizes and cuts `picture`, which has as many channels as `want`, into [channels, height, width].
void FitPicture(const Picture& picture, const PictureShape& want, uint8_t* to);

// The same picture with `channels` (1 or 3). Grey is (19595 R + 38470 G + 7471 B + 2^15) / 2^16,
// which is ITU-R BT.601's luma.
Picture WithChannels(Picture picture, int64_t channels);

// InvalidArgument, InvalidSpec: sides or pixels above the limits. For decoders, before they
// allocate.
absl::Status CheckPictureSize(int64_t height, int64_t width);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_PICTURE_H_
