#include "gpu_worker/data/picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/jpeg.h"
#include "gpu_worker/data/picture_test_files.h"
#include "gpu_worker/data/png.h"

namespace capstan::data {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Levels = std::vector<int>;

// What was decoded, [channels, height, width].
absl::StatusOr<Levels> Decoded(const std::string& file, const PictureShape& want) {
  std::vector<uint8_t> to(static_cast<size_t>(want.size()), 77);
  absl::Status status = DecodePicture(BytesOf(file), want, to.data());
  if (!status.ok()) return status;
  return Levels(to.begin(), to.end());
}

Levels MustDecode(const std::string& file, const PictureShape& want) {
  const absl::StatusOr<Levels> pixels = Decoded(file, want);
  EXPECT_TRUE(pixels.ok()) << pixels.status();
  return pixels.ok() ? *pixels : Levels();
}

Levels Fitted(const PictureShape& have, const std::vector<uint8_t>& bytes,
              const PictureShape& want) {
  Picture picture = NewPicture(have);
  std::copy(bytes.begin(), bytes.end(), picture.bytes.get());
  std::vector<uint8_t> to(static_cast<size_t>(want.size()));
  FitPicture(picture, want, to.data());
  return Levels(to.begin(), to.end());
}

// Waves of color, which JPEG stores well.
std::string Waves(int height, int width, int channels) {
  std::string bytes;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        const double wave = std::sin(0.11 * x + c) + std::cos(0.07 * y - 0.5 * c);
        bytes += static_cast<char>(static_cast<int>(128 + 60 * wave));
      }
    }
  }
  return bytes;
}

TEST(PngTest, EveryKindOfPixelIsRead) {
  const auto pixels = [](const PngTestFile& file, int64_t channels) {
    return MustDecode(Png(file), {channels, file.height, file.width});
  };
  PngTestFile color{.width = 2, .rows = {"\x01\x02\x03\xff\x80\x05"}};
  EXPECT_THAT(pixels(color, 3), ElementsAre(1, 255, 2, 128, 3, 5));
  // (19595 * 255 + 38470 * 128 + 7471 * 5 + 32768) / 65536 = 152.4
  EXPECT_THAT(pixels(color, 1), ElementsAre(2, 152));
  PngTestFile grey{.width = 2, .color = 0, .rows = {"\x07\xfe"}};
  EXPECT_THAT(pixels(grey, 1), ElementsAre(7, 254));
  EXPECT_THAT(pixels(grey, 3), ElementsAre(7, 254, 7, 254, 7, 254));
  PngTestFile bit{.width = 3, .bits = 1, .color = 0, .rows = {"\xa0"}};
  EXPECT_THAT(pixels(bit, 1), ElementsAre(255, 0, 255));
  PngTestFile two{.width = 3, .bits = 2, .color = 0, .rows = {"\x6c"}};
  EXPECT_THAT(pixels(two, 1), ElementsAre(85, 170, 255));
  PngTestFile four{.width = 2, .bits = 4, .color = 0, .rows = {"\x1e"}};
  EXPECT_THAT(pixels(four, 1), ElementsAre(17, 238));
  // v / 257: 0x0080 is 0.498, 0x0081 is 0.502, 0xff7e is 255 - 0.502.
  PngTestFile deep{
      .width = 3, .bits = 16, .color = 0, .rows = {std::string("\x00\x80\x00\x81\xff\x7e", 6)}};
  EXPECT_THAT(pixels(deep, 1), ElementsAre(0, 1, 254));
  PngTestFile palette{.width = 4,
                      .bits = 2,
                      .color = 3,
                      .palette = "\x0a\x14\x1e\x28\x32\x3c\x46\x50\x5a",
                      .rows = {"\x18"}};
  EXPECT_THAT(pixels(palette, 3), ElementsAre(10, 40, 70, 10, 20, 50, 80, 20, 30, 60, 90, 30));
  palette.transparency = std::string("\x00\x80", 2);  // is dropped
  EXPECT_THAT(pixels(palette, 3), ElementsAre(10, 40, 70, 10, 20, 50, 80, 20, 30, 60, 90, 30));
  PngTestFile alpha{.width = 1, .color = 6, .rows = {std::string("\x09\x08\x07\x00", 4)}};
  EXPECT_THAT(pixels(alpha, 3), ElementsAre(9, 8, 7));
  PngTestFile grey_alpha{.width = 2, .color = 4, .rows = {std::string("\x09\x00\x08\xff", 4)}};
  EXPECT_THAT(pixels(grey_alpha, 1), ElementsAre(9, 8));
  PngTestFile interlaced{.width = 2,
                         .height = 2,
                         .color = 0,
                         .interlaced = true,
                         .rows = {"\x01", "\x02", "\x03\x04"}};
  EXPECT_THAT(pixels(interlaced, 1), ElementsAre(1, 2, 3, 4));
}

