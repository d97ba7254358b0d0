#include "gpu_worker/data/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
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

class TextSetTest : public testing::Test {
 protected:
  TextSetTest() {
    options_.format = Format::kText;
    options_.path_or_uri = folder_.path();
    options_.num_classes = 256;
  }
  void Write(const std::string& name, const std::string& text) { folder_.Write(name, text); }
  std::unique_ptr<Dataset> Open(Split split) const {
    auto set = OpenDataset(options_, split);
    EXPECT_TRUE(set.ok()) << set.status();
    return set.ok() ? *std::move(set) : nullptr;
  }
  void ExpectRefused(const std::string& reason, const std::string& message) const {
    const absl::Status probed = ProbeDataset(options_).status();
    EXPECT_EQ(FailureReason(probed), reason) << probed;
    EXPECT_THAT(std::string(probed.message()), HasSubstr(message));
    EXPECT_FALSE(OpenDataset(options_, Split::kTrain).ok() &&
                 OpenDataset(options_, Split::kTest).ok());
  }

  const TempFolder folder_;
  DatasetOptions options_;
};

struct TextSamples {
  std::vector<float> images;
  std::vector<int32_t> labels;
};
TextSamples AllSamples(const Dataset& set) {
  std::vector<int64_t> indices(static_cast<size_t>(set.info().count));
  std::iota(indices.begin(), indices.end(), 0);
  TextSamples samples;
  samples.images.resize(indices.size() * static_cast<size_t>(set.info().image_size()));
  samples.labels.resize(indices.size());
  EXPECT_TRUE(set.Read(indices, 0, samples.images.data(), samples.labels.data()).ok());
  return samples;
}

// Vocabulary: a 0, b 1, c 2, d 3.
TEST_F(TextSetTest, SamplesAreWindowsAndTheirLabelsWhatFollows) {
  Write("input.txt", "abcdabcaddddbb");
  options_.sequence_length = 3;
  options_.test_fraction = 0.3;  // 4 of 14 characters: "ddbb"
  const auto train = Open(Split::kTrain);
  ASSERT_NE(train, nullptr);
  EXPECT_EQ(train->info().count, 3);  // the tenth character is the last label
  EXPECT_EQ(train->info().channels * train->info().height, 1);
  EXPECT_EQ(train->info().width, 3);
  EXPECT_EQ(train->info().num_classes, 4);
  EXPECT_FALSE(train->varies());
  const TextSamples samples = AllSamples(*train);
  EXPECT_THAT(samples.images, ElementsAre(0, 1, 2, 3, 0, 1, 2, 0, 3));
  EXPECT_THAT(samples.labels, ElementsAre(3, 2, 3));
  const auto test = Open(Split::kTest);
  ASSERT_NE(test, nullptr);
  EXPECT_THAT(AllSamples(*test).images, ElementsAre(3, 3, 1));
  EXPECT_THAT(AllSamples(*test).labels, ElementsAre(1));
  const absl::StatusOr<DatasetProbe> probe = ProbeDataset(options_);
  ASSERT_TRUE(probe.ok()) << probe.status();
  EXPECT_EQ(probe->train.count, 3);
  EXPECT_EQ(probe->train.num_classes, 4);
  EXPECT_EQ(probe->test.count, 1);
}

TEST_F(TextSetTest, BytesAreTokensAndStandForThemselves) {
  std::string all;
  for (int byte = 255; byte >= 0; --byte) all.push_back(static_cast<char>(byte));
  Write("input.txt", all + all);
  options_.sequence_length = 100;
  options_.test_fraction = 0.5;
  const auto train = Open(Split::kTrain);
  ASSERT_NE(train, nullptr);
  ASSERT_EQ(train->byte_values().size(), 256u);
  EXPECT_EQ(train->byte_values()[200], 200);
  const std::array<int64_t, 2> indices = {1, 0};
  std::vector<uint8_t> bytes(200);
  std::vector<int32_t> labels(2);
  ASSERT_TRUE(train->ReadBytes(indices, 0, bytes.data(), labels.data()).ok());
  EXPECT_EQ(bytes[0], 155);
  EXPECT_EQ(bytes[100], 255);
  EXPECT_EQ(bytes[199], 156);
  EXPECT_THAT(labels, ElementsAre(55, 155));
  EXPECT_EQ(train->info().num_classes, 256);
}

