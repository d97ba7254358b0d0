#include "client/predict/predict.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gpu_worker/engine/device/open.h"
#include "gtest/gtest.h"
#include "training/graph/tensors.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/mean_squared_error/mean_squared_error.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::client {
namespace {

using testing::ElementsAre;

// Images [1, 1, 2].
class Pairs final : public data::Dataset {
 public:
  Pairs(std::vector<float> images, std::vector<int32_t> labels)
      : images_(std::move(images)), labels_(std::move(labels)) {
    info_ = {.count = static_cast<int64_t>(labels_.size()),
             .channels = 1,
             .height = 1,
             .width = 2,
             .num_classes = 3};
  }
  const data::DatasetInfo& info() const override { return info_; }
  absl::Status Read(absl::Span<const int64_t> indices, int64_t, float* images,
                    int32_t* labels) const override {
    for (const int64_t index : indices) {
      if (index == broken_) return absl::DataLossError("a hole");
      *images++ = images_[2 * index];
      *images++ = images_[2 * index + 1];
      *labels++ = labels_[index];
    }
    return absl::OkStatus();
  }
  void Break(int64_t index) { broken_ = index; }
  absl::Status ReadTargets(absl::Span<const int64_t> indices, float* targets) const override {
    for (const int64_t index : indices) {
      targets = std::copy_n(&targets_[3 * index], 3, targets);
    }
    return absl::OkStatus();
  }
  // Three numbers for each sample.
  void SetTargets(std::vector<float> targets) {
    targets_ = std::move(targets);
    info_.target_size = 3;
  }

 private:
  std::vector<float> images_;
  std::vector<int32_t> labels_;
  std::vector<float> targets_;
  data::DatasetInfo info_;
  int64_t broken_ = -1;
};

class PredictTest : public testing::Test {
 protected:
  // Logits are (x0, x1, 1).
  PredictTest()
      : device_(*engine::OpenDevice("cpu")),
        graph_(*training::Graph::Build("pairs", {1, 1, 2},
                                       {{"flat", training::Flatten(), {0}},
                                        {"fc", training::Gemm{.out_features = 3}, {1}},
                                        {"loss", training::SoftmaxCrossEntropyLoss(), {2}}})),
        layout_(*training::FlatLayout::Create(training::TensorSpecs(graph_), 1024)),
        weights_(static_cast<size_t>(layout_.total_floats()), 0.0f) {
    const std::vector<int64_t> offsets = *training::ParameterOffsets(graph_, layout_);
    weights_[offsets[0] + 0] = 1;  // fc.weight [3, 2]
    weights_[offsets[0] + 2 + 1] = 1;
    weights_[offsets[1] + 2] = 1;  // fc.bias
  }
  absl::StatusOr<PredictionSums> Run(const data::Dataset& set, const PredictOptions& options = {}) {
    seen_.clear();
    return Predict(*device_, graph_, layout_, weights_, set, options,
                   [this](const Prediction& prediction) {
                     seen_.push_back(prediction);
                     seen_.back().logits = {};
                     logits_.emplace_back(prediction.logits.begin(), prediction.logits.end());
                     return stop_;
                   });
  }