TEST(PngTest, TextsAndProfilesAreNotUnpacked) {
  std::string png = PngOf(1, 1, 1, "\x2a");
  const std::string bomb = Gzip(std::string(1 << 20, 'x'));
  png.insert(33, PngChunk("zTXt", std::string("a\0\0", 3) + bomb) +
                     PngChunk("iCCP", std::string("b\0\0", 3) + bomb) +
                     PngChunk("gAMA", BigEndian32(12345)) + PngChunk("eXIf", "MM nonsense"));
  EXPECT_THAT(MustDecode(png, {1, 1, 1}), ElementsAre(42));
}

TEST(JpegTest, OneColorIsReadAsItIs) {
  for (const int grey : {0, 1, 77, 128, 200, 255}) {
    const std::string bytes(17 * 9, static_cast<char>(grey));
    const std::string jpeg = Jpeg({.width = 17, .height = 9, .channels = 1, .bytes = bytes});
    EXPECT_THAT(MustDecode(jpeg, {1, 9, 17}), Each(grey));
    EXPECT_THAT(MustDecode(jpeg, {3, 9, 17}), Each(grey));
  }
  // Red is Y 76, Cb 85, Cr 255 as bytes. So R is 76 + 1.402 * 127 = 254.05, G is 76 - 0.344136 *
  // -43 - 0.714136 * 127 = 0.1, and B is 76 + 1.772 * -43 = -0.2.
  std::string red;
  for (int i = 0; i < 64; ++i) red += std::string("\xff\x00\x00", 3);
  const std::string jpeg = Jpeg({.width = 8, .height = 8, .bytes = red});
  const Levels pixels = MustDecode(jpeg, {3, 8, 8});
  ASSERT_EQ(pixels.size(), 192);
  EXPECT_THAT(Levels(pixels.begin(), pixels.begin() + 64), Each(254));
  EXPECT_THAT(Levels(pixels.begin() + 64, pixels.end()), Each(0));
  EXPECT_THAT(MustDecode(jpeg, {1, 8, 8}), Each(76));  // Y itself
  // Stored as RGB, it is exact, and grey is 19595 * 255 / 65536 = 76.2.
  const std::string rgb = Jpeg({.width = 8, .height = 8, .stored = JCS_RGB, .bytes = red});
  EXPECT_EQ(MustDecode(rgb, {3, 8, 8})[0], 255);
  EXPECT_THAT(MustDecode(rgb, {1, 8, 8}), Each(76));
}

TEST(JpegTest, InksBecomeColors) {
  std::string inks;
  for (int i = 0; i < 64; ++i) inks += "\xff\x80\x40\xc8";
  // Adobe's bytes are 255 for no ink: 255 * 200 / 255, 128 * 200 / 255 = 100.4, 64 * 200 / 255 =
  // 50.2. Others: 0, 127 * 55 / 255 = 27.4, 191 * 55 / 255 = 41.2.
  for (const J_COLOR_SPACE stored : {JCS_CMYK, JCS_YCCK}) {
    const Levels adobe = MustDecode(
        Jpeg({.width = 8, .height = 8, .channels = 4, .stored = stored, .bytes = inks}), {3, 8, 8});
    ASSERT_EQ(adobe.size(), 192);
    EXPECT_NEAR(adobe[0], 200, 2);
    EXPECT_NEAR(adobe[64], 100, 2);
    EXPECT_NEAR(adobe[128], 50, 2);
  }
  const Levels plain = MustDecode(Jpeg({.width = 8,
                                        .height = 8,
                                        .channels = 4,
                                        .stored = JCS_CMYK,
                                        .adobe = false,
                                        .bytes = inks}),
                                  {3, 8, 8});
  ASSERT_EQ(plain.size(), 192);
  EXPECT_THAT((std::vector<int>{plain[0], plain[64], plain[128]}), ElementsAre(0, 27, 41));
  EXPECT_THAT(MustDecode(Jpeg({.width = 8,
                               .height = 8,
                               .channels = 4,
                               .stored = JCS_CMYK,
                               .adobe = false,
                               .bytes = inks}),
                         {1, 8, 8}),
              Each(21));  // 0.587 * 27 + 0.114 * 41
}