TEST_F(TextSetTest, ATestFileSharesTheVocabulary) {
  Write("play.txt", "bdbdb");
  Write("other.txt", "cccab");
  options_.train_file = "play.txt";
  options_.test_file = "other.txt";
  options_.sequence_length = 2;
  const auto train = Open(Split::kTrain), test = Open(Split::kTest);
  ASSERT_TRUE(train != nullptr && test != nullptr);
  EXPECT_EQ(train->info().num_classes, 4);
  EXPECT_THAT(AllSamples(*train).images, ElementsAre(1, 3, 1, 3));
  EXPECT_THAT(AllSamples(*test).images, ElementsAre(2, 2, 2, 0));
  EXPECT_THAT(AllSamples(*test).labels, ElementsAre(2, 1));
}

TEST_F(TextSetTest, APackedTextIsTheSame) {
  const std::string text = "to be or not to be, that is the question";
  Write("input.txt", text);
  options_.sequence_length = 4;
  const TextSamples plain = AllSamples(*Open(Split::kTrain));
  const TempFolder packed;
  packed.Write("input.txt.gz", Gzip(text));
  options_.path_or_uri = packed.path();
  const TextSamples unpacked = AllSamples(*Open(Split::kTrain));
  EXPECT_EQ(unpacked.images, plain.images);
  EXPECT_EQ(unpacked.labels, plain.labels);
  std::string damaged = Gzip(text);
  damaged.resize(damaged.size() - 9);
  packed.Write("input.txt.gz", damaged);
  ExpectRefused("DataMissing", "input.txt.gz");
}

TEST_F(TextSetTest, WhatDoesNotFitIsNamed) {
  ExpectRefused("DataMissing", "input.txt");
  Write("input.txt", "abcabcabcabcabcabcab");
  options_.sequence_length = 18;
  ExpectRefused("InvalidSpec", "the training set has 18 characters, want at least 19");
  options_.sequence_length = 2;
  ExpectRefused("InvalidSpec", "the test set has 2 characters, want at least 3");
  options_.test_fraction = 0.01;
  ExpectRefused("InvalidSpec", "the test set has 0 characters");
  ExpectRefused("InvalidSpec", "(data.test_fraction is 0.01)");
  options_.test_fraction = 0.5;
  EXPECT_TRUE(ProbeDataset(options_).ok());
  options_.num_classes = 2;
  ExpectRefused("InvalidSpec",
                "the text has 3 different characters, model.num_classes is 2, want 3");
  options_.num_classes = 4;  // classes that do not occur
  EXPECT_TRUE(ProbeDataset(options_).ok());
  options_.memory_limit_bytes = 19;
  ExpectRefused("InvalidSpec", "more than 19 characters");
  options_.memory_limit_bytes = 20;
  EXPECT_TRUE(ProbeDataset(options_).ok());
  Write("input.txt", "");
  ExpectRefused("InvalidSpec", "the training set has 0 characters");
}

TEST_F(TextSetTest, OptionsAreHeldToTheirRanges) {
  Write("input.txt", std::string(100, 'a') + "b");
  const DatasetOptions good = options_;
  const auto refused = [&](auto change, const char* message) {
    options_ = good;
    change(options_);
    ExpectRefused("InvalidSpec", message);
  };
  refused([](auto& o) { o.sequence_length = 0; }, "data.sequence_length is 0, want 1 to 16384");
  refused([](auto& o) { o.sequence_length = 16385; }, "data.sequence_length is 16385");
  refused([](auto& o) { o.test_fraction = 0.95; },
          "data.test_fraction is 0.95, want more than 0 and at most 0.9");
  refused([](auto& o) { o.test_fraction = 0; }, "data.test_fraction is 0, want more than 0");
  refused([](auto& o) { o.test_fraction = std::nan(""); }, "data.test_fraction is nan");
  refused([](auto& o) { o.transforms = {RandomFlip{}}; }, "data.transforms are for images");
  refused([](auto& o) { o.train_file = "../input.txt"; }, "want the name of a file in the folder");
}

TEST(ScanTextTest, KeepsWhatIsWantedAndCountsTheRest) {
  const std::string text(3'000'000, 'x');
  for (const bool keep : {false, true}) {
    MemorySource source("f", text);
    Vocabulary vocabulary;
    vocabulary.Add('a');
    const absl::StatusOr<TextScan> scan = ScanText(source, keep, 3'000'000, vocabulary);
    ASSERT_TRUE(scan.ok()) << scan.status();
    EXPECT_EQ(scan->count, 3'000'000);
    EXPECT_EQ(scan->bytes.size(), keep ? text.size() : 0u);
    EXPECT_EQ(vocabulary.size(), 2);
    EXPECT_EQ(vocabulary.Tokens()['x'], 1);
  }
}

}  // namespace
}  // namespace capstan::data
