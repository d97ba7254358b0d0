#include "gpu_worker/data/record_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/dataset.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/picture.h"
#include "gpu_worker/data/picture_test_files.h"
#include "gpu_worker/data/test_memory_source.h"

namespace capstan::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kAll = 1 << 20;

void ExpectStatus(const absl::Status& status, const std::string& reason,
                  const std::string& message) {
  EXPECT_EQ(FailureReason(status), reason) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

std::string DataAt(const std::string& file, int64_t offset, int64_t keep, int64_t next) {
  const MemorySource source("f", file);
  const absl::StatusOr<IoRecord> record = ReadRecord(source, offset, keep);
  EXPECT_TRUE(record.ok()) << record.status();
  if (!record.ok()) return "";
  EXPECT_EQ(record->next, next);
  return std::string(record->data.begin(), record->data.end());
}

TEST(RecordIoTest, RecordsAreReadAtTheirOffsets) {
  // By hand: the magic number, kind 0 and 5 bytes, 3 zeros.
  const std::string first = std::string("\x0a\x23\xd7\xce\x05\0\0\0hello\0\0\0", 16);
  EXPECT_EQ(RecordBytes("hello"), first);
  const std::string file = first + RecordBytes("") + RecordBytes("abcd");
  EXPECT_EQ(DataAt(file, 0, kAll, 16), "hello");
  EXPECT_EQ(DataAt(file, 16, kAll, 24), "");
  EXPECT_EQ(DataAt(file, 24, kAll, 36), "abcd");
  EXPECT_EQ(DataAt(file, 0, 2, 16), "he");
  EXPECT_EQ(DataAt(file, 0, 0, 16), "");
}

TEST(RecordIoTest, PartsAreJoinedWithTheMagicNumber) {
  const std::string magic = kMagicBytes;
  for (const std::string& data :
       {magic, magic + magic, absl::StrCat("abcd", magic, "ef"),
        absl::StrCat(magic, "abcd", magic, "efgh", magic), absl::StrCat("abc", magic, "d"),
        absl::StrCat("abcdefgh", magic, magic, "x")}) {
    const std::string file = RecordBytes(data);
    const auto size = static_cast<int64_t>(file.size());
    EXPECT_EQ(DataAt(file, 0, kAll, size), data);
    for (size_t keep = 0; keep < data.size(); ++keep) {
      EXPECT_EQ(DataAt(file, 0, static_cast<int64_t>(keep), size), data.substr(0, keep));
    }
  }
  // By hand: kinds 1 and 3 in the upper three bits.
  EXPECT_EQ(RecordBytes("abcd" + magic + "ef"), std::string("\x0a\x23\xd7\xce\x04\0\0\x20"
                                                            "abcd\x0a\x23\xd7\xce\x02\0\0\x60"
                                                            "ef\0\0",
                                                            24));
}

TEST(RecordIoTest, WhatIsNoRecordIsNamed) {
  const auto wrong = [](const std::string& file, int64_t offset, const std::string& message) {
    const MemorySource source("f", file);
    const absl::Status status = ReadRecord(source, offset, kAll).status();
    ExpectStatus(status, "DataMissing",
                 absl::StrCat("f: record at offset ", offset, ": ", message));
  };
  const std::string good = RecordBytes("abcd");
  wrong("", 0, "no part at offset 0, the file has 0 bytes");
  wrong(good, 12, "no part at offset 12, the file has 12 bytes");
  wrong(good, 8, "no part at offset 8");
  wrong(good + "abcdabcd", 12, "begins with 64636261 at offset 12, want ced7230a");
  wrong(good.substr(0, 11), 0, "has a part of 4 bytes at offset 0, the file has 11 bytes");
  wrong(RecordPart(0, "abcde").substr(0, 13), 0, "has a part of 5 bytes");  // lacks its zeros
  wrong(std::string("\x0a\x23\xd7\xce\xff\xff\xff\x1f", 8), 0, "has a part of 536870911 bytes");
  wrong(RecordPart(2, "abcd"), 0, "has a part of kind 2 at offset 0, want 0 or 1");
  wrong(RecordPart(3, "abcd"), 0, "has a part of kind 3 at offset 0, want 0 or 1");
  wrong(RecordPart(7, "abcd"), 0, "has a part of kind 7 at offset 0, want 0 or 1");
  wrong(RecordPart(1, "abcd") + good, 0, "has a part of kind 0 at offset 12, want 2 or 3");
  wrong(RecordPart(1, "abcd") + RecordPart(1, "abcd"), 0, "has a part of kind 1 at offset 12");
  wrong(RecordPart(1, "abcd"), 0, "no part at offset 12, the file has 12 bytes");
}

TEST(RecordIoTest, TheLabelIsOneWholeNumberBelowTheClasses) {
  const auto header = [](const std::string& data, int64_t classes = 10) {
    IoRecord record;
    record.data.assign(data.begin(), data.end());
    record.size = static_cast<int64_t>(data.size());
    return ReadImageHeader(record, classes);
  };
  auto got = header(ImageData(9, "image"));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->label, 9);
  EXPECT_EQ(got->image, 24);
  got = header(ImageData(0, "", {3}));  // one label behind the header replaces the first
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->label, 3);
  EXPECT_EQ(got->image, 28);
  got = header(ImageData(16777216, "image"), 16777217);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->label, 16777216);

  for (const float label :
       {10.0f, -1.0f, 1.5f, -0.5f, 3e9f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    ExpectStatus(header(ImageData(label, "image")).status(), "InvalidSpec",
                 absl::StrCat("has the label ", label,
                              ", want a whole number from 0 to 9 (num_classes is 10)"));
  }
  ExpectStatus(header(ImageData(0, "image", {1, 2})).status(), "InvalidSpec",
               "has 2 labels, want one, which is the class");
  ExpectStatus(header(ImageData(0, "").substr(0, 23)).status(), "DataMissing",
               "header and image have 23 bytes, the header alone has 24");
  ExpectStatus(header(ImageData(0, "", {1}).substr(0, 27)).status(), "DataMissing",
               "header and image have 27 bytes, the header alone has 28");
}

