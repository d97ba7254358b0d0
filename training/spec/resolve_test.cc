#include "training/spec/resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "training/spec/job_file.h"

namespace capstan::training::spec {
namespace {

using ::testing::HasSubstr;

job::v1::JobSpec Spec(const std::vector<std::pair<std::string, std::string>>& overrides = {}) {
  JobFile file = ParseJobFile(R"(version: 1
name: lenet-fmnist
resources: {num_workers: 2, num_shards: 2}
model: {name: lenet_d2l}
data: {uri: file:///data/fashion-mnist, format: idx}
training:
  epochs: 10
  global_batch_size: 256
  optimizer: {name: sgd, learning_rate: 0.2}
)",
                              overrides);
  EXPECT_TRUE(file.errors.empty()) << FormatErrors("job.yaml", file.errors);
  return file.spec;
}

common::v1::DatasetInfo FashionMnist() {
  common::v1::DatasetInfo info;
  info.set_train_samples(60000);
  info.set_test_samples(10000);
  info.set_channels(1);
  info.set_height(28);
  info.set_width(28);
  info.set_num_classes(10);
  return info;
}

const ResolveOptions kOptions{.job_id = "lenet-fmnist-x3n9", .storage_path = "/out"};

TEST(ResolveTest, NumbersOfTheD2lLenet) {
  const auto spec = Resolve(Spec(), FashionMnist(), kOptions);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->lanes(), 2);
  EXPECT_EQ(spec->num_shards(), 2);
  EXPECT_EQ(spec->steps_per_epoch(), 235);  // 60000 / 256 = 234.375
  EXPECT_EQ(spec->total_steps(), 2350);
  EXPECT_EQ(spec->evaluate_every_steps(), 235);
  EXPECT_EQ(spec->evaluation_blocks(), 10);  // 10000 / 1024 = 9.8
  EXPECT_EQ(spec->storage_path(), "/out/lenet-fmnist-x3n9");
  EXPECT_EQ(spec->chunk_floats(), 4096);
  EXPECT_EQ(spec->spec().kvstore().type(), "dist_sync");
  int64_t floats = 0;
  for (const auto& p : spec->parameters()) {
    int64_t n = 1;
    for (const int64_t d : p.shape()) n *= d;
    floats += n;
  }
  EXPECT_EQ(floats, 129068);
  EXPECT_EQ(spec->parameters(0).name(), "conv1.weight");
  EXPECT_THAT(
      PlanText(*spec),
      HasSubstr("global batch 256 in 2 lanes, 235 steps/epoch (the last of 96), 2350 steps"));
}

TEST(ResolveTest, MaxStepsAndEpochsTakeWhicheverComesFirst) {
  EXPECT_EQ(Resolve(Spec({{"training.max_steps", "100"}}), FashionMnist(), kOptions)->total_steps(),
            100);
  EXPECT_EQ(
      Resolve(Spec({{"training.max_steps", "9999"}}), FashionMnist(), kOptions)->total_steps(),
      2350);
}

TEST(ResolveTest, CheckpointsOfEpochsAreCountedInSteps) {
  const auto every = [](const char* text) {
    const auto spec = Resolve(Spec({{"checkpoint.every", text}}), FashionMnist(), kOptions);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec->checkpoint_every_steps();
  };
  EXPECT_EQ(every("2 epochs"), 470);  // 2 x 235
  EXPECT_EQ(every("500 steps"), 500);
  EXPECT_EQ(every("30s"), 0);
  EXPECT_EQ(Resolve(Spec(), FashionMnist(), kOptions)->checkpoint_every_steps(), 0);
}

TEST(ResolveTest, TrainingDigestIsOfTheNumbersAlone) {
  using Overrides = std::vector<std::pair<std::string, std::string>>;
  const auto digest = [](Overrides overrides, absl::string_view job = "j-x3n9") {
    overrides.insert(overrides.begin(), {"resources.lanes", "4"});
    const auto spec = Resolve(Spec(overrides), FashionMnist(),
                              {.job_id = std::string(job), .storage_path = absl::StrCat("/", job)});
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec.ok() ? spec->training_digest() : "";
  };
  const std::string base = digest({});
  EXPECT_EQ(base.size(), 32u);
  EXPECT_EQ(digest({}, "other-b81c"), base);
  EXPECT_EQ(digest({{"resources.num_workers", "4"}, {"resources.num_shards", "3"}}), base);
  EXPECT_EQ(digest({{"name", "other"}, {"labels", "{a: b}"}, {"description", "x"}}), base);
  EXPECT_EQ(digest({{"checkpoint.every", "10 steps"}, {"checkpoint.keep_latest", "1"}}), base);
  EXPECT_EQ(digest({{"limits.stall_timeout", "9s"}, {"recovery.max_restarts", "0"}}), base);
  for (const std::pair<std::string, std::string>& other :
       Overrides{{"training.seed", "1"},
                 {"training.epochs", "11"},
                 {"training.global_batch_size", "128"},
                 {"training.optimizer.momentum", "0.9"},
                 {"training.optimizer.learning_rate", "0.1"},
                 {"resources.lanes", "8"},
                 {"resources.lane_weights", "[1, 2, 1, 1]"},
                 {"data.partition", "contiguous"},
                 {"model.name", "lenet"},
                 {"evaluation.every", "2 epochs"}}) {
    EXPECT_NE(digest({other}), base) << other.first;
  }
}

TEST(ResolveTest, WhatDoesNotFitTheDataSetIsNamed) {
  auto small = FashionMnist();
  small.set_train_samples(100);
  EXPECT_THAT(std::string(Resolve(Spec(), small, kOptions).status().message()),
              HasSubstr("global batch of 256 samples is larger than the training set of 100"));
  auto empty = FashionMnist();
  empty.set_train_samples(0);
  EXPECT_THAT(std::string(Resolve(Spec(), empty, kOptions).status().message()),
              HasSubstr("no samples"));
  auto classes = FashionMnist();
  classes.set_num_classes(11);
  EXPECT_THAT(std::string(Resolve(Spec(), classes, kOptions).status().message()),
              HasSubstr("labels up to 10"));
  auto narrow = FashionMnist();
  narrow.set_width(4);
  EXPECT_EQ(Resolve(Spec(), narrow, kOptions).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Resolve(Spec({{"resources.num_shards", "200"}}), FashionMnist(), kOptions)
                              .status()
                              .message()),
              HasSubstr("'resources.num_shards' is 200"));
  EXPECT_EQ(Resolve(Spec({{"resources.lanes", "300"}}), FashionMnist(), kOptions).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ResolveTest, LocalUsesNoShard) {
  const auto spec = Resolve(
      Spec({{"kvstore.type", "local"}, {"resources", "{num_workers: 1, gpus_per_worker: 2}"}}),
      FashionMnist(), kOptions);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_FALSE(UsesShards(*spec));
  EXPECT_EQ(spec->lanes(), 2);
}

TEST(ResolveTest, AReceivedSpecIsCheckedAgainstItsDigestAndItself) {
  const auto spec = Resolve(Spec(), FashionMnist(), kOptions);
  ASSERT_TRUE(spec.ok());
  const std::string bytes = spec->SerializeAsString();
  EXPECT_TRUE(ParseResolved(bytes, Digest(bytes)).ok())
      << ParseResolved(bytes, Digest(bytes)).status();
  EXPECT_FALSE(ParseResolved(bytes, Digest(bytes + "x")).ok());
  auto forged = *spec;
  forged.set_chunk_floats(1);
  const std::string other = forged.SerializeAsString();
  EXPECT_FALSE(ParseResolved(other, Digest(other)).ok());
}

// The bytes of a map come in another order in each message.
TEST(ResolveTest, ASpecWithManyLabelsIsTakenBack) {
  job::v1::JobSpec job = Spec();
  for (int i = 0; i < 32; ++i) (*job.mutable_labels())[absl::StrCat("label", i)] = "x";
  const auto spec = Resolve(job, FashionMnist(), kOptions);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const std::string bytes = spec->SerializeAsString();
  EXPECT_EQ(ParseResolved(bytes, Digest(bytes)).status(), absl::OkStatus());
}

}  // namespace
}  // namespace capstan::training::spec
