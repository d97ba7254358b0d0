#include "gpu_worker/data/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gpu_worker/data/dataset.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/idx_test_files.h"
#include "gpu_worker/data/sample_limits.h"
#include "gpu_worker/data/test_memory_source.h"
#include "gpu_worker/data/text_lines.h"

namespace capstan::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::StatusOr<CsvTable> Csv(const std::string& text, const CsvOptions& options = {}) {
  MemorySource source("f", text);
  return ReadCsv(source, options);
}

CsvOptions LabelIn(const std::string& column) { return {.label_column = column}; }

std::vector<float> RowsOf(const CsvTable& table) {
  std::vector<float> all;
  for (int64_t i = 0; i < table.rows.count(); ++i) {
    all.insert(all.end(), table.rows.Row(i), table.rows.Row(i) + table.features);
  }
  return all;
}

void ExpectCsv(const std::string& text, const std::string& reason, const std::string& message,
               const CsvOptions& options = CsvOptions()) {
  for (const bool keep : {true, false}) {
    CsvOptions kept = options;
    kept.keep = keep;
    const absl::Status status = Csv(text, kept).status();
    EXPECT_EQ(FailureReason(status), reason) << text.substr(0, 80) << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    EXPECT_THAT(std::string(status.message()), testing::StartsWith("f: "));
  }
}

TEST(CsvTest, ATargetMayBeAnyNumber) {
  const CsvOptions options = {.label_column = "price", .numbers = true};
  const auto table = Csv("a,price,b\n1,-0.5,2\n3,1e3,4\n5,7,6\n", options);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(table->targets, ElementsAre(-0.5f, 1000, 7));
  EXPECT_THAT(table->labels, IsEmpty());
  EXPECT_THAT(RowsOf(*table), ElementsAre(1, 2, 3, 4, 5, 6));
  for (const char* const wrong : {"nan", "1e39", "x"}) {
    ExpectCsv(absl::StrCat("a,price\n1,", wrong, "\n"), "DataMissing",
              absl::StrCat("line 2: column 1 has the target '", wrong, "', which "), options);
  }
  ExpectCsv("0.5,2\n", "DataMissing",
            "line 1: column 0 has the label '0.5', which is no whole number; if labels are "
            "numbers to predict, set 'training.loss' to mean_squared_error");
}

TEST(CsvTest, ASetHasTargets) {
  const TempFolder folder;
  folder.Write("train.csv", "0.5,1,2\n-3,4,5\n");
  folder.Write("test.csv", "7,8,9\n");
  DatasetOptions options;
  options.format = Format::kCsv;
  options.path_or_uri = folder.path();
  options.target_size = 1;
  const auto set = OpenDataset(options, Split::kTrain);
  ASSERT_TRUE(set.ok()) << set.status();
  float images[4], targets[2];
  int32_t labels[2];
  ASSERT_TRUE((*set)->Read({1, 0}, 0, images, labels).ok());
  ASSERT_TRUE((*set)->ReadTargets({1, 0}, targets).ok());
  EXPECT_THAT(images, ElementsAre(4, 5, 1, 2));
  EXPECT_THAT(targets, ElementsAre(-3, 0.5f));
  EXPECT_THAT(labels, ElementsAre(0, 0));
  EXPECT_EQ(ProbeDataset(options)->test.target_size, 1);
  options.target_size = 2;
  EXPECT_THAT(std::string(ProbeDataset(options).status().message()),
              HasSubstr("model.num_outputs is 2, want 1 to 1"));
  options.format = Format::kIdx;
  EXPECT_THAT(std::string(ProbeDataset(options).status().message()), HasSubstr("has classes"));
}

TEST(CsvTest, ReadsNumbersInTheirOrder) {
  for (const char* text :
       {"1,0.5,-2\n0,1e3,+4\n", "1,0.5,-2\r\n0,1e3,+4\r\n", "1,0.5,-2\n0,1e3,+4",
        "\xef\xbb\xbf\"1\",\"0.5\", \"-2\" \n 0\t, 1000 ,4.0\n\n \r\n",
        "class,a,b\n1,0.5,-2\n0,1e3,+4\n", "\"class\",1,2\n1.0,0.5,-2\n0e0,1e3,+4\n"}) {
    const auto table = Csv(text);
    ASSERT_TRUE(table.ok()) << text << table.status();
    EXPECT_EQ(table->count, 2);
    EXPECT_EQ(table->features, 2);
    EXPECT_THAT(table->labels, ElementsAre(1, 0));
    EXPECT_THAT(RowsOf(*table), ElementsAre(0.5f, -2.0f, 1000.0f, 4.0f)) << text;
  }
}

