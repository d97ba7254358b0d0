#include "exchange/task/task_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace capstan::exchange::task {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using training::LaneBlock;
using training::SealSums;

constexpr absl::Duration kResend = absl::Milliseconds(500);

template <typename T>
std::vector<T> Only(const Effects& effects) {
  std::vector<T> out;
  for (const Effect& effect : effects) {
    if (const T* found = std::get_if<T>(&effect)) out.push_back(*found);
  }
  return out;
}

std::vector<int32_t> LanesOf(const Effects& effects) {
  std::vector<int32_t> lanes;
  for (const ComputeLane& order : Only<ComputeLane>(effects)) lanes.push_back(order.lane);
  return lanes;
}

std::vector<LaneBlock> BlocksOf(const Effects& effects) {
  std::vector<LaneBlock> blocks;
  for (const FoldAndPush& order : Only<FoldAndPush>(effects)) blocks.push_back(order.block);
  return blocks;
}

struct Setup {
  int32_t lanes = 4;
  int32_t rank = 0;
  int devices = 1;
  int64_t dataset = 64;
  int64_t batch = 16;
  int64_t test = 0;
  bool lanes_together = false;
  bool lanes_at_once = false;
  bool lanes_apart = false;
  bool asynchronous = false;
  bool keeps_residuals = false;
  int64_t total_steps = 5;
};

class Task {
 public:
  explicit Task(Setup setup) : core_(Make(setup)) {}

  Effects Do(const Event& event) { return core_.Step(event, now_); }
  Effects View(int64_t lineage, int64_t generation, std::vector<int32_t> owners) {
    return Do(ViewGiven{lineage, generation, std::move(owners)});
  }
  // Carries out all compute orders in `effects` and those that follow; gives all effects together.
  Effects Compute(Effects effects) {
    for (size_t i = 0; i < effects.size(); ++i) {
      if (const auto* order = std::get_if<ComputeLane>(&effects[i])) {
        const LaneComputed done{order->device, order->work, order->lane, SumsOf(order->lane)};
        Append(effects, Do(done));
      } else if (const auto* push = std::get_if<FoldAndPush>(&effects[i])) {
        const BlockPushed done{push->work, push->block};
        Append(effects, Do(done));
      } else if (const auto* block = std::get_if<EvaluateBlock>(&effects[i])) {
        const EvaluationComputed done{block->device, block->lineage, block->version, block->block,
                                      SumsOf(static_cast<int32_t>(block->block))};
        Append(effects, Do(done));
      }
    }
    return effects;
  }
  void Pass(absl::Duration time) { now_ += time; }
  // Ticks whenever the core asks for it, until `time` has passed.
  Effects PassTicking(absl::Duration time) {
    Effects effects;
    const absl::Duration end = now_ + time;
    while (core_.NextDeadline() <= end) {
      now_ = std::max(now_, core_.NextDeadline());
      Append(effects, Do(Tick{}));
    }
    now_ = end;
    return effects;
  }
  TaskCore& core() { return core_; }

  std::vector<std::vector<int32_t>> Planned(const std::vector<int32_t>& owners, int32_t rank,
                                            int devices, bool runs) const {
    return PlanLanes(
        *training::SamplePlan::Create({.dataset_size = 64, .global_batch = 16, .lanes = 8}), owners,
        rank, devices, /*step=*/1, runs);
  }

  static SealSums SumsOf(int32_t lane) { return {lane + 1, 0.5 * lane, lane}; }

 private:
  static TaskCore Make(const Setup& s) {
    training::SamplePlanOptions options;
    options.dataset_size = s.dataset;
    options.global_batch = s.batch;
    options.lanes = s.lanes;
    auto samples = training::SamplePlan::Create(options);
    auto evaluation = training::EvalPlan::Create(s.test, s.lanes);
    EXPECT_TRUE(samples.ok() && evaluation.ok());
    TaskCoreOptions task;
    task.rank = s.rank;
    task.total_steps = s.total_steps;
    task.device_count = s.devices;
    task.lanes_together = s.lanes_together;
    task.lanes_at_once = s.lanes_at_once;
    task.lanes_apart = s.lanes_apart || s.asynchronous || s.keeps_residuals;
    task.keeps_residuals = s.keeps_residuals;
    task.asynchronous = s.asynchronous;
    task.resend_interval = kResend;
    return TaskCore(*std::move(samples), *std::move(evaluation), task);
  }
  static void Append(Effects& to, Effects from) { to.insert(to.end(), from.begin(), from.end()); }

  TaskCore core_;
  absl::Duration now_ = absl::Seconds(1000);
};

// R8: nothing is computed before a complete version of the view's lineage is here.
TEST(TaskCoreTest, ComputesOnlyAtACompleteVersionOfItsLineage) {
  Task task({.lanes = 2});
  EXPECT_THAT(Only<ComputeLane>(task.Do(WeightsComplete{1, 0})), IsEmpty());  // no view yet
  const Effects opened = task.View(1, 1, {0, 0});
  EXPECT_THAT(Only<OpenLineage>(opened), SizeIs(1));
  EXPECT_THAT(LanesOf(opened), IsEmpty());
  EXPECT_THAT(LanesOf(task.Do(WeightsComplete{2, 0})), IsEmpty());  // a lineage not told yet

  const Effects orders = task.Do(WeightsComplete{1, 0});
  ASSERT_THAT(LanesOf(orders), ElementsAre(0));
  EXPECT_EQ(Only<ComputeLane>(orders)[0].lineage, 1);
  EXPECT_EQ(Only<ComputeLane>(orders)[0].step, 0);
}

TEST(TaskCoreTest, ADeviceTakesEverySoManyethLaneOneAfterAnother) {
  Task task({.lanes = 8, .rank = 1, .devices = 2});
  task.View(1, 1, {0, 0, 0, 1, 1, 1, 1, 1});
  const Effects first = task.Do(WeightsComplete{1, 0});
  ASSERT_THAT(LanesOf(first), ElementsAre(3, 4));
  const int64_t work = Only<ComputeLane>(first)[0].work;

  const Effects next = task.Do(LaneComputed{1, work, 4, {}});
  ASSERT_THAT(LanesOf(next), ElementsAre(6));
  EXPECT_EQ(Only<ComputeLane>(next)[0].device, 1);
  EXPECT_THAT(LanesOf(task.Do(LaneComputed{1, work, 6, {}})), IsEmpty());  // its share is done
  EXPECT_THAT(LanesOf(task.Do(LaneComputed{0, work, 3, {}})), ElementsAre(5));
  EXPECT_THAT(task.Planned({0, 0, 0, 1, 1, 1, 1, 1}, 1, 2, /*runs=*/false),
              ElementsAre(ElementsAre(3, 5, 7), ElementsAre(4, 6)));
}

