#include "gpu_worker/data/cifar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lzma.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/data_path.h"
#include "gpu_worker/data/dataset.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/idx_test_files.h"

namespace capstan::data {
namespace {

using ::testing::HasSubstr;

// Written from the definition of the format: the label, then three planes of 1024 bytes. Pixel p of
// plane c is label + 50 c + p, modulo 256.
std::string Record(int label) {
  std::string record(1, static_cast<char>(label));
  for (int plane = 0; plane < 3; ++plane) {
    for (int pixel = 0; pixel < 1024; ++pixel) {
      record.push_back(static_cast<char>(label + 50 * plane + pixel));
    }
  }
  return record;
}

std::string Records(const std::string& labels) {
  std::string out;
  for (const char label : labels) out += Record(label);
  return out;
}

std::string Xz(const std::string& bytes) {
  std::string out(lzma_stream_buffer_bound(bytes.size()), '\0');
  size_t size = 0;
  EXPECT_EQ(lzma_easy_buffer_encode(1, LZMA_CHECK_CRC64, nullptr,
                                    reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(),
                                    reinterpret_cast<uint8_t*>(out.data()), &size, out.size()),
            LZMA_OK);
  out.resize(size);
  return out;
}

DatasetOptions Cifar(const TempFolder& folder) {
  DatasetOptions options;
  options.format = Format::kCifar10Bin;
  options.path_or_uri = folder.path();
  return options;
}

void ExpectBoth(const DatasetOptions& options, absl::StatusCode code, const std::string& reason,
                const std::string& message) {
  for (const absl::Status& status :
       {ProbeDataset(options).status(), OpenDataset(options, Split::kTrain).status()}) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(FailureReason(status), reason) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST(CifarTest, ReadsPlanesOfAllBatchesByIndex) {
  const TempFolder folder;
  folder.Write("data_batch_1.bin", Records({3, 9}));
  folder.Write("data_batch_2.bin.gz", Gzip(Records({0})));
  folder.Write("data_batch_3.bin.xz", Xz(Records({7, 1, 2})));
  folder.Write("test_batch.bin", Records({5}));
  const auto set = OpenDataset(Cifar(folder), Split::kTrain);
  ASSERT_TRUE(set.ok()) << set.status();
  const DatasetInfo& info = (*set)->info();
  EXPECT_EQ(info.count, 6);
  EXPECT_EQ(info.batches, 3);
  EXPECT_EQ(info.channels, 3);
  EXPECT_EQ(info.height, 32);
  EXPECT_EQ(info.width, 32);
  std::vector<float> images(2 * 3072);
  int32_t labels[2];
  ASSERT_TRUE((*set)->Read({3, 2}, 0, images.data(), labels).ok());
  EXPECT_EQ(labels[0], 7);
  EXPECT_EQ(labels[1], 0);
  EXPECT_EQ(images[0], 7 / 255.0f);                             // red, first row
  EXPECT_EQ(images[1024 + 33], (7 + 50 + 33) / 255.0f);         // green, second row
  EXPECT_EQ(images[2 * 1024 + 100], (7 + 100 + 100) / 255.0f);  // blue
  EXPECT_EQ(images[3072 + 1023], (1023 % 256) / 255.0f);

  const auto probe = ProbeDataset(Cifar(folder));
  ASSERT_TRUE(probe.ok()) << probe.status();
  EXPECT_EQ(probe->train.count, 6);
  EXPECT_EQ(probe->train.batches, 3);
  EXPECT_EQ(probe->test.count, 1);
  EXPECT_EQ(probe->test.batches, 0);
}

TEST(CifarTest, AbsentFilesAreDataMissing) {
  const TempFolder folder;
  const absl::StatusCode absent = absl::StatusCode::kNotFound;
  ExpectBoth(Cifar(folder), absent, "DataMissing", "/data_batch_1.bin: no such file");
  folder.Write("data_batch_1.bin", Record(1));
  EXPECT_THAT(std::string(ProbeDataset(Cifar(folder)).status().message()),
              HasSubstr("/test_batch.bin: no such file"));
  folder.Write("test_batch.bin", Record(1));
  EXPECT_EQ(ProbeDataset(Cifar(folder))->train.batches, 1);
  // Otherwise two hosts might have equal counts of different images.
  folder.Write("data_batch_4.bin.xz", Xz(Record(1)));
  ExpectBoth(Cifar(folder), absent, "DataMissing",
             "data_batch_4.bin exists without those before it: ");
  folder.Write("data_batch_2.bin", Record(1));
  ExpectBoth(Cifar(folder), absent, "DataMissing", "/data_batch_3.bin: no such file");
}

TEST(CifarTest, DamageIsNamedWithFileValueAndLimit) {
  const TempFolder folder;
  folder.Write("test_batch.bin", Record(1));
  const auto expect = [&folder](const std::string& bytes, const std::string& message) {
    for (const char* name : {"data_batch_1.bin", "data_batch_1.bin.gz", "data_batch_1.bin.xz"}) {
      const std::string kind = std::filesystem::path(name).extension();
      const std::string path = folder.Write(name, kind == ".gz"   ? Gzip(bytes)
                                                  : kind == ".xz" ? Xz(bytes)
                                                                  : bytes);
      ExpectBoth(Cifar(folder), absl::StatusCode::kDataLoss, "DataMissing",
                 absl::StrCat(path, ": ", message));
      std::filesystem::remove(path);
    }
  };
  expect(Record(1) + "x", "3074 bytes, want a multiple of 3073 (a record), at least one");
  expect(Record(1).substr(1), "3072 bytes, want a multiple of 3073");
  expect("", "0 bytes, want a multiple of 3073");
  expect(Record(1) + Record(10), "label 10 at offset 3073, want 0 to 9");
  // In the second block.
  std::string many;
  for (int i = 0; i < 600; ++i) many += Record(i % 10);
  expect(many + Record(200), "label 200 at offset 1843800, want 0 to 9");
  expect(many + "x", "1843801 bytes, want a multiple of 3073");
}

TEST(CifarTest, PackedDamageIsDataMissing) {
  const TempFolder folder;
  folder.Write("test_batch.bin", Record(1));
  const std::string whole = Xz(Records({1, 2, 3}));
  std::string flipped = whole;
  flipped[whole.size() / 2] ^= 1;
  for (const auto& [bytes, message] : std::vector<std::pair<std::string, std::string>>{
           {whole.substr(0, whole.size() - 8), "xz truncated at offset "},
           {"", "xz truncated at offset 0"},
           {"no xz at all", "xz expected, not found at offset "},
           {whole + "x", "bytes follow the end of the xz data at offset "},
           {flipped, "xz damaged at offset "}}) {
    folder.Write("data_batch_1.bin.xz", bytes);
    ExpectBoth(Cifar(folder), absl::StatusCode::kDataLoss, "DataMissing", message);
  }
}

// 16 MiB of zeros, which are valid labels and pixels, in a few KiB.
TEST(CifarTest, MoreThanTheLimitIsNotUnpacked) {
  const TempFolder folder;
  const std::string bomb = Xz(std::string(3073 * 5461, '\0'));
  ASSERT_LT(bomb.size(), 10000u);
  folder.Write("data_batch_1.bin.xz", bomb);
  folder.Write("test_batch.bin", Record(1));
  DatasetOptions options = Cifar(folder);
  options.memory_limit_bytes = 1 << 20;
  // The first block of 512 records exceeds the limit.
  ExpectBoth(options, absl::StatusCode::kInvalidArgument, "InvalidSpec",
             "need 1573376 bytes of memory or more, limit 1048576");
}

// Files that are held, including packed ones, and files that are read when an image is needed.
TEST(CifarTest, ReadsHeldFilesAndOthers) {
  const TempFolder folder;
  folder.Write("data_batch_1.bin", Records({3, 9}));
  folder.Write("data_batch_2.bin.gz", Gzip(Records({0})));
  folder.Write("data_batch_3.bin", Records({7, 1, 2}));
  folder.Write("test_batch.bin", Records({5}));
  const std::vector<int64_t> indices = {5, 0, 2, 3, 1, 4};
  std::vector<float> want(6 * 3072);
  std::vector<int32_t> labels(6);
  DatasetOptions options = Cifar(folder);
  const auto held = OpenDataset(options, Split::kTrain);
  ASSERT_TRUE(held.ok()) << held.status();
  ASSERT_TRUE((*held)->Read(indices, 0, want.data(), labels.data()).ok());
  // By hand: the last image has the label 2, and its second plane begins with 2 + 50.
  EXPECT_EQ(want[0], 2 / 255.0f);
  EXPECT_EQ(want[1024], 52 / 255.0f);
  for (const int64_t hold : {0, 3 * 3073, 1 << 20}) {  // none; the first file; both
    options.hold_bytes = hold;
    const auto set = OpenDataset(options, Split::kTrain);
    ASSERT_TRUE(set.ok()) << set.status();
    std::vector<float> got(6 * 3072);
    labels.assign(6, -1);
    ASSERT_TRUE((*set)->Read(indices, 0, got.data(), labels.data()).ok());
    EXPECT_EQ(got, want) << hold;
    EXPECT_EQ(labels, (std::vector<int32_t>{2, 3, 0, 7, 9, 1})) << hold;
    // Files that are not held must not change.
    const std::string path = folder.path() + "/data_batch_3.bin";
    const auto written = std::filesystem::last_write_time(path);
    std::filesystem::last_write_time(path, written + std::chrono::hours(1));
    EXPECT_EQ((*set)->Read({5}, 0, got.data(), labels.data()).ok(), hold == 1 << 20);
    EXPECT_TRUE((*set)->Read({0, 2}, 0, got.data(), labels.data()).ok());
    std::filesystem::last_write_time(path, written);
  }
}

TEST(CifarTest, WhatDoesNotFitIsInvalidSpec) {
  const TempFolder folder;
  folder.Write("data_batch_1.bin.gz", Gzip(Records({1, 2})));
  folder.Write("test_batch.bin", Record(1));
  DatasetOptions options = Cifar(folder);
  options.memory_limit_bytes = 6145;
  ExpectBoth(options, absl::StatusCode::kInvalidArgument, "InvalidSpec",
             "/data_batch_1.bin.gz: with this file the images need 6146 bytes of memory or more, "
             "limit 6145; images of a file that is not packed are read as they are wanted");
  options.memory_limit_bytes = 6146;
  EXPECT_TRUE(OpenDataset(options, Split::kTrain).ok());
  options.num_classes = 9;
  ExpectBoth(options, absl::StatusCode::kInvalidArgument, "InvalidSpec",
             "num_classes is 9, cifar10_bin has 10");
}

}  // namespace
}  // namespace capstan::data
