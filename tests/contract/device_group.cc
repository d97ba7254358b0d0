#include "tests/contract/device_group.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <type_traits>
#include <utility>

#include "gpu_worker/engine/device/group.h"
#include "gtest/gtest.h"
#include "tests/contract/device_cases.h"
#include "training/graph/models.h"
#include "training/optim/adagrad.h"
#include "training/optim/adam.h"
#include "training/optim/apply.h"
#include "training/optim/ftrl.h"
#include "training/optim/rmsprop.h"
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

// The joined plans of one model. They are compiled once, and can be joined again.
struct Joined {
  std::vector<std::unique_ptr<engine::Plan>> plans;
  std::unique_ptr<engine::PlanGroup> group;
};
void Join(const std::vector<std::unique_ptr<engine::Device>>& devices, size_t count,
          const Problem& problem, engine::PlanOptions options, Joined* joined, int states = 0) {
  std::vector<engine::Plan*> members;
  joined->group.reset();
  for (const auto& plan : joined->plans) members.push_back(plan.get());
  for (size_t i = members.size(); i < count; ++i) {
    auto plan = devices[i]->Compile(problem.graph, problem.layout, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    joined->plans.push_back(*std::move(plan));
    members.push_back(joined->plans.back().get());
  }
  engine::GroupOptions together;
  together.deterministic = options.deterministic;
  together.timeout = absl::Seconds(20);
  together.buckets = {4096, 16384};
  together.state_floats = states;
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

namespace {

// Every rule of devices, with the options that change how it is applied.
std::vector<std::unique_ptr<const training::Optimizer>> DeviceRules() {
  std::vector<std::unique_ptr<const training::Optimizer>> rules;
  const auto add = [&](auto rule) {
    rules.push_back(std::make_unique<const std::decay_t<decltype(*rule)>>(*std::move(rule)));
  };
  const training::UpdateOptions part = {.decay_weights_only = true, .clip_value = 1e-4};
  training::AdamOptions adam, adamw;
  adam.weight_decay = adamw.weight_decay = 0.01;
  adamw.decoupled = true;
  add(training::Sgd::Create({}));
  add(training::Sgd::Create({0, false, 0.01}, part));
  add(training::Sgd::Create({0.9, false, 0}));
  add(training::Sgd::Create({0.9, false, 0.01}));
  add(training::Sgd::Create({0.9, true, 0}, part));
  add(training::Sgd::Create({0.9, true, 0.01}));
  add(training::Adam::Create({}));
  add(training::Adam::Create(adam));
  add(training::Adam::Create(adamw, part));
  add(training::Rmsprop::Create({.weight_decay = 0.01}));
  add(training::Rmsprop::Create({.centered = true}, part));
  add(training::Rmsprop::Create({.momentum = 0.9}));
  add(training::Rmsprop::Create({.momentum = 0.9, .centered = true, .weight_decay = 0.01}, part));
  add(training::Adagrad::Create({}));
  add(training::Adagrad::Create({.weight_decay = 0.01}, part));
  add(training::Ftrl::Create({.l1 = 1e-4, .weight_decay = 0.01}, part));
  return rules;
}

// A state as after some steps: squares are not negative, and padding is 0.
std::vector<float> StateOf(const training::FlatLayout& layout, int states) {
  std::vector<float> state(static_cast<size_t>(layout.total_floats() * states));
  const std::vector<float> waves = Waves(static_cast<int64_t>(state.size()), 1);
  for (const training::TensorSlot& slot : layout.slots()) {
    if (slot.spec.kind == training::TensorKind::kStat) continue;
    for (int64_t i = slot.offset * states; i < slot.range().end() * states; ++i) {
      state[i] = std::fabs(waves[i]);
    }
  }
  return state;
}

// The kept sum of these lanes updates as the host does.
struct GroupSteps {
  const Problem& problem;
  const LaneTree& tree;
  const std::vector<GroupLane>& order;

  // Steps whose result is read after each.
  void ExpectHostsBits(engine::PlanGroup& group, const training::Optimizer& rule) const {
    const training::FlatLayout& layout = problem.layout;
    const int states = rule.state_floats_per_weight();
    std::vector<float> weights = problem.weights, state = StateOf(layout, states);
    ASSERT_TRUE(group.LoadState(weights.data(), states == 0 ? nullptr : state.data()).ok());
    for (int step = 0; step < 3; ++step) {
      // Computes the sum twice: once to the host, where the lanes show that they see the new
      // weights, and once to stay on the devices.
      std::vector<float> sum(weights.size());
      const auto seen = group.ComputeLanes(tree, order, kScale, {sum.data()}, nullptr);
      ASSERT_TRUE(seen.ok()) << seen.status();
      const auto kept = group.ComputeKept(tree, order, kScale);
      ASSERT_TRUE(kept.ok()) << kept.status();
      EXPECT_TRUE(kept->finite);
      for (size_t lane = 0; lane < order.size(); ++lane) {
        EXPECT_EQ(kept->lanes[lane].loss_sum, (*seen)[lane].loss_sum);
      }
      const training::VersionUpdate update{.learning_rate = 0.1 / (step + 1),
                                           .gradient_scale = step == 2 ? 0.3 : 1,
                                           .applied_steps = step + 4};
      const std::vector<training::UpdatePart> parts = training::UpdateParts(layout, rule, update);
      ASSERT_TRUE(group.Update(parts).ok());
      EXPECT_EQ(group.Update(parts).code(), absl::StatusCode::kFailedPrecondition);
      training::ApplyVersion(layout, {0, layout.total_floats()}, rule, update,
                             {weights.data(), weights.data(), sum.data(), state.data()});
      std::vector<float> got(weights.size(), NAN), got_state(state.size(), NAN);
      ASSERT_TRUE(group.ReadState(got.data(), states == 0 ? nullptr : got_state.data()).ok());
      EXPECT_TRUE(got == weights) << "step " << step;
      EXPECT_TRUE(got_state == state) << "step " << step;
    }
    // The lanes must compute on the weights that were read.
    std::vector<float> sum(weights.size()), again(sum.size());
    const auto there = group.ComputeLanes(tree, order, kScale, {sum.data()}, nullptr);
    ASSERT_TRUE(group.LoadWeights(weights.data()).ok());
    const auto loaded = group.ComputeLanes(tree, order, kScale, {again.data()}, nullptr);
    ASSERT_TRUE(there.ok() && loaded.ok());
    EXPECT_TRUE(sum == again);
  }

  // The same without reading between the steps, so that only the devices' own order keeps a step
  // behind the one before. `reference` is a group that is loaded anew for each step.
  void ExpectOrderOfSteps(engine::PlanGroup& group, engine::PlanGroup& reference,
                          const training::Optimizer& rule) const {
    const training::FlatLayout& layout = problem.layout;
    std::vector<float> expected = problem.weights;
    std::vector<float> state(expected.size() * rule.state_floats_per_weight());
    ASSERT_TRUE(group.LoadState(expected.data(), state.data()).ok());
    for (int step = 0; step < 8; ++step) {
      const training::VersionUpdate update{.learning_rate = 0.05, .applied_steps = step};
      ASSERT_TRUE(group.ComputeKept(tree, order, kScale).ok());
      ASSERT_TRUE(group.Update(training::UpdateParts(layout, rule, update)).ok());
      std::vector<float> sum(expected.size());
      ASSERT_TRUE(reference.LoadWeights(expected.data()).ok());
      ASSERT_TRUE(reference.ComputeLanes(tree, order, kScale, {sum.data()}, nullptr).ok());
      training::ApplyVersion(layout, {0, layout.total_floats()}, rule, update,
                             {expected.data(), expected.data(), sum.data(), state.data()});
    }
    std::vector<float> got(expected.size()), got_state(state.size());
    ASSERT_TRUE(group.ReadState(got.data(), got_state.data()).ok());
    EXPECT_TRUE(got == expected);
    EXPECT_TRUE(got_state == state);
  }

  // A step that is not finite is reported, and the next one is not affected. What cannot be done is
  // refused and changes nothing. `rule` has a state, which is not loaded.
  void ExpectRefusals(engine::PlanGroup& group, const training::Optimizer& rule) const {
    std::vector<float> weights = problem.weights;
    const float first = std::exchange(weights[0], INFINITY);
    for (const bool finite : {false, true}) {
      ASSERT_TRUE(group.LoadState(weights.data(), nullptr).ok());
      const auto kept = group.ComputeKept(tree, order, kScale);
      ASSERT_TRUE(kept.ok()) << kept.status();
      EXPECT_EQ(kept->finite, finite);
      weights[0] = first;
    }
    std::vector<training::UpdatePart> parts =
        training::UpdateParts(problem.layout, rule, {.learning_rate = 0.05});
    EXPECT_EQ(group.Update(parts).code(), absl::StatusCode::kFailedPrecondition);
    for (training::UpdatePart& part : parts) part.rule = {};
    parts.back().size += 1;
    EXPECT_EQ(group.Update(parts).code(), absl::StatusCode::kInvalidArgument);
    parts.back().size -= 2;
    EXPECT_EQ(group.Update(parts).code(), absl::StatusCode::kInvalidArgument);
    parts.back().size += 1;
    parts.back().rule.form = static_cast<training::RuleForm>(training::kRuleForms);
    EXPECT_EQ(group.Update(parts).code(), absl::StatusCode::kInvalidArgument);
    std::vector<float> read(weights.size());
    EXPECT_EQ(group.ReadState(read.data(), read.data()).code(),
              absl::StatusCode::kFailedPrecondition);
    ASSERT_TRUE(group.ReadState(read.data(), nullptr).ok());
    EXPECT_TRUE(read == weights);
    // A load in between makes the sum invalid, because it belongs to other weights.
    ASSERT_TRUE(group.LoadWeights(weights.data()).ok());
    parts.back().rule = {};
    EXPECT_EQ(group.Update(parts).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(group.ComputeKept(LaneTree(4), order, kScale).status().code(),
              absl::StatusCode::kInvalidArgument);  // lanes 0 to 2 of 4 are two blocks
  }
};

}  // namespace

void ExpectGroupUpdates(const std::vector<std::unique_ptr<engine::Device>>& devices,
                        const std::string& model, int64_t samples) {
  ExpectGroupUpdates(devices, *training::MakeModel(model, 10, {1, 28, 28}), samples);
}

void ExpectGroupUpdates(const std::vector<std::unique_ptr<engine::Device>>& devices,
                        const training::Graph& graph, int64_t samples) {
  const LaneTree tree(3);
  std::vector<std::unique_ptr<Problem>> lanes;
  for (int lane = 0; lane < tree.lane_count(); ++lane) {
    lanes.push_back(std::make_unique<Problem>(graph, samples, lane + 1));
  }
  engine::PlanOptions options;
  options.max_batch = samples;
  for (const size_t count : std::set<size_t>{1, devices.size()}) {
    std::vector<GroupLane> order;
    for (int32_t lane = 0; lane < tree.lane_count(); ++lane) {
      order.push_back({static_cast<int>(lane % count), lane, lanes[lane]->batch()});
    }
    const GroupSteps steps{*lanes[0], tree, order};
    Joined joined, reference;
    int at = 0;
    for (const auto& rule : DeviceRules()) {
      // One of several devices has nothing to copy. What is left depends on the parts, so it gets the
      // rules with the most parts.
      if (count < devices.size() && !rule->update().decay_weights_only) continue;
      SCOPED_TRACE(::testing::Message()
                   << graph.name() << " on " << count << " devices, rule " << at++);
      Join(devices, count, *lanes[0], options, &joined, rule->state_floats_per_weight());
      if (::testing::Test::HasFatalFailure()) return;
      steps.ExpectHostsBits(*joined.group, *rule);
      if (::testing::Test::HasFatalFailure()) return;
    }
    const training::Adam adam = *training::Adam::Create({});
    Join(devices, count, *lanes[0], options, &joined, adam.state_floats_per_weight());
    Join(devices, count, *lanes[0], options, &reference, /*states=*/0);
    if (::testing::Test::HasFatalFailure()) return;
    steps.ExpectOrderOfSteps(*joined.group, *reference.group, adam);
    steps.ExpectRefusals(*joined.group, adam);
    std::vector<float> weights = lanes[0]->weights;
    EXPECT_EQ(reference.group->LoadState(weights.data(), weights.data()).code(),
              absl::StatusCode::kInvalidArgument);
    std::vector<engine::Plan*> plans;
    for (const auto& plan : joined.plans) plans.push_back(plan.get());
    for (const int states : {-1, training::kMostRuleStates + 1}) {
      engine::GroupOptions wrong;
      wrong.state_floats = states;
      EXPECT_EQ(devices[0]->MakeGroup(plans, wrong).status().code(),
                absl::StatusCode::kInvalidArgument)
          << states;
    }
  }
}

}  // namespace capstan::testing
