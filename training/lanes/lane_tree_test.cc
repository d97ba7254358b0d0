#include "training/lanes/lane_tree.h"

#include <algorithm>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::training {

void PrintTo(const Node& node, std::ostream* out) { *out << ToString(node); }

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(LaneTreeTest, RootIsThePowerOfTwoThatHoldsAllLanes) {
  EXPECT_EQ(LaneTree(1).root(), (Node{0, 1}));
  EXPECT_EQ(LaneTree(3).root(), (Node{0, 4}));
  EXPECT_EQ(LaneTree(8).root(), (Node{0, 8}));
  EXPECT_EQ(LaneTree(9).root(), (Node{0, 16}));
  EXPECT_EQ(LaneTree(kMaxLanes).root(), (Node{0, 65536}));
}

TEST(LaneTreeTest, WalksUpAndDown) {
  EXPECT_EQ(LaneTree::Parent({6, 2}), (Node{4, 4}));
  EXPECT_EQ(LaneTree::Parent({4, 2}), (Node{4, 4}));
  EXPECT_EQ(LaneTree::Sibling({6, 2}), (Node{4, 2}));
  EXPECT_EQ(LaneTree::Sibling({4, 2}), (Node{6, 2}));
  EXPECT_EQ(LaneTree::Left({4, 4}), (Node{4, 2}));
  EXPECT_EQ(LaneTree::Right({4, 4}), (Node{6, 2}));
  EXPECT_TRUE(LaneTree::Contains({4, 4}, {5, 1}));
  EXPECT_TRUE(LaneTree::Contains({4, 4}, {4, 4}));
  EXPECT_FALSE(LaneTree::Contains({4, 2}, {4, 4}));
  EXPECT_FALSE(LaneTree::Contains({4, 4}, {8, 1}));
}

TEST(LaneTreeTest, RefusesWhatIsNoNode) {
  const LaneTree tree(5);
  for (const Node& node : {Node{0, 8}, Node{4, 4}, Node{4, 1}, Node{2, 2}}) {
    EXPECT_TRUE(tree.Validate(node).ok()) << ToString(node);
  }
  const int32_t min = INT32_MIN, max = INT32_MAX;
  for (const Node& node :
       {Node{0, 0}, Node{0, 3}, Node{0, 16}, Node{0, -1}, Node{0, min}, Node{1, 2}, Node{-1, 1},
        Node{-8, 8}, Node{8, 1}, Node{max, 1}, Node{max - 1, 2}, Node{5, 1}, Node{6, 2}}) {
    EXPECT_EQ(tree.Validate(node).code(), absl::StatusCode::kInvalidArgument) << ToString(node);
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

TEST(LaneTreeTest, LargestNodes) {
  EXPECT_THAT(LaneTree(8).LargestNodes({5, 4, 1, 2, 3, 7}),
              ElementsAre(Node{1, 1}, Node{2, 2}, Node{4, 2}, Node{7, 1}));
  EXPECT_THAT(LaneTree(8).LargestNodes({0, 1, 2, 3, 4, 5, 6, 7}), ElementsAre(Node{0, 8}));
  // Lanes beyond the last count as held: lane 4 alone is the right half of the tree.
  EXPECT_THAT(LaneTree(5).LargestNodes({4}), ElementsAre(Node{4, 4}));
  EXPECT_THAT(LaneTree(5).LargestNodes({0, 1, 2, 3, 4}), ElementsAre(Node{0, 8}));
  // So do lanes without samples.
  EXPECT_THAT(LaneTree(4).WithEmptyLanes({1}).LargestNodes({0, 2}),
              ElementsAre(Node{0, 2}, Node{2, 1}));
  EXPECT_THAT(LaneTree(4).WithEmptyLanes({1}).LargestNodes({1}), IsEmpty());
  EXPECT_THAT(LaneTree(4).LargestNodes({}), IsEmpty());
}

// Against the definition: of the nodes whose present lanes are all owned (and some lane present),
// those whose parent is none.
TEST(LaneTreeTest, LargestNodesMatchTheDefinition) {
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
    const auto held = [&](const Node& node) {
      bool any = false;
      for (int32_t lane = node.first_lane; lane < node.first_lane + node.lane_count; ++lane) {
        if (lane >= lanes || std::count(empty.begin(), empty.end(), lane) > 0) continue;
        if (std::count(owned.begin(), owned.end(), lane) == 0) return false;
        any = true;
      }
      return any;
    };
    std::vector<Node> want;
    for (int32_t count = 1; count <= tree.root().lane_count; count *= 2) {
      for (int32_t first = 0; first < tree.root().lane_count; first += count) {
        const Node node{first, count};
        if (held(node) && (node == tree.root() || !held(LaneTree::Parent(node)))) {
          want.push_back(node);
        }
      }
    }
    std::sort(want.begin(), want.end());
    std::shuffle(owned.begin(), owned.end(), random);
    EXPECT_EQ(tree.LargestNodes(owned), want) << "trial " << trial;
  }
}

TEST(LaneTreeTest, LaneCountHasALimit) {
  EXPECT_TRUE(ValidateLaneCount(kMaxLanes).ok());
  EXPECT_FALSE(ValidateLaneCount(0).ok());
  EXPECT_EQ(ValidateLaneCount(65537).message(), "lanes: got 65537, want 1..65536");
}

}  // namespace
}  // namespace capstan::training
