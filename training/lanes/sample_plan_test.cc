#include "training/lanes/sample_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/lanes/eval_plan.h"

namespace capstan::training {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Samples = std::vector<int64_t>;

SamplePlan Plan(const SamplePlanOptions& options) {
  absl::StatusOr<SamplePlan> plan = SamplePlan::Create(options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

TEST(CutByWeightsTest, LargestRemainderByHand) {
  EXPECT_THAT(CutByWeights(10, {1, 1, 1}), ElementsAre(4, 3, 3));
  EXPECT_THAT(CutByWeights(2, {1, 1, 1}), ElementsAre(1, 1, 0));
  // 10/7, 20/7, 40/7 = 1.43, 2.86, 5.71
  EXPECT_THAT(CutByWeights(10, {1, 2, 4}), ElementsAre(1, 3, 6));
  EXPECT_THAT(CutByWeights(64, {3, 1}), ElementsAre(48, 16));
  EXPECT_THAT(CutByWeights(3, {0.5, 0.5, 0.5, 0.5}), ElementsAre(1, 1, 1, 0));
  EXPECT_THAT(CutByWeights(0, {1, 2}), ElementsAre(0, 0));
  EXPECT_THAT(CutByWeights(kMaxDatasetSize, {1, 3}), ElementsAre(1073741824, 3221225472));
}

TEST(SamplePlanTest, GlobalWithoutShufflingTakesRowsInOrder) {
  const SamplePlan plan =
      Plan({.dataset_size = 10, .global_batch = 4, .lanes = 3, .shuffle = false});
  const EpochPermutation permutation = plan.MakeEpochPermutation(0);

  ASSERT_EQ(plan.steps_per_epoch(), 3);
  EXPECT_THAT(plan.LaneSamples(permutation, 0, 0), ElementsAre(0, 1));
  EXPECT_THAT(plan.LaneSamples(permutation, 0, 1), ElementsAre(2));
  EXPECT_THAT(plan.LaneSamples(permutation, 0, 2), ElementsAre(3));
  EXPECT_THAT(plan.LaneSamples(permutation, 1, 0), ElementsAre(4, 5));
  EXPECT_THAT(plan.LaneSamples(permutation, 2, 0), ElementsAre(8));
  EXPECT_THAT(plan.LaneSamples(permutation, 2, 1), ElementsAre(9));
  EXPECT_THAT(plan.LaneSamples(permutation, 2, 2), IsEmpty());
  EXPECT_THAT(plan.EmptyLanes(2), ElementsAre(2));
  EXPECT_EQ(plan.StepTree(5).present_lane_count(), 2);  // step 2 of epoch 1
  EXPECT_EQ(plan.StepSampleCount(1), 4);
  EXPECT_EQ(plan.StepSampleCount(2), 2);
  EXPECT_EQ(plan.EpochOf(7), 2);
  EXPECT_EQ(plan.StepInEpoch(7), 1);
}

TEST(SamplePlanTest, ContiguousLanesKeepToTheirPart) {
  const SamplePlan plan = Plan({.dataset_size = 7,
                                .global_batch = 3,
                                .lanes = 2,
                                .partition = Partition::kContiguous,
                                .shuffle = false});
  const EpochPermutation permutation = plan.MakeEpochPermutation(0);

  // Shares 2 and 1, parts 0..3 and 4..6: lane 0 ends after 2 steps, lane 1 after 3.
  ASSERT_EQ(plan.steps_per_epoch(), 3);
  EXPECT_THAT(plan.LaneSamples(permutation, 0, 0), ElementsAre(0, 1));
  EXPECT_THAT(plan.LaneSamples(permutation, 1, 0), ElementsAre(2, 3));
  EXPECT_THAT(plan.LaneSamples(permutation, 2, 0), IsEmpty());
  EXPECT_THAT(plan.LaneSamples(permutation, 0, 1), ElementsAre(4));
  EXPECT_THAT(plan.LaneSamples(permutation, 2, 1), ElementsAre(6));
  EXPECT_THAT(plan.EmptyLanes(2), ElementsAre(0));
  EXPECT_EQ(plan.StepSampleCount(2), 1);
  EXPECT_EQ(plan.MaxLaneSampleCount(0), 2);
}

// From a second implementation, in Python: seed 42, epoch 3.
TEST(SamplePlanTest, TheShuffleNeverChanges) {
  SamplePlanOptions options{.dataset_size = 10, .global_batch = 10, .lanes = 1, .seed = 42};
  EXPECT_THAT(Plan(options).MakeEpochPermutation(3).order,
              ElementsAre(2, 5, 7, 4, 6, 8, 9, 0, 3, 1));
  options.lanes = 2;
  options.partition = Partition::kContiguous;
  EXPECT_THAT(Plan(options).MakeEpochPermutation(3).order,
              ElementsAre(3, 4, 0, 1, 2, 5, 7, 8, 6, 9));
}

TEST(SamplePlanTest, TheShuffleDependsOnSeedAndEpoch) {
  SamplePlanOptions options{.dataset_size = 100, .global_batch = 10, .lanes = 2, .seed = 1};
  const SamplePlan plan = Plan(options);
  options.seed = 2;
  EXPECT_NE(plan.MakeEpochPermutation(0).order, plan.MakeEpochPermutation(1).order);
  EXPECT_NE(plan.MakeEpochPermutation(0).order, Plan(options).MakeEpochPermutation(0).order);
  EXPECT_EQ(plan.MakeEpochPermutation(1).order, plan.MakeEpochPermutation(1).order);
}

// A step's samples, lane after lane, do not depend on the number of lanes.
TEST(SamplePlanTest, GlobalBatchesAreTheSameForEveryNumberOfLanes) {
  SamplePlanOptions options{.dataset_size = 103, .global_batch = 16, .seed = 9};
  const auto batches = [&](int32_t lanes) {
    options.lanes = lanes;
    const SamplePlan plan = Plan(options);
    const EpochPermutation permutation = plan.MakeEpochPermutation(0);
    std::vector<Samples> all;
    for (int64_t step = 0; step < plan.steps_per_epoch(); ++step) {
      all.emplace_back();
      for (int32_t lane = 0; lane < lanes; ++lane) {
        const Samples samples = plan.LaneSamples(permutation, step, lane);
        all.back().insert(all.back().end(), samples.begin(), samples.end());
      }
    }
    return all;
  };
  EXPECT_EQ(batches(1), batches(8));
  EXPECT_EQ(batches(1), batches(16));
}

// For any sizes, weights and partition: each sample is used once per epoch, counts agree with the
// lists, no step is without samples, and lanes of equal weight differ by at most one.
TEST(SamplePlanTest, EverySampleOncePerEpoch) {
  std::mt19937 random(7);
  int weighted = 0;
  for (int trial = 0; trial < 400; ++trial) {
    SamplePlanOptions options;
    options.dataset_size = 1 + random() % 300;
    options.global_batch = 1 + random() % options.dataset_size;
    options.lanes = 1 + random() % std::min<int64_t>(options.global_batch, 16);
    options.partition = random() % 2 == 0 ? Partition::kGlobal : Partition::kContiguous;
    options.shuffle = random() % 2 == 0;
    options.seed = random();
    if (random() % 2 == 0) {
      for (int32_t lane = 0; lane < options.lanes; ++lane) {
        options.lane_weights.push_back(0.25 * (1 + random() % 8));
      }
    }
    absl::StatusOr<SamplePlan> made = SamplePlan::Create(options);
    if (!made.ok()) {  // weights that leave a lane without samples
      EXPECT_THAT(std::string(made.status().message()), HasSubstr("which gives 0 of"));
      continue;
    }
    const SamplePlan& plan = *made;
    weighted += options.lane_weights.empty() ? 0 : 1;
    const int64_t epoch = random() % 3;
    const EpochPermutation permutation = plan.MakeEpochPermutation(epoch);
    std::vector<int> uses(options.dataset_size, 0);
    for (int64_t k = 0; k < plan.steps_per_epoch(); ++k) {
      const int64_t step = epoch * plan.steps_per_epoch() + k;
      int64_t in_step = 0, least = options.dataset_size, most = 0;
      for (int32_t lane = 0; lane < options.lanes; ++lane) {
        const Samples samples = plan.LaneSamples(permutation, k, lane);
        const int64_t count = samples.size();
        EXPECT_EQ(count, plan.LaneSampleCount(step, lane));
        EXPECT_LE(count, plan.MaxLaneSampleCount(lane));
        for (const int64_t sample : samples) ++uses.at(sample);
        in_step += count;
        least = std::min(least, count);
        most = std::max(most, count);
      }
      EXPECT_EQ(in_step, plan.StepSampleCount(step));
      EXPECT_GT(in_step, 0);
      EXPECT_LE(in_step, options.global_batch);
      if (options.lane_weights.empty() && options.partition == Partition::kGlobal) {
        EXPECT_LE(most - least, 1);
      }
    }
    EXPECT_EQ(std::count(uses.begin(), uses.end(), 1), options.dataset_size) << "trial " << trial;
  }
  EXPECT_GT(weighted, 50);
}

TEST(SamplePlanTest, ErrorsNameFieldGotAndLimit) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const struct {
    SamplePlanOptions options;
    const char* want;
  } cases[] = {
      {{.dataset_size = 0, .global_batch = 1}, "dataset_size: got 0, want 1..4294967296"},
      {{.dataset_size = INT64_MAX, .global_batch = 1}, "dataset_size: got 9223372036854775807"},
      {{.dataset_size = 9, .global_batch = 0}, "global_batch: got 0"},
      {{.dataset_size = 9, .global_batch = INT64_MAX}, "global_batch: got 9223372036854775807"},
      {{.dataset_size = 9, .global_batch = 10}, "global_batch: got 10, want 1..9 (dataset_size)"},
      {{.dataset_size = 9, .global_batch = 4, .lanes = 5}, "lanes: got 5, want 1..4"},
      {{.dataset_size = 9, .global_batch = 4, .lanes = -1}, "lanes: got -1"},
      {{.dataset_size = 9, .global_batch = 4, .lanes = 2, .lane_weights = {1}},
       "lane_weights: got 1 weights, want 2"},
      {{.dataset_size = 9, .global_batch = 4, .lanes = 2, .lane_weights = {1, 0}},
       "lane_weights[1]: got 0, want a finite number above 0"},
      {{.dataset_size = 9, .global_batch = 4, .lanes = 2, .lane_weights = {nan, 1}},
       "lane_weights[0]: got nan"},
      {{.dataset_size = 9, .global_batch = 4, .lanes = 2, .lane_weights = {1e308, 1.7e308}},
       "infinite sum"},
      {{.dataset_size = 9, .global_batch = 4, .lanes = 2, .lane_weights = {99, 1}},
       "lane_weights[1]: got 1, which gives 0 of 4 samples"},
  };
  for (const auto& c : cases) {
    const absl::Status status = SamplePlan::Create(c.options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.want));
  }
}

TEST(EvalPlanTest, BlocksByHand) {
  const EvalPlan plan = *EvalPlan::Create(/*test_size=*/10, /*lanes=*/4);
  ASSERT_EQ(plan.block_count(), 4);
  EXPECT_EQ(plan.Block(0).sample_count, 3);
  EXPECT_EQ(plan.Block(1).first_sample, 3);
  EXPECT_EQ(plan.Block(3).first_sample, 8);
  EXPECT_EQ(plan.Block(3).sample_count, 2);
  EXPECT_EQ(EvalPlan::Create(10000, 8)->block_count(), 10);  // 1000 samples each
  EXPECT_EQ(EvalPlan::Create(3, 8)->block_count(), 3);
  EXPECT_EQ(EvalPlan::Create(3, 8)->OwnerLane(2), 5);  // 2 * 8 / 3
  EXPECT_EQ(EvalPlan::Create(0, 8)->block_count(), 0);
}

TEST(EvalPlanTest, BlocksCoverTheSetAndHaveOneOwner) {
  for (const int64_t test_size : {1, 7, 1024, 1025, 10000, 10007}) {
    for (const int32_t lanes : {1, 3, 8, 16, 100}) {
      const EvalPlan plan = *EvalPlan::Create(test_size, lanes);
      int64_t next = 0;
      for (int64_t block = 0; block < plan.block_count(); ++block) {
        EXPECT_EQ(plan.Block(block).first_sample, next);
        EXPECT_GE(plan.Block(block).sample_count, 1);
        EXPECT_LE(plan.Block(block).sample_count, kEvalBlockSamples);
        EXPECT_LE(plan.Block(0).sample_count - plan.Block(block).sample_count, 1);
        next += plan.Block(block).sample_count;
      }
      EXPECT_EQ(next, test_size);
      std::vector<int64_t> dealt;
      for (int32_t lane = 0; lane < lanes; ++lane) {
        for (const int64_t block : plan.BlocksOf(lane)) {
          EXPECT_EQ(plan.OwnerLane(block), lane);
          dealt.push_back(block);
        }
      }
      Samples all(plan.block_count());
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(dealt, all);
    }
  }
}

TEST(EvalPlanTest, RefusesAbsurdSizes) {
  EXPECT_FALSE(EvalPlan::Create(-1, 1).ok());
  EXPECT_FALSE(EvalPlan::Create(INT64_MAX, 1).ok());
  EXPECT_FALSE(EvalPlan::Create(10, 0).ok());
}

}  // namespace
}  // namespace capstan::training