// Lanes that a device computes together: all of a work, which follow each other, no block among them, and the
// next when all are done.
TEST(TaskCoreTest, ADeviceIsGivenItsLanesAtOnce) {
  Task task({.lanes = 8, .devices = 2, .test = 40, .lanes_at_once = true});
  task.View(1, 1, {0, 0, 0, 0, 0, 0, 1, 1});
  const Effects first = task.Do(WeightsComplete{1, 0, false, true});
  const std::vector<ComputeLane> orders = Only<ComputeLane>(first);
  ASSERT_THAT(LanesOf(first), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(orders[2].device, 0);
  EXPECT_EQ(orders[3].device, 1);
  EXPECT_THAT(Only<EvaluateBlock>(first), IsEmpty());
  const auto done = [&](int i) {
    return task.Do(LaneComputed{orders[i].device, orders[i].work, orders[i].lane,
                                Task::SumsOf(orders[i].lane)});
  };
  EXPECT_THAT(Only<EvaluateBlock>(done(0)), IsEmpty());
  // Lanes gained now are of another work.
  EXPECT_THAT(LanesOf(task.View(1, 2, {0, 0, 0, 0, 0, 0, 0, 0})), IsEmpty());
  EXPECT_THAT(Only<EvaluateBlock>(done(1)), IsEmpty());
  EXPECT_THAT(Only<EvaluateBlock>(done(2)), SizeIs(1));
  EXPECT_THAT(LanesOf(done(3)), IsEmpty());
  EXPECT_THAT(task.Planned({0, 0, 0, 1, 1, 1, 1, 1}, 1, 2, /*runs=*/true),
              ElementsAre(ElementsAre(3, 4, 5), ElementsAre(6, 7)));
  EXPECT_THAT(task.Planned({0, 0, 0, 1, 1, 1, 1, 1}, 0, 4, /*runs=*/true),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), IsEmpty()));
}

// The largest blocks that the lanes make, each as soon as its last lane is in.
TEST(TaskCoreTest, PushesTheLargestBlocksWhenTheyAreWhole) {
  Task task({.lanes = 8, .rank = 1});
  task.View(1, 1, {0, 0, 0, 1, 1, 1, 1, 1});
  const Effects orders = task.Do(WeightsComplete{1, 0});
  const int64_t work = Only<ComputeLane>(orders)[0].work;
  EXPECT_THAT(BlocksOf(task.Do(LaneComputed{0, work, 3, {}})), ElementsAre(LaneBlock{3, 1}));
  for (int32_t lane : {4, 5, 6}) {
    EXPECT_THAT(BlocksOf(task.Do(LaneComputed{0, work, lane, {}})), IsEmpty()) << lane;
  }
  EXPECT_THAT(BlocksOf(task.Do(LaneComputed{0, work, 7, {}})), ElementsAre(LaneBlock{4, 4}));
}

// Doubles in tree order: 1e16 has ulp 2, so 1e16 + 3 rounds to 1e16 + 4 and the order shows.
TEST(TaskCoreTest, SealsAreFoldedAsTheTreeIs) {
  const training::LaneTree tree(4);
  const std::map<int32_t, SealSums> lanes = {
      {0, {1, 1e16, 1}}, {1, {2, 3.0, 0}}, {2, {3, -1e16, 1}}, {3, {4, 3.0, 2}}};
  const double left = 1e16 + 3.0;
  const double right = -1e16 + 3.0;
  const SealSums root = FoldSeals(tree, {0, 4}, lanes);
  EXPECT_EQ(root.loss_sum, left + right);
  EXPECT_NE(root.loss_sum, ((1e16 + 3.0) + -1e16) + 3.0);
  EXPECT_EQ(root.samples, 10);
  EXPECT_EQ(root.correct, 4);
  // An absent lane is left out, not added as zero.
  const SealSums part = FoldSeals(tree.WithEmptyLanes({1}), {0, 2}, lanes);
  EXPECT_EQ(part.loss_sum, 1e16);
  EXPECT_EQ(part.samples, 1);
  EXPECT_EQ(FoldSeals(tree.WithEmptyLanes({0}), {0, 2}, lanes).samples, 2);
}

TEST(TaskCoreTest, ASealFollowsItsPushAndIsRepeatedUntilTheNextVersion) {
  Task task({.lanes = 2});
  task.View(1, 1, {0, 0});
  Effects all = task.Compute(task.Do(WeightsComplete{1, 0}));
  ASSERT_THAT(BlocksOf(all), ElementsAre(LaneBlock{0, 2}));
  ASSERT_THAT(Only<SendSeal>(all), SizeIs(1));
  EXPECT_EQ(Only<SendSeal>(all)[0].sums.samples, 1 + 2);
  EXPECT_TRUE(task.core().waiting());

  EXPECT_THAT(Only<SendSeal>(task.PassTicking(kResend - absl::Milliseconds(1))), IsEmpty());
  EXPECT_THAT(Only<SendSeal>(task.PassTicking(absl::Milliseconds(1))), SizeIs(1));
  EXPECT_THAT(Only<SendSeal>(task.PassTicking(3 * kResend)), SizeIs(3));
  task.Do(WeightsComplete{1, 1});
  EXPECT_THAT(Only<SendSeal>(task.PassTicking(3 * kResend)), IsEmpty());
  EXPECT_EQ(task.core().NextDeadline(), absl::InfiniteDuration());  // nothing is to be repeated
}

TEST(TaskCoreTest, NoSealBeforeThePush) {
  Task task({.lanes = 1});
  task.View(1, 1, {0});
  const int64_t work = Only<ComputeLane>(task.Do(WeightsComplete{1, 0}))[0].work;
  EXPECT_FALSE(task.core().waiting());
  EXPECT_THAT(Only<SendSeal>(task.Do(LaneComputed{0, work, 0, {}})), IsEmpty());
  EXPECT_THAT(Only<SendSeal>(task.PassTicking(2 * kResend)), IsEmpty());
  EXPECT_FALSE(task.core().waiting());  // the push is out
  EXPECT_THAT(Only<SendSeal>(task.Do(BlockPushed{work, {0, 1}})), SizeIs(1));
  EXPECT_TRUE(task.core().waiting());
  EXPECT_THAT(Only<SendSeal>(task.Do(BlockPushed{work, {0, 1}})), IsEmpty());  // told twice
}

// A newer version can come while lanes of the older are still being computed: by a takeover.
TEST(TaskCoreTest, WhatIsLateForItsStepIsDropped) {
  Task task({.lanes = 2});
  task.View(1, 1, {0, 0});
  const ComputeLane old = Only<ComputeLane>(task.Do(WeightsComplete{1, 0}))[0];
  const Effects effects = task.Do(WeightsComplete{1, 1});
  ASSERT_THAT(Only<DropWork>(effects), SizeIs(1));
  EXPECT_EQ(Only<DropWork>(effects)[0].work, old.work);
  EXPECT_THAT(LanesOf(effects), IsEmpty());  // the device is still at the old lane

  const Effects freed = task.Do(LaneComputed{0, old.work, 0, {}});
  EXPECT_THAT(BlocksOf(freed), IsEmpty());
  ASSERT_THAT(LanesOf(freed), ElementsAre(0));
  EXPECT_EQ(Only<ComputeLane>(freed)[0].step, 1);
  EXPECT_THAT(Only<SendSeal>(task.Do(BlockPushed{old.work, {0, 2}})), IsEmpty());
  EXPECT_THAT(task.Do(WeightsComplete{1, 1}), IsEmpty());           // repeated
  EXPECT_THAT(LanesOf(task.Do(WeightsComplete{1, 0})), IsEmpty());  // repeated, older
}

