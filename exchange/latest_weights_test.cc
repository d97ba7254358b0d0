#include "exchange/latest_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "exchange/test_chunks.h"

namespace capstan::exchange {
namespace {

using ::testing::ElementsAre;
using training::FlatLayout;

constexpr int64_t kChunk = training::kSmallChunkFloats;

// Shard 0 has chunk 0, shard 1 has chunks 1 and 2.
class LatestWeightsTest : public ::testing::Test {
 protected:
  LatestWeightsTest() { latest_.Reset(1, {{0, 1}, {1, 2}}); }
  // Writes `value` over the chunk and says so.
  std::optional<CompleteWeights> Arrive(int32_t chunk, float value,
                                        const LatestWeights::Said& said) {
    const int32_t shard = chunk == 0 ? 0 : 1;
    const absl::Span<float> to = latest_.Destination(shard, said.set, chunk, kNow);
    if (to.empty()) return std::nullopt;
    std::fill(to.begin(), to.end(), value);
    return latest_.Arrived(shard, chunk, said, kNow);
  }
  static LatestWeights::Said Set(int64_t set, std::vector<int64_t> marks, int64_t floor = 0) {
    return {set, 0, false, false, std::move(marks), floor};
  }

  const FlatLayout layout_ = ThreeChunks();
  BufferPool pool_{layout_.total_floats()};
  LatestWeights latest_{layout_, pool_};
};

TEST_F(LatestWeightsTest, AreThereOnceEveryShardHasSentASet) {
  EXPECT_FALSE(Arrive(0, 1, Set(1, {4, 2}, 3)));
  EXPECT_FALSE(Arrive(2, 3, Set(1, {3, 5}, 4)));
  const auto whole = Arrive(1, 2, Set(1, {3, 5}, 4));
  ASSERT_TRUE(whole.has_value());
  EXPECT_THAT(whole->marks, ElementsAre(3, 2));
  EXPECT_EQ(whole->floor, 3) << "seals do not count";
  EXPECT_EQ(whole->lineage, 1);
  EXPECT_EQ(whole->weights->span()[0], 1);
  EXPECT_EQ(whole->weights->span()[kChunk], 2);
  EXPECT_EQ(whole->weights->span()[2 * kChunk], 3);
  // From now on the set of one shard is enough.
  const auto next = Arrive(0, 9, Set(2, {4, 4}));
  ASSERT_TRUE(next.has_value());
  EXPECT_THAT(next->marks, ElementsAre(3, 4));
  EXPECT_NE(next->serial, whole->serial);
  EXPECT_EQ(next->weights->span()[2 * kChunk], 3) << "the other shard's are kept";
  EXPECT_EQ(whole->weights->span()[0], 1) << "what somebody has is not written again";
}

// A lane begins only if every shard would have answered it.
TEST_F(LatestWeightsTest, TheLowestBoundOfAllShardsHolds) {
  const auto set = [](int64_t number, int64_t bound) {
    LatestWeights::Said said = Set(number, {0, 0});
    said.max_staleness = bound;
    return said;
  };
  EXPECT_EQ(latest_.max_staleness(), -1);
  Arrive(0, 1, set(1, 4));
  Arrive(1, 1, set(1, 2));
  EXPECT_EQ(Arrive(2, 1, set(1, 2))->max_staleness, 2);
  EXPECT_EQ(Arrive(0, 1, set(2, 0))->max_staleness, 0);
  EXPECT_EQ(Arrive(0, 1, set(3, -1))->max_staleness, 2);
  Arrive(1, 1, set(2, -1));
  EXPECT_EQ(Arrive(2, 1, set(2, -1))->max_staleness, -1);
  EXPECT_EQ(latest_.max_staleness(), -1);
}

TEST_F(LatestWeightsTest, ANewerSetReplacesOneThatIsNotWhole) {
  Arrive(0, 1, Set(1, {0, 0}));
  EXPECT_FALSE(Arrive(2, 3, Set(1, {1, 1})));
  EXPECT_FALSE(Arrive(2, 5, Set(2, {2, 2})));
  EXPECT_FALSE(Arrive(1, 3, Set(1, {1, 1}))) << "overtaken";
  EXPECT_FALSE(Arrive(2, 7, Set(2, {2, 2}))) << "repeated: not counted again";
  const auto whole = Arrive(1, 5, Set(2, {2, 2}));
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->weights->span()[kChunk], 5);
  EXPECT_EQ(whole->weights->span()[2 * kChunk], 5);
  EXPECT_THAT(latest_.said(1).marks, ElementsAre(2, 2));
}

TEST_F(LatestWeightsTest, ANewStreamCountsItsSetsFromOneAgain) {
  Arrive(0, 1, Set(7, {1, 1}));
  Arrive(1, 1, Set(1, {1, 1}));
  Arrive(2, 1, Set(1, {1, 1}));
  EXPECT_FALSE(Arrive(0, 2, Set(1, {2, 2}))) << "older than set 7";
  latest_.NewStream(0);
  const auto whole = Arrive(0, 2, Set(1, {2, 2}));
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->weights->span()[0], 2);
}

TEST_F(LatestWeightsTest, StopAndEvaluateHoldOnceAllShardsSaySo) {
  Arrive(0, 1, {1, 4, false, true, {4, 4}, 4});
  Arrive(1, 1, {1, 3, false, false, {3, 3}, 3});
  auto whole = Arrive(2, 1, {1, 3, false, false, {3, 3}, 3});
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->version, 3);
  EXPECT_FALSE(whole->evaluate);
  Arrive(1, 1, {2, 4, false, true, {4, 4}, 4});
  whole = Arrive(2, 1, {2, 4, false, true, {4, 4}, 4});
  EXPECT_EQ(whole->version, 4);
  EXPECT_TRUE(whole->evaluate);
  EXPECT_FALSE(whole->stop);
  whole = Arrive(0, 1, {2, 4, true, false, {4, 4}, 4});
  EXPECT_FALSE(whole->stop) << "of shard 0 alone";
  Arrive(1, 1, {3, 4, true, false, {4, 4}, 4});
  whole = Arrive(2, 1, {3, 4, true, false, {4, 4}, 4});
  EXPECT_TRUE(whole->stop);
}

TEST_F(LatestWeightsTest, AnotherLineageKnowsNothing) {
  for (const int32_t chunk : {0, 1, 2}) Arrive(chunk, 1, Set(1, {9, 9}));
  latest_.Reset(2, {{0, 2}, {2, 1}});
  EXPECT_TRUE(latest_.said(0).marks.empty());
  std::fill_n(latest_.Destination(0, 1, 0, kNow).begin(), kChunk, 4.0f);
  EXPECT_FALSE(latest_.Arrived(0, 0, Set(1, {0, 0}), kNow));
}

}  // namespace
}  // namespace capstan::exchange