TEST(CsvTest, TheLabelIsInTheColumnThatTheJobNames) {
  const std::string lines = "1,2,3\n4,5,6\n";
  const auto labels = [&](const std::string& text, const std::string& column) {
    const auto table = Csv(text, LabelIn(column));
    EXPECT_TRUE(table.ok()) << table.status();
    return table.ok() ? absl::StrCat(table->labels[0], table->labels[1], " ", RowsOf(*table)[0],
                                     RowsOf(*table)[1])
                      : "";
  };
  EXPECT_EQ(labels(lines, "0"), "14 23");
  EXPECT_EQ(labels(lines, "1"), "25 13");
  EXPECT_EQ(labels(lines, "2"), "36 12");
  EXPECT_EQ(labels(lines, "-1"), "36 12");
  EXPECT_EQ(labels("a,\"b, \"\"c\"\"\",d\n" + lines, "b, \"c\""), "25 13");
  EXPECT_EQ(labels("a,b,d\n" + lines, "d"), "36 12");
  const auto named = Csv("a,b,d\n" + lines, LabelIn("b"));
  ASSERT_TRUE(named.ok());
  EXPECT_THAT(named->names, ElementsAre("a", "d"));
  EXPECT_THAT(Csv(lines)->names, IsEmpty());

  ExpectCsv(lines, "InvalidSpec", "line 1: data.label_column is '3', want -1 to 2 (3 columns)",
            LabelIn("3"));
  ExpectCsv(lines, "InvalidSpec", "want -1 to 2", LabelIn("-2"));
  ExpectCsv(lines, "InvalidSpec", "data.label_column is 'b', but the file has no header line",
            LabelIn("b"));
  ExpectCsv("a,b,c\n" + lines, "InvalidSpec", "the header has 0 columns of this name",
            LabelIn("d"));
  ExpectCsv("a,d,d\n" + lines, "InvalidSpec", "the header has 2 columns of this name",
            LabelIn("d"));
}

TEST(CsvTest, WrongTextIsNamedWithLineAndColumn) {
  const auto damage = [](const std::string& text, const std::string& message) {
    ExpectCsv(text, "DataMissing", ": " + message);
  };
  damage("1,2\n1,x\n", "line 2: column 1 'x' is no number");
  damage("1,2\n1,\n", "line 2: column 1 is empty");
  damage("1,2\n,2\n", "line 2: column 0 is empty");
  damage("1,\n", "line 1: column 1 is empty");
  damage("a,b\n1,2\nNA,3\n", "line 3: column 0 has the label 'NA', which is no number");
  damage("1,2\n1.5,3\n", "line 2: column 0 has the label '1.5', which is no whole number");
  damage("1,2\n1,nan\n", "line 2: column 1 'nan' is not finite");
  damage("1,x\n1,2\n", "line 1: column 1 'x' is no number");  // the label is a number: no header
  damage("1,inf\n1,2\n", "line 1: column 1 'inf' is not finite");
  damage("1,2\n1,-Infinity\n", "line 2: column 1 '-Infinity' is not finite");
  damage("1,2\n1,1e39\n", "line 2: column 1 '1e39' is outside the range of its type");
  damage("1,2\n1,1e999\n", "line 2: column 1 '1e999' is outside the range of its type");
  damage("1,2\n1,0x10\n", "line 2: column 1 '0x10' is no number");
  damage("1,2\n1,1 2\n", "line 2: column 1 '1 2' is no number");
  damage("1,2\n1,+-2\n", "line 2: column 1 '+-2' is no number");
  damage("1,2\n1,2,3\n", "line 2: 3 columns, the first line has 2");
  damage("1,2,3\n1,2\n", "line 2: 2 columns, the first line has 3");
  damage("a,b\n1,2,3\n", "line 2: 3 columns, the first line has 2");
  damage("1,2\n\n1,2\n", "line 2: is blank, and samples follow");
  damage("1,2\n1,\"2\n", "line 2: column 1 has a quote without an end");
  damage("1,2\n1,\"2\"3\n", "line 2: column 1 has text behind its quotes");
  damage("1,2\n1,\"2\"\"\"\n", "line 2: column 1 '2\\\"\\\"' is no number");
  damage(std::string("1,2\n1,3\0\n", 9), "line 2: column 1 '3\\x00' is no number");
  damage("1,2\n1," + std::string(100, 'z') + "\n",
         "line 2: column 1 '" + std::string(40, 'z') + "...' is no");
}

