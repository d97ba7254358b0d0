// kvstore.local_steps: steps that each lane makes by itself between two exchanges.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "training/optim/average.h"
#include "training/optim/sgd.h"
#include "training/spec/job_file.h"
#include "training/spec/resolve.h"
#include "training/spec/validate.h"

namespace capstan::training::spec {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using LocalKeys = std::vector<std::pair<std::string, std::string>>;

constexpr char kLocalJob[] = R"(version: 1
name: lenet-fmnist
resources: {num_workers: 2, num_shards: 2}
model: {name: lenet_d2l}
data: {uri: file:///data/fashion-mnist, format: idx}
kvstore: {local_steps: 4}
training:
  epochs: 10
  global_batch_size: 256
  optimizer: {name: sgd, learning_rate: 0.2, momentum: 0.9, weight_decay: 0.01}
)";

absl::StatusOr<job::v1::ResolvedSpec> ResolveLocal(const LocalKeys& keys = {}) {
  const JobFile file = ParseJobFile(kLocalJob, keys);
  EXPECT_THAT(file.errors, IsEmpty()) << FormatErrors("j", file.errors);
  common::v1::DatasetInfo info;
  info.set_train_samples(60000);
  info.set_test_samples(10000);
  info.set_channels(1);
  info.set_height(28);
  info.set_width(28);
  info.set_num_classes(10);
  return Resolve(file.spec, info, {.job_id = "lenet-fmnist-x3n9", .storage_path = "/out"});
}

TEST(LocalStepsTest, AStepHasTheSamplesOfItsRoundAndOneLanePerDevice) {
  const auto spec = ResolveLocal();
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->lanes(), 2);
  EXPECT_EQ(spec->global_batch(), 1024);
  EXPECT_EQ(spec->steps_per_epoch(), 59);
  EXPECT_EQ(spec->total_steps(), 590);
  const std::string bytes = spec->SerializeAsString();
  EXPECT_EQ(ParseResolved(bytes, Digest(bytes)).status(), absl::OkStatus());
  EXPECT_EQ(ResolveLocal({{"resources.lanes", "8"}})->lanes(), 8);

  // A job that makes no local steps is the same as before.
  const auto one = ResolveLocal({{"kvstore.local_steps", "1"}});
  const auto none = ResolveLocal({{"kvstore", "null"}});
  EXPECT_EQ(one->training_digest(), none->training_digest());
  EXPECT_EQ(one->lanes(), 8);
  EXPECT_FALSE(one->spec().kvstore().has_local_steps());
  // Other numbers than a large batch, or a job of other rounds.
  EXPECT_NE(ResolveLocal({{"kvstore.local_steps", "2"}, {"training.global_batch_size", "512"}})
                ->training_digest(),
            spec->training_digest());
}

TEST(LocalStepsTest, ShardsAverageAndLanesHaveTheRuleOfTheFile) {
  const auto spec = ResolveLocal({{"training.gradient_clip_norm", "2"}});
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto shards = MakeOptimizer(*spec);
  const auto lanes = MakeLaneOptimizer(*spec);
  ASSERT_TRUE(shards.ok() && lanes.ok());
  EXPECT_NE(dynamic_cast<const Average*>(shards->get()), nullptr);
  EXPECT_NE(dynamic_cast<const Sgd*>(lanes->get()), nullptr);
  EXPECT_EQ((*lanes)->state_floats_per_weight(), 1);
  EXPECT_EQ(ClipNorm(*spec), 0);
  EXPECT_EQ(LaneClipNorm(*spec), 2);
  EXPECT_EQ(WhyTheHostUpdates(*spec), "lanes make steps of their own");

  const auto plain =
      ResolveLocal({{"kvstore.local_steps", "1"}, {"training.gradient_clip_norm", "2"}});
  EXPECT_NE(dynamic_cast<const Sgd*>(MakeOptimizer(*plain)->get()), nullptr);
  EXPECT_EQ(*MakeLaneOptimizer(*plain), nullptr);
  EXPECT_EQ(ClipNorm(*plain), 2);
  EXPECT_EQ(LaneClipNorm(*plain), 0);
  EXPECT_EQ(WhyTheHostUpdates(*ResolveLocal({{"kvstore.local_steps", "1"}})), "");
}