// R7: a task that changes lineage discards all weights.
TEST(TaskCoreTest, ANewLineageDiscardsWeightsWorkAndSeals) {
  Task task({.lanes = 2});
  task.View(1, 1, {0, 0});
  task.Compute(task.Do(WeightsComplete{1, 0}));
  const ComputeLane running = Only<ComputeLane>(task.Do(WeightsComplete{1, 1}))[0];

  const Effects changed = task.View(3, 3, {0, 0});
  EXPECT_THAT(Only<DropWork>(changed), SizeIs(1));
  ASSERT_THAT(Only<OpenLineage>(changed), SizeIs(1));
  EXPECT_EQ(task.core().version(), -1);
  EXPECT_THAT(LanesOf(task.Do(LaneComputed{0, running.work, 0, {}})), IsEmpty());
  EXPECT_THAT(LanesOf(task.Do(WeightsComplete{1, 2})), IsEmpty());  // of the old history
  EXPECT_THAT(Only<SendSeal>(task.PassTicking(3 * kResend)), IsEmpty());
  // Also a version that was held before is computed again.
  EXPECT_THAT(LanesOf(task.Do(WeightsComplete{3, 0})), ElementsAre(0));
}

TEST(TaskCoreTest, OlderViewsAreIgnored) {
  Task task({.lanes = 2});
  task.View(2, 4, {0, 0});
  EXPECT_THAT(task.View(2, 4, {1, 1}), IsEmpty());
  EXPECT_THAT(task.View(2, 3, {1, 1}), IsEmpty());
  EXPECT_THAT(task.View(1, 9, {1, 1}), IsEmpty());
  EXPECT_THAT(LanesOf(task.Compute(task.Do(WeightsComplete{2, 0}))), ElementsAre(0, 1));
}

// The adapter reads its samples by the owners of the newest view.
TEST(TaskCoreTest, AViewOfTheSameLineageIsUsedAndNothingOpenedAnew) {
  Task task({.lanes = 2});
  EXPECT_THAT(Only<UseView>(task.View(1, 1, {0, 1})), IsEmpty());
  task.Do(WeightsComplete{1, 0});
  const Effects effects = task.View(1, 2, {0, 0});
  ASSERT_THAT(Only<UseView>(effects), SizeIs(1));
  EXPECT_TRUE(std::holds_alternative<UseView>(effects.front()));
  EXPECT_EQ(Only<UseView>(effects)[0].lineage, 1);
  EXPECT_EQ(Only<UseView>(effects)[0].generation, 2);
  EXPECT_THAT(Only<OpenLineage>(effects), IsEmpty());
  ASSERT_THAT(Only<ReportState>(effects), SizeIs(1));
  EXPECT_EQ(Only<ReportState>(effects)[0].generation, 2);
}

TEST(TaskCoreTest, AVersionWithStopIsNeverComputedOn) {
  Task task({.lanes = 2});
  task.View(1, 1, {0, 0});
  const Effects effects = task.Do(WeightsComplete{1, 5, /*stop=*/true});
  EXPECT_THAT(LanesOf(effects), IsEmpty());
  ASSERT_THAT(Only<WriteWeights>(effects), SizeIs(1));
  EXPECT_EQ(task.core().phase(), TaskPhase::kRunning);
  // Nor by gained lanes, nor by what a confused shard would publish after it.
  EXPECT_THAT(LanesOf(task.View(1, 2, {0, 0})), IsEmpty());
  EXPECT_THAT(LanesOf(task.Do(WeightsComplete{1, 6})), IsEmpty());

  const auto reports = Only<ReportState>(task.Do(WeightsWritten{1, 5}));
  ASSERT_FALSE(reports.empty());
  EXPECT_EQ(reports.back().phase, TaskPhase::kFinished);
  EXPECT_EQ(reports.back().step, 5);
}

// Else the coordinator would make a manifest of files of the lineage before.
TEST(TaskCoreTest, ALaterLineageIsNotFinishedBeforeItsOwnWeightsAreWritten) {
  Task task({.lanes = 2});
  task.View(1, 1, {0, 0});
  task.Do(WeightsComplete{1, 5, /*stop=*/true});
  task.Do(WeightsWritten{1, 5});
  ASSERT_EQ(task.core().phase(), TaskPhase::kFinished);

  task.View(2, 2, {0, 0});
  EXPECT_EQ(task.core().phase(), TaskPhase::kRunning);
  EXPECT_THAT(Only<WriteWeights>(task.Do(WeightsComplete{2, 5, /*stop=*/true})), SizeIs(1));
  EXPECT_EQ(task.core().phase(), TaskPhase::kRunning);
  task.Do(WeightsWritten{1, 5});  // of the lineage before, late
  task.Do(WeightsWritten{2, 4});
  EXPECT_EQ(task.core().phase(), TaskPhase::kRunning);
  const auto reports = Only<ReportState>(task.Do(WeightsWritten{2, 5}));
  ASSERT_FALSE(reports.empty());
  EXPECT_EQ(reports.back().phase, TaskPhase::kFinished);
  EXPECT_EQ(reports.back().lineage, 2);
}

TEST(TaskCoreTest, OnlyTheOwnerOfLaneZeroWritesWeightsAlsoWhenItBecomesThat) {
  Task task({.lanes = 2, .rank = 1});
  task.View(1, 1, {0, 1});
  EXPECT_THAT(Only<WriteWeights>(task.Do(WeightsComplete{1, 5, true})), IsEmpty());
  EXPECT_EQ(task.core().phase(), TaskPhase::kFinished);
  EXPECT_THAT(Only<WriteWeights>(task.View(1, 2, {1, 1})), SizeIs(1));
  EXPECT_EQ(task.core().phase(), TaskPhase::kRunning);
  EXPECT_THAT(Only<WriteWeights>(task.View(1, 3, {1, 1})), IsEmpty());  // once
}

TEST(TaskCoreTest, ATaskThatLosesALaneFinishesWhatItBegan) {
  Task task({.lanes = 4, .rank = 0});
  task.View(1, 1, {0, 0, 1, 1});
  const Effects orders = task.Do(WeightsComplete{1, 0});
  EXPECT_THAT(Only<DropWork>(task.View(1, 2, {0, 1, 1, 1})), IsEmpty());
  EXPECT_THAT(BlocksOf(task.Compute(orders)), ElementsAre(LaneBlock{0, 2}));
  EXPECT_THAT(LanesOf(task.Compute(task.Do(WeightsComplete{1, 1}))), ElementsAre(0));
}