TEST(CsvTest, WhatDoesNotFitTheJobIsNamed) {
  ExpectCsv("", "InvalidSpec", "f: holds no sample");
  ExpectCsv("\n\n", "InvalidSpec", "f: holds no sample");
  ExpectCsv("a,b\n", "InvalidSpec", "f: holds no sample");
  for (const char* const text : {"1;2\n1;3\n", "1\n2\n"}) {
    ExpectCsv(text, "InvalidSpec",
              "line 1: one column, want a label and features, separated by commas");
  }
  ExpectCsv("1,2\n10,2\n", "InvalidSpec",
            "line 2: column 0 has the label 10, want 0 to 9 (num_classes is 10); if labels are "
            "numbers to predict, set 'training.loss' to mean_squared_error");
  ExpectCsv("1,2\n-1,2\n", "InvalidSpec", "line 2: column 0 has the label -1, want 0 to 9");
  ExpectCsv("1,2\n1e15,2\n", "InvalidSpec", "the label 1000000000000000, want");
}

TEST(CsvTest, MemoryIsBounded) {
  CsvOptions options;
  options.memory_limit_bytes = 3 * 12;
  EXPECT_TRUE(Csv("1,2,3\n1,2,3\n1,2,3\n", options).ok());
  ExpectCsv("1,2,3\n1,2,3\n1,2,3\n1,2,3\n", "InvalidSpec",
            "line 4: with this line 4 samples of 2 features and a label need 48 bytes of memory or "
            "more, limit 36; tables are held in memory",
            options);
  // The longest line, and one byte more.
  const std::string longest = "1," + std::string(kMaxLineBytes - 3, ' ') + "2";
  EXPECT_TRUE(Csv(longest + "\n").ok());
  ExpectCsv("1,2\n" + longest + " \n", "DataMissing", "line 2: longer than 16777216 bytes");
  ExpectCsv("1,2\n" + longest + longest, "DataMissing", "line 2: longer than 16777216 bytes");
  std::string wide = "1";
  for (int64_t i = 0; i < kMaxSampleFeatures; ++i) wide += ",2";
  EXPECT_EQ(Csv(wide)->features, kMaxSampleFeatures);
  ExpectCsv(wide + ",2", "DataMissing", "line 1: more than 1048577 columns");
}

// 70000 samples fill several blocks, and lines cross the borders of the reader's buffer.
TEST(CsvTest, LargeTablesAreReadInOrder) {
  std::string text;
  for (int i = 0; i < 70000; ++i) absl::StrAppend(&text, i % 7, ",", i, ",", i / 2.0, "\n");
  const auto table = Csv(text);
  ASSERT_TRUE(table.ok()) << table.status();
  ASSERT_EQ(table->count, 70000);
  for (int i = 0; i < 70000; ++i) {
    ASSERT_EQ(table->labels[i], i % 7);
    ASSERT_EQ(table->rows.Row(i)[0], static_cast<float>(i));
    ASSERT_EQ(table->rows.Row(i)[1], static_cast<float>(i / 2.0));
  }
}

// A shorter text is a shorter table or an error, never something else.
TEST(CsvTest, TruncationAndFlippedBitsNeverBreakTheReader) {
  const std::string good = "class,a,b\r\n1,\"0.5\",-2\n0,1e3,+4\n";
  CsvOptions options;
  options.memory_limit_bytes = 1 << 10;
  for (size_t size = 0; size < good.size(); ++size) {
    const auto table = Csv(good.substr(0, size), options);
    if (!table.ok()) {
      EXPECT_NE(FailureReason(table.status()), "") << size;
    }
    if (table.ok()) {
      EXPECT_EQ(table->features, 2);
    }
  }
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string text = good;
    text[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    const auto table = Csv(text, options);
    if (!table.ok()) {
      EXPECT_NE(FailureReason(table.status()), "") << bit;
      continue;
    }
    EXPECT_LE(table->count, 3);
    EXPECT_EQ(table->rows.count(), table->count);
    EXPECT_EQ(static_cast<int64_t>(table->labels.size()), table->count);
  }
}

