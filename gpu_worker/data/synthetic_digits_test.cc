#include "gpu_worker/data/synthetic_digits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "gpu_worker/data/pixels.h"

namespace capstan::data {
namespace {

constexpr int kPixels = SyntheticDigits::kPixels;
constexpr int kClasses = SyntheticDigits::kClasses;

std::vector<uint8_t> Image(uint64_t seed, uint32_t split, int64_t index) {
  std::vector<uint8_t> pixels(kPixels);
  SyntheticDigits(seed, split).Draw(index, pixels.data());
  return pixels;
}

TEST(SyntheticDigitsTest, IsAFunctionOfSeedSplitAndIndex) {
  EXPECT_EQ(Image(7, 0, 5), Image(7, 0, 5));
  EXPECT_NE(Image(7, 0, 5), Image(8, 0, 5));
  EXPECT_NE(Image(7, 0, 5), Image(7, 1, 5));
  EXPECT_NE(Image(7, 0, 5), Image(7, 0, 6));
  EXPECT_NE(Image(7, 0, 5), Image(7, 0, 5 + (int64_t{1} << 32)));
}

// The bytes must not change with compiler, flags or machine. FNV-1a of the first 100 images, as
// both g++ 12 and clang 14 draw them on x86-64.
TEST(SyntheticDigitsTest, DrawsTheRecordedBytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (int64_t index = 0; index < 100; ++index) {
    for (const uint8_t pixel : Image(42, 0, index)) hash = (hash ^ pixel) * 0x100000001b3u;
    hash = (hash ^ static_cast<uint64_t>(SyntheticDigits(42, 0).Label(index))) * 0x100000001b3u;
  }
  EXPECT_EQ(hash, 11856704249160446422u);
}

TEST(SyntheticDigitsTest, ClassesAreAboutEquallyFrequent) {
  const SyntheticDigits digits(1, 0);
  std::array<int, kClasses> counts = {};
  for (int64_t i = 0; i < 10000; ++i) {
    const int32_t label = digits.Label(i);
    ASSERT_GE(label, 0);
    ASSERT_LT(label, kClasses);
    ++counts[label];
  }
  // Binomial, mean 1000, standard deviation 30. The limit is five standard deviations.
  for (const int count : counts) EXPECT_NEAR(count, 1000, 150);
}

TEST(SyntheticDigitsTest, EveryImageHasInkInTheMiddle) {
  for (int64_t i = 0; i < 500; ++i) {
    const std::vector<uint8_t> pixels = Image(3, 1, i);
    const int ink = static_cast<int>(
        std::count_if(pixels.begin(), pixels.end(), [](uint8_t p) { return p >= 140; }));
    EXPECT_GE(ink, 10) << i;
    EXPECT_LE(ink, 250) << i;
  }
}

// Softmax regression by plain stochastic gradient descent, as a yardstick. It must learn something,
// because the labels belong to the images, but not enough.
TEST(SyntheticDigitsTest, SoftmaxRegressionGetsBetweenHalfAndNineTenths) {
  constexpr int kTrain = 9600, kTest = 2000, kEpochs = 6, kBatch = 32;
  const SyntheticDigits train(42, 0), test(42, 1);
  const auto read = [](const SyntheticDigits& digits, int64_t index, float* x) {
    std::array<uint8_t, kPixels> bytes;
    digits.Draw(index, bytes.data());
    BytesToFloats(bytes.data(), kPixels, x);
    return digits.Label(index);
  };
  // weights[pixel][class]; the last row is the bias.
  std::vector<std::array<float, kClasses>> weights(kPixels + 1), gradient(kPixels + 1);
  const auto scores = [&weights](const float* x) {
    std::array<float, kClasses> s = weights[kPixels];
    for (int p = 0; p < kPixels; ++p) {
      const float* const row = weights[p].data();
      for (int k = 0; k < kClasses; ++k) s[k] += x[p] * row[k];
    }
    return s;
  };

  std::vector<float> images(size_t{kTrain} * kPixels);
  std::vector<int32_t> labels(kTrain);
  for (int i = 0; i < kTrain; ++i) labels[i] = read(train, i, &images[size_t(i) * kPixels]);
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const float rate = 0.1f / static_cast<float>(epoch + 1) / kBatch;
    for (int first = 0; first < kTrain; first += kBatch) {
      for (auto& row : gradient) row.fill(0.0f);
      for (int i = first; i < first + kBatch; ++i) {
        const float* const x = &images[size_t(i) * kPixels];
        std::array<float, kClasses> s = scores(x);
        const float most = *std::max_element(s.begin(), s.end());
        float sum = 0.0f;
        for (float& v : s) sum += v = std::exp(v - most);
        for (int k = 0; k < kClasses; ++k) s[k] = s[k] / sum - (k == labels[i] ? 1.0f : 0.0f);
        for (int p = 0; p < kPixels; ++p) {
          float* const row = gradient[p].data();
          for (int k = 0; k < kClasses; ++k) row[k] += x[p] * s[k];
        }
        for (int k = 0; k < kClasses; ++k) gradient[kPixels][k] += s[k];
      }
      for (int p = 0; p <= kPixels; ++p) {
        for (int k = 0; k < kClasses; ++k) weights[p][k] -= rate * gradient[p][k];
      }
    }
  }

  int right = 0;
  std::vector<float> x(kPixels);
  for (int i = 0; i < kTest; ++i) {
    const int32_t label = read(test, i, x.data());
    const std::array<float, kClasses> s = scores(x.data());
    right += std::max_element(s.begin(), s.end()) - s.begin() == label;
  }
  const double accuracy = static_cast<double>(right) / kTest;
  RecordProperty("accuracy", std::to_string(accuracy));
  std::printf("softmax regression: test accuracy %.4f\n", accuracy);
  EXPECT_GT(accuracy, 0.5);
  EXPECT_LE(accuracy, 0.9);
}

}  // namespace
}  // namespace capstan::data