// All of each gained lane, at the newest complete version, as blocks of their own.
TEST(TaskCoreTest, GainedLanesAreComputedAtTheHeldVersion) {
  Task task({.lanes = 4, .rank = 0});
  task.View(1, 1, {0, 0, 1, 1});
  task.Compute(task.Do(WeightsComplete{1, 7}));

  const Effects gained = task.View(1, 2, {0, 0, 0, 0});
  ASSERT_THAT(LanesOf(gained), ElementsAre(2));
  EXPECT_EQ(Only<ComputeLane>(gained)[0].step, 7);
  const Effects all = task.Compute(gained);
  EXPECT_THAT(LanesOf(all), ElementsAre(2, 3));
  EXPECT_THAT(BlocksOf(all), ElementsAre(LaneBlock{2, 2}));
  ASSERT_THAT(Only<SendSeal>(all), SizeIs(1));
  EXPECT_EQ(Only<SendSeal>(all)[0].sums.samples, 3 + 4);
  // Both seals are repeated now, and the next step is one block.
  EXPECT_THAT(Only<SendSeal>(task.PassTicking(kResend)), SizeIs(2));
  EXPECT_THAT(BlocksOf(task.Compute(task.Do(WeightsComplete{1, 8}))), ElementsAre(LaneBlock{0, 4}));
  // Lost and gained again inside a step: nothing is computed twice.
  EXPECT_THAT(LanesOf(task.View(1, 3, {1, 1, 1, 1})), IsEmpty());
  EXPECT_THAT(LanesOf(task.View(1, 4, {0, 0, 0, 0})), IsEmpty());
}

// 10 samples in batches of 4: the third step has 2, so lanes 2 and 3 are empty in it.
TEST(TaskCoreTest, EmptyLanesAreSkipped) {
  Task task({.lanes = 4, .rank = 0, .dataset = 10, .batch = 4});
  task.View(1, 1, {1, 0, 0, 0});
  const Effects all = task.Compute(task.Do(WeightsComplete{1, 2}));
  EXPECT_THAT(LanesOf(all), ElementsAre(1));
  EXPECT_THAT(BlocksOf(all), ElementsAre(LaneBlock{1, 1}));

  // What the adapter plans with is the same.
  const auto samples =
      training::SamplePlan::Create({.dataset_size = 10, .global_batch = 4, .lanes = 4});
  EXPECT_THAT(PlanLanes(*samples, {0, 0, 0, 0}, 0, 2, /*step=*/2, /*runs=*/false),
              ElementsAre(ElementsAre(0), ElementsAre(1)));

  Task idle({.lanes = 4, .rank = 1, .dataset = 10, .batch = 4});
  idle.View(1, 1, {0, 0, 1, 1});
  EXPECT_THAT(LanesOf(idle.Do(WeightsComplete{1, 2})), IsEmpty());
  EXPECT_TRUE(idle.core().waiting());
  EXPECT_THAT(LanesOf(idle.Compute(idle.Do(WeightsComplete{1, 3}))), ElementsAre(2, 3));
}

TEST(TaskCoreTest, EvaluationFollowsTheLanesAndItsPartsAreRepeated) {
  Task task({.lanes = 2, .rank = 1, .test = 4});  // 2 blocks, one per lane
  task.View(1, 1, {0, 1});
  EXPECT_THAT(Only<EvaluateBlock>(task.Compute(task.Do(WeightsComplete{1, 0}))), IsEmpty());

  const Effects all = task.Compute(task.Do(WeightsComplete{1, 1, false, /*evaluate=*/true}));
  ASSERT_THAT(Only<EvaluateBlock>(all), SizeIs(1));
  EXPECT_EQ(Only<EvaluateBlock>(all)[0].block, 1);
  ASSERT_THAT(Only<SendEvaluationPart>(all), SizeIs(1));
  EXPECT_EQ(Only<SendEvaluationPart>(all)[0].version, 1);
  EXPECT_EQ(Only<SendEvaluationPart>(all)[0].sums.samples, 2);
  EXPECT_THAT(Only<SendEvaluationPart>(task.PassTicking(2 * kResend)), SizeIs(2));

  // The other owner is gone: its block is taken over, the own one is not done twice.
  const Effects gained = task.Compute(task.View(1, 2, {1, 1}));
  ASSERT_THAT(Only<EvaluateBlock>(gained), SizeIs(1));
  EXPECT_EQ(Only<EvaluateBlock>(gained)[0].block, 0);
  task.Do(WeightsComplete{1, 2});
  EXPECT_THAT(Only<SendEvaluationPart>(task.PassTicking(2 * kResend)), IsEmpty());
}

TEST(TaskCoreTest, BlocksAreSpreadOverTheDevices) {
  Task task({.lanes = 2, .devices = 2, .test = 4});
  task.View(1, 1, {0, 0});
  const auto blocks = Only<EvaluateBlock>(task.Do(WeightsComplete{1, 9, true, true}));
  ASSERT_THAT(blocks, SizeIs(2));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(blocks[i].device, i);
    EXPECT_EQ(blocks[i].block, i);
  }
}

// A device may still be at a block when the next version to be evaluated is here, also one with the
// same number in another history.
TEST(TaskCoreTest, AnEvaluationOfAnotherVersionIsDropped) {
  for (const auto& [lineage, version] : {std::pair<int64_t, int64_t>{1, 3}, {2, 2}}) {
    Task task({.lanes = 1, .test = 3});
    task.View(1, 1, {0});
    const int64_t work = Only<ComputeLane>(task.Do(WeightsComplete{1, 2, false, true}))[0].work;
    ASSERT_THAT(Only<EvaluateBlock>(task.Do(LaneComputed{0, work, 0, {}})), SizeIs(1));
    if (lineage > 1) task.View(lineage, 2, {0});
    task.Do(WeightsComplete{lineage, version, false, true});
    const Effects late = task.Do(EvaluationComputed{0, 1, 2, 0, {3, 1.0, 3}});
    EXPECT_THAT(Only<SendEvaluationPart>(late), IsEmpty());
    const auto parts = Only<SendEvaluationPart>(task.Compute(late));
    ASSERT_THAT(parts, SizeIs(1));
    EXPECT_EQ(parts[0].lineage, lineage);
    EXPECT_EQ(parts[0].version, version);
    EXPECT_EQ(parts[0].sums.samples, Task::SumsOf(0).samples);
  }
}

// The coordinator hears of the files though the phase stays.
TEST(TaskCoreTest, WrittenWeightsAreReportedWhileTheEvaluationIsOwed) {
  Task task({.lanes = 1, .test = 3});
  task.View(1, 1, {0});
  EXPECT_THAT(Only<WriteWeights>(task.Do(WeightsComplete{1, 5, true, true})), SizeIs(1));
  EXPECT_EQ(task.core().Waiting(), "step 5: evaluates 1 blocks");
  const auto reports = Only<ReportState>(task.Do(WeightsWritten{1, 5}));
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].phase, TaskPhase::kRunning);
  task.Do(EvaluationComputed{0, 1, 5, 0, {3, 1.5, 2}});
  EXPECT_EQ(task.core().phase(), TaskPhase::kFinished);
  EXPECT_EQ(task.core().Waiting(), "step 5: the last version is here");
}