TEST(JpegTest, ItIsThePictureOfThePng) {
  const std::string bytes = Waves(45, 70, 3);
  const Levels exact = MustDecode(PngOf(45, 70, 3, bytes), {3, 45, 70});
  std::vector<Levels> all;
  for (const bool progressive : {false, true}) {
    for (const auto& [across, down] : {std::pair(1, 1), std::pair(2, 1), std::pair(2, 2)}) {
      const std::string jpeg = Jpeg({.width = 70,
                                     .height = 45,
                                     .quality = 98,
                                     .across = across,
                                     .down = down,
                                     .progressive = progressive,
                                     .bytes = bytes});
      all.push_back(MustDecode(jpeg, {3, 45, 70}));
      ASSERT_EQ(all.back().size(), exact.size());
      int worst = 0;
      for (size_t i = 0; i < exact.size(); ++i) {
        worst = std::max(worst, std::abs(exact[i] - all.back()[i]));
      }
      EXPECT_LE(worst, 9) << across << " x " << down << (progressive ? " progressive" : "");
      EXPECT_GE(worst, 1);
    }
  }
  // Progression orders the same numbers differently.
  EXPECT_EQ(all[0], all[3]);
  EXPECT_EQ(all[2], all[5]);
}

TEST(JpegTest, ALargePictureIsDecodedSmaller) {
  const std::string bytes = Waves(160, 240, 3);
  const std::string jpeg = Jpeg({.width = 240, .height = 160, .quality = 98, .bytes = bytes});
  const auto decoded_height = [&jpeg](const PictureShape& want) {
    const absl::StatusOr<Picture> picture = DecodeJpeg(BytesOf(jpeg), want);
    EXPECT_TRUE(picture.ok()) << picture.status();
    return picture.ok() ? picture->shape.height : 0;
  };
  EXPECT_EQ(decoded_height({3, 160, 160}), 160);
  EXPECT_EQ(decoded_height({3, 81, 81}), 160);
  EXPECT_EQ(decoded_height({3, 80, 80}), 80);
  EXPECT_EQ(decoded_height({3, 80, 121}), 160);  // 240 is less than twice 121
  EXPECT_EQ(decoded_height({3, 40, 40}), 40);
  EXPECT_EQ(decoded_height({3, 20, 30}), 20);
  EXPECT_EQ(decoded_height({3, 2, 2}), 20);
  // It is still the same picture.
  const std::string png = PngOf(160, 240, 3, bytes);
  for (const int64_t side : {80, 60, 40, 30, 20, 9}) {
    const Levels small = MustDecode(jpeg, {3, side, side});
    const Levels exact = MustDecode(png, {3, side, side});
    int worst = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
      worst = std::max(worst, std::abs(exact[i] - small[i]));
    }
    EXPECT_LE(worst, 8) << side;
  }
}

TEST(FitPictureTest, HandNumbers) {
  // The same size: a copy, with planes instead of pixels.
  EXPECT_THAT(Fitted({3, 1, 2}, {1, 2, 3, 4, 5, 6}, {3, 1, 2}), ElementsAre(1, 4, 2, 5, 3, 6));
  // Twice as large: new middles are a quarter of a pixel off, so 3/4 and 1/4, and the edge itself.
  EXPECT_THAT(Fitted({1, 1, 2}, {0, 100}, {1, 2, 4}), ElementsAre(0, 25, 75, 100, 0, 25, 75, 100));
  // Half as large: the triangle of 4 pixels has the weights 1, 3, 3, 1 of 8, at the edge 3, 3, 1 of
  // 7: (3 * 0 + 3 * 80 + 160) / 7 = 57.1, (80 + 3 * 160 + 3 * 240) / 7 = 182.9.
  EXPECT_THAT(Fitted({1, 2, 4}, {0, 80, 160, 240, 0, 80, 160, 240}, {1, 1, 2}),
              ElementsAre(57, 183));
  // The middle is cut out; of an odd rest, the smaller half is in front.
  EXPECT_THAT(Fitted({1, 1, 4}, {1, 2, 3, 4}, {1, 1, 1}), ElementsAre(2));
  EXPECT_THAT(Fitted({1, 5, 1}, {1, 2, 3, 4, 5}, {1, 1, 1}), ElementsAre(3));
  // 2 x 5 to height 1: width floor(5 / 2) = 2, of which the first is wanted. Its middle is at 1.25,
  // and it reaches 2.5 to both sides, so the weights are 7, 9, 5, 1 of 22: 220 / 22.
  EXPECT_EQ(Fitted({1, 2, 5}, {0, 10, 20, 30, 40, 0, 10, 20, 30, 40}, {1, 1, 1}), Levels({10}));
  // One color stays what it is.
  EXPECT_THAT(Fitted({1, 7, 11}, std::vector<uint8_t>(77, 255), {1, 16, 3}), Each(255));
  EXPECT_THAT(Fitted({3, 50, 31}, std::vector<uint8_t>(4650, 1), {3, 9, 9}), Each(1));
}