absl::StatusOr<std::vector<int64_t>> Index(const std::string& text, int64_t memory = kAll) {
  MemorySource source("f.idx", text);
  return ReadRecordIndex(source, 100, {.num_classes = 10, .memory_limit_bytes = memory});
}

TEST(RecordIoTest, AnIndexHasALineForEachRecord) {
  for (const char* text :
       {"0\t0\n1\t92\n7\t44\n", "0\t0\r\n1\t92\r\n7\t44", "5\t0\n5\t92\n5\t44\n\n"}) {
    const auto index = Index(text);
    ASSERT_TRUE(index.ok()) << index.status();
    EXPECT_THAT(*index, ElementsAre(0, 44, 92));
  }
  const auto wrong = [](const std::string& text, const std::string& message) {
    ExpectStatus(Index(text).status(), "DataMissing", "f.idx: " + message);
  };
  wrong("0\t0\n0 4\n", "line 2: '0 4', want a key, a tab and an offset");
  wrong("0\t\n", "line 1: '0\\t', want a key");
  wrong("a\t0\n", "line 1: ");
  wrong("0\t4x\n", "line 1: ");
  wrong("0\t99999999999999999999\n", "line 1: ");
  wrong("0\t-4\n", "line 1: offset -4, want a multiple of 4 in a file of records of 100 bytes");
  wrong("0\t2\n", "line 1: offset 2, want a multiple of 4");
  wrong("0\t96\n", "line 1: offset 96, want");
  wrong("0\t0\n\n1\t4\n", "line 2: is blank, and records follow");
  ExpectStatus(Index("").status(), "InvalidSpec", "f.idx: names no record");
  ExpectStatus(Index("0\t0\n1\t4\n2\t8\n", 24).status(), "InvalidSpec",
               "f.idx: line 3: with this one 3 records need 36 bytes of memory or more, limit 24");
  EXPECT_TRUE(Index("0\t0\n1\t4\n", 24).ok());
}