// After the last version nobody publishes a newer one: the parts are repeated until StopTask.
TEST(TaskCoreTest, TheLastVersionIsEvaluatedAndRepeatedUntilTheStopOrder) {
  Task task({.lanes = 1, .test = 3});
  task.View(1, 1, {0});
  const Effects all = task.Do(WeightsComplete{1, 9, true, true});
  EXPECT_THAT(Only<EvaluateBlock>(all), SizeIs(1));
  task.Do(WeightsWritten{1, 9});
  EXPECT_EQ(task.core().phase(), TaskPhase::kRunning);  // the evaluation is owed
  task.Do(EvaluationComputed{0, 1, 9, 0, {3, 1.5, 2}});
  EXPECT_EQ(task.core().phase(), TaskPhase::kFinished);
  EXPECT_THAT(Only<SendEvaluationPart>(task.PassTicking(4 * kResend)), SizeIs(4));

  const Effects stopped = task.Do(StopOrder{});
  ASSERT_THAT(Only<Exit>(stopped), SizeIs(1));
  EXPECT_FALSE(Only<Exit>(stopped)[0].failed);
  EXPECT_THAT(task.PassTicking(4 * kResend), IsEmpty());
}

TEST(TaskCoreTest, AFailureIsReportedOnceAndEndsTheTask) {
  Task task({.lanes = 1});
  task.View(1, 1, {0});
  task.Do(WeightsComplete{1, 3});
  const Effects effects = task.Do(Failed{"DataMissing", "file x: gone"});
  ASSERT_THAT(Only<ReportState>(effects), SizeIs(1));
  EXPECT_EQ(Only<ReportState>(effects)[0].phase, TaskPhase::kFailed);
  EXPECT_EQ(Only<ReportState>(effects)[0].reason, "DataMissing");
  EXPECT_EQ(Only<ReportState>(effects)[0].step, 3);
  ASSERT_THAT(Only<Exit>(effects), SizeIs(1));
  EXPECT_TRUE(Only<Exit>(effects)[0].failed);
  EXPECT_THAT(task.Do(Failed{"InternalError", "what follows"}), IsEmpty());
}

TEST(TaskCoreTest, AViewOfAnotherLaneCountFailsTheTask) {
  Task task({.lanes = 2});
  const auto reports = Only<ReportState>(task.View(1, 1, {0, 0, 0}));
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].reason, "InternalError");
}

// Steps are fast; reports of the step alone are not.
TEST(TaskCoreTest, ProgressIsReportedAtMostFourTimesASecond) {
  Task task({.lanes = 1});
  task.View(1, 1, {0});
  EXPECT_THAT(Only<ReportState>(task.Do(WeightsComplete{1, 0})), SizeIs(1));  // RUNNING
  int reports = 0;
  for (int64_t version = 1; version <= 100; ++version) {
    reports += Only<ReportState>(task.Do(WeightsComplete{1, version})).size();
    reports += Only<ReportState>(task.PassTicking(absl::Milliseconds(10))).size();
  }
  EXPECT_EQ(reports, 4);
}

TEST(TaskCoreTest, SaysWhatItWaitsFor) {
  Task task({.lanes = 4, .rank = 1});
  EXPECT_EQ(task.core().Waiting(), "waits for a view");
  task.View(2, 2, {0, 1, 1, 0});
  EXPECT_EQ(task.core().Waiting(), "lineage 2: waits for weights");
  const Effects orders = task.Do(WeightsComplete{2, 812});
  EXPECT_EQ(task.core().Waiting(), "step 812: computes lanes 1,2");
  task.Compute(orders);
  EXPECT_EQ(task.core().Waiting(), "step 812: all is pushed, waits for version 813");
}

// Devices that sum by themselves get all lanes in one go, and only when all of them are free.
TEST(TaskCoreTest, LanesTogetherAreOrderedInOneGo) {
  Task task({.lanes = 5, .devices = 2, .test = 40, .lanes_together = true});
  task.View(1, 1, {0, 0, 0, 1, 1});
  const Effects first = task.Do(WeightsComplete{1, 0, false, true});
  EXPECT_THAT(LanesOf(first), ElementsAre(0, 2, 1));  // device 0: lanes 0 and 2
  const std::vector<ComputeLane> orders = Only<ComputeLane>(first);
  EXPECT_EQ(orders[1].device, 0);
  EXPECT_EQ(orders[2].device, 1);
  EXPECT_THAT(Only<EvaluateBlock>(first), IsEmpty());
  const auto done = [&](int i) {
    return task.Do(LaneComputed{orders[i].device, orders[i].work, orders[i].lane,
                                Task::SumsOf(orders[i].lane)});
  };
  // A device begins with its blocks when its lanes are done.
  EXPECT_THAT(Only<EvaluateBlock>(done(0)), IsEmpty());
  const Effects second = done(1);
  EXPECT_THAT(BlocksOf(second), ElementsAre(LaneBlock{2, 1}));
  ASSERT_THAT(Only<EvaluateBlock>(second), SizeIs(1));
  const Effects third = done(2);
  EXPECT_THAT(BlocksOf(third), ElementsAre(LaneBlock{0, 2}));
  // Lanes gained now wait for the blocks under way, and no further block is begun.
  const Effects gained = task.View(1, 2, {0, 0, 0, 0, 0});
  EXPECT_THAT(LanesOf(gained), IsEmpty());
  std::vector<EvaluateBlock> blocks = Only<EvaluateBlock>(second);
  for (const EvaluateBlock& block : Only<EvaluateBlock>(third)) blocks.push_back(block);
  Effects last;
  for (const EvaluateBlock& block : blocks) {
    EXPECT_THAT(LanesOf(last), IsEmpty());
    last = task.Do(EvaluationComputed{block.device, 1, 0, block.block, {}});
  }
  EXPECT_THAT(LanesOf(last), ElementsAre(3, 4));
}

// Lanes of a step and lanes gained in it can wait for the same device. Each is computed into its own
// work: else a block would lack it for ever.
TEST(TaskCoreTest, LanesOfTwoWorksAreNotOrderedInOneGo) {
  for (const bool together : {false, true}) {
    SCOPED_TRACE(together);
    Task task({.lanes = 4, .lanes_together = together, .lanes_at_once = !together});
    task.View(1, 1, {0, 0, 1, 1});
    const auto old = Only<ComputeLane>(task.Do(WeightsComplete{1, 0}));
    ASSERT_THAT(old, SizeIs(2));
    EXPECT_THAT(LanesOf(task.Do(WeightsComplete{1, 1})), IsEmpty());
    EXPECT_THAT(LanesOf(task.View(1, 2, {0, 0, 0, 0})), IsEmpty());
    EXPECT_THAT(LanesOf(task.Do(LaneComputed{0, old[0].work, 0, {}})), IsEmpty());
    const Effects first = task.Do(LaneComputed{0, old[1].work, 1, {}});
    EXPECT_THAT(LanesOf(first), ElementsAre(0, 1));
    EXPECT_THAT(BlocksOf(task.Compute(first)), ElementsAre(LaneBlock{0, 2}, LaneBlock{2, 2}));
  }
}