  const std::unique_ptr<engine::Device> device_;
  const training::Graph graph_;
  const training::FlatLayout layout_;
  std::vector<float> weights_;
  std::vector<Prediction> seen_;
  std::vector<std::vector<float>> logits_;
  absl::Status stop_;
};

TEST_F(PredictTest, CountsByClass) {
  const Pairs set({3, 0, 0, 2, 0, 0, 5, 5, -1, 0}, {0, 1, 0, 1, 2});
  // 5 samples in batches of 2.
  const auto sums = Run(set, {.max_batch = 2});
  ASSERT_TRUE(sums.ok()) << sums.status();
  EXPECT_EQ(sums->samples, 5);
  EXPECT_EQ(sums->correct, 3);
  ASSERT_EQ(seen_.size(), 5);
  std::vector<int32_t> predicted, labels;
  std::vector<int64_t> places;
  for (const Prediction& one : seen_) {
    places.push_back(one.sample);
    labels.push_back(one.label);
    predicted.push_back(one.predicted);
  }
  EXPECT_THAT(places, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(labels, ElementsAre(0, 1, 0, 1, 2));
  EXPECT_THAT(predicted, ElementsAre(0, 1, 2, 0, 2));  // the first of two equal logits
  EXPECT_THAT(logits_[4], ElementsAre(-1, 0, 1));
  ASSERT_EQ(sums->classes.size(), 3);
  const auto counts = [&](int label) {
    const ClassCounts& of = sums->classes[label];
    return std::vector<int64_t>{of.samples, of.predicted, of.correct};
  };
  EXPECT_THAT(counts(0), ElementsAre(2, 2, 1));
  EXPECT_THAT(counts(1), ElementsAre(2, 1, 1));
  EXPECT_THAT(counts(2), ElementsAre(1, 2, 1));
  // By hand, in double: -log softmax at the label.
  const auto loss = [](std::vector<double> x, int label) {
    double sum = 0;
    for (const double one : x) sum += std::exp(one);
    return std::log(sum) - x[label];
  };
  EXPECT_NEAR(sums->loss_sum,
              loss({3, 0, 1}, 0) + loss({0, 2, 1}, 1) + loss({0, 0, 1}, 0) + loss({5, 5, 1}, 1) +
                  loss({-1, 0, 1}, 2),
              1e-12);
  EXPECT_NEAR(seen_[0].probability, std::exp(3) / (std::exp(3) + 1 + std::exp(1)), 1e-12);
}

// The outputs are (x0, x1, 1).
TEST_F(PredictTest, ComparesNumbersWithTargets) {
  const training::Graph graph =
      *training::Graph::Build("pairs", {1, 1, 2},
                              {{"flat", training::Flatten(), {0}},
                               {"fc", training::Gemm{.out_features = 3}, {1}},
                               {"loss", training::MeanSquaredErrorLoss(), {2}}});
  Pairs set({3, 0, 0, 2, 5, 5}, {0, 0, 0});
  set.SetTargets({3, 1, 1, 2, 2, 2, 4, 5, 0.5});
  std::vector<std::vector<float>> outputs, targets;
  const auto sums = Predict(
      *device_, graph, layout_, weights_, set, {.max_batch = 2}, [&](const Prediction& prediction) {
        outputs.emplace_back(prediction.logits.begin(), prediction.logits.end());
        targets.emplace_back(prediction.targets.begin(), prediction.targets.end());
        return absl::OkStatus();
      });
  ASSERT_TRUE(sums.ok()) << sums.status();
  EXPECT_EQ(sums->samples, 3);
  EXPECT_EQ(sums->correct, 0);
  EXPECT_TRUE(sums->classes.empty());
  EXPECT_NEAR(sums->loss_sum, (0 + 1 + 0) / 3.0 + (4 + 0 + 1) / 3.0 + (1 + 0 + 0.25) / 3.0, 1e-12);
  EXPECT_THAT(outputs[1], ElementsAre(0, 2, 1));
  EXPECT_THAT(targets[1], ElementsAre(2, 2, 2));
}

TEST_F(PredictTest, ALimitIsAPrefix) {
  const Pairs set({3, 0, 0, 2, 0, 0}, {0, 1, 0});
  EXPECT_EQ(Run(set, {.limit = 2})->samples, 2);
  EXPECT_EQ(Run(set, {.limit = 9})->samples, 3);
  EXPECT_EQ(Run(set, {.max_batch = 1000, .threads = 2})->correct, 2);
}

TEST_F(PredictTest, ANaNIsNoClass) {
  const Pairs set({std::numeric_limits<float>::quiet_NaN(), 0}, {1});
  const auto sums = Run(set);
  ASSERT_TRUE(sums.ok()) << sums.status();
  EXPECT_EQ(seen_[0].predicted, kNoClass);
  EXPECT_TRUE(std::isnan(seen_[0].probability));
  EXPECT_TRUE(std::isnan(sums->loss_sum));
  EXPECT_EQ(sums->correct, 0);
}

TEST_F(PredictTest, ErrorsEndIt) {
  Pairs set({3, 0, 0, 2, 0, 0}, {0, 1, 0});
  set.Break(2);
  const auto hole = Run(set, {.max_batch = 2});
  EXPECT_EQ(hole.status(), absl::DataLossError("a hole"));
  EXPECT_EQ(seen_.size(), 2);
  stop_ = absl::CancelledError("enough");
  EXPECT_EQ(Run(set, {.max_batch = 2}).status(), stop_);
  EXPECT_EQ(seen_.size(), 1);
}

}  // namespace
}  // namespace capstan::client
