#include "gpu_worker/task/lane_clip.h"

#include <limits>
#include <vector>

#include "gpu_worker/task/test_layout.h"
#include "gtest/gtest.h"

namespace capstan::gpu_worker {
namespace {

class ClipLaneTest : public testing::Test {
 protected:
  // Two chunks of weights and one of running statistics.
  const training::FlatLayout layout_ = WithStatistics(6000, 8, /*chunk_floats=*/4096);
  std::vector<float> gradient_ = std::vector<float>(layout_.total_floats());
  const int64_t statistics_ = layout_.ChunkRange(2).offset;
};

TEST_F(ClipLaneTest, ANormAboveTheLimitIsBroughtDownToIt) {
  gradient_[0] = 3;
  gradient_[5000] = -4;  // in the other chunk
  gradient_[statistics_] = 100;
  EXPECT_TRUE(ClipLane(layout_, 2.5, absl::MakeSpan(gradient_)));
  EXPECT_EQ(gradient_[0], 1.5f);
  EXPECT_EQ(gradient_[5000], -2.0f);
  EXPECT_EQ(gradient_[statistics_], 100);
}

TEST_F(ClipLaneTest, ASmallerNormAndAJobThatDoesNotClipStayAsTheyAre) {
  gradient_[0] = 3;
  gradient_[5000] = -4;
  for (const double limit : {5.0, 0.0}) {
    EXPECT_TRUE(ClipLane(layout_, limit, absl::MakeSpan(gradient_)));
    EXPECT_EQ(gradient_[0], 3);
    EXPECT_EQ(gradient_[5000], -4);
  }
}

TEST_F(ClipLaneTest, WhatIsNotFiniteIsSaidAndLeftAlone) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const int64_t at : {int64_t{1}, statistics_}) {
      for (const double limit : {1.0, 0.0}) {
        gradient_.assign(gradient_.size(), 0);
        gradient_[0] = 7;
        gradient_[at] = bad;
        EXPECT_FALSE(ClipLane(layout_, limit, absl::MakeSpan(gradient_)));
        EXPECT_EQ(gradient_[0], 7);
      }
    }
  }
}

}  // namespace
}  // namespace capstan::gpu_worker
