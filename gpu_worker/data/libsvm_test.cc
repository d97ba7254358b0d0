#include "gpu_worker/data/libsvm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/dataset.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/idx_test_files.h"
#include "gpu_worker/data/test_memory_source.h"

namespace capstan::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kAnyIndex = 1 << 20;

absl::StatusOr<LibsvmScan> Scan(const std::string& text, int64_t features = kAnyIndex,
                                int64_t memory = 1 << 20) {
  MemorySource source("f", text);
  return ScanLibsvm(source, features, memory);
}

void ExpectScan(const std::string& text, const std::string& reason, const std::string& message,
                int64_t features = kAnyIndex, int64_t memory = 1 << 20) {
  const absl::Status status = Scan(text, features, memory).status();
  EXPECT_EQ(FailureReason(status), reason) << text << ": " << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  EXPECT_THAT(std::string(status.message()), testing::StartsWith("f: "));
}

DatasetOptions LibsvmSet(const std::string& folder, int64_t classes = 10) {
  DatasetOptions options;
  options.format = Format::kLibsvm;
  options.path_or_uri = folder;
  options.num_classes = classes;
  return options;
}

TEST(LibsvmTest, ATargetMayBeAnyNumber) {
  const TempFolder folder;
  folder.Write("train.libsvm", "0.25 1:0.5\n-1e3 2:2\n7 1:1 2:1\n");
  folder.Write("test.libsvm", "3.5 2:1\n");
  DatasetOptions options = LibsvmSet(folder.path());
  options.target_size = 1;
  const auto set = OpenDataset(options, Split::kTrain);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ((*set)->info().target_size, 1);
  float targets[3];
  ASSERT_TRUE((*set)->ReadTargets({0, 1, 2}, targets).ok());
  EXPECT_THAT(targets, ElementsAre(0.25f, -1000, 7));
  folder.Write("test.libsvm", "inf 2:1\n");
  EXPECT_THAT(std::string(ProbeDataset(options).status().message()),
              HasSubstr("line 1: byte 1: label 'inf' "));
  options.target_size = 0;
  EXPECT_THAT(std::string(ProbeDataset(options).status().message()),
              HasSubstr("label '0.25' is no whole number; if labels are numbers to predict, set "
                        "'training.loss' to mean_squared_error"));
}

TEST(LibsvmTest, WhatIsLeftOutIsZero) {
  const TempFolder folder;
  folder.Write("train.libsvm", "# two samples\n1 1:0.5 3:-2 \r\n0\t2:1e3 # the second\n\n");
  folder.Write("test.libsvm.gz", Gzip("1\n0 4:1\n1 1:7"));
  const DatasetOptions options = LibsvmSet(folder.path());
  const auto probe = ProbeDataset(options);
  ASSERT_TRUE(probe.ok()) << probe.status();
  EXPECT_EQ(probe->train.count, 2);
  EXPECT_EQ(probe->test.count, 3);
  EXPECT_EQ(probe->train.channels, 1);
  EXPECT_EQ(probe->train.height, 1);
  EXPECT_EQ(probe->train.width, 4);
  const auto set = OpenDataset(options, Split::kTrain);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_TRUE((*set)->byte_values().empty());
  float rows[8];
  int32_t labels[2];
  ASSERT_TRUE((*set)->Read({0, 1}, 0, rows, labels).ok());
  EXPECT_THAT(rows, ElementsAre(0.5f, 0, -2, 0, 0, 1000, 0, 0));
  EXPECT_THAT(labels, ElementsAre(1, 0));
}