// The formula of the header in float64, pixel by pixel.
double ExactPixel(const std::vector<uint8_t>& bytes, int64_t h, int64_t w, double scale_y,
                  double scale_x, int64_t y, int64_t x) {
  double sum = 0, weights = 0;
  const double reach_y = std::max(1.0, scale_y), reach_x = std::max(1.0, scale_x);
  for (int64_t i = 0; i < h; ++i) {
    const double at_y = 1 - std::abs(i + 0.5 - (y + 0.5) * scale_y) / reach_y;
    if (at_y <= 0) continue;
    for (int64_t j = 0; j < w; ++j) {
      const double at_x = 1 - std::abs(j + 0.5 - (x + 0.5) * scale_x) / reach_x;
      if (at_x <= 0) continue;
      sum += at_y * at_x * bytes[static_cast<size_t>(i * w + j)];
      weights += at_y * at_x;
    }
  }
  return sum / weights;
}

TEST(FitPictureTest, FollowsTheFormula) {
  struct Case {
    int64_t h, w, height, width;
  };
  for (const Case& c : {Case{37, 50, 24, 24}, Case{50, 37, 24, 24}, Case{5, 9, 16, 16},
                        Case{100, 20, 7, 3}, Case{20, 100, 30, 8}, Case{64, 64, 8, 8}}) {
    std::vector<uint8_t> bytes;
    for (int64_t i = 0; i < c.h * c.w; ++i) bytes.push_back(static_cast<uint8_t>(i * i * 37 + i));
    const Levels got = Fitted({1, c.h, c.w}, bytes, {1, c.height, c.width});
    int64_t rows = c.height, columns = c.width;
    if (c.h * c.width <= c.w * c.height) {
      columns = c.w * c.height / c.h;
    } else {
      rows = c.h * c.width / c.w;
    }
    for (int64_t y = 0; y < c.height; ++y) {
      for (int64_t x = 0; x < c.width; ++x) {
        const double want =
            ExactPixel(bytes, c.h, c.w, static_cast<double>(c.h) / static_cast<double>(rows),
                       static_cast<double>(c.w) / static_cast<double>(columns),
                       y + (rows - c.height) / 2, x + (columns - c.width) / 2);
        EXPECT_NEAR(got[static_cast<size_t>(y * c.width + x)], want, 0.6)
            << c.h << " x " << c.w << ", " << y << ", " << x;
      }
    }
  }
}

void ExpectRefused(const std::string& file, const std::string& reason, const std::string& message) {
  const absl::Status status = Decoded(file, {3, 8, 8}).status();
  EXPECT_EQ(FailureReason(status), reason) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(PictureTest, WhatIsNoPictureIsNamed) {
  ExpectRefused("", "DataMissing", "empty, want a JPEG or a PNG");
  ExpectRefused("GIF89a", "InvalidSpec", "begins with 47 49 46 38, so it is neither JPEG nor PNG");
  ExpectRefused("BM", "InvalidSpec", "begins with 42 4d, so");
  ExpectRefused("\x89PNG\r\n\x1a\n", "DataMissing", "PNG: the file ends too early");
  ExpectRefused("\xff\xd8\xff", "DataMissing", "JPEG: Premature end of JPEG file");
}

TEST(PictureTest, AbsurdSizesAreRefusedByTheirNumbers) {
  const auto sized = [](uint32_t width, uint32_t height) {
    PngTestFile file;
    file.width = width;
    file.height = height;
    file.rows = {"abc"};
    return Png(file);
  };
  ExpectRefused(sized(16385, 1), "InvalidSpec", "PNG: picture of 1 x 16385, want sides of 1 to");
  ExpectRefused(sized(1, 16385), "InvalidSpec", "PNG: picture of 16385 x 1, want sides of 1 to");
  ExpectRefused(sized(0x7FFFFFFF, 0x7FFFFFFF), "InvalidSpec", "and at most 67108864 pixels");
  ExpectRefused(sized(8193, 8192), "InvalidSpec", "PNG: picture of 8192 x 8193");
  ExpectRefused(sized(8192, 8192), "DataMissing", "PNG: ");  // may be, so its rows are missed
  std::string jpeg = Jpeg({.width = 8, .height = 8, .channels = 1, .bytes = std::string(64, 'a')});
  const size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, "\xff\xdc\xff\xdc");  // height and width
  ExpectRefused(jpeg, "InvalidSpec", "JPEG: picture of 65500 x 65500, want sides");
  jpeg.replace(frame + 5, 4, "\xff\xde\xff\xde");
  ExpectRefused(jpeg, "InvalidSpec", "JPEG: Maximum supported image dimension is 65500 pixels");
  jpeg.replace(frame + 5, 4, std::string("\x20\x00\x20\x00", 4));
  ExpectRefused(jpeg, "DataMissing", "JPEG: ");
  jpeg[frame + 4] = 12;
  ExpectRefused(jpeg, "InvalidSpec", "JPEG: Unsupported JPEG data precision 12");
}

