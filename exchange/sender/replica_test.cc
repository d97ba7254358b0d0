#include "exchange/sender/replica.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "training/codec/crc32c.h"
#include "training/optim/lamb.h"
#include "training/optim/sgd.h"

namespace capstan::exchange::sender {
namespace {

// Three chunks of 2048 floats: a, b and their padding end inside of chunks.
training::FlatLayout ThreeChunks() {
  std::vector<training::TensorSpec> specs(3);
  const int64_t sizes[] = {1000, 3000, 2100};
  for (int i = 0; i < 3; ++i) {
    specs[i].name = std::string(1, static_cast<char>('a' + i)) + ".weight";
    specs[i].shape = {sizes[i]};
    specs[i].fan_in = specs[i].fan_out = 1;
  }
  auto layout = training::FlatLayout::Create(specs, /*chunk_floats=*/2048);
  EXPECT_TRUE(layout.ok() && layout->chunk_count() == 3);
  return *std::move(layout);
}

absl::string_view BytesOf(const std::vector<float>& floats) {
  return {reinterpret_cast<const char*>(floats.data()), 4 * floats.size()};
}

class ReplicaTest : public testing::Test {
 protected:
  static std::shared_ptr<const training::Optimizer> Momentum() {
    training::SgdOptions options;
    options.momentum = 0.5;
    return std::make_shared<const training::Sgd>(*training::Sgd::Create(options));
  }
  void Take(int64_t version, float weight, float state) {
    const std::vector<float> weights(2048, weight), states(2048, state);
    const absl::string_view pieces[] = {BytesOf(weights), BytesOf(states)};
    replica_.Take(version, 0, {&pieces[0], 1}, {&pieces[1], 1});
  }
  // By hand, with momentum 0.5 and rate 0.5: m = 0.5 * m + g, w -= 0.5 * m.
  Replica::Outcome Make(int64_t version, float sum, float made) {
    const std::vector<float> sums(2048, sum), want(2048, made);
    const absl::string_view piece = BytesOf(sums);
    const wire::Pieces pieces(&piece, 1);
    return replica_.Make(version, 0, {.learning_rate = 0.5}, &pieces,
                         training::Crc32c(BytesOf(want)));
  }
  float Weight() const { return replica_.weights(0)[2047]; }

  const training::FlatLayout layout_ = ThreeChunks();
  Replica replica_{layout_, Momentum()};
};

TEST_F(ReplicaTest, ASumMakesTheNextVersionOnceAndNoOther) {
  EXPECT_EQ(Make(1, 4, 0), Replica::Outcome::kMissing);  // there is nothing yet
  Take(3, 10, 2);
  EXPECT_EQ(Make(5, 4, 0), Replica::Outcome::kMissing);
  EXPECT_EQ(Make(3, 4, 0), Replica::Outcome::kPast);
  EXPECT_EQ(Weight(), 10);
  EXPECT_EQ(Make(4, 4, 7.5), Replica::Outcome::kMade);  // m = 5
  EXPECT_EQ(Make(4, 4, 7.5), Replica::Outcome::kPast);
  EXPECT_EQ(Make(5, 1, 5.75), Replica::Outcome::kMade);  // m = 3.5
  EXPECT_EQ(replica_.version(0), 5);
  EXPECT_EQ(Weight(), 5.75f);
  EXPECT_EQ(replica_.LowestVersion({0, 3}), -1);
  EXPECT_EQ(replica_.LowestVersion({0, 1}), 5);
}

TEST_F(ReplicaTest, ASkippedStepMakesAVersionOfTheSameWeights) {
  Take(3, 10, 2);
  const std::vector<float> same(2048, 10.0f);
  EXPECT_EQ(replica_.Make(4, 0, {}, nullptr, training::Crc32c(BytesOf(same))),
            Replica::Outcome::kMade);
  EXPECT_EQ(Make(5, 4, 7.5), Replica::Outcome::kMade);  // the state is as before
}

TEST_F(ReplicaTest, AnOlderVersionThatComesWholeChangesNothing) {
  Take(3, 10, 2);
  Take(2, 8, 8);
  EXPECT_EQ(Make(4, 4, 7.5), Replica::Outcome::kMade);
}

TEST_F(ReplicaTest, AChunkThatDiffersIsNotBuiltOn) {
  Take(3, 10, 2);
  EXPECT_EQ(Make(4, 4, 7.25), Replica::Outcome::kDiffers);
  EXPECT_EQ(replica_.version(0), -1);
  EXPECT_EQ(Make(5, 4, 0), Replica::Outcome::kMissing);
  Take(5, 1, 0);
  EXPECT_EQ(Make(6, 4, -1), Replica::Outcome::kMade);
  replica_.Reset();
  EXPECT_EQ(Make(7, 4, 0), Replica::Outcome::kMissing);
}

// The tensors lie in the order c, b, a; slots are multiples of 16 floats: c at 0, b at 2112, a at 5120.
TEST_F(ReplicaTest, AFrameHasTheRatiosOfItsTensors) {
  const auto tensors = [this](int32_t first, int32_t count) {
    const training::TensorRun run =
        training::TensorsIn(layout_, training::RangeOf(layout_, {first, count}));
    return std::vector<int32_t>{run.first, run.count};
  };
  ASSERT_EQ(layout_.slots()[1].offset, 2112);
  ASSERT_EQ(layout_.slots()[2].offset, 5120);
  EXPECT_EQ(tensors(0, 1), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(tensors(1, 1), (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(tensors(2, 1), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(tensors(0, 3), (std::vector<int32_t>{0, 3}));
  EXPECT_TRUE(replica_.FitsRatios({0, 3}, 0));
  EXPECT_FALSE(replica_.FitsRatios({0, 3}, 3));
  const Replica lamb(layout_, std::make_shared<const training::Lamb>(*training::Lamb::Create({})));
  EXPECT_TRUE(lamb.FitsRatios({2, 1}, 2));
  EXPECT_FALSE(lamb.FitsRatios({2, 1}, 1));
  EXPECT_EQ(lamb.Ratios({2, 1}, {0.5, 0.25}), (std::vector<double>{1, 0.5, 0.25}));
}

}  // namespace
}  // namespace capstan::exchange::sender
