// PNG files (ISO/IEC 15948), by libpng.
//
// All kinds are read: grey, color and palettes, 1 to 16 bits, also interlaced. 16 bits become 8 by
// the nearest value of v / 257. Transparency is dropped, so a transparent pixel has the color that
// it would have without. Gamma, color profiles and the orientation of EXIF are ignored: the numbers
// of the file are the pixels. Of an animation the first picture counts.
//
// The bits are the same on every processor, because the format is lossless.
// Threads: pure.
#ifndef CAPSTAN_GPU_WORKER_DATA_PNG_H_
#define CAPSTAN_GPU_WORKER_DATA_PNG_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gpu_worker/data/picture.h"

namespace capstan::data {

// Decodes a whole file to a picture of 1 or 3 `channels`. DataLoss, DataMissing: damaged or
// truncated; checksums are compared. InvalidArgument, InvalidSpec: above the limits of picture.h.
// Memory: at most 4 bytes for a pixel.
absl::StatusOr<Picture> DecodePng(absl::Span<const uint8_t> file, int64_t channels);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_PNG_H_
