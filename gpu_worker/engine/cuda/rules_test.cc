#include "gpu_worker/engine/cuda/rules.h"

#include <string>

#include "gmock/gmock.h"
#include "gpu_worker/engine/cuda/group.h"
#include "gtest/gtest.h"

namespace capstan::engine::cuda {
namespace {

TEST(RulesTest, Fp32TakesNoRoundedFactorsAndDeterministicNoRaces) {
  const KernelRules fp32 = {CAPSTAN_PRECISION_FP32, true}, tf32 = {CAPSTAN_PRECISION_TF32, true};
  EXPECT_TRUE(EngineAllowed({}, fp32));
  EXPECT_FALSE(EngineAllowed({EngineNote::kTensorCore}, fp32));
  EXPECT_FALSE(EngineAllowed({EngineNote::kDownConvertInputs}, fp32));
  EXPECT_TRUE(EngineAllowed({EngineNote::kTensorCore, EngineNote::kDownConvertInputs}, tf32));
  EXPECT_FALSE(EngineAllowed({EngineNote::kReducedPrecisionReduction}, tf32));
  EXPECT_FALSE(EngineAllowed({EngineNote::kTensorCore, EngineNote::kNondeterministic}, tf32));
  EXPECT_TRUE(EngineAllowed({EngineNote::kNondeterministic}, {CAPSTAN_PRECISION_FP32, false}));
  EXPECT_TRUE(EngineAllowed({EngineNote::kWinograd, EngineNote::kWinogradTile4x4}, fp32));
  EXPECT_FALSE(EngineAllowed({EngineNote::kWinograd, EngineNote::kWinogradTile13x13}, fp32));
  EXPECT_FALSE(EngineAllowed({EngineNote::kFft}, fp32));
  EXPECT_FALSE(EngineAllowed({static_cast<EngineNote>(10)}, fp32));  // an unknown note
}

TEST(RulesTest, SixteenBitsTakeTensorCoresAndNoSumsOfSixteenBits) {
  for (const int32_t precision : {CAPSTAN_PRECISION_BF16, CAPSTAN_PRECISION_FP16}) {
    EXPECT_TRUE(CheckPrecision(precision).ok());
    EXPECT_EQ(ElementBytes(precision), 2);
    EXPECT_TRUE(EngineAllowed({EngineNote::kTensorCore}, {precision, true}));
    EXPECT_FALSE(EngineAllowed({EngineNote::kTensorCore, EngineNote::kReducedPrecisionReduction},
                               {precision, true}));
  }
  EXPECT_EQ(ElementBytes(CAPSTAN_PRECISION_TF32), 4);
  EXPECT_EQ(CheckPrecision(4).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckPrecision(-1).code(), absl::StatusCode::kInvalidArgument);
}

// Three layers of 100, 60 and 40 floats in reverse order: c at 0, b at 40, a at 100.
CardProgram ThreeLayers(int64_t c, int64_t b, int64_t total) {
  CardProgram program;
  for (const auto& [kind, weight] :
       {std::make_pair(StageKind::kConv, b), std::make_pair(StageKind::kMaxPool, int64_t{-1}),
        std::make_pair(StageKind::kDense, c), std::make_pair(StageKind::kDense, int64_t{0}),
        std::make_pair(StageKind::kLoss, int64_t{-1})}) {
    Stage stage;
    stage.kind = kind;
    stage.weight = weight;
    program.stages.push_back(stage);
  }
  program.total_floats = total;
  return program;
}

TEST(RulesTest, HalfOfTheGradientLeavesAsSoonAsItIsReady) {
  const std::vector<ReadBack> two = PlanReadBack(ThreeLayers(40, 100, 200));
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0].stage, 2);  // with layer b, 100 of 200 are final
  EXPECT_EQ(two[0].begin, 0);
  EXPECT_EQ(two[0].end, 100);
  EXPECT_EQ(two[1].stage, 0);
  EXPECT_EQ(two[1].begin, 100);
  EXPECT_EQ(two[1].end, 200);
  const std::vector<ReadBack> one = PlanReadBack(ThreeLayers(40, 80, 200));
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].stage, 0);
  EXPECT_EQ(one[0].end, 200);
  EXPECT_TRUE(PlanReadBack(CardProgram()).empty());
}

// A bucket leaves with the stage that completes it. Two pieces of one layer leave together.
TEST(RulesTest, BucketsLeaveWithTheirStages) {
  EXPECT_THAT(BucketStages(ThreeLayers(40, 100, 200), {40, 64, 100, 200}),
              ::testing::ElementsAre(3, 2, 2, 0));
  EXPECT_THAT(BucketStages(ThreeLayers(40, 100, 200), {200}), ::testing::ElementsAre(0));
}

TEST(RulesTest, TheCacheGivesUpTheCountUsedLongestAgo) {
  CountCache<std::string> cache(2);
  EXPECT_EQ(cache.Find(128), nullptr);
  cache.Insert(128, "whole");
  cache.Insert(96, "last");
  ASSERT_NE(cache.Find(128), nullptr);
  EXPECT_EQ(*cache.Find(128), "whole");
  cache.Insert(64, "block");
  EXPECT_EQ(cache.Find(96), nullptr);
  EXPECT_NE(cache.Find(128), nullptr);
  EXPECT_NE(cache.Find(64), nullptr);
  EXPECT_EQ(cache.size(), 2u);
}

TEST(RulesTest, EveryPassAndImageTypeHasItsGraph) {
  std::vector<bool> seen(kGraphsPerCount, false);
  for (const Pass pass : {Pass::kTrain, Pass::kEvaluate, Pass::kPredict}) {
    for (const int type : {CAPSTAN_IMAGE_FLOAT32, CAPSTAN_IMAGE_UINT8, CAPSTAN_IMAGE_KEPT}) {
      const int index = GraphIndex(pass, type);
      ASSERT_LT(index, kGraphsPerCount);
      EXPECT_FALSE(seen[index]);
      seen[index] = true;
    }
  }
}

}  // namespace
}  // namespace capstan::engine::cuda
