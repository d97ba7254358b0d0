#include "gpu_worker/engine/cuda/cost.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::engine::cuda {
namespace {

using ::testing::HasSubstr;

// Operations that only count calls.
class Counting : public Operations {
 public:
  int calls = 0;
  void LoadImages(int64_t, const BatchHeader*, const void*, int, void*) override { ++calls; }
  void CopyWeights(const std::vector<WeightCopy>&) override { ++calls; }
  void GradientToFlat(const Stage&, const void*, void*) override { ++calls; }
  void ToChannelsLast(int64_t, int32_t, int32_t, const void*, void*) override { ++calls; }
  void ToCanonical(int64_t, int32_t, int32_t, const void*, void*) override { ++calls; }
  void LinearForward(int, int64_t, const void*, const void*, const void*, void*) override {
    ++calls;
  }
  void LinearWeightGradient(int, int64_t, const void*, const void*, void*) override { ++calls; }
  void LinearDataGradient(int, int64_t, const void*, const void*, void*) override { ++calls; }
  void BiasGradient(int64_t, int32_t, const void*, void*, void*) override { ++calls; }
  void PoolForward(const Stage&, int64_t, const void*, void*) override { ++calls; }
  void PoolBackward(const Stage&, int64_t, const void*, const void*, void*) override { ++calls; }
  void ReluForward(int64_t, void*) override { ++calls; }
  void ReluBackward(int64_t, const void*, void*) override { ++calls; }
  void OperatorForward(int, const OperatorCall&) override { ++calls; }
  void OperatorBackward(int, const OperatorCall&) override { ++calls; }
  void AddInto(int64_t, const void*, void*) override { ++calls; }
  void Clear(int64_t, void*) override { ++calls; }
  void Loss(const Stage&, int64_t, int32_t, const BatchHeader*, const void*, const float*,
            const void*, void*, double*, int32_t*) override {
    ++calls;
  }
  void SumRows(int64_t, const double*, const int32_t*, capstan_result*) override { ++calls; }
};

TEST(CostTest, TheTableHasTimesAndSharesOfTheRoof) {
  CardProgram program;
  program.tensors = {{28 * 28, false}, {6 * 24 * 24, true}};
  Stage conv;
  conv.kind = StageKind::kConv;
  conv.name = "conv1";
  conv.x = 0;
  conv.y = 1;
  conv.weight_rows = 6;
  conv.weight_channels = 1;
  conv.weight_pixels = 25;
  program.stages = {conv};
  int begun = 0;
  TimedOperations timed(program, /*element_bytes=*/2, /*flat_bytes=*/4, [&begun](bool begin) {
    begun += begin ? 1 : -1;
    return 0.001;  // ms
  });
  Counting counting;
  timed.Wrap(&counting);
  for (int i = 0; i < 3; ++i) timed.LinearForward(0, 100, nullptr, nullptr, nullptr, nullptr);
  timed.BiasGradient(57600, 6, nullptr, nullptr, nullptr);
  EXPECT_EQ(counting.calls, 4);
  EXPECT_EQ(begun, 0);
  // By hand, 100 samples: (78400 + 345600 + 150) * 2 bytes and 2 * 345600 * 25 operations in 1 us:
  // 848.3 GB/s and 17280 GFLOP/s. A roof of 1e12 bytes/s needs 0.8483 us, one of 1e14 0.1728 us.
  const std::string table = timed.Table({1e12, 1e14});
  EXPECT_THAT(table,
              HasSubstr("conv1 forward                      3       1.00  75.0%     848.3    "
                        "17280.0   84.8%\n"));
  EXPECT_THAT(table, HasSubstr("bias gradient 6"));
  EXPECT_DOUBLE_EQ(Roof({1e12, 1e12}).Seconds({1000, 5000}), 5e-9);
}

}  // namespace
}  // namespace capstan::engine::cuda
