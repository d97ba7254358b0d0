#include "gpu_worker/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/idx_test_files.h"
#include "gpu_worker/data/pixels.h"
#include "gpu_worker/data/synthetic_digits.h"

namespace capstan::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 3 training images of 1 x 2 pixels in a packed file, and 1 test image.
void WriteSet(const TempFolder& folder) {
  folder.Write("train-images-idx3-ubyte.gz",
               Gzip(IdxImages(3, 1, 2, std::string("\x00\xff\x01\x02\x80\x33", 6))));
  folder.Write("train-labels-idx1-ubyte", IdxLabels(3, std::string("\x05\x00\x09", 3)));
  folder.Write("t10k-images-idx3-ubyte", IdxImages(1, 1, 2, "ab"));
  folder.Write("t10k-labels-idx1-ubyte.gz", Gzip(IdxLabels(1, "\x01")));
}

DatasetOptions Idx(const TempFolder& folder) {
  DatasetOptions options;
  options.path_or_uri = "file://" + folder.path();
  return options;
}

TEST(DatasetTest, ReadsIdxByIndex) {
  const TempFolder folder;
  WriteSet(folder);
  const auto set = OpenDataset(Idx(folder), Split::kTrain);
  ASSERT_TRUE(set.ok()) << set.status();
  const DatasetInfo& info = (*set)->info();
  EXPECT_EQ(info.count, 3);
  EXPECT_EQ(info.channels, 1);
  EXPECT_EQ(info.height, 1);
  EXPECT_EQ(info.width, 2);
  EXPECT_EQ(info.num_classes, 10);

  std::vector<float> images(6, -1.0f);
  std::vector<int32_t> labels(3, -1);
  ASSERT_TRUE((*set)->Read({2, 0, 2}, 0, images.data(), labels.data()).ok());
  EXPECT_THAT(labels, ElementsAre(9, 5, 9));
  EXPECT_THAT(images,
              ElementsAre(128.0f / 255.0f, 51.0f / 255.0f, 0.0f, 1.0f, 128.0f / 255.0f, 0.2f));
}

