#include "gpu_worker/task/lane_fold.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace capstan::gpu_worker {
namespace {

using training::LaneTree;

std::shared_ptr<FloatBuffer> Filled(float value) {
  auto buffer = std::make_shared<FloatBuffer>(3);
  std::fill(buffer->span().begin(), buffer->span().end(), value);
  return buffer;
}

// 1e8 has ulp 8 in float: 1e8 + 3 is 1e8, but 1e8 + (3 + 3) is 1e8 + 8.
TEST(LaneFoldTest, AnyOrderGivesTheTreeSum) {
  const float lanes[5] = {1e8f, 3.0f, 3.0f, 3.0f, 0.25f};
  const float low = lanes[0] + lanes[1];
  const float high = lanes[2] + lanes[3];
  const float four = low + high;
  const float want = four + lanes[4];
  ASSERT_NE(want, (((lanes[0] + lanes[1]) + lanes[2]) + lanes[3]) + lanes[4]);
  std::vector<int32_t> order = {0, 1, 2, 3, 4};
  do {
    LaneFold fold{LaneTree(5)};
    for (const int32_t lane : order) {
      ASSERT_TRUE(fold.Add({lane, 1}, Filled(lanes[lane])).ok());
    }
    const auto root = fold.Value({0, 8});
    ASSERT_NE(root, nullptr);
    ASSERT_EQ(root->span()[2], want);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(LaneFoldTest, HoldsTheLargestBlocksOfItsLanes) {
  LaneFold fold{LaneTree(8)};
  for (const int32_t lane : {7, 3, 5, 4, 6}) {
    ASSERT_TRUE(fold.Add({lane, 1}, Filled(static_cast<float>(lane))).ok());
  }
  ASSERT_NE(fold.Value({3, 1}), nullptr);
  EXPECT_EQ(fold.Value({3, 1})->span()[0], 3.0f);
  ASSERT_NE(fold.Value({4, 4}), nullptr);
  EXPECT_EQ(fold.Value({4, 4})->span()[0], 4.0f + 5 + 6 + 7);
  EXPECT_EQ(fold.Value({0, 8}), nullptr);
  EXPECT_EQ(fold.Value({4, 1}), nullptr);
}

TEST(LaneFoldTest, TheFirstVectorIsAddedIntoAndNothingIsCopied) {
  LaneFold fold{LaneTree(2)};
  const auto first = Filled(1.0f);
  ASSERT_TRUE(fold.Add({1, 1}, first).ok());
  ASSERT_TRUE(fold.Add({0, 1}, Filled(2.0f)).ok());
  EXPECT_EQ(fold.Value({0, 2}), first);
  EXPECT_EQ(first->span()[0], 3.0f);
  ASSERT_TRUE(fold.Add({1, 1}, Filled(50.0f)).ok());  // covered
  EXPECT_EQ(first->span()[0], 3.0f);
  EXPECT_FALSE(fold.Add({2, 2}, Filled(1.0f)).ok());
}

TEST(LaneFoldTest, LanesThatAreKeptApartAreTakenOneByOne) {
  LaneFold fold(LaneTree(3), LaneSums::kApart);
  const auto first = Filled(1.0f);
  ASSERT_TRUE(fold.Add({0, 1}, first).ok());
  ASSERT_TRUE(fold.Add({1, 1}, Filled(2.0f)).ok());
  ASSERT_TRUE(fold.Add({2, 1}, Filled(3.0f)).ok());
  ASSERT_TRUE(fold.Add({0, 1}, Filled(50.0f)).ok());  // held already
  EXPECT_FALSE(fold.Add({0, 2}, Filled(1.0f)).ok());
  EXPECT_EQ(fold.Take(0), first);
  EXPECT_EQ(first->span()[0], 1.0f);
  EXPECT_EQ(fold.Take(0), nullptr);
  EXPECT_EQ(fold.Take(1)->span()[0], 2.0f);
  EXPECT_EQ(fold.Take(2)->span()[0], 3.0f);
}

}  // namespace
}  // namespace capstan::gpu_worker
