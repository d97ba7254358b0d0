// training.accumulate_steps: batches whose gradients are summed before one update.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "training/spec/job_file.h"
#include "training/spec/resolve.h"
#include "training/spec/validate.h"

namespace capstan::training::spec {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Keys = std::vector<std::pair<std::string, std::string>>;

// The batch has 8 lanes by default.
constexpr char kPlainJob[] = R"(version: 1
name: lenet-fmnist
resources: {num_workers: 2, num_shards: 2}
model: {name: lenet_d2l}
data: {uri: file:///data/fashion-mnist, format: idx}
training:
  epochs: 10
  global_batch_size: 256
  optimizer: {name: sgd, learning_rate: 0.2}
)";

std::string ErrorsWith(const Keys& keys) {
  return FormatErrors("j", ParseJobFile(kPlainJob, keys).errors);
}

absl::StatusOr<job::v1::ResolvedSpec> ResolveJob(const Keys& keys, int64_t samples = 60000) {
  const JobFile file = ParseJobFile(kPlainJob, keys);
  EXPECT_THAT(file.errors, IsEmpty()) << FormatErrors("j", file.errors);
  common::v1::DatasetInfo info;
  info.set_train_samples(samples);
  info.set_test_samples(10000);
  info.set_channels(1);
  info.set_height(28);
  info.set_width(28);
  info.set_num_classes(10);
  return Resolve(file.spec, info, {.job_id = "lenet-fmnist-x3n9", .storage_path = "/out"});
}

job::v1::ResolvedSpec Accumulated(const char* batches, Keys keys = {}) {
  keys.push_back({"training.accumulate_steps", batches});
  const auto spec = ResolveJob(keys);
  EXPECT_TRUE(spec.ok()) << spec.status();
  const std::string bytes = spec->SerializeAsString();
  EXPECT_EQ(ParseResolved(bytes, Digest(bytes)).status(), absl::OkStatus());
  return *spec;
}

TEST(AccumulateStepsTest, AreAWholeNumber) {
  const JobFile file = ParseJobFile(absl::StrCat(kPlainJob, "  accumulate_steps: 4\n"));
  ASSERT_THAT(file.errors, IsEmpty()) << FormatErrors("j", file.errors);
  EXPECT_EQ(file.spec.training().accumulate_steps(), 4);
  EXPECT_THAT(ToYaml(file.spec), HasSubstr("  accumulate_steps: 4\n"));
  const auto errors = [](const char* value) {
    return FormatErrors(
        "j", ParseJobFile(absl::StrCat(kPlainJob, "  accumulate_steps: ", value, "\n")).errors);
  };
  EXPECT_EQ(errors("0"),
            "j:10:21: error: 'training.accumulate_steps' must be between 1 and 1024, found 0\n");
  EXPECT_THAT(errors("1.5"), HasSubstr("must be a whole number, found '1.5'"));
  EXPECT_THAT(errors("\"4\""), HasSubstr("is the text \"4\"; write 4 without quotes"));
  EXPECT_THAT(errors("{type: 1}"), HasSubstr("must be a single value, found a group of keys"));
}

// Beside another error it would count with a wrong number of lanes.
TEST(AccumulateStepsTest, TheLanesOfAStepAreCountedWhereTheRestIsRight) {
  const Keys many = {{"training.accumulate_steps", "1024"}};
  EXPECT_THAT(ErrorsWith(many), HasSubstr("has 8192 lanes"));
  for (const auto& [key, value] :
       Keys{{"training.seed", "x"}, {"model.name", "none"}, {"resources.lanes", "0"}}) {
    const JobFile file = ParseJobFile(kPlainJob, {many[0], {key, value}});
    ASSERT_EQ(file.errors.size(), 1u) << FormatErrors("j", file.errors);
    EXPECT_THAT(file.errors[0].message, HasSubstr(key));
  }
}

TEST(AccumulateStepsTest, AStepOfManyBatchesHasTheLimitsOfAStep) {
  EXPECT_EQ(ErrorsWith({{"training.accumulate_steps", "513"}}),
            "j: error: 'training.accumulate_steps' is 513: a step of 513 batches in 8 lanes each "
            "has 4104 lanes, 4096 is the limit; 'resources.lanes' sets the lanes of a batch\n");
  EXPECT_THAT(ErrorsWith({{"resources.lanes", "2049"}, {"training.accumulate_steps", "2"}}),
              HasSubstr("a step of 2 batches in 2049 lanes each has 4098 lanes, 4096 is the"));
  EXPECT_EQ(ErrorsWith({{"resources.lanes", "2048"}, {"training.accumulate_steps", "2"}}), "");
  EXPECT_EQ(ErrorsWith({{"resources.lanes", "2049"}, {"training.accumulate_steps", "1"}}), "");
  const auto batch = [](const char* samples) {
    return ErrorsWith({{"training.global_batch_size", samples},
                       {"resources.lanes", "1"},
                       {"training.accumulate_steps", "1024"}});
  };
  EXPECT_EQ(batch("16384"), "");
  EXPECT_EQ(batch("16385"),
            "j: error: 'training.accumulate_steps' is 1024: a step of 1024 batches has 16778240 "
            "samples, 16777216 is the limit\n");
  EXPECT_THAT(batch("2147483647"), HasSubstr("has 2199023254528 samples, 16777216 is the limit"));
  // One weight per lane of a batch.
  const auto weights = [](const char* list) {
    return ErrorsWith({{"resources", absl::StrCat("{lanes: 2, lane_weights: ", list, "}")},
                       {"training.accumulate_steps", "2"}});
  };
  EXPECT_EQ(weights("[3, 1]"), "");
  EXPECT_THAT(weights("[3, 1, 3, 1]"),
              HasSubstr("'resources.lane_weights' has 4 entries, want one for each of the 2"));
}

// 60000 samples in steps of 4 x 256 are 58.6 steps.
TEST(AccumulateStepsTest, AStepHasTheSamplesAndTheLanesOfAllItsBatches) {
  const Keys halves = {
      {"training.optimizer.lr_schedule", "{name: step, every: 1 epoch, factor: 0.5}"}};
  const job::v1::ResolvedSpec spec = Accumulated("4", halves);
  EXPECT_EQ(spec.global_batch(), 1024);
  EXPECT_EQ(spec.lanes(), 32);  // of 32 samples each, as without accumulation
  EXPECT_EQ(spec.spec().resources().lanes(), 8);
  EXPECT_EQ(spec.steps_per_epoch(), 59);
  EXPECT_EQ(spec.total_steps(), 590);
  EXPECT_EQ(spec.evaluate_every_steps(), 59);
  const SamplePlan samples = *MakeSamplePlan(spec);
  EXPECT_EQ(samples.LaneSampleCount(0, 31), 32);
  EXPECT_EQ(samples.StepSampleCount(0), 1024);
  EXPECT_EQ(samples.StepSampleCount(58), 60000 - 58 * 1024);
  const Schedule schedule = *MakeSchedule(spec);
  EXPECT_DOUBLE_EQ(schedule.LearningRate(58), 0.2);
  EXPECT_DOUBLE_EQ(schedule.LearningRate(59), 0.1);
  EXPECT_EQ(Accumulated("4", {{"training.max_steps", "7"}}).total_steps(), 7);
  EXPECT_EQ(Accumulated("4", {{"checkpoint.every", "1 epoch"}}).checkpoint_every_steps(), 59);
}

TEST(AccumulateStepsTest, ABatchOfAStepHasTheLanesThatItHasAlone) {
  const auto lanes = [](const char* batches, const std::string& resources, const char* batch) {
    return Accumulated(batches, {{"resources", resources}, {"training.global_batch_size", batch}})
        .lanes();
  };
  EXPECT_EQ(lanes("2", "{num_workers: 1}", "64"), 2 * 4);  // not the 8 of a batch of 128
  EXPECT_EQ(lanes("3", "{num_workers: 2, device: gpu}", "256"), 3 * 2);
  EXPECT_EQ(lanes("3", "{num_workers: 2, lanes: 5}", "256"), 3 * 5);
  EXPECT_EQ(lanes("16", "{num_workers: 1}", "15"), 16 * 1);
  const job::v1::ResolvedSpec per_device = Accumulated("2", {{"training.global_batch_size", "null"},
                                                             {"training.batch_size_per_gpu", "64"},
                                                             {"resources.gpus_per_worker", "2"}});
  EXPECT_EQ(per_device.global_batch(), 2 * 2 * 2 * 64);
  EXPECT_EQ(per_device.lanes(), 2 * 8);

  // Each batch of a step is cut by the weights: 192 and 64 samples.
  const job::v1::ResolvedSpec weighted = Accumulated("2", {{"resources.lane_weights", "[3, 1]"}});
  EXPECT_EQ(weighted.lanes(), 4);
  const SamplePlan samples = *MakeSamplePlan(weighted);
  std::vector<int64_t> counts;
  for (int lane = 0; lane < 4; ++lane) counts.push_back(samples.LaneSampleCount(0, lane));
  EXPECT_THAT(counts, testing::ElementsAre(192, 64, 192, 64));
}

// So checkpoints of the one fit the other.
TEST(AccumulateStepsTest, AccumulatedBatchesAreTheNumbersOfOneLargeBatch) {
  const Keys lanes = {{"resources.lanes", "4"}};
  const job::v1::ResolvedSpec plain = Accumulated("1", lanes);
  EXPECT_EQ(plain.SerializeAsString(), ResolveJob(lanes)->SerializeAsString());
  const job::v1::ResolvedSpec twice = Accumulated("2", lanes);
  EXPECT_NE(twice.training_digest(), plain.training_digest());
  EXPECT_NE(twice.training_digest(), Accumulated("3", lanes).training_digest());
  EXPECT_NE(twice.training_digest(),
            Accumulated("1", {{"resources.lanes", "4"}, {"training.global_batch_size", "512"}})
                .training_digest());
  EXPECT_EQ(twice.training_digest(),
            Accumulated("1", {{"resources.lanes", "8"}, {"training.global_batch_size", "512"}})
                .training_digest());
  const Keys weights = {{"resources", "{lanes: 2, lane_weights: [3, 1]}"}};
  const Keys all_weights = {{"resources", "{lanes: 4, lane_weights: [3, 1, 3, 1]}"},
                            {"training.global_batch_size", "512"}};
  EXPECT_EQ(Accumulated("2", weights).training_digest(),
            Accumulated("1", all_weights).training_digest());
}

TEST(AccumulateStepsTest, ThePlanSaysHowManyBatchesAStepHas) {
  const std::string plan = PlanText(Accumulated("4", {{"resources", "{num_workers: 1}"}}));
  EXPECT_THAT(plan,
              HasSubstr("\n      global batch 256 x 4 accumulated = 1024 samples in 32 lanes, "
                        "59 steps/epoch (the last of 608), 590 steps\n      8 lanes of a batch "
                        "by default, of at least 16 samples: the same result on 1 to 8 "
                        "devices\n"));
  EXPECT_THAT(plan, testing::Not(HasSubstr("warning")));
  EXPECT_THAT(PlanText(Accumulated("4", {{"resources.device", "gpu"}})),
              HasSubstr("one lane of a batch per device, the default on GPUs; lanes follow"));
  EXPECT_THAT(PlanText(Accumulated("2", {{"resources.num_workers", "9"}})),
              HasSubstr("one lane of a batch per device, the default; lanes follow"));
  EXPECT_THAT(PlanText(Accumulated("2", {{"model.name", "resnet18_v1"}})),
              HasSubstr("one lane of a batch per device, the default: resnet18_v1 couples"));
  EXPECT_THAT(PlanText(Accumulated("4", {{"resources.lanes", "32"}})),
              HasSubstr("warning: 8 samples per lane; below 16"));
}

TEST(AccumulateStepsTest, BatchesOfAStepThatDoNotFitTheDataSetAreNamed) {
  const auto error = [](const Keys& keys) {
    return std::string(ResolveJob(keys, /*samples=*/1000).status().message());
  };
  EXPECT_EQ(error({{"training.accumulate_steps", "3"}}), "");
  EXPECT_EQ(error({{"training.accumulate_steps", "4"}}),
            "'training.accumulate_steps' is 4 and makes a step of 1024 samples, the training set "
            "has 1000 samples");
  // The batch alone is too large.
  EXPECT_EQ(error({{"training.accumulate_steps", "4"}, {"training.global_batch_size", "1001"}}),
            "'training.global_batch_size' is 1001, the training set has 1000 samples");
  EXPECT_EQ(error({{"training.accumulate_steps", "2"}, {"resources.lanes", "256"}}), "");
  EXPECT_EQ(error({{"training.accumulate_steps", "2"}, {"resources.lanes", "257"}}),
            "'resources.lanes' is 257, the batch has 256 samples: each lane must have one");
}

}  // namespace
}  // namespace capstan::training::spec
