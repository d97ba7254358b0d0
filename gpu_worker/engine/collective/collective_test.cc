#include "gpu_worker/engine/collective/collective.h"

#include <cmath>
#include <cstring>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::engine {
namespace {

using ::testing::ElementsAre;
using training::LaneBlock;
using training::LaneTree;

TEST(PlanBucketsTest, EndsWhereAStageLeavesEnoughAndCutsWhatIsTooLong) {
  const BucketOptions options{100, 320};
  // 64 is too little, and 160 is enough. The next stage adds 960, which makes three pieces of 320.
  const std::vector<int64_t> ready = {64, 160, 160, 1120, 1136, 1200};
  EXPECT_THAT(PlanBuckets(ready, 1200, options), ElementsAre(160, 480, 800, 1120, 1200));
  EXPECT_THAT(PlanBuckets({}, 48, options), ElementsAre(48));
  // Pieces are whole cache lines: 1000 is cut into 256, 256, 256 and 232.
  EXPECT_THAT(PlanBuckets({}, 1000, options), ElementsAre(256, 512, 768, 1000));
  // LeNet is one bucket.
  EXPECT_THAT(PlanBuckets(std::vector<int64_t>{864, 11056}, 61728), ElementsAre(61728));
}

TEST(SliceOfTest, TheSlicesAreTheRange) {
  for (const int64_t size : {0, 5, 16, 100, 4097}) {
    for (const int devices : {1, 2, 3, 8}) {
      int64_t at = 32;
      for (int d = 0; d < devices; ++d) {
        const training::FlatRange slice = SliceOf(32, 32 + size, d, devices);
        EXPECT_EQ(slice.offset, at);
        EXPECT_TRUE(d + 1 == devices || slice.size % 16 == 0);
        at = slice.end();
      }
      EXPECT_EQ(at, 32 + size);
    }
  }
}

TEST(PlanFoldTest, TwoDevicesWithTwoLanesEach) {
  const absl::StatusOr<FoldPlan> plan = PlanFold(LaneTree(4), {{0, 2}, {1, 3}}, /*reduce=*/false);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->slots, 2);
  EXPECT_THAT(plan->blocks, ElementsAre(LaneBlock{0, 4}));
  EXPECT_THAT(plan->rounds, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  // (0 + 1) + (2 + 3)
  EXPECT_THAT(plan->ops, ElementsAre(FoldOp{FoldKind::kTake, 0, 0, 0, -1, -1},
                                     FoldOp{FoldKind::kAddLane, 0, 0, 1, -1, -1},
                                     FoldOp{FoldKind::kTake, 1, 1, 0, -1, -1},
                                     FoldOp{FoldKind::kAddLane, 1, 1, 1, -1, -1},
                                     FoldOp{FoldKind::kAddSlot, 1, 0, -1, 1, -1},
                                     FoldOp{FoldKind::kEmit, 1, 0, -1, -1, 0}));
  const absl::StatusOr<FoldPlan> any = PlanFold(LaneTree(4), {{0, 2}, {1, 3}}, /*reduce=*/true);
  EXPECT_THAT(any->ops, ElementsAre(FoldOp{FoldKind::kReduce, 0, 0, -1, -1, -1},
                                    FoldOp{FoldKind::kReduceAdd, 1, 0, -1, -1, -1},
                                    FoldOp{FoldKind::kEmit, 1, 0, -1, -1, 0}));
}

TEST(PlanFoldTest, RefusesLanesThatAreNotThere) {
  EXPECT_FALSE(PlanFold(LaneTree(4), {{0}, {0}}, false).ok());
  EXPECT_FALSE(PlanFold(LaneTree(4), {{4}}, false).ok());
  EXPECT_FALSE(PlanFold(LaneTree(4).WithEmptyLanes({2}), {{2}}, false).ok());
}

// A direct implementation of R1.
float Naive(const LaneTree& tree, const LaneBlock& block, const std::vector<float>& lanes) {
  if (block.lane_count == 1) return lanes[block.first_lane];
  const LaneBlock left = LaneTree::Left(block), right = LaneTree::Right(block);
  if (!tree.HasLanes(left)) return Naive(tree, right, lanes);
  if (!tree.HasLanes(right)) return Naive(tree, left, lanes);
  return Naive(tree, left, lanes) + Naive(tree, right, lanes);
}

TEST(PlanFoldTest, EveryNodeIsTheTreeSumOfItsLanes) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 400; ++trial) {
    const int count = 1 + static_cast<int>(random() % 13);
    const int devices = 1 + static_cast<int>(random() % 4);
    std::vector<int32_t> empty;
    for (int lane = 1; lane < count; ++lane) {
      if (random() % 5 == 0) empty.push_back(lane);
    }
    const LaneTree tree = LaneTree(count).WithEmptyLanes(empty);
    std::vector<std::vector<int32_t>> lanes(devices);
    size_t next = 0;
    for (int lane = 0; lane < count; ++lane) {
      if (tree.HasLane(lane) && random() % 4 != 0) lanes[next++ % devices].push_back(lane);
    }
    if (next == 0) continue;
    const bool reduce = trial % 2 == 1;
    std::vector<float> values(count);
    for (float& value : values) {
      // Whole numbers if the order is arbitrary.
      value = reduce ? static_cast<float>(random() % 1000)
                     : std::ldexp(static_cast<float>(random()), -static_cast<int>(random() % 40));
    }
    const absl::StatusOr<FoldPlan> plan = PlanFold(tree, lanes, reduce);
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::vector<float> slots(plan->slots, NAN), blocks(plan->blocks.size(), NAN);
    for (const FoldOp& op : plan->ops) {
      float round = 0;
      for (const int32_t lane : plan->rounds[op.round]) round += lane < 0 ? 0 : values[lane];
      const auto lane = [&] { return values[plan->rounds[op.round][op.device]]; };
      switch (op.kind) {
        case FoldKind::kTake:
          slots[op.slot] = lane();
          break;
        case FoldKind::kAddLane:
          slots[op.slot] += lane();
          break;
        case FoldKind::kAddSlot:
          slots[op.slot] += slots[op.from];
          break;
        case FoldKind::kReduce:
          slots[op.slot] = round;
          break;
        case FoldKind::kReduceAdd:
          slots[op.slot] += round;
          break;
        case FoldKind::kEmit:
          blocks[op.block] = slots[op.slot];
          break;
      }
    }
    EXPECT_EQ(plan->ops.back().kind, FoldKind::kEmit);
    for (size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_EQ(blocks[i], Naive(tree, plan->blocks[i], values)) << ToString(plan->blocks[i]);
    }
  }
}

}  // namespace
}  // namespace capstan::engine