TEST(RecordIoTest, WithoutAnIndexTheFileIsScanned) {
  const std::string magic = kMagicBytes;
  const std::string one = RecordBytes(ImageData(1, "first"));
  const std::string two = RecordBytes(ImageData(0, "abcd" + magic + "efgh", {4}));
  const std::string file = one + two + RecordBytes(ImageData(2, "x"));
  const auto scan = [](const std::string& bytes, int64_t memory = kAll) {
    const MemorySource source("f", bytes);
    return ScanRecords(source, {.num_classes = 5, .memory_limit_bytes = memory});
  };
  const auto found = scan(file);
  ASSERT_TRUE(found.ok()) << found.status();
  const auto second = static_cast<int64_t>(one.size());
  const auto third = second + static_cast<int64_t>(two.size());
  EXPECT_THAT(*found, ElementsAre(0, second, third));
  ExpectStatus(scan("").status(), "InvalidSpec", "f: holds no record");
  ExpectStatus(scan(one + RecordBytes(ImageData(5, ""))).status(), "InvalidSpec",
               absl::StrCat("f: record at offset ", second, ": has the label 5"));
  ExpectStatus(scan(one + "abc").status(), "DataMissing",
               absl::StrCat("f: record at offset ", second, ": no part at offset"));
  ExpectStatus(scan(file, 24).status(), "InvalidSpec", "with this one 3 records need 36 bytes");
  for (size_t size = 1; size < file.size(); ++size) {
    const auto cut = scan(file.substr(0, size));
    const bool whole = size == one.size() || size == one.size() + two.size();
    EXPECT_EQ(cut.ok(), whole) << size;
  }
}

DatasetOptions RecSet(const std::string& folder) {
  DatasetOptions options;
  options.format = Format::kRec;
  options.path_or_uri = folder;
  options.shape = {3, 1, 2};
  return options;
}

std::string TwoPixels(const std::string& six) { return PngOf(1, 2, 3, six); }

TEST(RecDatasetTest, ItsImagesAreDecodedWithAndWithoutAnIndex) {
  const TempFolder folder;
  const std::string first = RecordBytes(ImageData(7, TwoPixels("abcdef")));
  folder.Write("train.rec", first + RecordBytes(ImageData(2, TwoPixels("ghijkl"))));
  folder.Write("test.rec", RecordBytes(ImageData(0, TwoPixels("mnopqr"), {9})));
  for (const int64_t hold : {int64_t{0}, int64_t{1} << 20}) {
    for (const bool indexed : {false, true}) {
      std::filesystem::remove(folder.path() + "/train.idx");
      if (indexed) folder.Write("train.idx", absl::StrCat("5\t", first.size(), "\n4\t0\n"));
      DatasetOptions options = RecSet(folder.path());
      options.hold_bytes = hold;
      const auto probe = ProbeDataset(options);
      ASSERT_TRUE(probe.ok()) << probe.status();
      EXPECT_EQ(probe->train.count, 2);
      EXPECT_EQ(probe->test.count, 1);
      EXPECT_EQ(probe->train.channels, 3);
      EXPECT_EQ(probe->train.height, 1);
      EXPECT_EQ(probe->train.width, 2);
      const auto set = OpenDataset(options, Split::kTrain);
      ASSERT_TRUE(set.ok()) << set.status();
      std::vector<uint8_t> images(12);
      std::vector<int32_t> labels(2);
      for (int epoch = 0; epoch < 2; ++epoch) {
        ASSERT_TRUE((*set)->ReadBytes({1, 0}, epoch, images.data(), labels.data()).ok());
        const std::string read(images.begin(), images.end());
        EXPECT_EQ(read, "gjhkiladbecf");
        EXPECT_THAT(labels, ElementsAre(2, 7));
      }
      std::vector<float> floats(6);
      ASSERT_TRUE((*set)->Read({0}, 0, floats.data(), labels.data()).ok());
      EXPECT_EQ(floats[0], 'a' / 255.0f);
    }
  }
  const auto test = OpenDataset(RecSet(folder.path()), Split::kTest);
  ASSERT_TRUE(test.ok()) << test.status();
  std::vector<float> floats(6);
  std::vector<int32_t> labels(1);
  ASSERT_TRUE((*test)->Read({0}, 0, floats.data(), labels.data()).ok());
  EXPECT_THAT(labels, ElementsAre(9));
}

