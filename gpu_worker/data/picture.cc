#include "gpu_worker/data/picture.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/jpeg.h"
#include "gpu_worker/data/png.h"

namespace capstan::data {
namespace {

constexpr int kWeightBits = 14;
constexpr int kRowBits = 7;  // fraction of a pixel between the two passes: 255 << 7 fits 16 bits

// How a side of `from` pixels becomes one of `to`, of which `count` pixels from `first` are wanted.
struct SideChange {
  int64_t from = 0, to = 0;
  int64_t first = 0, count = 0;
};

// The source pixels and their weights of each wanted pixel.
struct PixelWeights {
  struct Place {
    int64_t first = 0;    // source pixel
    int64_t count = 0;    // source pixels
    int64_t weights = 0;  // place in `weights`
  };
  std::vector<Place> places;
  std::vector<int32_t> weights;
};

// In units of half a pixel divided by `to`, the middle of source pixel i is (2 i + 1) * to, and
// that of the new pixel x is (2 x + 1) * from. The triangle reaches 2 * max(from, to) to both
// sides, and at least one source pixel has a weight.
PixelWeights WeightsOf(const SideChange& side) {
  PixelWeights result;
  result.places.reserve(static_cast<size_t>(side.count));
  const int64_t reach = 2 * std::max(side.from, side.to);
  const int64_t pixel = 2 * side.to;
  std::vector<int64_t> heights;
  for (int64_t j = 0; j < side.count; ++j) {
    const int64_t middle = (2 * (side.first + j) + 1) * side.from;
    int64_t i = std::max<int64_t>(0, (middle - reach - side.to) / pixel);
    heights.clear();
    int64_t sum = 0;
    PixelWeights::Place place;
    for (; i < side.from; ++i) {
      const int64_t height = reach - std::abs((2 * i + 1) * side.to - middle);
      if (height <= 0 && heights.empty()) continue;
      if (height <= 0) break;
      if (heights.empty()) place.first = i;
      heights.push_back(height);
      sum += height;
    }
    place.count = static_cast<int64_t>(heights.size());
    place.weights = static_cast<int64_t>(result.weights.size());
    // Differences of rounded sums, so that the weights sum up to exactly 1.
    int64_t so_far = 0, given = 0;
    for (const int64_t height : heights) {
      so_far += height;
      const int64_t upto = ((so_far << kWeightBits) + sum / 2) / sum;
      result.weights.push_back(static_cast<int32_t>(upto - given));
      given = upto;
    }
    result.places.push_back(place);
  }
  return result;
}

// to[i] = sum of weights[k] * rows[k * stride + i], in units of 2^-kRowBits.
void BlendRows(const uint8_t* rows, int64_t stride, absl::Span<const int32_t> weights,
               std::vector<int32_t>& to) {
  const size_t size = to.size();
  int32_t* __restrict out = to.data();
  std::fill_n(out, size, 1 << (kWeightBits - kRowBits - 1));
  for (size_t k = 0; k < weights.size(); ++k) {
    const uint8_t* __restrict row = rows + static_cast<int64_t>(k) * stride;
    const int32_t weight = weights[k];
    for (size_t i = 0; i < size; ++i) out[i] += weight * row[i];
  }
  for (size_t i = 0; i < size; ++i) out[i] >>= kWeightBits - kRowBits;
}

// Writes the pixels of one row of `Channels` planes, each `plane` bytes long.
template <int kChannels>
void BlendColumns(const int32_t* row, int64_t first_column, const PixelWeights& columns,
                  int64_t plane, uint8_t* to) {
  constexpr int kShift = kWeightBits + kRowBits;
  for (size_t x = 0; x < columns.places.size(); ++x) {
    const PixelWeights::Place& place = columns.places[x];
    const int32_t* const weights = columns.weights.data() + place.weights;
    const int32_t* from = row + (place.first - first_column) * kChannels;
    int32_t sums[kChannels];
    std::fill_n(sums, kChannels, 1 << (kShift - 1));
    for (int64_t k = 0; k < place.count; ++k, from += kChannels) {
      for (int c = 0; c < kChannels; ++c) sums[c] += weights[k] * from[c];
    }
    for (int c = 0; c < kChannels; ++c) {
      to[c * plane + static_cast<int64_t>(x)] = static_cast<uint8_t>(sums[c] >> kShift);
    }
  }
}

template <int kChannels>
void Fit(const Picture& picture, const SideChange& rows, const SideChange& columns, uint8_t* to) {
  const int64_t stride = picture.shape.width * kChannels;
  const int64_t plane = rows.count * columns.count;
  if (rows.from == rows.to && columns.from == columns.to) {
    for (int64_t y = 0; y < rows.count; ++y) {
      const uint8_t* const from =
          picture.bytes.get() + (rows.first + y) * stride + columns.first * kChannels;
      for (int64_t x = 0; x < columns.count; ++x) {
        for (int c = 0; c < kChannels; ++c) {
          to[c * plane + y * columns.count + x] = from[x * kChannels + c];
        }
      }
    }
    return;
  }
  const PixelWeights of_rows = WeightsOf(rows);
  const PixelWeights of_columns = WeightsOf(columns);
  const int64_t first = of_columns.places.front().first;
  const PixelWeights::Place& last = of_columns.places.back();
  std::vector<int32_t> row(static_cast<size_t>((last.first + last.count - first) * kChannels));
  for (int64_t y = 0; y < rows.count; ++y) {
    const PixelWeights::Place& place = of_rows.places[static_cast<size_t>(y)];
    BlendRows(picture.bytes.get() + place.first * stride + first * kChannels, stride,
              absl::MakeConstSpan(of_rows.weights)
                  .subspan(static_cast<size_t>(place.weights), static_cast<size_t>(place.count)),
              row);
    BlendColumns<kChannels>(row.data(), first, of_columns, plane, to + y * columns.count);
  }
}

bool BeginsWith(absl::Span<const uint8_t> file, absl::Span<const uint8_t> magic) {
  return file.size() >= magic.size() && std::equal(magic.begin(), magic.end(), file.begin());
}

}  // namespace

absl::Status CheckPictureSize(int64_t height, int64_t width) {
  if (height >= 1 && width >= 1 && height <= kMaxPictureSide && width <= kMaxPictureSide &&
      height * width <= kMaxPicturePixels) {
    return absl::OkStatus();
  }
  return InvalidSpec(absl::StrCat("picture of ", height, " x ", width, ", want sides of 1 to ",
                                  kMaxPictureSide, " and at most ", kMaxPicturePixels, " pixels"));
}

Picture NewPicture(const PictureShape& shape) {
  return {shape, std::unique_ptr<uint8_t[]>(new uint8_t[static_cast<size_t>(shape.size())])};
}

Picture WithChannels(Picture picture, int64_t channels) {
  if (picture.shape.channels == channels) return picture;
  Picture result = NewPicture({channels, picture.shape.height, picture.shape.width});
  const int64_t pixels = picture.shape.height * picture.shape.width;
  const uint8_t* from = picture.bytes.get();
  uint8_t* to = result.bytes.get();
  if (channels == 3) {
    for (int64_t i = 0; i < pixels; ++i, to += 3) std::fill_n(to, 3, from[i]);
    return result;
  }
  for (int64_t i = 0; i < pixels; ++i, from += 3) {
    const int64_t grey = 19595 * from[0] + 38470 * from[1] + 7471 * from[2] + (1 << 15);
    to[i] = static_cast<uint8_t>(grey >> 16);
  }
  return result;
}

void FitPicture(const Picture& picture, const PictureShape& want, uint8_t* to) {
  const PictureShape& have = picture.shape;
  SideChange rows{have.height, want.height, 0, want.height};
  SideChange columns{have.width, want.width, 0, want.width};
  if (have.height * want.width <= have.width * want.height) {
    columns.to = have.width * want.height / have.height;
  } else {
    rows.to = have.height * want.width / have.width;
  }
  rows.first = (rows.to - rows.count) / 2;
  columns.first = (columns.to - columns.count) / 2;
  if (want.channels == 1) return Fit<1>(picture, rows, columns, to);
  Fit<3>(picture, rows, columns, to);
}

absl::Status DecodePicture(absl::Span<const uint8_t> file, const PictureShape& want, uint8_t* to) {
  constexpr uint8_t kJpeg[] = {0xFF, 0xD8, 0xFF};
  constexpr uint8_t kPng[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
  absl::StatusOr<Picture> picture = Picture();
  if (file.empty()) {
    picture = DataMissing(absl::StatusCode::kDataLoss, "empty, want a JPEG or a PNG");
  } else if (BeginsWith(file, kJpeg)) {
    picture = DecodeJpeg(file, want);
  } else if (BeginsWith(file, kPng)) {
    picture = DecodePng(file, want.channels);
  } else {
    std::string bytes;
    for (size_t i = 0; i < std::min<size_t>(file.size(), 4); ++i) {
      absl::StrAppendFormat(&bytes, "%s%02x", i == 0 ? "" : " ", file[i]);
    }
    return InvalidSpec(absl::StrCat("begins with ", bytes, ", so it is neither JPEG nor PNG"));
  }
  if (!picture.ok()) return picture.status();
  FitPicture(*picture, want, to);
  return absl::OkStatus();
}

}  // namespace capstan::data