TEST(DatasetTest, AnIndexOutsideIsRefusedAndNothingWritten) {
  const TempFolder folder;
  WriteSet(folder);
  const auto set = OpenDataset(Idx(folder), Split::kTest);
  ASSERT_TRUE(set.ok()) << set.status();
  for (const int64_t index : {int64_t{-1}, int64_t{1}, int64_t{1} << 62}) {
    float images[4] = {7, 7, 7, 7};
    int32_t labels[2] = {7, 7};
    EXPECT_EQ((*set)->Read({0, index}, 0, images, labels).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(images[0], 7);
    EXPECT_EQ(labels[0], 7);
  }
}

// Images from ReadBytes, as the floats that the bytes stand for.
std::vector<float> FloatsOfBytes(const Dataset& set, const std::vector<int64_t>& indices,
                                 int64_t epoch) {
  const int64_t size = set.info().image_size();
  std::vector<uint8_t> bytes(indices.size() * size);
  std::vector<int32_t> labels(indices.size());
  EXPECT_TRUE(set.ReadBytes(indices, epoch, bytes.data(), labels.data()).ok());
  const absl::Span<const float> values = set.byte_values();
  const int64_t share =
      size * static_cast<int64_t>(kByteValues) / static_cast<int64_t>(values.size());
  std::vector<float> images;
  for (size_t i = 0; i < bytes.size(); ++i) {
    images.push_back(values[static_cast<int64_t>(i) % size / share * kByteValues + bytes[i]]);
  }
  return images;
}

TEST(DatasetTest, BytesStandForTheFloats) {
  const TempFolder folder;
  WriteSet(folder);
  const auto set = OpenDataset(Idx(folder), Split::kTrain);
  ASSERT_TRUE(set.ok()) << set.status();
  uint8_t bytes[4];
  int32_t labels[2];
  ASSERT_TRUE((*set)->ReadBytes({2, 0}, 0, bytes, labels).ok());
  EXPECT_THAT(bytes, ElementsAre(0x80, 0x33, 0, 0xff));
  EXPECT_THAT(labels, ElementsAre(9, 5));
  EXPECT_THAT(FloatsOfBytes(**set, {2, 0}, 0),
              ElementsAre(128.0f / 255.0f, 51.0f / 255.0f, 0.0f, 1.0f));
  EXPECT_EQ((*set)->ReadBytes({0, 3}, 0, bytes, labels).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(bytes[0], 0x80);
}

TEST(DatasetTest, AsInEvaluationNothingIsDrawn) {
  DatasetOptions options;
  options.format = Format::kSyntheticDigits;
  options.train_samples = options.test_samples = 20;
  std::vector<int64_t> all(20);
  for (int i = 0; i < 20; ++i) all[i] = i;
  const auto images_of = [&](const DatasetOptions& which) {
    std::vector<float> images(20 * 28 * 28);
    std::vector<int32_t> labels(20);
    EXPECT_TRUE((*OpenDataset(which, Split::kTrain))
                    ->Read(all, /*epoch=*/0, images.data(), labels.data())
                    .ok());
    return images;
  };
  const std::vector<float> plain = images_of(options);
  options.transforms = {RandomCrop{0, 2}, RandomFlip{}, Cutout{6}};
  EXPECT_NE(images_of(options), plain);
  options.as_evaluation = true;
  EXPECT_EQ(images_of(options), plain);
}

TEST(DatasetTest, TransformsOfBytesStandForTheirFloats) {
  DatasetOptions options;
  options.format = Format::kSyntheticDigits;
  options.seed = 3;
  options.train_samples = options.test_samples = 40;
  options.transforms = {RandomCrop{24, 2}, RandomFlip{}, Cutout{6}, Normalize{{0.5f}, {0.25f}}};
  std::vector<int64_t> all(40);
  for (int i = 0; i < 40; ++i) all[i] = i;
  for (const Split split : {Split::kTrain, Split::kTest}) {
    const auto set = OpenDataset(options, split);
    ASSERT_TRUE(set.ok()) << set.status();
    for (const int64_t epoch : {0, 5}) {
      std::vector<float> images(40 * 24 * 24);
      std::vector<int32_t> labels(40);
      ASSERT_TRUE((*set)->Read(all, epoch, images.data(), labels.data()).ok());
      EXPECT_EQ(FloatsOfBytes(**set, all, epoch), images);
    }
  }
  // A new list, because GCC 12 warns about uninitialised memory if elements are pushed onto the old
  // one.
  options.transforms = {Resize{12}};
  const auto floats = OpenDataset(options, Split::kTrain);
  ASSERT_TRUE(floats.ok()) << floats.status();
  EXPECT_TRUE((*floats)->byte_values().empty());
  std::vector<uint8_t> bytes(144);
  int32_t label = 0;
  EXPECT_EQ((*floats)->ReadBytes({0}, 0, bytes.data(), &label).code(),
            absl::StatusCode::kFailedPrecondition);
}

// A set that is not held gives the same images, and an error once the file has been replaced.
TEST(DatasetTest, WhatIsNotHeldIsReadFromTheFile) {
  const TempFolder folder;
  const std::string path = folder.Write("train-images-idx3-ubyte", IdxImages(3, 1, 2, "abcdef"));
  folder.Write("train-labels-idx1-ubyte", IdxLabels(3, std::string("\x05\x00\x09", 3)));
  DatasetOptions options = Idx(folder);
  const auto held = OpenDataset(options, Split::kTrain);
  options.hold_bytes = 8;  // one byte too few
  const auto left = OpenDataset(options, Split::kTrain);
  ASSERT_TRUE(held.ok() && left.ok()) << left.status();
  std::vector<float> want(6), got(6);
  std::vector<int32_t> labels(3);
  ASSERT_TRUE((*held)->Read({2, 0, 2}, 0, want.data(), labels.data()).ok());
  ASSERT_TRUE((*left)->Read({2, 0, 2}, 0, got.data(), labels.data()).ok());
  EXPECT_EQ(got, want);
  EXPECT_THAT(labels, ElementsAre(9, 5, 9));
  EXPECT_EQ(FloatsOfBytes(**left, {2, 0, 2}, 0), want);

  const auto expect = [&](const std::string& message) {
    const absl::Status status = (*left)->Read({1}, 0, got.data(), labels.data());
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(FailureReason(status), "DataMissing");
    EXPECT_EQ(status.message(), path + ": " + message);
    EXPECT_TRUE((*held)->Read({1}, 0, got.data(), labels.data()).ok());
  };
  std::filesystem::last_write_time(path,
                                   std::filesystem::last_write_time(path) + std::chrono::hours(1));
  expect("has changed since it was opened");
  std::filesystem::resize_file(path, 19);
  expect("ends at offset 19, had 22 bytes when it was opened");
}

// 5 GB, of which the file system stores only what was written. More than the limit of held bytes.
TEST(DatasetTest, ASetMayBeLargerThanTheLimitOfMemory) {
  constexpr int64_t kImages = 5000, kSide = 1024;
  const TempFolder folder;
  const std::string path =
      folder.Write("train-images-idx3-ubyte", IdxImages(kImages, kSide, kSide, ""));
  const int64_t bytes = 16 + kImages * kSide * kSide;
  std::filesystem::resize_file(path, bytes);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(bytes - 1);
    file << '\xff';
    ASSERT_TRUE(file.flush().good());
  }
  folder.Write("train-labels-idx1-ubyte",
               IdxLabels(kImages, std::string(kImages - 1, '\x01') + '\x07'));
  const DatasetOptions options = Idx(folder);
  ASSERT_GT(bytes, options.memory_limit_bytes);
  const auto set = OpenDataset(options, Split::kTrain);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ((*set)->info().count, kImages);
  std::vector<float> image(kSide * kSide, 9);
  int32_t label = -1;
  ASSERT_TRUE((*set)->Read({kImages - 1}, 0, image.data(), &label).ok());
  EXPECT_EQ(label, 7);
  EXPECT_EQ(image.front(), 0);
  EXPECT_EQ(image.back(), 1);
}

TEST(DatasetTest, ProbeKnowsBothSplits) {
  const TempFolder folder;
  WriteSet(folder);
  const auto probe = ProbeDataset(Idx(folder));
  ASSERT_TRUE(probe.ok()) << probe.status();
  EXPECT_EQ(probe->train.count, 3);
  EXPECT_EQ(probe->test.count, 1);
  EXPECT_EQ(probe->test.image_size(), 2);
}

void ExpectProbe(const DatasetOptions& options, const std::string& reason,
                 const std::string& message) {
  const absl::Status status = ProbeDataset(options).status();
  EXPECT_EQ(FailureReason(status), reason) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(DatasetTest, WhatDoesNotFitIsInvalidSpec) {
  const TempFolder folder;
  WriteSet(folder);
  DatasetOptions options = Idx(folder);
  options.num_classes = 9;
  ExpectProbe(options, "InvalidSpec", "label 9 at offset 10");
  options.num_classes = 0;
  ExpectProbe(options, "InvalidSpec", "num_classes is 0");
  options = Idx(folder);
  options.memory_limit_bytes = 8;  // 6 pixels and 3 labels
  ExpectProbe(options, "InvalidSpec",
              "3 images of 1 x 2 need 9 bytes of memory, limit 8; images of a file that is not "
              "packed are read as they are wanted");
  options = Idx(folder);
  options.roots = {"/nowhere"};
  ExpectProbe(options, "InvalidSpec", "escapes the data root");

  folder.Write("t10k-images-idx3-ubyte", IdxImages(1, 2, 1, "ab"));
  ExpectProbe(Idx(folder), "InvalidSpec", "images of 1 x 2, but ");
  folder.Write("train-labels-idx1-ubyte", IdxLabels(2, "\x01\x02"));
  ExpectProbe(Idx(folder), "InvalidSpec", "2 labels, but ");
}

TEST(DatasetTest, DamageInsideTheImagesIsFoundOnOpening) {
  const TempFolder folder;
  WriteSet(folder);
  std::string packed = Gzip(IdxImages(3, 1, 2, "abcdef"));
  packed[packed.size() - 5] ^= 1;
  folder.Write("train-images-idx3-ubyte.gz", packed);
  EXPECT_TRUE(ProbeDataset(Idx(folder)).ok());
  const absl::Status status = OpenDataset(Idx(folder), Split::kTrain).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(FailureReason(status), "DataMissing");
  EXPECT_THAT(std::string(status.message()), HasSubstr("train-images-idx3-ubyte.gz: "));
}

DatasetOptions Synthetic(int64_t train_samples) {
  DatasetOptions options;
  options.format = Format::kSyntheticDigits;
  options.seed = 42;
  options.train_samples = train_samples;
  options.test_samples = 10;
  return options;
}

TEST(DatasetTest, SyntheticImagesAreThoseOfTheGenerator) {
  DatasetOptions options = Synthetic(50);
  const SyntheticDigits digits(42, 0);
  uint8_t bytes[SyntheticDigits::kPixels];
  digits.Draw(49, bytes);
  for (const int64_t memory : {int64_t{1} << 20, int64_t{0}}) {  // kept, and drawn each time
    options.memory_limit_bytes = memory;
    const auto set = OpenDataset(options, Split::kTrain);
    ASSERT_TRUE(set.ok()) << set.status();
    EXPECT_EQ((*set)->info().image_size(), 784);
    for (int repeat = 0; repeat < 2; ++repeat) {
      std::vector<float> images(784);
      int32_t label = -1;
      ASSERT_TRUE((*set)->Read({49}, 0, images.data(), &label).ok());
      EXPECT_EQ(label, digits.Label(49));
      for (int i = 0; i < 784; ++i)
        ASSERT_EQ(images[i], static_cast<float>(bytes[i]) / 255.0f) << i;
    }
  }
}

TEST(DatasetTest, ManyThreadsReadTheSameImages) {
  const auto set = OpenDataset(Synthetic(64), Split::kTrain);
  ASSERT_TRUE(set.ok()) << set.status();
  std::vector<int64_t> indices(64);
  for (int i = 0; i < 64; ++i) indices[i] = i;
  std::vector<std::vector<float>> images(4, std::vector<float>(64 * 784));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&set, &indices, &images, t] {
      std::vector<int32_t> labels(64);
      EXPECT_TRUE((*set)->Read(indices, 0, images[t].data(), labels.data()).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 1; t < 4; ++t) EXPECT_EQ(images[t], images[0]);
}

TEST(DatasetTest, SyntheticOptionsAreChecked) {
  DatasetOptions options = Synthetic(0);
  ExpectProbe(options, "InvalidSpec", "data.train_samples is 0, want 1 to 1000000000");
  options = Synthetic(10);
  options.num_classes = 9;
  ExpectProbe(options, "InvalidSpec", "num_classes is 9, synthetic_digits has 10");
  EXPECT_EQ(ProbeDataset(Synthetic(77))->train.count, 77);
}

TEST(PixelsTest, EveryByteIsTheRoundedQuotient) {
  std::vector<uint8_t> bytes(256 + 7);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i);
  std::vector<float> out(bytes.size());
  BytesToFloats(bytes.data(), bytes.size(), out.data());
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(out[i], static_cast<float>(bytes[i] / 255.0L)) << i;
  }
}

}  // namespace
}  // namespace capstan::data