TEST(LibsvmTest, LabelsOfBothFilesDecideWhatTheyMean) {
  const auto labels = [](const std::string& train, const std::string& test, int64_t classes) {
    const TempFolder folder;
    folder.Write("train.libsvm", train);
    folder.Write("test.libsvm", test);
    const auto set = OpenDataset(LibsvmSet(folder.path(), classes), Split::kTrain);
    if (!set.ok()) {
      EXPECT_EQ(FailureReason(set.status()), "InvalidSpec") << set.status();
      const std::string message(set.status().message());
      return message.substr(message.rfind('/') + 1);
    }
    std::vector<float> rows(static_cast<size_t>((*set)->info().count));
    std::vector<int32_t> labels(rows.size());
    std::vector<int64_t> all(rows.size());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_TRUE((*set)->Read(all, 0, rows.data(), labels.data()).ok());
    std::string text;
    for (const int32_t label : labels) absl::StrAppend(&text, label);
    return text;
  };
  EXPECT_EQ(labels("+1 1:1\n-1 1:1\n", "1 1:1\n", 2), "10");
  EXPECT_EQ(labels("1 1:1\n1 1:1\n", "-1 1:1\n", 2), "11");  // the test file has the -1
  EXPECT_EQ(labels("0 1:1\n2 1:1\n", "1 1:1\n", 3), "02");
  EXPECT_EQ(labels("1 1:1\n2 1:1\n", "0 1:1\n", 3), "12");  // the test file has the 0
  EXPECT_EQ(labels("1 1:1\n3 1:1\n", "2 1:1\n", 3), "02");
  EXPECT_EQ(labels("1.0 1:1\n2e0 1:1\n", "2 1:1\n", 2), "01");

  const std::string any_number =
      "; if labels are numbers to predict, set 'training.loss' to mean_squared_error";
  EXPECT_EQ(
      labels("1 1:1\n-1 1:1\n", "1 1:1\n2 1:1\n", 3),
      "test.libsvm: line 2: label 2, want -1 or +1, because a label is negative" + any_number);
  EXPECT_EQ(
      labels("-2 1:1\n", "1 1:1\n", 3),
      "train.libsvm: line 1: label -2, want -1 or +1, because a label is negative" + any_number);
  EXPECT_EQ(labels("-1 1:1\n0 1:1\n1 1:1\n", "1 1:1\n", 3),
            "train.libsvm: has the label 0, want -1 or +1, because a label is negative");
  EXPECT_EQ(labels("0 1:1\n1 1:1\n", "1 1:1\n2 1:1\n", 2),
            "test.libsvm: line 2: label 2, want classes below 2 (num_classes), counted from 0" +
                any_number);
  EXPECT_EQ(labels("1 1:1\n3 1:1\n", "1 1:1\n", 2),
            "train.libsvm: line 2: label 3, want classes below 2 (num_classes), counted from 1" +
                any_number);
}

TEST(LibsvmTest, WrongTextIsNamedWithLineAndByte) {
  const auto damage = [](const std::string& text, const std::string& message) {
    ExpectScan(text, "DataMissing", message);
  };
  damage("1 1:1\nx 1:1\n", "line 2: byte 1: label 'x' is no number");
  damage("1.5 1:1\n", "line 1: byte 1: label '1.5' is no whole number");
  damage("nan 1:1\n", "line 1: byte 1: label 'nan' is not finite");
  damage("1:1 2:1\n", "line 1: byte 1: label '1:1' is no number");
  damage("1 0:1\n", "line 1: byte 3: index 0, the first feature has index 1");
  damage("1 1:1 1:2\n", "line 1: byte 7: index 1 behind 1, want them to rise");
  damage("1 3:1  2:2\n", "line 1: byte 8: index 2 behind 3, want them to rise");
  damage("1 -1:1\n", "line 1: byte 3: '-1:1' is not index:value");
  damage("1 qid:3 1:1\n", "line 1: byte 3: 'qid:3' is not index:value");
  damage("1 5\n", "line 1: byte 3: '5' is not index:value");
  damage("1 99999999999999999999:1\n",
         "line 1: byte 3: '99999999999999999999:1' is not index:value");
  damage("1 1:\n", "line 1: byte 3: '1:' is no number");
  damage("1 1:1:1\n", "line 1: byte 3: '1:1:1' is no number");
  damage("1 1:inf\n", "line 1: byte 3: '1:inf' is not finite");
  damage("1 1:1e39\n", "line 1: byte 3: '1:1e39' is outside the range of its type");
  damage("1 1:1\n\n1 1:1\n", "line 2: is blank, and samples follow");
  damage("1 1:1," + std::string(100, '1'), "line 1: byte 3: '1:1,1111");
  damage("1 " + std::string(16 << 20, ' '), "line 1: longer than 16777216 bytes");
}

TEST(LibsvmTest, WhatDoesNotFitTheJobIsNamed) {
  ExpectScan("", "InvalidSpec", "holds no sample");
  ExpectScan("# nothing\n\n", "InvalidSpec", "holds no sample");
  ExpectScan("1 1:1 124:1\n", "InvalidSpec",
             "line 1: index 124, want 1 to 123 (features of a sample)", 123);
  EXPECT_TRUE(Scan("1 123:1\n", 123).ok());
  ExpectScan("1 1048577:1\n", "InvalidSpec", "line 1: index 1048577, want 1 to 1048576");
  ExpectScan("1\n1\n1\n", "InvalidSpec",
             "line 3: 3 samples need 24 bytes of memory or more, limit 23", kAnyIndex, 23);

  const TempFolder folder;
  folder.Write("train.libsvm", "1\n0\n");
  folder.Write("test.libsvm", "1\n0\n");
  DatasetOptions options = LibsvmSet(folder.path());
  const auto expect = [&options](const std::string& message) {
    for (const absl::Status& status :
         {ProbeDataset(options).status(), OpenDataset(options, Split::kTest).status()}) {
      EXPECT_EQ(FailureReason(status), "InvalidSpec") << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    }
  };
  expect("train.libsvm: no sample has a feature");
  options.features = 3;
  EXPECT_EQ(ProbeDataset(options)->train.width, 3);
  options.memory_limit_bytes = 31;
  expect("train.libsvm: 2 samples of 3 features and a label need 32 bytes of memory, limit 31");
  options.memory_limit_bytes = 32;
  EXPECT_TRUE(OpenDataset(options, Split::kTest).ok());
  options.features = (1 << 20) + 1;
  expect("data.features is 1048577, want 1 to 1048576");
  options.features = 3;
  options.shape = {1, 2, 2};
  expect("samples of 3 features, data.shape 1 x 2 x 2 has 4");
  options.features = 0;
  options.memory_limit_bytes = 1 << 20;
  EXPECT_EQ(ProbeDataset(options)->train.height, 2);
  // 2^20 features of few bytes of text are much memory, which is refused before it is allocated.
  options = LibsvmSet(folder.path());
  folder.Write("train.libsvm", "1 1048576:1\n0\n0\n");
  options.memory_limit_bytes = 12 << 20;
  expect(
      "train.libsvm: 3 samples of 1048576 features and a label need 12582924 bytes of memory, "
      "limit 12582912; tables are held in memory, as 4 bytes for each number, also for zeros");
}