// A suspended job keeps its weights in the shards' files alone.
TEST(TaskCoreTest, AVersionThatIsTheLastByOrderIsNeitherComputedNorWritten) {
  Task task({.lanes = 2, .rank = 0});
  task.Do(ViewGiven{1, 1, {0, 0}});
  const Effects effects = task.Do(WeightsComplete{1, 3, /*stop=*/true});
  EXPECT_TRUE(Only<WriteWeights>(effects).empty());
  EXPECT_TRUE(Only<ComputeLane>(effects).empty());
  EXPECT_EQ(task.core().phase(), TaskPhase::kFinished);
}

// After a rollback the task goes on, at the version that the new lineage has.
TEST(TaskCoreTest, ANewerLineageDropsTheStepUnderWayAndGoesBack) {
  Task task({.lanes = 2, .rank = 0});
  task.Do(ViewGiven{1, 1, {0, 0}});
  const auto computing = Only<ComputeLane>(task.Do(WeightsComplete{1, 4}));
  ASSERT_EQ(computing.size(), 1u);
  const Effects moved = task.Do(ViewGiven{3, 3, {0, 0}});
  ASSERT_EQ(Only<OpenLineage>(moved).size(), 1u);
  EXPECT_EQ(Only<DropWork>(moved).size(), 1u);
  EXPECT_EQ(task.core().version(), -1);
  EXPECT_TRUE(task.Do(WeightsComplete{1, 5}).empty());  // of the old history
  // The device is still at the old lane; the new one waits for it.
  EXPECT_TRUE(Only<ComputeLane>(task.Do(WeightsComplete{3, 2})).empty());
  const Effects late = task.Do(LaneComputed{0, computing[0].work, 0, Task::SumsOf(0)});
  EXPECT_TRUE(Only<FoldAndPush>(late).empty());
  ASSERT_EQ(Only<ComputeLane>(late).size(), 1u);
  EXPECT_EQ(Only<ComputeLane>(late)[0].lineage, 3);
  EXPECT_EQ(Only<ComputeLane>(late)[0].step, 2);
  EXPECT_EQ(task.core().phase(), TaskPhase::kRunning);
}

// ---- Asynchronous jobs ----

WeightsComplete Marks(std::vector<int64_t> marks, int64_t version = 0, bool stop = false,
                      bool evaluate = false) {
  const int64_t floor = *std::min_element(marks.begin(), marks.end());
  return {1, version, stop, evaluate, std::move(marks), floor};
}
WeightsComplete Bounded(std::vector<int64_t> marks, int64_t max_staleness) {
  WeightsComplete weights = Marks(std::move(marks));
  weights.max_staleness = max_staleness;
  return weights;
}

std::vector<std::pair<int32_t, int64_t>> LanesAndSteps(const Effects& effects) {
  std::vector<std::pair<int32_t, int64_t>> found;
  for (const ComputeLane& order : Only<ComputeLane>(effects)) {
    found.emplace_back(order.lane, order.step);
  }
  return found;
}

TEST(TaskCoreTest, LanesThatAreApartLeaveOneByOne) {
  Task task({.lanes = 4, .devices = 2, .lanes_apart = true});
  task.View(1, 1, {0, 0, 0, 0});
  const Effects effects = task.Compute(task.Do(WeightsComplete{1, 0}));
  std::vector<LaneBlock> pushed = BlocksOf(effects);
  std::sort(pushed.begin(), pushed.end());
  EXPECT_THAT(pushed,
              ElementsAre(LaneBlock{0, 1}, LaneBlock{1, 1}, LaneBlock{2, 1}, LaneBlock{3, 1}));
  const auto seals = Only<SendSeal>(effects);
  ASSERT_THAT(seals, SizeIs(4));
  for (const SendSeal& seal : seals) EXPECT_EQ(seal.block.lane_count, 1);
}

using Begun = std::pair<int32_t, int64_t>;

TEST(AsynchronousTaskTest, EachLaneHasAStepOfItsOwn) {
  Task task({.lanes = 2, .devices = 2, .asynchronous = true});
  task.View(1, 1, {0, 0});
  Effects effects = task.Compute(task.Do(Marks({0, 0})));
  EXPECT_THAT(LanesAndSteps(effects), ElementsAre(Begun{0, 0}, Begun{1, 0}));
  EXPECT_EQ(Only<ComputeLane>(effects)[1].device, 1);
  EXPECT_THAT(BlocksOf(effects), ElementsAre(LaneBlock{0, 1}, LaneBlock{1, 1}));
  const auto seals = Only<SendSeal>(effects);
  ASSERT_THAT(seals, SizeIs(2));
  EXPECT_EQ(seals[1].sums.samples, 2);
  EXPECT_EQ(seals[1].staleness, 0);
  // Lane 1 is answered: it goes on alone, with the same version.
  effects = task.Compute(task.Do(Marks({0, 1})));
  EXPECT_THAT(LanesAndSteps(effects), ElementsAre(Begun{1, 1}));
  EXPECT_EQ(Only<SendSeal>(effects)[0].step, 1);
  EXPECT_EQ(Only<SendSeal>(effects)[0].staleness, 1) << "lane 0 has not got step 0";
  EXPECT_THAT(task.Compute(task.Do(Marks({0, 1}))), IsEmpty()) << "newer weights alone";
}

TEST(AsynchronousTaskTest, ALaneBeginsWhereItsMarksAre) {
  Task task({.lanes = 2, .asynchronous = true});
  task.View(1, 1, {0, 1});
  EXPECT_THAT(LanesAndSteps(task.Compute(task.Do(Marks({3, 1})))), ElementsAre(Begun{0, 3}));
  // It takes over lane 1 where that is.
  EXPECT_THAT(LanesAndSteps(task.View(1, 2, {0, 0})), ElementsAre(Begun{1, 1}));
}

TEST(AsynchronousTaskTest, WhatAnotherTaskHasDoneIsDropped) {
  Task task({.lanes = 2, .asynchronous = true});
  task.View(1, 1, {0, 0});
  const Effects begun = task.Do(Marks({0, 0}));
  ASSERT_THAT(LanesAndSteps(begun), ElementsAre(Begun{0, 0}));  // lane 1 waits for the device
  const int64_t work = Only<ComputeLane>(begun)[0].work;
  Effects effects = task.Do(Marks({0, 2}));
  EXPECT_THAT(Only<DropWork>(effects), SizeIs(1));
  EXPECT_THAT(LanesAndSteps(effects), IsEmpty()) << "the device is busy";
  effects = task.Do(LaneComputed{0, work, 0, {1, 1.0, 0}});
  EXPECT_THAT(LanesAndSteps(effects), ElementsAre(Begun{1, 2}));
}