// Some cameras write zeros where a sequential file has the range of coefficients.
TEST(JpegTest, NumbersOfProgressiveFilesAreNotRead) {
  const std::string good =
      Jpeg({.width = 8, .height = 8, .channels = 1, .bytes = std::string(64, 'a')});
  std::string odd = good;
  const size_t scan = odd.find("\xff\xda");
  ASSERT_NE(scan, std::string::npos);
  ASSERT_EQ(odd[scan + 8], 63);
  odd[scan + 8] = 0;
  const auto decoded = DecodeJpeg(
      absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(odd.data()), odd.size()), {1, 8, 8});
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(decoded->bytes.get()), 64),
            std::string(64, 'a'));
}

TEST(JpegTest, ArithmeticCodesAreRefused) {
  const std::string jpeg = Jpeg(
      {.width = 8, .height = 8, .channels = 1, .arithmetic = true, .bytes = std::string(64, 'a')});
  ExpectRefused(jpeg, "InvalidSpec", "JPEG: arithmetic coding, want Huffman codes");
}

TEST(PictureTest, ThousandsOfScansAreRefused) {
  std::string jpeg = Jpeg({.width = 16, .height = 16, .separate = true, .bytes = Waves(16, 16, 3)});
  MustDecode(jpeg, {3, 16, 16});
  // The last scan again and again, which is allowed.
  const size_t scan = jpeg.rfind("\xff\xda");
  ASSERT_NE(scan, std::string::npos);
  const std::string last = jpeg.substr(scan, jpeg.size() - 2 - scan);
  const auto with = [&](int more) {
    std::string many = jpeg.substr(0, jpeg.size() - 2);
    for (int i = 0; i < more; ++i) many += last;
    return many + "\xff\xd9";
  };
  EXPECT_EQ(MustDecode(with(90), {3, 16, 16}), MustDecode(jpeg, {3, 16, 16}));
  ExpectRefused(with(150), "InvalidSpec", "JPEG: more than 100 scans");
}

// Damage is an error or other pixels, and never a crash. A shorter file is always an error.
TEST(PictureTest, DamagedFilesAreErrors) {
  const std::string waves = Waves(24, 20, 3);
  const std::vector<std::string> files = {
      PngOf(24, 20, 3, waves),
      Jpeg({.width = 20, .height = 24, .quality = 90, .across = 2, .down = 2, .bytes = waves}),
      Jpeg({.width = 20, .height = 24, .quality = 90, .progressive = true, .bytes = waves})};
  for (const std::string& file : files) {
    const PictureShape want = {3, 24, 20};
    MustDecode(file, want);
    for (size_t size = 0; size < file.size(); size += 1 + size / 40) {
      const absl::Status status = Decoded(file.substr(0, size), want).status();
      EXPECT_FALSE(FailureReason(status).empty()) << size << " of " << file.size() << status;
    }
    for (size_t at = 0; at < file.size(); at += 1 + at / 100) {
      for (const int flip : {0x01, 0x80, 0xff}) {
        std::string changed = file;
        changed[at] = static_cast<char>(changed[at] ^ flip);
        const absl::Status status = Decoded(changed, want).status();
        EXPECT_TRUE(status.ok() || !FailureReason(status).empty()) << at << status;
        // Everything in a PNG has a checksum.
        EXPECT_FALSE(&file == files.data() && status.ok()) << at;
      }
    }
  }
}

}  // namespace
}  // namespace capstan::data
