// JPEG files (ISO/IEC 10918-1), by libjpeg-turbo.
//
// Baseline and progressive files of 8 bits with Huffman codes: grey, YCbCr, RGB, and CMYK and YCCK,
// of which red is (255 - C) * (255 - K) / 255 and so on. The orientation of EXIF is ignored, as PIL
// does when it opens a file: the stored rows are the rows. ICC profiles are ignored, too.
//
// The bits are the same on every processor: the inverse cosine transform is libjpeg's accurate one
// of whole numbers (islow), upsampling is the triangle filter of whole numbers, and smoothing
// between blocks is off. libjpeg-turbo's loops for vector units are exact copies of these; a test
// trains with and without them and compares the weights (tests/e2e/image_files_test.py).
//
// Threads: pure.
#ifndef CAPSTAN_GPU_WORKER_DATA_JPEG_H_
#define CAPSTAN_GPU_WORKER_DATA_JPEG_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gpu_worker/data/picture.h"

namespace capstan::data {

// Decodes a whole file. The picture has want.channels. If both sides are at least 2, 4 or 8 times
// those of `want`, the result is that much smaller than the file's picture, which takes less time:
// each block of 8 x 8 is decoded to 4 x 4, 2 x 2 or 1 pixel.
// DataLoss, DataMissing: damaged or truncated. InvalidArgument, InvalidSpec: above the limits of
// picture.h, more than 100 scans, more than 512 MiB of memory for a progressive file, or of other
// colors. Memory: at most 7 bytes for a pixel, in progressive files 15.
absl::StatusOr<Picture> DecodeJpeg(absl::Span<const uint8_t> file, const PictureShape& want);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_JPEG_H_