DatasetOptions CsvSet(const TempFolder& folder) {
  DatasetOptions options;
  options.format = Format::kCsv;
  options.path_or_uri = "file://" + folder.path();
  return options;
}

TEST(CsvTest, ASetIsAFolderWithTwoFiles) {
  const TempFolder folder;
  folder.Write("train.csv.gz", Gzip("label,a,b,c,d\n1,1,2,3,4\n0,5,6,7,8\n"));
  folder.Write("test.csv", "label,a,b,c,d\n1,9,10,11,12\n");
  DatasetOptions options = CsvSet(folder);
  options.label_column = "label";
  for (const bool shaped : {false, true}) {
    if (shaped) options.shape = {1, 2, 2};
    const auto probe = ProbeDataset(options);
    ASSERT_TRUE(probe.ok()) << probe.status();
    EXPECT_EQ(probe->train.count, 2);
    EXPECT_EQ(probe->test.count, 1);
    EXPECT_EQ(probe->train.channels, 1);
    EXPECT_EQ(probe->train.height, shaped ? 2 : 1);
    EXPECT_EQ(probe->train.width, shaped ? 2 : 4);
    const auto set = OpenDataset(options, Split::kTrain);
    ASSERT_TRUE(set.ok()) << set.status();
    EXPECT_EQ((*set)->info().height, probe->train.height);
    EXPECT_TRUE((*set)->byte_values().empty());
    float image[8];
    int32_t labels[2];
    ASSERT_TRUE((*set)->Read({1, 0}, 0, image, labels).ok());
    EXPECT_THAT(image, ElementsAre(5, 6, 7, 8, 1, 2, 3, 4));
    EXPECT_THAT(labels, ElementsAre(0, 1));
    EXPECT_EQ((*set)->Read({2}, 0, image, labels).code(), absl::StatusCode::kInvalidArgument);
  }
  options.transforms = {RandomFlip{}, Normalize{{1.0f}, {4.0f}}};  // an image of 2 x 2
  const auto set = OpenDataset(options, Split::kTest);
  ASSERT_TRUE(set.ok()) << set.status();
  float image[4];
  int32_t label = 9;
  ASSERT_TRUE((*set)->Read({0}, 0, image, &label).ok());
  EXPECT_THAT(image, ElementsAre(2.0f, 2.25f, 2.5f, 2.75f));
  EXPECT_EQ(label, 1);
}

TEST(CsvTest, FilesOfASetThatDifferAreRefused) {
  const TempFolder folder;
  const auto expect = [](const DatasetOptions& options, const std::string& reason,
                         const std::string& message) {
    const absl::Status status = ProbeDataset(options).status();
    EXPECT_EQ(FailureReason(status), reason) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  };
  folder.Write("train.csv", "label,a,b\n1,1,2\n");
  expect(CsvSet(folder), "DataMissing", "/test.csv: no such file, nor with .gz or .xz");
  folder.Write("test.csv", "label,a\n1,1\n");
  expect(CsvSet(folder), "InvalidSpec", "samples of 2 features, but ");
  folder.Write("test.csv", "label,b,a\n1,1,2\n");
  expect(CsvSet(folder), "InvalidSpec", "the header names feature 0 'a', but ");
  folder.Write("test.csv", "label,\xff,b\n1,1,2\n");
  expect(CsvSet(folder), "InvalidSpec", "names it '\\xff'");  // text for a message
  folder.Write("test.csv", "id,a,b\n1,1,2\n");
  expect(CsvSet(folder), "InvalidSpec", "the header names the label 'label', but ");
  folder.Write("test.csv", "1,1,2\n");
  EXPECT_TRUE(ProbeDataset(CsvSet(folder)).ok());
  DatasetOptions options = CsvSet(folder);
  options.shape = {1, 2, 2};
  expect(options, "InvalidSpec", "train.csv: samples of 2 features, data.shape 1 x 2 x 2 has 4");
  options.shape = {1, 2, 0};
  expect(options, "InvalidSpec", "a number of data.shape is 0, want 1 to 16384");
  options = CsvSet(folder);
  options.test_file = "train.csv";
  EXPECT_TRUE(ProbeDataset(options).ok());
  options.test_file = "../train.csv";
  expect(options, "InvalidSpec", "want the name of a file in the folder");
  options = CsvSet(folder);
  options.memory_limit_bytes = 11;
  expect(options, "InvalidSpec", "bytes of memory or more, limit 11");
}

}  // namespace
}  // namespace capstan::data