TEST(RecDatasetTest, OtherNamesHaveTheirOwnIndex) {
  const TempFolder folder;
  const std::string first = RecordBytes(ImageData(7, TwoPixels("abcdef")));
  folder.Write("a.rec", first + RecordBytes(ImageData(2, TwoPixels("ghijkl"))));
  folder.Write("a.idx", "0\t0\n");
  folder.Write("b", first);
  folder.Write("b.idx", "0\t0\n0\t0\n0\t0\n");
  DatasetOptions options = RecSet(folder.path());
  options.train_file = "a.rec";
  options.test_file = "b";
  const auto probe = ProbeDataset(options);
  ASSERT_TRUE(probe.ok()) << probe.status();
  EXPECT_EQ(probe->train.count, 1);
  EXPECT_EQ(probe->test.count, 3);
}

TEST(RecDatasetTest, WhatIsWrongIsNamedWithFileAndOffset) {
  const TempFolder folder;
  const std::string good = RecordBytes(ImageData(1, TwoPixels("abcdef")));
  const auto second = good.size();
  const auto expect = [&](const std::string& file, const std::string& reason,
                          const std::string& message) {
    folder.Write("train.rec", file);
    folder.Write("test.rec", good);
    ExpectStatus(ProbeDataset(RecSet(folder.path())).status(), reason,
                 folder.path() + "/train.rec: " + message);
  };
  expect(good + RecordBytes(ImageData(1, "x").substr(0, 9)), "DataMissing",
         absl::StrCat("record at offset ", second, ": header and image have 9 bytes"));
  expect(RecordBytes(ImageData(1, "x")), "InvalidSpec",
         "record at offset 0: begins with 78, so it is neither JPEG nor PNG");
  expect(RecordBytes(ImageData(1, "")), "DataMissing",
         "record at offset 0: empty, want a JPEG or a PNG");
  expect("", "InvalidSpec", "holds no record");
  // With an index, a record is looked at when it is read.
  folder.Write("train.rec", good + RecordBytes(ImageData(10, TwoPixels("abcdef"))) + "12345678");
  folder.Write("train.idx", absl::StrCat("0\t0\n1\t", second, "\n2\t", 2 * second, "\n"));
  const auto set = OpenDataset(RecSet(folder.path()), Split::kTrain);
  ASSERT_TRUE(set.ok()) << set.status();
  std::vector<uint8_t> image(6);
  int32_t label = 0;
  EXPECT_TRUE((*set)->ReadBytes({0}, 0, image.data(), &label).ok());
  ExpectStatus((*set)->ReadBytes({1}, 0, image.data(), &label), "InvalidSpec",
               absl::StrCat("train.rec: record at offset ", second, ": has the label 10"));
  ExpectStatus((*set)->ReadBytes({2}, 0, image.data(), &label), "DataMissing",
               absl::StrCat("train.rec: record at offset ", 2 * second, ": begins with 34333231"));
  // A failure is not kept.
  ExpectStatus((*set)->ReadBytes({1}, 1, image.data(), &label), "InvalidSpec", "has the label 10");

  std::filesystem::remove(folder.path() + "/test.rec");
  ExpectStatus(ProbeDataset(RecSet(folder.path())).status(), "DataMissing",
               folder.path() + "/test.rec: No such file or directory");
  DatasetOptions two = RecSet(folder.path());
  two.shape = {2, 1, 2};
  ExpectStatus(ProbeDataset(two).status(), "InvalidSpec", "data.shape has 2 channels, want 1 or 3");
}

}  // namespace
}  // namespace capstan::data
