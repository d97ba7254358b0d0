#include "training/lanes/lane_tree.h"

#include <algorithm>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::training {

void PrintTo(const LaneBlock& block, std::ostream* out) { *out << ToString(block); }

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(LaneTreeTest, RootIsThePowerOfTwoThatHoldsAllLanes) {
  EXPECT_EQ(LaneTree(1).root(), (LaneBlock{0, 1}));
  EXPECT_EQ(LaneTree(3).root(), (LaneBlock{0, 4}));
  EXPECT_EQ(LaneTree(8).root(), (LaneBlock{0, 8}));
  EXPECT_EQ(LaneTree(9).root(), (LaneBlock{0, 16}));
  EXPECT_EQ(LaneTree(kMaxLanes).root(), (LaneBlock{0, 65536}));
}

TEST(LaneTreeTest, WalksUpAndDown) {
  EXPECT_EQ(LaneTree::Parent({6, 2}), (LaneBlock{4, 4}));
  EXPECT_EQ(LaneTree::Parent({4, 2}), (LaneBlock{4, 4}));
  EXPECT_EQ(LaneTree::Sibling({6, 2}), (LaneBlock{4, 2}));
  EXPECT_EQ(LaneTree::Sibling({4, 2}), (LaneBlock{6, 2}));
  EXPECT_EQ(LaneTree::Left({4, 4}), (LaneBlock{4, 2}));
  EXPECT_EQ(LaneTree::Right({4, 4}), (LaneBlock{6, 2}));
  EXPECT_TRUE(LaneTree::Contains({4, 4}, {5, 1}));
  EXPECT_TRUE(LaneTree::Contains({4, 4}, {4, 4}));
  EXPECT_FALSE(LaneTree::Contains({4, 2}, {4, 4}));
  EXPECT_FALSE(LaneTree::Contains({4, 4}, {8, 1}));
}

TEST(LaneTreeTest, RefusesWhatIsNoNode) {
  const LaneTree tree(5);
  for (const LaneBlock& block :
       {LaneBlock{0, 8}, LaneBlock{4, 4}, LaneBlock{4, 1}, LaneBlock{2, 2}}) {
    EXPECT_TRUE(tree.Validate(block).ok()) << ToString(block);
  }
  const int32_t min = INT32_MIN, max = INT32_MAX;
  for (const LaneBlock& block :
       {LaneBlock{0, 0}, LaneBlock{0, 3}, LaneBlock{0, 16}, LaneBlock{0, -1}, LaneBlock{0, min},
        LaneBlock{1, 2}, LaneBlock{-1, 1}, LaneBlock{-8, 8}, LaneBlock{8, 1}, LaneBlock{max, 1},
        LaneBlock{max - 1, 2}, LaneBlock{5, 1}, LaneBlock{6, 2}}) {
    EXPECT_EQ(tree.Validate(block).code(), absl::StatusCode::kInvalidArgument) << ToString(block);
  }
  EXPECT_THAT(std::string(tree.Validate({0, 3}).message()),
              HasSubstr("lane_count: got 3, want a power of two up to 8"));
}

TEST(LaneTreeTest, EmptyLanesAreAbsent) {
  const LaneTree tree = LaneTree(4).WithEmptyLanes({3, 2});
  EXPECT_FALSE(tree.HasLanes({2, 2}));
  EXPECT_TRUE(tree.HasLanes({0, 4}));
  EXPECT_FALSE(tree.Validate({3, 1}).ok());
  EXPECT_EQ(tree.present_lane_count(), 2);
  EXPECT_EQ(tree.WithEmptyLanes({}).present_lane_count(), 4);
}

TEST(LaneTreeTest, LargestBlocks) {
  EXPECT_THAT(LaneTree(8).LargestBlocks({5, 4, 1, 2, 3, 7}),
              ElementsAre(LaneBlock{1, 1}, LaneBlock{2, 2}, LaneBlock{4, 2}, LaneBlock{7, 1}));
  EXPECT_THAT(LaneTree(8).LargestBlocks({0, 1, 2, 3, 4, 5, 6, 7}), ElementsAre(LaneBlock{0, 8}));
  // Lanes beyond the last count as held, so lane 4 alone is the right half of the tree.
  EXPECT_THAT(LaneTree(5).LargestBlocks({4}), ElementsAre(LaneBlock{4, 4}));
  EXPECT_THAT(LaneTree(5).LargestBlocks({0, 1, 2, 3, 4}), ElementsAre(LaneBlock{0, 8}));
  // So do lanes without samples.
  EXPECT_THAT(LaneTree(4).WithEmptyLanes({1}).LargestBlocks({0, 2}),
              ElementsAre(LaneBlock{0, 2}, LaneBlock{2, 1}));
  EXPECT_THAT(LaneTree(4).WithEmptyLanes({1}).LargestBlocks({1}), IsEmpty());
  EXPECT_THAT(LaneTree(4).LargestBlocks({}), IsEmpty());
}

// Compares with the definition: of the blocks whose present lanes are all owned (with some lane
// present), those whose parent is not such a block.
TEST(LaneTreeTest, LargestBlocksMatchTheDefinition) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 2000; ++trial) {
    const int32_t lanes = 1 + random() % 20;
    std::vector<int32_t> empty, owned;
    for (int32_t lane = 0; lane < lanes; ++lane) {
      if (random() % 5 == 0) empty.push_back(lane);
      if (random() % 3 != 0) owned.push_back(lane);
    }
    if (empty.size() == static_cast<size_t>(lanes)) continue;
    const LaneTree tree = LaneTree(lanes).WithEmptyLanes(empty);
    const auto held = [&](const LaneBlock& block) {
      bool any = false;
      for (int32_t lane = block.first_lane; lane < block.first_lane + block.lane_count; ++lane) {
        if (lane >= lanes || std::count(empty.begin(), empty.end(), lane) > 0) continue;
        if (std::count(owned.begin(), owned.end(), lane) == 0) return false;
        any = true;
      }
      return any;
    };
    std::vector<LaneBlock> want;
    for (int32_t count = 1; count <= tree.root().lane_count; count *= 2) {
      for (int32_t first = 0; first < tree.root().lane_count; first += count) {
        const LaneBlock block{first, count};
        if (held(block) && (block == tree.root() || !held(LaneTree::Parent(block)))) {
          want.push_back(block);
        }
      }
    }
    std::sort(want.begin(), want.end());
    std::shuffle(owned.begin(), owned.end(), random);
    EXPECT_EQ(tree.LargestBlocks(owned), want) << "trial " << trial;
  }
}

TEST(LaneTreeTest, LaneCountHasALimit) {
  EXPECT_TRUE(ValidateLaneCount(kMaxLanes).ok());
  EXPECT_FALSE(ValidateLaneCount(0).ok());
  EXPECT_EQ(ValidateLaneCount(65537).message(), "lanes: got 65537, want 1..65536");
}

}  // namespace
}  // namespace capstan::training