TEST(AsynchronousTaskTest, OldWeightsAreNotComputedOnAndNewOnesAreAskedFor) {
  Task task({.lanes = 2, .asynchronous = true});
  task.View(1, 1, {0, 1});
  Effects effects = task.Do(Bounded({3, 1}, 1));
  EXPECT_THAT(LanesOf(effects), IsEmpty());
  ASSERT_THAT(Only<AskForWeights>(effects), SizeIs(1));
  EXPECT_EQ(Only<AskForWeights>(effects)[0].step, 3);
  EXPECT_EQ(Only<AskForWeights>(effects)[0].lane, 0);
  EXPECT_THAT(Only<AskForWeights>(task.PassTicking(kResend)), SizeIs(1)) << "again";
  effects = task.Do(Bounded({3, 2}, 1));
  EXPECT_THAT(LanesAndSteps(effects), ElementsAre(Begun{0, 3}));
  EXPECT_THAT(Only<AskForWeights>(task.PassTicking(2 * kResend)), IsEmpty());
}

// The same weights again, with another bound.
TEST(AsynchronousTaskTest, ALaneBeginsOnceTheBoundIsLooseEnough) {
  for (const int64_t bound : {int64_t{2}, int64_t{-1}}) {
    Task task({.lanes = 2, .asynchronous = true});
    task.View(1, 1, {0, 1});
    EXPECT_THAT(LanesOf(task.Do(Bounded({3, 1}, 0))), IsEmpty());
    EXPECT_THAT(LanesOf(task.Do(Bounded({3, 1}, 1))), IsEmpty());
    EXPECT_THAT(LanesAndSteps(task.Do(Bounded({3, 1}, bound))), ElementsAre(Begun{0, 3}));
  }
}

TEST(AsynchronousTaskTest, SealsAreRepeatedUntilTheStepIsOver) {
  Task task({.lanes = 2, .asynchronous = true});
  task.View(1, 1, {0, 1});
  task.Compute(task.Do(Marks({0, 0})));
  EXPECT_THAT(Only<SendSeal>(task.PassTicking(kResend)), SizeIs(1));
  task.Do(Marks({1, 0}));
  EXPECT_THAT(Only<SendSeal>(task.PassTicking(kResend)), IsEmpty());
}

TEST(AsynchronousTaskTest, ASkippedStepHasNoLoss) {
  Task task({.lanes = 2, .asynchronous = true});
  task.View(1, 1, {0, 1});
  const ComputeLane order = Only<ComputeLane>(task.Do(Marks({0, 0})))[0];
  task.Do(LaneComputed{order.device, order.work, order.lane, {4, 1.5, 2}});
  const auto seals = Only<SendSeal>(task.Do(BlockPushed{order.work, {0, 1}, /*finite=*/false}));
  ASSERT_THAT(seals, SizeIs(1));
  EXPECT_TRUE(std::isnan(seals[0].sums.loss_sum));
  EXPECT_EQ(seals[0].sums.samples, 4);
}

TEST(AsynchronousTaskTest, ALossThatIsNotFiniteLeavesOutItsGradient) {
  Task task({.lanes = 2, .asynchronous = true});
  task.View(1, 1, {0, 1});
  const ComputeLane order = Only<ComputeLane>(task.Do(Marks({0, 0})))[0];
  const auto pushes = Only<FoldAndPush>(
      task.Do(LaneComputed{order.device, order.work, order.lane, {4, INFINITY, 2}}));
  ASSERT_THAT(pushes, SizeIs(1));
  EXPECT_FALSE(pushes[0].finite_loss);
}

// Lane 1 waits for the device. Meanwhile lane 0 gets on, and its weights are newer.
TEST(AsynchronousTaskTest, StalenessIsThatOfTheWeightsThatALaneIsComputedOn) {
  Task task({.lanes = 2, .asynchronous = true});
  task.View(1, 1, {0, 0});
  const ComputeLane first = Only<ComputeLane>(task.Do(Marks({1, 3})))[0];
  ASSERT_EQ(first.lane, 0);
  task.Do(Marks({2, 3}));
  Effects effects = task.Compute(task.Do(LaneComputed{0, first.work, 0, {1, 1.0, 0}}));
  ASSERT_EQ(Only<ComputeLane>(effects)[0].lane, 1);
  EXPECT_EQ(Only<SendSeal>(effects)[0].staleness, 1);
}

TEST(AsynchronousTaskTest, AVersionIsEvaluatedOnceOnWhateverWeightsAreHere) {
  Task task({.lanes = 2, .test = 4, .asynchronous = true});
  task.View(1, 1, {0, 1});
  task.Compute(task.Do(Marks({0, 0})));
  Effects effects = task.Compute(task.Do(Marks({2, 2}, 2, false, true)));
  EXPECT_THAT(Only<EvaluateBlock>(effects), SizeIs(1));
  EXPECT_EQ(Only<SendEvaluationPart>(effects)[0].version, 2);
  effects = task.Compute(task.Do(Marks({3, 2}, 2, false, true)));
  EXPECT_THAT(Only<EvaluateBlock>(effects), IsEmpty());
}

TEST(AsynchronousTaskTest, TheLastVersionEndsItAndIsWritten) {
  Task task({.lanes = 2, .asynchronous = true});
  task.View(1, 1, {0, 1});
  task.Do(Marks({4, 4}, 4));
  const Effects effects = task.Do(Marks({5, 5}, 5, /*stop=*/true));
  EXPECT_THAT(Only<DropWork>(effects), SizeIs(1));
  EXPECT_THAT(LanesOf(effects), IsEmpty());
  EXPECT_THAT(Only<WriteWeights>(effects), SizeIs(1));
  task.Do(WeightsWritten{1, 5});
  EXPECT_EQ(task.core().phase(), TaskPhase::kFinished);
}

TEST(AsynchronousTaskTest, AnotherLineageBeginsAtItsOwnMarks) {
  Task task({.lanes = 2, .asynchronous = true});
  task.View(1, 1, {0, 1});
  const ComputeLane first = Only<ComputeLane>(task.Do(Marks({4, 4})))[0];
  EXPECT_EQ(first.step, 4);
  task.View(2, 2, {0, 1});
  task.Do(LaneComputed{0, first.work, 0, {1, 1.0, 0}});
  WeightsComplete weights = Marks({1, 2});
  weights.lineage = 2;
  EXPECT_THAT(LanesAndSteps(task.Do(weights)), ElementsAre(Begun{0, 1}));
}

// ---- jobs that keep residuals ----

WeightsComplete Version(int64_t version, bool saved = false, bool stop = false) {
  WeightsComplete weights{1, version, stop};
  weights.saved = saved;
  return weights;
}

