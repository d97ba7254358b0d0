#include "tests/contract/device_group.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "gpu_worker/engine/device/group.h"
#include "gtest/gtest.h"
#include "tests/contract/device_cases.h"
#include "training/graph/models.h"
#include "training/optim/sgd.h"

namespace capstan::testing {
namespace {

using engine::GroupLane;
using training::LaneBlock;
using training::LaneTree;

constexpr double kScale = 0.03125;

// Rule R1, written as its definition.
std::vector<float> TreeSum(const LaneTree& tree, const LaneBlock& block,
                           const std::vector<std::vector<float>>& lanes) {
  if (block.lane_count == 1) return lanes[block.first_lane];
  const LaneBlock left = LaneTree::Left(block), right = LaneTree::Right(block);
  if (!tree.HasLanes(right)) return TreeSum(tree, left, lanes);
  std::vector<float> sum = TreeSum(tree, left, lanes);
  const std::vector<float> other = TreeSum(tree, right, lanes);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
  return sum;
}

// The joined plans of one model.
struct Joined {
  std::vector<std::unique_ptr<engine::Plan>> plans;
  std::unique_ptr<engine::PlanGroup> group;
};
void Join(const std::vector<std::unique_ptr<engine::Device>>& devices, size_t count,
          const Problem& problem, engine::PlanOptions options, Joined* joined) {
  std::vector<engine::Plan*> members;
  for (size_t i = 0; i < count; ++i) {
    auto plan = devices[i]->Compile(problem.graph, problem.layout, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    joined->plans.push_back(*std::move(plan));
    members.push_back(joined->plans.back().get());
  }
  engine::GroupOptions together;
  together.deterministic = options.deterministic;
  together.timeout = absl::Seconds(20);
  together.buckets = {4096, 16384};
  auto group = devices[0]->MakeGroup(members, together);
  ASSERT_TRUE(group.ok()) << group.status();
  joined->group = *std::move(group);
}

std::vector<float> Waves(int64_t count, float seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = 0.01f * std::sin(seed + 0.37f * static_cast<float>(i));
  }
  return values;
}

}  // namespace

void ExpectGroupSums(const std::vector<std::unique_ptr<engine::Device>>& devices,
                     const std::string& model, int64_t samples) {
  ExpectGroupSums(devices, *training::MakeModel(model, 10, {1, 28, 28}), samples);
}

void ExpectGroupSums(const std::vector<std::unique_ptr<engine::Device>>& devices,
                     const training::Graph& graph, int64_t samples) {
  const LaneTree tree(5);
  std::vector<std::unique_ptr<Problem>> lanes;
  for (int lane = 0; lane < tree.lane_count(); ++lane) {
    // The last lane is smaller and so needs another captured graph.
    lanes.push_back(std::make_unique<Problem>(graph, lane == 4 ? samples - 1 : samples, lane + 1));
  }
  const training::FlatLayout& layout = lanes[0]->layout;
  for (const bool deterministic : {true, false}) {
    for (const size_t count : {size_t{1}, devices.size()}) {
      SCOPED_TRACE(::testing::Message() << graph.name() << " on " << count << " devices, "
                                        << (deterministic ? "D1" : "D0"));
      engine::PlanOptions options;
      options.max_batch = samples;
      options.deterministic = deterministic;
      Joined joined;
      Join(devices, count, *lanes[0], options, &joined);
      if (::testing::Test::HasFatalFailure()) return;
      const auto& [plans, group] = joined;
      for (int step = 0; step < 4; ++step) {
        const std::vector<float>& weights = lanes[step]->weights;
        ASSERT_TRUE(plans[0]->LoadWeights(weights.data()).ok());
        std::vector<std::vector<float>> gradients(5, std::vector<float>(layout.total_floats()));
        std::vector<engine::LaneResult> results;
        std::vector<GroupLane> order;
        for (int32_t lane = 0; lane < 5; ++lane) {
          auto result = plans[0]->ComputeLane(lanes[lane]->batch(), kScale, gradients[lane].data());
          ASSERT_TRUE(result.ok()) << result.status();
          results.push_back(*result);
          order.push_back({static_cast<int>(lane % count), lane, lanes[lane]->batch()});
        }
        const std::vector<float> want = TreeSum(tree, tree.root(), gradients);
        std::vector<float> sum(layout.total_floats(), NAN);
        int64_t ready = 0;
        int buckets = 0;
        ASSERT_TRUE(group->LoadWeights(weights.data()).ok());
        const auto got =
            group->ComputeLanes(tree, order, kScale, {sum.data()}, [&](size_t, int64_t floats) {
              EXPECT_GT(floats, ready);
              ready = floats;
              ++buckets;
            });
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_EQ(ready, layout.total_floats());
        EXPECT_GT(buckets, 1);
        for (size_t lane = 0; lane < results.size(); ++lane) {
          EXPECT_EQ((*got)[lane].correct, results[lane].correct);
          EXPECT_NEAR((*got)[lane].loss_sum, results[lane].loss_sum,
                      deterministic ? 0 : 1e-4 * results[lane].loss_sum);
        }
        double largest = 0;
        for (const float value : want) largest = std::max<double>(largest, std::fabs(value));
        for (size_t i = 0; i < want.size(); ++i) {
          if (deterministic) {
            ASSERT_EQ(sum[i], want[i]) << "float " << i << ", step " << step;
          } else {
            ASSERT_NEAR(sum[i], want[i], 1e-4 * largest) << "float " << i << ", step " << step;
          }
        }
      }
    }
  }
}

void ExpectGroupUpdates(const std::vector<std::unique_ptr<engine::Device>>& devices,
                        const std::string& model, int64_t samples) {
  const LaneTree tree(3);
  const training::Graph graph = *training::MakeModel(model, 10, {1, 28, 28});
  std::vector<std::unique_ptr<Problem>> lanes;
  for (int lane = 0; lane < tree.lane_count(); ++lane) {
    lanes.push_back(std::make_unique<Problem>(graph, samples, lane + 1));
  }
  const int64_t floats = lanes[0]->layout.total_floats();
  engine::PlanOptions options;
  options.max_batch = samples;
  const training::SgdOptions rules[] = {
      {}, {0, false, 0.01}, {0.9, false, 0}, {0.9, false, 0.01}, {0.9, true, 0}, {0.9, true, 0.01}};
  for (const size_t count : {size_t{1}, devices.size()}) {
    Joined joined;
    Join(devices, count, *lanes[0], options, &joined);
    if (::testing::Test::HasFatalFailure()) return;
    engine::PlanGroup& group = *joined.group;
    std::vector<GroupLane> order;
    for (int32_t lane = 0; lane < tree.lane_count(); ++lane) {
      order.push_back({static_cast<int>(lane % count), lane, lanes[lane]->batch()});
    }
    for (const training::SgdOptions& rule : rules) {
      SCOPED_TRACE(::testing::Message()
                   << model << " on " << count << " devices, momentum " << rule.momentum
                   << ", nesterov " << rule.nesterov << ", weight decay " << rule.weight_decay);
      const training::Sgd host = *training::Sgd::Create(rule);
      std::vector<float> weights = lanes[0]->weights;
      std::vector<float> momentum(rule.momentum > 0 ? floats : 0);
      if (rule.momentum > 0) {
        const std::vector<float> waves = Waves(floats, 1);
        for (const training::TensorSlot& slot : lanes[0]->layout.slots()) {
          std::copy_n(waves.begin() + slot.offset, slot.size, momentum.begin() + slot.offset);
        }
      }
      float* const state = rule.momentum > 0 ? momentum.data() : nullptr;
      ASSERT_TRUE(group.LoadState(weights.data(), state).ok());
      for (int step = 0; step < 3; ++step) {
        // Computes the sum twice: once to the host, where the lanes show that they see the new
        // weights, and once to stay on the devices.
        std::vector<float> sum(static_cast<size_t>(floats));
        const auto seen = group.ComputeLanes(tree, order, kScale, {sum.data()}, nullptr);
        ASSERT_TRUE(seen.ok()) << seen.status();
        const auto kept = group.ComputeKept(tree, order, kScale);
        ASSERT_TRUE(kept.ok()) << kept.status();
        EXPECT_TRUE(kept->finite);
        for (size_t lane = 0; lane < order.size(); ++lane) {
          EXPECT_EQ(kept->lanes[lane].loss_sum, (*seen)[lane].loss_sum);
        }
        engine::SgdStep update;
        update.rule = rule;
        update.learning_rate = 0.1 / (step + 1);
        update.gradient_scale = step == 2 ? 0.3 : 1;
        ASSERT_TRUE(group.Update(update).ok());
        EXPECT_EQ(group.Update(update).code(), absl::StatusCode::kFailedPrecondition);
        for (float& value : sum) value *= static_cast<float>(update.gradient_scale);
        host.Apply(weights.data(), weights.data(), sum.data(), state, weights.size(),
                   {update.learning_rate});
        std::vector<float> got(weights.size(), NAN), got_momentum(momentum.size(), NAN);
        ASSERT_TRUE(
            group.ReadState(got.data(), state == nullptr ? nullptr : got_momentum.data()).ok());
        EXPECT_TRUE(got == weights) << "step " << step;
        EXPECT_TRUE(got_momentum == momentum) << "step " << step;
      }
      // The lanes must compute on the weights that were read.
      std::vector<float> sum(static_cast<size_t>(floats)), again(sum.size());
      const auto there = group.ComputeLanes(tree, order, kScale, {sum.data()}, nullptr);
      ASSERT_TRUE(group.LoadWeights(weights.data()).ok());
      const auto loaded = group.ComputeLanes(tree, order, kScale, {again.data()}, nullptr);
      ASSERT_TRUE(there.ok() && loaded.ok());
      EXPECT_TRUE(sum == again);
    }
    // The same without reading between the steps, so that only the devices' own order keeps a step
    // behind the one before. The reference is a group that is loaded anew for each step.
    Joined reference;
    Join(devices, count, *lanes[0], options, &reference);
    if (::testing::Test::HasFatalFailure()) return;
    engine::SgdStep update;
    update.rule = {0.9, true, 0.01};
    update.learning_rate = 0.05;
    const training::Sgd host = *training::Sgd::Create(update.rule);
    std::vector<float> expected = lanes[0]->weights, momentum(static_cast<size_t>(floats));
    ASSERT_TRUE(group.LoadState(expected.data(), momentum.data()).ok());
    for (int step = 0; step < 8; ++step) {
      ASSERT_TRUE(group.ComputeKept(tree, order, kScale).ok());
      ASSERT_TRUE(group.Update(update).ok());
      std::vector<float> sum(static_cast<size_t>(floats));
      ASSERT_TRUE(reference.group->LoadWeights(expected.data()).ok());
      ASSERT_TRUE(reference.group->ComputeLanes(tree, order, kScale, {sum.data()}, nullptr).ok());
      host.Apply(expected.data(), expected.data(), sum.data(), momentum.data(), expected.size(),
                 {update.learning_rate});
    }
    std::vector<float> got(expected.size());
    ASSERT_TRUE(group.ReadState(got.data(), nullptr).ok());
    EXPECT_TRUE(got == expected) << model << " on " << count << " devices";
    // A step that is not finite is reported, and the next one is not affected.
    std::vector<float> weights = lanes[0]->weights;
    const float first = std::exchange(weights[0], INFINITY);
    for (const bool finite : {false, true}) {
      ASSERT_TRUE(group.LoadState(weights.data(), nullptr).ok());
      const auto kept = group.ComputeKept(tree, order, kScale);
      ASSERT_TRUE(kept.ok()) << kept.status();
      EXPECT_EQ(kept->finite, finite);
      weights[0] = first;
    }
    EXPECT_EQ(group.Update(update).code(), absl::StatusCode::kFailedPrecondition);
    std::vector<float> read(weights.size());
    EXPECT_EQ(group.ReadState(read.data(), read.data()).code(),
              absl::StatusCode::kFailedPrecondition);
    ASSERT_TRUE(group.ReadState(read.data(), nullptr).ok());
    EXPECT_TRUE(read == weights);
    // A load in between makes the sum invalid, because it belongs to other weights.
    ASSERT_TRUE(group.LoadWeights(weights.data()).ok());
    EXPECT_EQ(group.Update({}).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(group.ComputeKept(LaneTree(4), order, kScale).status().code(),
              absl::StatusCode::kInvalidArgument);  // lanes 0 to 2 of 4 are two blocks
  }
}

}  // namespace capstan::testing