TEST(LibsvmTest, AFileThatChangesBetweenTheReadingsIsNoticed) {
  const LibsvmScan scan = *Scan("1 2:1\n2 1:1\n");
  const auto fill = [&scan](const std::string& text) {
    MemorySource source("f", text);
    return FillLibsvm(source, scan, LibsvmRule::kFromOne, 2);
  };
  const auto same = fill("1 2:1\n2 1:1\n");
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_THAT(same->labels, ElementsAre(0, 1));
  EXPECT_EQ(same->rows.Row(0)[1], 1);
  for (const char* text : {"1 2:1\n", "1 2:1\n2 1:1\n2 1:1\n", "1 2:1\n2 3:1\n", "0 2:1\n2 1:1\n",
                           "1 2:1\n3 1:1\n", ""}) {
    const absl::Status status = fill(text).status();
    EXPECT_EQ(FailureReason(status), "DataMissing");
    EXPECT_THAT(std::string(status.message()), HasSubstr("has changed since it was checked"));
  }
}

TEST(LibsvmTest, TruncationAndFlippedBitsNeverBreakTheReader) {
  const std::string good = "+1 1:0.5 3:-2 \r\n-1 2:1e3 # x\n+1\n";
  for (size_t size = 0; size < good.size(); ++size) {
    const auto scan = Scan(good.substr(0, size));
    if (!scan.ok()) {
      EXPECT_NE(FailureReason(scan.status()), "") << size;
    }
    if (scan.ok()) {
      EXPECT_LE(scan->count, 3);
    }
  }
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string text = good;
    text[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    const auto scan = Scan(text, 1000);
    if (!scan.ok()) {
      EXPECT_NE(FailureReason(scan.status()), "") << bit;
      continue;
    }
    MemorySource source("f", text);
    const auto table = FillLibsvm(source, *scan, LibsvmRule::kFromZero, 1000);
    ASSERT_TRUE(table.ok()) << bit << table.status();
    EXPECT_EQ(table->rows.count(), scan->count);
    EXPECT_EQ(static_cast<int64_t>(table->labels.size()), scan->count);
  }
}

// The figures are those of the data's README.
TEST(LibsvmTest, ReadsTheAdultSet) {
  const char* const given = std::getenv("CAPSTAN_LIBSVM");
  const std::filesystem::path folder = given != nullptr ? given : "../shared/data/libsvm";
  if (!std::filesystem::exists(folder / "a9a")) {
    GTEST_SKIP() << "no " << folder << ": set CAPSTAN_LIBSVM";
  }
  DatasetOptions options =
      LibsvmSet(std::filesystem::absolute(folder).lexically_normal().string(), 2);
  options.train_file = "a9a";
  options.test_file = "a9a.t";
  const auto probe = ProbeDataset(options);
  ASSERT_TRUE(probe.ok()) << probe.status();
  EXPECT_EQ(probe->train.count, 32561);
  EXPECT_EQ(probe->test.count, 16281);
  EXPECT_EQ(probe->train.width, 123);
  for (const Split split : {Split::kTrain, Split::kTest}) {
    const auto set = OpenDataset(options, split);
    ASSERT_TRUE(set.ok()) << set.status();
    const auto count = static_cast<size_t>((*set)->info().count);
    std::vector<int64_t> all(count);
    std::iota(all.begin(), all.end(), 0);
    std::vector<float> rows(count * 123);
    std::vector<int32_t> labels(count);
    ASSERT_TRUE((*set)->Read(all, 0, rows.data(), labels.data()).ok());
    const bool train = split == Split::kTrain;
    EXPECT_EQ(std::accumulate(labels.begin(), labels.end(), 0), train ? 7841 : 3846);
    EXPECT_EQ(std::accumulate(rows.begin(), rows.end(), 0.0), train ? 451592 : 225731);
  }
}

}  // namespace
}  // namespace capstan::data