TEST(ResidualsTest, NothingIsComputedBeforeTheResidualsAreRead) {
  Task task({.lanes = 4, .keeps_residuals = true});
  const Effects opened = task.View(1, 1, {0, 1, 0, 1});
  ASSERT_THAT(Only<ReadResiduals>(opened), SizeIs(1));
  EXPECT_THAT(Only<ReadResiduals>(opened)[0].lanes, ElementsAre(0, 2));
  EXPECT_THAT(LanesOf(task.Do(Version(2))), IsEmpty());
  EXPECT_THAT(LanesOf(task.Do(ResidualsRead{2, 2})), IsEmpty()) << "of another lineage";
  EXPECT_THAT(LanesOf(task.Compute(task.Do(ResidualsRead{1, 2}))), ElementsAre(0, 2));
  EXPECT_THAT(LanesOf(task.Do(ResidualsRead{1, 2})), IsEmpty()) << "a second time";
  EXPECT_THAT(LanesOf(task.Compute(task.Do(Version(3)))), ElementsAre(0, 2));

  const Effects next = task.View(2, 2, {1, 0, 1, 1});
  EXPECT_THAT(Only<ReadResiduals>(next)[0].lanes, ElementsAre(1));
  EXPECT_THAT(LanesOf(task.Do(WeightsComplete{2, 2})), IsEmpty());
  EXPECT_THAT(LanesOf(task.Do(ResidualsRead{2, 2})), ElementsAre(1));
}

TEST(ResidualsTest, ASavedVersionIsWrittenBeforeAnythingIsComputedOnIt) {
  Task task({.lanes = 4, .keeps_residuals = true});
  task.View(1, 1, {0, 1, 0, 1});
  task.Do(ResidualsRead{1, 0});
  EXPECT_THAT(Only<WriteResiduals>(task.Compute(task.Do(Version(0)))), IsEmpty());
  const Effects saved = task.Compute(task.Do(Version(1, /*saved=*/true)));
  ASSERT_THAT(Only<WriteResiduals>(saved), SizeIs(1));
  EXPECT_THAT(Only<WriteResiduals>(saved)[0].lanes, ElementsAre(0, 2));
  EXPECT_FALSE(Only<WriteResiduals>(saved)[0].last);
  const auto write = std::find_if(saved.begin(), saved.end(), [](const Effect& effect) {
    return std::holds_alternative<WriteResiduals>(effect);
  });
  const auto compute = std::find_if(saved.begin(), saved.end(), [](const Effect& effect) {
    return std::holds_alternative<ComputeLane>(effect);
  });
  EXPECT_LT(write - saved.begin(), compute - saved.begin());
  // A hand-over or a suspend: it must be written.
  const Effects last = task.Do(Version(2, /*saved=*/true, /*stop=*/true));
  ASSERT_THAT(Only<WriteResiduals>(last), SizeIs(1));
  EXPECT_TRUE(Only<WriteResiduals>(last)[0].last);
}

// The base's step had no samples for its lanes, so the next version came while they were being read.
TEST(ResidualsTest, AVersionThatIsSavedBeforeTheyAreReadIsWrittenThen) {
  Task task({.lanes = 2, .keeps_residuals = true});
  task.View(1, 1, {0, 1});
  EXPECT_THAT(Only<WriteResiduals>(task.Do(Version(3, /*saved=*/true))), IsEmpty());
  const Effects effects = task.Do(ResidualsRead{1, 2});
  ASSERT_THAT(Only<WriteResiduals>(effects), SizeIs(1));
  EXPECT_EQ(Only<WriteResiduals>(effects)[0].version, 3);
  EXPECT_THAT(LanesOf(effects), ElementsAre(0));
}

TEST(ResidualsTest, NobodyNeedsThoseOfVersionT) {
  Task task({.lanes = 2, .keeps_residuals = true});
  task.View(1, 1, {0, 1});
  task.Do(ResidualsRead{1, 4});
  task.Compute(task.Do(Version(4)));
  EXPECT_THAT(Only<WriteResiduals>(task.Do(Version(5, /*saved=*/true, /*stop=*/true))), IsEmpty());
}

TEST(ResidualsTest, ATaskWithoutLanesReadsAndWritesNothing) {
  Task task({.lanes = 2, .rank = 2, .keeps_residuals = true});
  EXPECT_THAT(Only<ReadResiduals>(task.View(1, 1, {0, 1}))[0].lanes, IsEmpty());
  task.Do(ResidualsRead{1, 0});
  task.Do(Version(0));
  const Effects later = task.Do(Version(3, /*saved=*/true));  // it may miss versions
  EXPECT_THAT(Only<WriteResiduals>(later), IsEmpty());
  EXPECT_EQ(task.core().phase(), TaskPhase::kRunning);
}

// Its residual is at another task. Lane 0's weights.safetensors may still move here at the end.
TEST(ResidualsTest, ALaneThatIsGainedInsideALineageIsNotComputed) {
  Task task({.lanes = 2, .rank = 1, .keeps_residuals = true});
  task.View(1, 1, {0, 1});
  task.Do(ResidualsRead{1, 3});
  task.Compute(task.Do(Version(3)));
  EXPECT_THAT(LanesOf(task.View(1, 2, {1, 1})), IsEmpty());
  EXPECT_THAT(LanesOf(task.Compute(task.Do(Version(4)))), ElementsAre(1));
  EXPECT_THAT(Only<WriteWeights>(task.Do(Version(5, true, true))), SizeIs(1));
}

// Versions whose steps had no samples for it may be overtaken. A version says of so many steps whether they
// were skipped; of those before, nothing is known.
TEST(ResidualsTest, AnOwnerMayMissVersionsButNotTooMany) {
  Task task({.lanes = 2, .keeps_residuals = true, .total_steps = 200});
  task.View(1, 1, {0, 1});
  task.Do(ResidualsRead{1, 0});
  task.Compute(task.Do(Version(0)));
  EXPECT_THAT(LanesOf(task.Compute(task.Do(Version(1)))), ElementsAre(0));
  EXPECT_THAT(LanesOf(task.Compute(task.Do(Version(3)))), ElementsAre(0));
  EXPECT_THAT(LanesOf(task.Compute(task.Do(Version(3 + kStepsToldOf)))), ElementsAre(0));
  const Effects effects = task.Do(Version(3 + 2 * kStepsToldOf + 1));
  EXPECT_THAT(LanesOf(effects), IsEmpty());
  ASSERT_THAT(Only<ReportState>(effects), SizeIs(1));
  EXPECT_EQ(Only<ReportState>(effects)[0].reason, "InternalError");
  EXPECT_EQ(Only<ReportState>(effects)[0].message,
            "version 134 came 66 versions after the residuals of 1 lanes");
  EXPECT_THAT(Only<Exit>(effects), SizeIs(1));
}

}  // namespace
}  // namespace capstan::exchange::task
