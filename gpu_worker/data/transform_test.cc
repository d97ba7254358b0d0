#include "gpu_worker/data/transform.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpu_worker/data/dataset.h"
#include "gpu_worker/data/failure.h"

namespace capstan::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// [channels, height, width] with pixel = 1, 2, 3, ...: no pixel is 0, and no two are equal.
std::vector<float> Counted(const ImageShape& shape) {
  std::vector<float> image(shape.size());
  std::iota(image.begin(), image.end(), 1.0f);
  return image;
}

std::vector<float> ApplyTo(const std::vector<float>& image, const Transforms& transforms,
                           std::optional<Transforms::Draw> draw) {
  Transforms::Scratch scratch;
  scratch.image = image;
  scratch.image.resize(transforms.scratch_size());
  scratch.other.resize(transforms.scratch_size());
  std::vector<float> out(transforms.output().size());
  transforms.Apply(draw, scratch, out.data());
  return out;
}

Transforms MakeTransforms(const ImageShape& shape, std::vector<Transform> list, uint64_t seed = 7) {
  auto made = Transforms::Create(shape, std::move(list), seed);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

TEST(TransformTest, CropsByHand) {
  const ImageShape shape{2, 2, 3};
  const std::vector<float> in = Counted(shape);  // 1 2 3 / 4 5 6, 7 8 9 / 10 11 12
  const auto crop = [&](int64_t padding, const CropWindow& window) {
    std::vector<float> out(2 * window.rows * window.columns, -1);
    CropImage(in.data(), shape, padding, window, out.data());
    return out;
  };
  EXPECT_EQ(crop(0, {0, 0, 2, 3}), in);
  EXPECT_EQ(crop(1, {1, 1, 2, 3}), in);
  EXPECT_THAT(crop(0, {1, 1, 1, 2}), ElementsAre(5, 6, 11, 12));
  EXPECT_THAT(crop(1, {0, 0, 2, 2}), ElementsAre(0, 0, 0, 1, 0, 0, 0, 7));
  EXPECT_THAT(crop(1, {2, 3, 2, 2}), ElementsAre(6, 0, 0, 0, 12, 0, 0, 0));
  // Wider than the image, and next to it.
  EXPECT_THAT(crop(1, {1, 0, 1, 5}), ElementsAre(0, 1, 2, 3, 0, 0, 7, 8, 9, 0));
  EXPECT_THAT(crop(4, {4, 0, 1, 2}), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(crop(4, {4, 9, 1, 2}), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(crop(4, {0, 4, 1, 2}), ElementsAre(0, 0, 0, 0));
}

TEST(TransformTest, FlipsByHand) {
  const ImageShape shape{2, 2, 3};
  std::vector<float> image = Counted(shape);
  FlipImage(image.data(), shape, /*vertical=*/false);
  EXPECT_THAT(image, ElementsAre(3, 2, 1, 6, 5, 4, 9, 8, 7, 12, 11, 10));
  image = Counted({1, 3, 2});
  FlipImage(image.data(), {1, 3, 2}, /*vertical=*/true);
  EXPECT_THAT(image, ElementsAre(5, 6, 3, 4, 1, 2));
}

TEST(TransformTest, NormalizesByChannel) {
  const ImageShape shape{2, 1, 2};
  std::vector<float> image = {0.5f, 1, 0, 0.25f};
  NormalizeImage(image.data(), shape, {{0.5f, 0.25f}, {0.5f, 2}});
  EXPECT_THAT(image, ElementsAre(0, 1, -0.125f, 0));
  image = {0.5f, 1, 0, 0.25f};
  NormalizeImage(image.data(), shape, {{0.5f}, {0.25f}});
  EXPECT_THAT(image, ElementsAre(0, 2, -2, -1));
}

// By hand from PyTorch's definition: source = (i + 0.5) * in / out - 0.5, not below 0.
TEST(TransformTest, ResizesBetweenCenters) {
  const auto resize = [](const std::vector<float>& in, const ImageShape& shape, int64_t size) {
    std::vector<float> out(shape.channels * size * size);
    ResizeImage(in.data(), shape, size, out.data());
    return out;
  };
  EXPECT_THAT(resize({1, 2, 3, 4}, {1, 2, 2}, 1), ElementsAre(2.5f));
  EXPECT_THAT(resize({1, 2, 3, 4}, {1, 2, 2}, 2), ElementsAre(1, 2, 3, 4));
  // Rows and columns at 0, 0.25, 0.75, 1.
  EXPECT_THAT(resize({0, 4, 8, 12}, {1, 2, 2}, 4),
              ElementsAre(0, 1, 3, 4, 2, 3, 5, 6, 6, 7, 9, 10, 8, 9, 11, 12));
  EXPECT_THAT(resize({1, 2, 3, 4, 5, 6, 7, 8}, {2, 1, 4}, 2),
              ElementsAre(1.5f, 3.5f, 1.5f, 3.5f, 5.5f, 7.5f, 5.5f, 7.5f));
  EXPECT_THAT(resize({3}, {1, 1, 1}, 3), testing::Each(3.0f));
}

TEST(TransformTest, CutsOutWhatLiesInside) {
  const ImageShape shape{2, 3, 3};
  const auto zeros = [&](int64_t size, int64_t row, int64_t column) {
    std::vector<float> image = Counted(shape);
    CutOutOfImage(image.data(), shape, size, row, column);
    std::set<int> at;
    for (int i = 0; i < 9; ++i) {
      EXPECT_EQ(image[i] == 0, image[9 + i] == 0) << i;  // the same in all channels
      if (image[i] == 0) at.insert(i);
    }
    return at;
  };
  EXPECT_THAT(zeros(1, 1, 1), ElementsAre(4));
  EXPECT_THAT(zeros(2, 1, 1), ElementsAre(0, 1, 3, 4));  // rows and columns 0 and 1
  EXPECT_THAT(zeros(2, 0, 2), ElementsAre(1, 2));        // row -1 is outside
  EXPECT_THAT(zeros(3, 2, 2), ElementsAre(4, 5, 7, 8));
  EXPECT_EQ(zeros(100, 1, 1).size(), 9u);
}

// The draw follows the definition in the header: words 0 and 1 of block (place, sample, epoch),
// times the number of places, without the lower 32 bits.
TEST(TransformTest, AGivenDrawGivesThisCrop) {
  const ImageShape shape{1, 8, 8};
  const std::vector<float> image = Counted(shape);
  const Transforms transforms = MakeTransforms(shape, {RandomFlip{}, RandomCrop{0, 2}}, 42);
  const training::Philox philox(42, training::Purpose::kAugment);
  for (const int64_t epoch : {int64_t{0}, int64_t{3}, (int64_t{1} << 40) + 5}) {
    for (const int64_t sample : {0, 1, 49999}) {
      const auto low = static_cast<uint32_t>(epoch);
      const auto high = static_cast<uint32_t>(epoch >> 32);
      const auto id = static_cast<uint32_t>(sample);
      const training::PhiloxBlock flip = philox.Block({0, id, low, high});
      const training::PhiloxBlock crop = philox.Block({1, id, low, high});
      const int64_t top = static_cast<int64_t>(crop[0] * 5.0 / 4294967296.0);
      const int64_t left = static_cast<int64_t>(crop[1] * 5.0 / 4294967296.0);
      std::vector<float> want;
      for (int64_t row = top - 2; row < top + 6; ++row) {
        for (int64_t column = left - 2; column < left + 6; ++column) {
          const int64_t from = flip[0] >= 0x80000000u ? 7 - column : column;
          const bool inside = row >= 0 && row < 8 && column >= 0 && column < 8;
          want.push_back(inside ? image[row * 8 + from] : 0);
        }
      }
      EXPECT_EQ(ApplyTo(image, transforms, {{epoch, sample}}), want) << epoch << " " << sample;
    }
  }
}

TEST(TransformTest, DrawsAreUniformAndDifferByEpochSampleSeedAndPlace) {
  const ImageShape shape{1, 8, 8};
  const std::vector<float> image = Counted(shape);
  const auto first_of = [&](const Transforms& transforms, int64_t epoch, int64_t sample) {
    return ApplyTo(image, transforms, {{epoch, sample}})[0];
  };
  // A window of one pixel shows its place.
  const Transforms pixel = MakeTransforms(shape, {RandomCrop{1, 0}});
  const Transforms other_seed = MakeTransforms(shape, {RandomCrop{1, 0}}, 8);
  const Transforms other_place = MakeTransforms(shape, {RandomCrop{0, 0}, RandomCrop{1, 0}});
  constexpr int kDraws = 6400;
  std::map<float, int> counts;
  int same_epoch = 0, same_sample = 0, same_seed = 0, same_place = 0;
  for (int sample = 0; sample < kDraws; ++sample) {
    const float at = first_of(pixel, 0, sample);
    ++counts[at];
    EXPECT_EQ(first_of(pixel, 0, sample), at);
    same_epoch += first_of(pixel, 1, sample) == at;
    same_sample += first_of(pixel, 0, sample + kDraws) == at;
    same_seed += first_of(other_seed, 0, sample) == at;
    same_place += first_of(other_place, 0, sample) == at;
  }
  // 64 places with 100 draws each: chi squared with 63 degrees of freedom is below 114 with
  // probability 0.9999. Unrelated draws agree in 100 of 6400 cases, with a standard deviation of
  // 10.
  EXPECT_EQ(counts.size(), 64u);
  double chi_squared = 0;
  for (const auto& [at, count] : counts) chi_squared += (count - 100.0) * (count - 100.0) / 100;
  EXPECT_LT(chi_squared, 114);
  for (const int same : {same_epoch, same_sample, same_seed, same_place}) {
    EXPECT_NEAR(same, 100, 50);
  }

  const Transforms flip = MakeTransforms(shape, {RandomFlip{}});
  int flipped = 0;
  for (int sample = 0; sample < kDraws; ++sample) flipped += first_of(flip, 2, sample) == 8;
  EXPECT_NEAR(flipped, kDraws / 2.0, 4 * 40);  // 40 is the standard deviation
}

TEST(TransformTest, NothingIsRandomInEvaluation) {
  const ImageShape shape{1, 4, 4};
  const std::vector<float> image = Counted(shape);
  const Transforms same = MakeTransforms(shape, {RandomCrop{0, 4}, RandomFlip{}, Cutout{2}});
  EXPECT_EQ(ApplyTo(image, same, std::nullopt), image);
  EXPECT_TRUE(same.random());
  const Transforms middle =
      MakeTransforms(shape, {RandomCrop{2, 0}, Normalize{{1}, {0.5f}}, RandomFlip{true}});
  EXPECT_THAT(ApplyTo(image, middle, std::nullopt), ElementsAre(10, 12, 18, 20));
  EXPECT_FALSE(MakeTransforms(shape, {Normalize{{1}, {1}}, Resize{9}}).random());
  EXPECT_EQ(MakeTransforms(shape, {Resize{9}, RandomCrop{5, 0}}).output(), (ImageShape{1, 5, 5}));
}

TEST(TransformTest, WhatDoesNotFitIsInvalidSpec) {
  const ImageShape shape{3, 4, 6};
  const auto expect = [&](const Transform& transform, const std::string& message) {
    const absl::Status status = Transforms::Create(shape, {transform}, 1).status();
    EXPECT_EQ(FailureReason(status), "InvalidSpec") << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  };
  expect(RandomCrop{7, 1}, "random_crop: a window of 7 x 7 in an image of 6 x 8 with padding 1");
  expect(RandomCrop{2, -1}, "padding -1");
  expect(RandomCrop{-2, 0}, "a window of -2 x -2");
  expect(Normalize{{1, 2}, {1, 2}}, "2 means and 2 deviations, want 1 or 3 of each");
  expect(Normalize{{1, 2, 3}, {1}}, "3 means and 1 deviations");
  expect(Normalize{{}, {}}, "0 means");
  expect(Normalize{{1}, {0}}, "deviation 0, want above 0");
  expect(Normalize{{1}, {std::nanf("")}}, "deviation nan");
  expect(Resize{0}, "resize: size 0, want 1");
  expect(Cutout{0}, "cutout: size 0, want 1");
}

// For each list: the image as bytes, and the values of these bytes, equal the list's floats.
TEST(TransformTest, BytesComeOutAsTheFloatsDo) {
  const ImageShape shape{3, 9, 7};
  std::vector<uint8_t> bytes(shape.size());
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 + 11);
  std::vector<float> image;
  for (const uint8_t byte : bytes) image.push_back(static_cast<float>(byte) / 255.0f);
  const Normalize normalize{{0.4914f, 0.4822f, 0.4465f}, {0.2470f, 0.2435f, 0.2616f}};
  for (const std::vector<Transform>& list :
       std::vector<std::vector<Transform>>{{RandomFlip{}},
                                           {normalize},
                                           {RandomCrop{6, 3}, RandomFlip{}, Cutout{3}, normalize},
                                           {RandomFlip{true}, Normalize{{0.3f}, {0.7f}},
                                            RandomCrop{5, 0}, normalize, RandomFlip{}}}) {
    const Transforms transforms = MakeTransforms(shape, list);
    const std::vector<float>& values = transforms.byte_values();
    ASSERT_EQ(values.size(), 3 * 256u);
    const int64_t plane = transforms.output().height * transforms.output().width;
    std::vector<std::optional<Transforms::Draw>> draws = {std::nullopt};
    for (int64_t sample = 0; sample < 20; ++sample) draws.push_back({{4, sample}});
    for (const auto& draw : draws) {
      Transforms::ScratchOf<uint8_t> scratch;
      scratch.image = bytes;
      scratch.image.resize(transforms.scratch_size());
      scratch.other.resize(transforms.scratch_size());
      std::vector<uint8_t> out(transforms.output().size());
      transforms.Apply(draw, scratch, out.data());
      std::vector<float> got;
      for (size_t i = 0; i < out.size(); ++i) {
        got.push_back(values[static_cast<int64_t>(i) / plane * 256 + out[i]]);
      }
      EXPECT_EQ(got, ApplyTo(image, transforms, draw));
    }
  }
  for (const std::vector<Transform>& list : std::vector<std::vector<Transform>>{
           {Resize{4}}, {normalize, Cutout{2}}, {normalize, RandomCrop{0, 2}}}) {
    EXPECT_TRUE(MakeTransforms(shape, list).byte_values().empty());
  }
}

DatasetOptions Augmented() {
  DatasetOptions options;
  options.format = Format::kSyntheticDigits;
  options.train_samples = 64;
  options.test_samples = 64;
  options.seed = 3;
  options.transforms = {RandomCrop{24, 2}, RandomFlip{}, Cutout{6}, Normalize{{0.5f}, {0.25f}},
                        Resize{12}};
  return options;
}

struct Batch {
  std::vector<float> images;
  std::vector<int32_t> labels;
};

Batch ReadAll(const Dataset& set, const std::vector<int64_t>& indices, int64_t epoch) {
  Batch batch{std::vector<float>(indices.size() * set.info().image_size()),
              std::vector<int32_t>(indices.size())};
  EXPECT_TRUE(set.Read(indices, epoch, batch.images.data(), batch.labels.data()).ok());
  return batch;
}

// The bits of a sample depend only on seed, epoch and sample. They do not depend on who reads it,
// with which others, when, or in which thread.
TEST(TransformedDatasetTest, ASampleIsTheSameWhoeverReadsIt) {
  const auto set = OpenDataset(Augmented(), Split::kTrain);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ((*set)->info().height, 12);
  EXPECT_EQ((*set)->info().image_size(), 144);
  EXPECT_TRUE((*set)->varies());
  std::vector<int64_t> all(64);
  std::iota(all.begin(), all.end(), 0);
  const Batch whole = ReadAll(**set, all, 5);
  const auto image_of = [](const Batch& batch, int64_t at) {
    return std::vector<float>(batch.images.begin() + at * 144,
                              batch.images.begin() + (at + 1) * 144);
  };
  const auto other = OpenDataset(Augmented(), Split::kTrain);  // another worker's
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 60 + t; i >= 0; i -= 4) {
        const Batch pair = ReadAll(**other, {(i + 7) % 64, i}, 5);
        EXPECT_EQ(image_of(pair, 1), image_of(whole, i)) << i;
        EXPECT_EQ(pair.labels[1], whole.labels[i]) << i;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  const Batch next = ReadAll(**set, all, 6);
  EXPECT_EQ(next.labels, whole.labels);
  int equal = 0;
  for (int64_t i = 0; i < 64; ++i) equal += image_of(next, i) == image_of(whole, i);
  EXPECT_LE(equal, 2);  // 25 places x 2 x a cutout
  std::vector<float> untouched(2 * 144, 9);
  int32_t labels[2] = {9, 9};
  EXPECT_EQ((*set)->Read({0, 64}, 0, untouched.data(), labels).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(untouched[0], 9);
}

TEST(TransformedDatasetTest, TheTestSetIsAsInEvaluation) {
  DatasetOptions options = Augmented();
  const auto set = OpenDataset(options, Split::kTest);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_FALSE((*set)->varies());
  const Batch batch = ReadAll(**set, {3, 4}, 0);
  EXPECT_EQ(ReadAll(**set, {3, 4}, 9).images, batch.images);
  // Compared with its parts: the middle of the padded image, normalised, then reduced.
  options.transforms.clear();
  const auto plain = OpenDataset(options, Split::kTest);
  const Batch raw = ReadAll(**plain, {3}, 0);
  std::vector<float> middle(24 * 24), want(12 * 12);
  CropImage(raw.images.data(), {1, 28, 28}, 2, {4, 4, 24, 24}, middle.data());
  NormalizeImage(middle.data(), {1, 24, 24}, {{0.5f}, {0.25f}});
  ResizeImage(middle.data(), {1, 24, 24}, 12, want.data());
  EXPECT_EQ(std::vector<float>(batch.images.begin(), batch.images.begin() + 144), want);
  EXPECT_FALSE((*OpenDataset(options, Split::kTrain))->varies());
}

TEST(TransformedDatasetTest, TransformsThatDoNotFitAreRefused) {
  DatasetOptions options = Augmented();
  options.transforms = {RandomCrop{64, 0}};
  EXPECT_EQ(FailureReason(OpenDataset(options, Split::kTrain).status()), "InvalidSpec");
  EXPECT_EQ(ProbeDataset(options)->train.height, 28);
}

}  // namespace
}  // namespace capstan::data
