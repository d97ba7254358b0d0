#include "exchange/weight_assembly.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "exchange/test_chunks.h"

namespace capstan::exchange {
namespace {

using training::FlatLayout;

class WeightAssemblyTest : public ::testing::Test {
 protected:
  // Writes `value` over the chunk and says so.
  std::optional<CompleteWeights> Arrive(int64_t version, int32_t chunk, float value,
                                        absl::Duration now = kNow) {
    absl::Span<float> to = assembly_.Destination(version, chunk, now);
    if (to.empty()) return std::nullopt;
    std::fill(to.begin(), to.end(), value);
    // The scale comes with the first chunks alone: those of shard 0.
    return assembly_.Arrived(
        version, chunk,
        {version == 9, version == 4, version == 4 && chunk == 0 ? 512.0 : 0, version == 4}, now);
  }

  const FlatLayout layout_ = ThreeChunks();
  BufferPool pool_{layout_.total_floats()};
  WeightAssembly assembly_{layout_, pool_};
};

TEST_F(WeightAssemblyTest, AVersionIsWholeWithItsLastChunkInAnyOrder) {
  assembly_.Reset(1);
  EXPECT_FALSE(Arrive(4, 2, 2.0f));
  EXPECT_FALSE(Arrive(4, 0, 0.5f));
  EXPECT_FALSE(Arrive(4, 0, 0.5f));  // repeated: not counted again
  const auto whole = Arrive(4, 1, 1.0f, kNow + absl::Seconds(2));
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->lineage, 1);
  EXPECT_EQ(whole->version, 4);
  EXPECT_TRUE(whole->skipped);
  EXPECT_TRUE(whole->evaluate);
  EXPECT_FALSE(whole->stop);
  EXPECT_EQ(whole->loss_scale, 512);
  EXPECT_EQ(whole->pull, absl::Seconds(2));
  EXPECT_EQ(whole->weights->span()[0], 0.5f);
  EXPECT_EQ(whole->weights->span()[training::kSmallChunkFloats], 1.0f);
  EXPECT_EQ(whole->weights->span()[layout_.total_floats() - 1], 2.0f);
  EXPECT_EQ(assembly_.complete(), 4);
}

TEST_F(WeightAssemblyTest, AHeldVersionIsNeverWrittenAgain) {
  assembly_.Reset(1);
  for (int32_t chunk : {0, 1}) Arrive(3, chunk, 3.0f);
  const auto third = Arrive(3, 2, 3.0f);
  ASSERT_TRUE(third.has_value());
  EXPECT_TRUE(assembly_.Destination(3, 0, kNow).empty());
  EXPECT_TRUE(assembly_.Destination(2, 0, kNow).empty());
  for (int32_t chunk : {0, 1, 2}) Arrive(4, chunk, 4.0f);
  for (int32_t chunk : {0, 1, 2}) Arrive(5, chunk, 5.0f);
  for (float value : third->weights->span()) ASSERT_EQ(value, 3.0f);
}

// One shard may be a version ahead of another; the newer one that completes overtakes.
TEST_F(WeightAssemblyTest, TwoVersionsAreUnderWayAtOnce) {
  assembly_.Reset(1);
  Arrive(1, 0, 1.0f);
  Arrive(2, 0, 2.0f);
  Arrive(1, 1, 1.0f);
  EXPECT_EQ(assembly_.pending(), 2u);
  ASSERT_TRUE(Arrive(1, 2, 1.0f).has_value());
  EXPECT_EQ(assembly_.pending(), 1u);
  Arrive(3, 0, 3.0f);
  Arrive(3, 1, 3.0f);
  ASSERT_TRUE(Arrive(3, 2, 3.0f).has_value());
  EXPECT_EQ(assembly_.pending(), 0u);
  EXPECT_FALSE(Arrive(2, 1, 2.0f));
  EXPECT_EQ(assembly_.complete(), 3);
}

// The third newest can never complete.
TEST_F(WeightAssemblyTest, NoMoreThanTwoVersionsAreUnderWay) {
  assembly_.Reset(1);
  for (int64_t version : {1, 2, 3}) Arrive(version, 0, static_cast<float>(version));
  EXPECT_EQ(assembly_.pending(), 2u);
  EXPECT_EQ(pool_.lent(), 2);
  EXPECT_FALSE(Arrive(2, 1, 2.0f));
  EXPECT_TRUE(Arrive(2, 2, 2.0f).has_value());
  EXPECT_FALSE(Arrive(3, 1, 3.0f));
  EXPECT_TRUE(Arrive(3, 2, 3.0f).has_value());
}

TEST_F(WeightAssemblyTest, ASteadyStateNeedsTwoBuffers) {
  assembly_.Reset(1);
  std::shared_ptr<const FloatBuffer> held;
  for (int64_t version = 0; version < 20; ++version) {
    for (int32_t chunk : {0, 1, 2}) {
      auto whole = Arrive(version, chunk, 1.0f);
      if (whole.has_value()) held = whole->weights;
    }
  }
  EXPECT_EQ(pool_.allocated(), 2);
}

TEST_F(WeightAssemblyTest, ANewLineageBeginsWithNothing) {
  assembly_.Reset(1);
  for (int32_t chunk : {0, 1, 2}) Arrive(7, chunk, 7.0f);
  Arrive(8, 0, 8.0f);
  assembly_.Reset(2);
  EXPECT_EQ(assembly_.complete(), -1);
  EXPECT_EQ(assembly_.pending(), 0u);
  Arrive(5, 0, 5.0f);
  Arrive(5, 1, 5.0f);
  const auto whole = Arrive(5, 2, 5.0f);
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->lineage, 2);
  Arrive(8, 1, 8.0f);
  EXPECT_FALSE(Arrive(8, 2, 8.0f));  // chunk 0 was of the old one
}

}  // namespace
}  // namespace capstan::exchange