TEST(LocalStepsTest, AverageSubtractsWhateverTheRateIs) {
  const float weights[] = {1, 2, -3};
  const float gradient[] = {0.5f, -2, 1};
  float out[3] = {};
  Average().Apply(out, weights, gradient, nullptr, 3, {.learning_rate = 0.1});
  EXPECT_THAT(out, ::testing::ElementsAre(0.5f, 4, -4));
}

// All services refuse what a task could not carry out.
TEST(LocalStepsTest, ASpecFromTheWireHasARuleForLanes) {
  job::v1::ResolvedSpec spec = *ResolveLocal({{"training.optimizer.name", "adam"},
                                              {"training.optimizer.momentum", "null"},
                                              {"training.optimizer.weight_decay", "null"}});
  const auto parsed = [&spec] {
    const std::string bytes = spec.SerializeAsString();
    return ParseResolved(bytes, Digest(bytes)).status();
  };
  EXPECT_TRUE(parsed().ok()) << parsed();
  spec.mutable_spec()->mutable_training()->mutable_optimizer()->set_beta1(2);
  EXPECT_EQ(parsed().code(), absl::StatusCode::kInvalidArgument);
  spec.mutable_spec()->mutable_training()->mutable_optimizer()->clear_epsilon();
  EXPECT_EQ(parsed().code(), absl::StatusCode::kInvalidArgument);

  // The text of a plan is made of any spec.
  spec.mutable_spec()->mutable_kvstore()->set_local_steps(1 << 30);
  spec.mutable_spec()->mutable_training()->set_accumulate_steps(1 << 30);
  EXPECT_THAT(PlanText(spec), HasSubstr("global batch 0 x 1152921504606846976 local steps"));
}

TEST(LocalStepsTest, ThePlanSaysWhatAStepIs) {
  const std::string plan = PlanText(*ResolveLocal());
  EXPECT_THAT(plan, HasSubstr("global batch 256 x 4 local steps = 1024 samples in 2 lanes, "));
  EXPECT_THAT(plan, HasSubstr("a lane makes 4 steps of its own in a step of the job"));
  EXPECT_THAT(plan, HasSubstr("one lane per device, the default: each lane trains by itself"));
  EXPECT_THAT(plan, Not(HasSubstr("samples per lane; below")));
  EXPECT_THAT(
      PlanText(*ResolveLocal({{"training.optimizer", "{name: rmsprop, learning_rate: 0.001}"}})),
      HasSubstr("warning: with rmsprop, a lane's first step of each round is up to 10.0 times"));
  EXPECT_THAT(PlanText(*ResolveLocal({{"resources.num_workers", "1"},
                                      {"resources.num_shards", "null"},
                                      {"kvstore.type", "device"}})),
              HasSubstr("device (as local), "));
  EXPECT_THAT(PlanText(*ResolveLocal({{"resources.lanes", "32"}})),
              HasSubstr("warning: 8 samples per lane; below"));
}

TEST(LocalStepsTest, WhatDoesNotFitTheDataOrTheModelIsNamed) {
  const auto error = [](const LocalKeys& keys) {
    return std::string(ResolveLocal(keys).status().message());
  };
  EXPECT_EQ(error({{"kvstore.local_steps", "235"}}),
            "'kvstore.local_steps' is 235 and makes a step of 60160 samples, the training set has "
            "60000 samples");
  EXPECT_EQ(error({{"kvstore.local_steps", "234"}}), "");
  EXPECT_EQ(error({{"model.name", "resnet18_v1"}}),
            "'kvstore.local_steps' is 4, and resnet18_v1 has running statistics: lanes cannot keep "
            "them by themselves yet");
}

}  // namespace
}  // namespace capstan::training::spec
