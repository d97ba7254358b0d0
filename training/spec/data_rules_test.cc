// The rules of `data` for tables (npz, csv and libsvm), images (image_folder and rec) and text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "training/graph/models.h"
#include "training/spec/job_file.h"
#include "training/spec/resolve.h"
#include "training/spec/validate.h"

namespace capstan::training::spec {
namespace {

using ::testing::Eq;
using ::testing::HasSubstr;
using Matches = ::testing::Matcher<std::string>;
using TableKeys = std::vector<std::pair<std::string, std::string>>;

constexpr char kTableJob[] = R"(version: 1
name: table
model: {name: mlp, num_classes: 2}
data: {uri: file:///data/set, format: csv}
training: {epochs: 1, global_batch_size: 64, optimizer: {learning_rate: 0.1}}
)";

std::string TableErrors(const std::string& format, TableKeys keys) {
  keys.insert(keys.begin(), {"data.format", format});
  return FormatErrors("j", ParseJobFile(kTableJob, keys).errors);
}

job::v1::JobSpec TableSpec(const std::string& format, TableKeys keys) {
  keys.insert(keys.begin(), {"data.format", format});
  JobFile file = ParseJobFile(kTableJob, keys);
  EXPECT_TRUE(file.errors.empty()) << FormatErrors("j", file.errors);
  return file.spec;
}

common::v1::DatasetInfo Adult() {
  common::v1::DatasetInfo info;
  info.set_train_samples(32561);
  info.set_test_samples(16281);
  info.set_channels(1);
  info.set_height(1);
  info.set_width(123);
  info.set_num_classes(2);
  return info;
}

TEST(DataRulesTest, TheLastGoodValueIsTakenAndTheNextOneRefused) {
  struct Case {
    const char* format;
    const char* key;
    std::vector<std::string> good, bad;
  };
  const std::string name(255, 'n');
  const std::vector<Case> cases = {
      {"csv",
       "label_column",
       {"-1", "0", "1048576", "class", "a b", name},
       {"-2", "1048577", "99999999999999999999", "''", "\"a\\tb\"", name + "n"}},
      {"csv",
       "shape",
       {"[1, 28, 28]", "[1, 1, 1]", "[16384, 64, 1]", "[1, 64, 16384]"},
       {"[28, 28]", "[1, 28, 28, 1]", "[0, 28, 28]", "[1, 16385, 1]", "[-1, -1, 1]",
        "[16384, 64, 2]", "[16384, 16384, 16384]", "28"}},
      {"csv",
       "train_file",
       {"a", "adult data.csv", name},
       {"''", ".", "..", "a/b", "/a", "../a", "\"a\\nb\"", name + "n"}},
      {"libsvm", "test_file", {"a9a.t"}, {"''", "..", "a/b"}},
      {"libsvm", "features", {"1", "1048576"}, {"0", "-1", "1048577"}},
      {"libsvm", "shape", {"[3, 32, 32]"}, {"[3, 32]"}},
      {"image_folder",
       "shape",
       {"[3, 224, 224]", "[1, 1024, 1024]"},
       {"[2, 8, 8]", "[4, 8, 8]", "[3, 1024, 1024]", "[3, 224]"}},
      {"rec", "shape", {"[3, 299, 299]", "[1, 28, 28]"}, {"[2, 8, 8]", "[3, 0, 8]"}},
      {"rec", "train_file", {"a", "caltech.rec", "a.gz"}, {"''", "..", "a/b"}},
      {"text", "train_file", {"play.txt", name}, {"''", "..", "a/b", "play.txt.gz"}},
      {"text", "test_file", {"b"}, {"../b"}},
      {"text", "sequence_length", {"1", "16384"}, {"0", "-1", "16385"}},
      {"text", "test_fraction", {"0.01", "0.25", "0.9"}, {"0", "-0.1", "0.91", "1"}},
  };
  for (const Case& c : cases) {
    const std::string key = absl::StrCat("data.", c.key);
    for (const std::string& value : c.good) {
      EXPECT_EQ(TableErrors(c.format, {{key, value}}), "") << key << ": " << value;
    }
    for (const std::string& value : c.bad) {
      EXPECT_THAT(TableErrors(c.format, {{key, value}}), HasSubstr(absl::StrCat("'", key, "' ")))
          << key << ": " << value;
    }
  }
}

TEST(DataRulesTest, AFormatHasItsKeysAlone) {
  const TableKeys keys = {
      {"data.label_column", "1"},  {"data.shape", "[1, 2, 2]"},   {"data.train_file", "a"},
      {"data.test_file", "b"},     {"data.features", "4"},        {"data.train_samples", "10"},
      {"data.test_samples", "10"}, {"data.sequence_length", "8"}, {"data.test_fraction", "0.2"}};
  const std::vector<std::pair<std::string, std::vector<bool>>> has = {
      {"idx", {false, false, false, false, false, false, false, false, false}},
      {"npz", {false, false, false, false, false, false, false, false, false}},
      {"csv", {true, true, true, true, false, false, false, false, false}},
      {"libsvm", {false, true, true, true, true, false, false, false, false}},
      {"image_folder", {false, true, false, false, false, false, false, false, false}},
      {"rec", {false, true, true, true, false, false, false, false, false}},
      {"text", {false, false, true, true, false, false, false, true, true}},
  };
  for (const auto& [format, taken] : has) {
    for (size_t i = 0; i < keys.size(); ++i) {
      const std::string errors = TableErrors(format, {keys[i]});
      const std::string wrong = absl::StrCat("'", keys[i].first, "' is for '");
      EXPECT_THAT(errors, taken[i] ? Matches(Eq("")) : Matches(HasSubstr(wrong))) << format;
    }
    EXPECT_THAT(TableErrors(format, {{"data.uri", "null"}}), HasSubstr("'data.uri' is required"));
  }
  EXPECT_EQ(TableErrors("npz", {{"data.shape", "[1, 2, 2]"}}),
            "j: error: 'data.shape' is for 'csv', 'libsvm', 'image_folder' and 'rec' only\n");
  EXPECT_EQ(TableErrors("image_folder", {{"data.train_file", "a"}}),
            "j: error: 'data.train_file' is for 'csv', 'libsvm', 'rec' and 'text' only\n");
  EXPECT_EQ(TableErrors("libsvm", {{"data.shape", "[1, 2, 2]"}, {"data.features", "5"}}),
            "j: error: 'data.features' is 5, 'data.shape' has 4 numbers for a sample\n");
}

TEST(DataRulesTest, WhatIsLeftOutHasItsDefault) {
  job::v1::JobSpec csv = TableSpec("csv", {});
  FillDefaults(csv);
  EXPECT_EQ(csv.data().label_column(), "0");
  EXPECT_EQ(csv.data().train_file(), "train.csv");
  EXPECT_EQ(csv.data().test_file(), "test.csv");
  EXPECT_FALSE(csv.data().has_features());

  job::v1::JobSpec libsvm = TableSpec("libsvm", {{"data.test_file", "a9a.t"}});
  FillDefaults(libsvm);
  EXPECT_FALSE(libsvm.data().has_label_column());
  EXPECT_EQ(libsvm.data().train_file(), "train.libsvm");
  EXPECT_EQ(libsvm.data().test_file(), "a9a.t");
  EXPECT_FALSE(libsvm.data().has_features());
  libsvm = TableSpec("libsvm", {{"data.shape", "[1, 28, 28]"}});
  FillDefaults(libsvm);
  EXPECT_EQ(libsvm.data().features(), 784);

  job::v1::JobSpec npz = TableSpec("npz", {});
  FillDefaults(npz);
  EXPECT_FALSE(npz.data().has_train_file());
  EXPECT_EQ(npz.data().shape_size(), 0);

  job::v1::JobSpec rec = TableSpec("rec", {{"data.test_file", "val.rec"}});
  FillDefaults(rec);
  EXPECT_EQ(rec.data().train_file(), "train.rec");
  EXPECT_EQ(rec.data().test_file(), "val.rec");
  EXPECT_THAT(rec.data().shape(), testing::ElementsAre(3, 224, 224));

  job::v1::JobSpec images = TableSpec("image_folder", {});
  FillDefaults(images);
  EXPECT_FALSE(images.data().has_train_file());
  EXPECT_THAT(images.data().shape(), testing::ElementsAre(3, 224, 224));
  images = TableSpec("image_folder", {{"data.shape", "[1, 28, 28]"}});
  FillDefaults(images);
  EXPECT_THAT(images.data().shape(), testing::ElementsAre(1, 28, 28));
}

TEST(DataRulesTest, ATextHasItsOwnDefaultsAndClasses) {
  job::v1::JobSpec text = TableSpec("text", {{"model.num_classes", "null"}});
  FillDefaults(text);
  EXPECT_EQ(text.data().train_file(), "input.txt");
  EXPECT_EQ(text.data().sequence_length(), 64);
  EXPECT_DOUBLE_EQ(text.data().test_fraction(), 0.1);
  EXPECT_FALSE(text.data().has_test_file());
  EXPECT_FALSE(text.model().has_num_classes()) << "the data set has them";
  text = TableSpec("text", {{"data.test_file", "b.txt"}});
  FillDefaults(text);
  EXPECT_FALSE(text.data().has_test_fraction());

  common::v1::DatasetInfo info = Adult();
  info.set_width(64);
  const auto classes = [&](const TableKeys& keys, int32_t characters) {
    info.set_num_classes(characters);
    const auto spec = Resolve(TableSpec("text", keys), info, {.job_id = "j", .storage_path = "/"});
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec.ok() ? spec->spec().model().num_classes() : -1;
  };
  const TableKeys nano = {{"model.name", "gpt_nano"}, {"model.num_classes", "null"}};
  EXPECT_EQ(classes(nano, 65), 65);
  EXPECT_EQ(classes(nano, 1), 2) << "a network has at least two classes";
  EXPECT_EQ(classes({{"model.num_classes", "70"}}, 65), 70);
}

TEST(DataRulesTest, WhatHasNoMeaningForATextIsRefused) {
  EXPECT_EQ(TableErrors("text", {{"data.test_file", "b"}, {"data.test_fraction", "0.2"}}),
            "j: error: 'data.test_fraction' and 'data.test_file' exclude each other: give one of "
            "them\n");
  EXPECT_EQ(TableErrors("text", {{"data.transforms", "[{normalize: {mean: [0.5], std: [2]}}]"}}),
            "j: error: 'data.transforms' are for images, the samples of 'text' are characters\n");
  EXPECT_EQ(TableErrors("text", {{"model.name", "gpt_nano"}}), "");
  EXPECT_EQ(TableErrors("npz", {{"model.name", "gpt_nano"}}), "");
  EXPECT_EQ(
      TableErrors("idx", {{"model.name", "gpt_nano"}}),
      "j: error: 'model.name' is gpt_nano, which reads tokens: 'data.format' must be text, or "
      "npz, csv or libsvm with tokens, found 'idx'\n");
}

TEST(DataRulesTest, EveryModelIsTakenWithItsData) {
  for (const absl::string_view name : ModelNames()) {
    const char* const format = ModelReadsTokens(name) ? "text" : "idx";
    EXPECT_EQ(TableErrors(format, {{"model.name", std::string(name)}}), "") << name;
  }
}

// The same data, spelled out or by default, are the same numbers; other columns are others.
TEST(DataRulesTest, WhatDecidesTheDataIsInTheDigest) {
  const auto digest = [](const TableKeys& keys) {
    const auto spec =
        Resolve(TableSpec("csv", keys), Adult(), {.job_id = "j", .storage_path = "/"});
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec.ok() ? spec->training_digest() : "";
  };
  const std::string base = digest({});
  EXPECT_EQ(digest({{"data.label_column", "0"}, {"data.train_file", "train.csv"}}), base);
  EXPECT_NE(digest({{"data.label_column", "-1"}}), base);
  EXPECT_NE(digest({{"data.train_file", "other.csv"}}), base);
  EXPECT_NE(digest({{"data.test_file", "other.csv"}}), base);
  EXPECT_NE(digest({{"data.shape", "[1, 1, 123]"}}), base);
}

TEST(DataRulesTest, AVectorOfFeaturesIsAnImageOfOneRow) {
  const auto resolved = [](const TableKeys& keys, const common::v1::DatasetInfo& info) {
    return Resolve(TableSpec("libsvm", keys), info, {.job_id = "j", .storage_path = "/"});
  };
  const auto spec =
      resolved({{"data.transforms", "[{normalize: {mean: [0.5], std: [2]}}]"}}, Adult());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(spec->parameters(0).shape(), testing::ElementsAre(128, 123));
  for (const char* kind : {"random_crop: {padding: 2}", "random_flip: {axis: horizontal}",
                           "resize: {size: 4}", "cutout: {size: 1}"}) {
    const std::string text = kind;
    const auto refused = resolved({{"data.transforms", absl::StrCat("[{", kind, "}]")}}, Adult());
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.status().message()),
                HasSubstr(absl::StrCat("'data.transforms[0].", text.substr(0, text.find(':')),
                                       "' is for images, a sample of this data set is a vector of "
                                       "123 features: only normalize fits")));
  }
  // With rows and columns the same transforms fit.
  common::v1::DatasetInfo images = Adult();
  images.set_height(3);
  images.set_width(41);
  EXPECT_TRUE(resolved({{"data.shape", "[1, 3, 41]"},
                        {"data.transforms", "[{random_flip: {axis: horizontal}}]"}},
                       images)
                  .ok());
}

}  // namespace
}  // namespace capstan::training::spec
