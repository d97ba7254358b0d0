// Workers that hang or are slow: what a job loses by them, on a clock of the test's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <map>

#include "coordinator/core/core.h"
#include "coordinator/core/test_recovery.h"

namespace capstan::coordinator::core {
namespace {

using ::testing::ElementsAre;

constexpr double kHangs = std::numeric_limits<double>::infinity();
constexpr absl::Duration kBeat = absl::Milliseconds(50);  // of the test: nodes report at each
constexpr double kLaneSeconds = 0.005;
constexpr int kWorkers = 3;
constexpr int kLanes = 8;

CoreOptions LongJobs() {
  CoreOptions options;
  options.resolve = [](const job::v1::JobSpec& spec, const common::v1::DatasetInfo& dataset,
                       const std::string& job_id, const std::string& root) {
    auto resolved = ToyResolve(spec, dataset, job_id, root);
    resolved->set_total_steps(int64_t{1} << 30);
    resolved->set_steps_per_epoch(int64_t{1} << 30);
    resolved->set_lanes(kLanes);
    return resolved;
  };
  return options;
}

// Three workers of eight lanes, 5 ms each. The lead measures as exchange/shard/lane_times.h says.
class PaceTest : public RecoveryTest {
 protected:
  PaceTest() : RecoveryTest(LongJobs()) {}

  void Begin(int workers = kWorkers) {
    Running(workers, 1);
    for (int rank = 0; rank < workers; ++rank) slowness_[rank] = 1;
  }

  std::vector<int32_t> Owners() { return core_.Peek(id_)->lineages().Owners(); }
  int LanesOf(int rank) {
    const std::vector<int32_t> owners = Owners();
    return static_cast<int>(std::count(owners.begin(), owners.end(), rank));
  }
  int Events(const std::string& type) {
    const std::vector<std::string> types = EventTypes(id_);
    return static_cast<int>(std::count(types.begin(), types.end(), type));
  }

  // One beat: steps are done as the slowest owner allows.
  void Beat() {
    std::map<int, int> lanes;
    for (const int32_t owner : Owners()) ++lanes[owner];
    double step = 0;
    for (const auto& [rank, count] : lanes) {
      step = std::max(step, count * kLaneSeconds * slowness_[rank]);
    }
    node::v1::ShardState& shard = RecoveryTest::Shard(stores_[0], id_, 0);
    node::v1::Waiting& waiting = *shard.mutable_waiting();
    waiting.clear_lanes();
    waiting.clear_late_lanes();
    shard.set_generation(core_.Peek(id_)->view().generation());
    double left = absl::ToDoubleSeconds(kBeat);
    while (step > 0 && begun_ + left >= step) {
      left -= step - begun_;
      begun_ = 0;
      ++steps_;
      for (const auto& [rank, count] : lanes) {
        if (!measured_) break;
        node::v1::WorkerPace& pace = Pace(shard, rank);
        pace.set_steps(pace.steps() + 1);
        pace.set_lanes(pace.lanes() + count);
        pace.set_seconds(pace.seconds() + count * kLaneSeconds * slowness_[rank]);
      }
      longest_ = std::max(longest_, now_ - decided_at_);
      decided_at_ = now_;
    }
    // A step that no worker can finish begins anew when its lanes change hands.
    begun_ = step == kHangs ? 0 : begun_ + left;
    waiting.set_step(steps_);
    if (step == kHangs) {
      for (int lane = 0; lane < kLanes; ++lane) {
        if (slowness_[Owners()[static_cast<size_t>(lane)]] < kHangs) continue;
        waiting.add_lanes(lane);
        if (now_ - decided_at_ >= absl::Milliseconds(500)) waiting.add_late_lanes(lane);
      }
    }
    shard.mutable_lead()->set_lineage(1);
    shard.mutable_lead()->set_step(steps_);
    for (const auto& [rank, slowness] : slowness_) {
      if (slowness < kHangs) Task(workers_[static_cast<size_t>(rank)], id_, rank).set_step(steps_);
    }
    Pass(kBeat, All());
    Follow();
  }
  int64_t Train(absl::Duration duration) {
    const int64_t before = steps_;
    const absl::Duration end = now_ + duration;
    while (now_ < end) Beat();
    return steps_ - before;
  }
  static node::v1::WorkerPace& Pace(node::v1::ShardState& shard, int rank) {
    for (node::v1::WorkerPace& pace : *shard.mutable_paces()) {
      if (pace.rank() == rank) return pace;
    }
    shard.add_paces()->set_rank(rank);
    return *shard.mutable_paces(shard.paces_size() - 1);
  }

  bool measured_ = true;
  std::map<int, double> slowness_;  // by rank; 1: usual
  int64_t steps_ = 0;
  double begun_ = 0;  // seconds of the step under way
  absl::Duration decided_at_ = now_;
  absl::Duration longest_;  // between two decisions
};

TEST_F(PaceTest, EvenWorkersKeepTheirLanes) {
  Begin();
  slowness_[1] = 1.3;
  const int64_t steps = Train(absl::Minutes(2));
  EXPECT_GT(steps, 6000);
  EXPECT_EQ(Job(id_).generation(), 1);
}

// A worker at a tenth of its speed costs no more than an absent one.
TEST_F(PaceTest, ASlowWorkerCostsAtMostHalfAsMuchAgain) {
  Begin();
  Train(absl::Seconds(5));
  const int64_t undisturbed = Train(absl::Minutes(2));
  slowness_[2] = 10;
  const int64_t slow = Train(absl::Minutes(2));
  std::printf("steps in two minutes: %lld undisturbed, %lld with one worker at a tenth\n",
              static_cast<long long>(undisturbed), static_cast<long long>(slow));
  EXPECT_GE(static_cast<double>(slow) * 1.5, static_cast<double>(undisturbed));
  EXPECT_EQ(LanesOf(2), 0);
  EXPECT_LE(Job(id_).generation(), 20);
  // It is as fast as the others again, and has its share again once it has shown that.
  slowness_[2] = 1;
  Train(absl::Minutes(4));
  EXPECT_GE(LanesOf(2), 2);
  EXPECT_EQ(Job(id_).restarts(), 0);
}

TEST_F(PaceTest, AWorkerThatIsSomewhatSlowerHasWhatItsSpeedEarns) {
  Begin();
  slowness_[0] = 3;
  Train(absl::Seconds(30));
  EXPECT_EQ(LanesOf(0), 1);
  const int64_t generation = Job(id_).generation();
  EXPECT_LE(generation, 3);
  Train(absl::Minutes(5));
  EXPECT_EQ(Job(id_).generation(), generation);  // and that is that
}

// Each time that lanes have moved it takes longer until they move again.
TEST_F(PaceTest, AWorkerWhoseSpeedChangesAllTheTimeMovesLanesLessAndLess) {
  Begin();
  Train(absl::Seconds(5));
  const auto moved = [this] {
    const int before = Events("LanesMoved");
    for (int i = 0; i < 6; ++i) {
      slowness_[0] = i % 2 == 0 ? 3 : 1;
      Train(absl::Seconds(10));
    }
    return Events("LanesMoved") - before;
  };
  const int at_first = moved();
  EXPECT_GE(at_first, 4);
  EXPECT_LE(moved(), at_first / 2);
}

TEST_F(PaceTest, TheSlowerOneOfTwoHasWhatItsSpeedEarns) {
  Begin(/*workers=*/2);
  slowness_[0] = 3;
  Train(absl::Seconds(20));
  EXPECT_EQ(LanesOf(0), 2);
  EXPECT_EQ(LanesOf(1), 6);
}

// Against the lower one of the two others: a second slow worker does not make the third one usual.
TEST_F(PaceTest, TwoSlowWorkersOfThreeAreSlow) {
  Begin();
  slowness_[1] = 3;
  slowness_[2] = 3.2;
  Train(absl::Seconds(30));
  EXPECT_GE(LanesOf(0), 5);
  EXPECT_GE(LanesOf(1), 1);
}

// It owns lane 0, and is stopped again and again: the pauses are the same each time.
TEST_F(PaceTest, AHungTaskCostsTheSameEachTime) {
  Begin();
  Train(absl::Seconds(10));
  for (int i = 0; i < 8; ++i) {
    int victim = 0;
    while (LanesOf(victim) == 0) ++victim;
    longest_ = absl::ZeroDuration();
    const int reissued = Events("LaneReissued");
    slowness_[victim] = kHangs;
    Train(absl::Seconds(20));
    EXPECT_EQ(LanesOf(victim), 0);
    slowness_[victim] = 1;
    EXPECT_LE(longest_, absl::Seconds(1.2)) << i;
    EXPECT_EQ(Events("LaneReissued"), reissued + 1);
    Train(absl::Seconds(70));
    EXPECT_GE(LanesOf(victim), 2) << i;
    EXPECT_NE(Job(id_).state(), common::v1::JOB_STATE_FAILED);
  }
}

// Half a second in three and a half: no other worker computes less with it than without it.
TEST_F(PaceTest, AWorkerThatStandsStillMostOfTheTimeIsHardlyWorseThanNone) {
  Begin();
  int64_t two = 0;
  const int64_t begun = steps_;
  const absl::Duration start = now_;
  while (now_ - start < absl::Minutes(2)) {
    slowness_[1] = 1;
    Train(absl::Seconds(0.5));
    slowness_[1] = kHangs;
    Train(absl::Seconds(3));
  }
  two = steps_ - begun;
  std::printf("steps in two minutes: %lld, two workers do %d\n", static_cast<long long>(two),
              120 * 50);
  EXPECT_GE(two, 120 * 50 * 9 / 10);  // 4 lanes each: 20 ms
}

TEST_F(PaceTest, LanesOfTheLostAreNotGivenToWhoHasToShowItsSpeed) {
  Begin();
  Train(absl::Seconds(5));
  slowness_[2] = kHangs;
  Train(absl::Seconds(5));
  ASSERT_EQ(LanesOf(2), 0);
  Do(NodeDisconnected{workers_[1], /*goodbye=*/true});
  EXPECT_THAT(Owners(), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
}

TEST_F(PaceTest, WhoWasLateHasToReachTheStepOfTheOthersFirst) {
  Begin();
  Train(absl::Seconds(5));
  slowness_[2] = kHangs;
  Train(absl::Minutes(5));
  EXPECT_EQ(LanesOf(2), 0);
  EXPECT_EQ(Events("LaneReissued"), 1);
  EXPECT_EQ(Events("LanesMoved"), 0);  // a worker that stands still gets no trial
}

// It has weights that are some steps old: with a lane of every step all others would wait for its link.
TEST_F(PaceTest, WhoTakesWeightsTooSlowlyGetsNoTrial) {
  Begin();
  Train(absl::Seconds(5));
  slowness_[2] = kHangs;
  Train(absl::Seconds(5));
  ASSERT_EQ(LanesOf(2), 0);
  node::v1::LeadState& lead = *RecoveryTest::Shard(stores_[0], id_, 0).mutable_lead();
  lead.add_slow_readers()->set_rank(2);
  lead.mutable_slow_readers(0)->set_missed_versions(1);
  Train(absl::Seconds(1));  // the lead says so before it speaks again
  slowness_[2] = 1;
  Train(absl::Minutes(1));
  EXPECT_EQ(LanesOf(2), 0);
  EXPECT_EQ(Events("LanesMoved"), 0);
  lead.clear_slow_readers();
  Train(absl::Seconds(30));
  EXPECT_GE(LanesOf(2), 2);
}

// With its share, as soon as it has a whole version, all others would wait for its link.
TEST_F(PaceTest, AJoinerThatTakesWeightsTooSlowlyGetsItsShareOnceItKeepsUp) {
  job::v1::JobSpec spec = Spec(kWorkers, 1);
  spec.mutable_resources()->set_min_workers(2);
  Running(2, 1, spec);
  slowness_ = {{0, 1}, {1, 1}};
  Train(absl::Seconds(5));
  node::v1::LeadState& lead = *RecoveryTest::Shard(stores_[0], id_, 0).mutable_lead();
  lead.add_slow_readers()->set_rank(2);
  lead.mutable_slow_readers(0)->set_missed_versions(1);
  workers_.push_back(Worker("w2"));
  Follow();
  Beat();
  ASSERT_TRUE(core_.Peek(id_)->IsAble(core_.Peek(id_)->tasks()[2]));
  slowness_[2] = 1;  // it tells the newest step from here on
  const int64_t generation = Job(id_).generation();
  Train(absl::Minutes(1));
  EXPECT_EQ(LanesOf(2), 0);
  EXPECT_EQ(Job(id_).generation(), generation);
  lead.clear_slow_readers();
  Train(absl::Seconds(1));
  EXPECT_GE(LanesOf(2), 2);
  EXPECT_EQ(Job(id_).generation(), generation + 1);
}

// Numbers whose differences would overflow, and times that no lineage takes.
TEST_F(PaceTest, PacesThatCannotBeMoveNoLanes) {
  Begin();
  Train(absl::Seconds(5));
  measured_ = false;
  node::v1::ShardState& shard = RecoveryTest::Shard(stores_[0], id_, 0);
  constexpr int64_t kSteps[] = {INT64_MAX - 100, INT64_MIN, int64_t{1} << 61, -1, 1000};
  constexpr double kSeconds[] = {1, 1e300, -1e300, kHangs,
                                 std::numeric_limits<double>::quiet_NaN()};
  for (const int64_t steps : kSteps) {
    for (const double seconds : kSeconds) {
      if (steps == 1000 && seconds == 1) continue;  // this can be
      for (int i = 1; i <= 80; ++i) {               // four seconds, and all get on
        for (int rank = 0; rank < kWorkers; ++rank) {
          node::v1::WorkerPace& pace = Pace(shard, rank);
          const bool hostile = rank == 1;
          const int64_t told = steps + (steps < 0 ? 0 : i / 2);
          pace.set_steps(hostile ? told : pace.steps() + 10);
          pace.set_lanes(hostile ? told : pace.lanes() + 20);
          pace.set_seconds(hostile ? seconds * i : pace.seconds() + 0.1);
        }
        Beat();
      }
    }
  }
  EXPECT_EQ(Job(id_).generation(), 1);
}

// Old shards do not measure: a task that is not late with its lane has its share again.
TEST_F(PaceTest, WithoutMeasuresATrialEndsByItself) {
  measured_ = false;
  Begin();
  Train(absl::Seconds(5));
  slowness_[2] = kHangs;
  Train(absl::Seconds(2));
  ASSERT_EQ(LanesOf(2), 0);
  slowness_[2] = 1;
  Train(absl::Seconds(20));
  EXPECT_GE(LanesOf(2), 2);
}

// The end of a trial does not move lanes of a task that cannot compute. They are taken over if they are late.
TEST_F(PaceTest, WithoutMeasuresATrialEndsAmongThoseWhoCanCompute) {
  measured_ = false;
  Begin();
  Train(absl::Seconds(5));
  slowness_[2] = kHangs;
  Train(absl::Seconds(2));
  ASSERT_EQ(LanesOf(2), 0);
  slowness_[2] = 1;
  for (int i = 0; i < 400 && LanesOf(2) == 0; ++i) Beat();
  ASSERT_EQ(LanesOf(2), 1);
  ASSERT_EQ(LanesOf(1), 4);
  Task(workers_[1], id_, 1).set_phase(node::v1::TASK_PHASE_STARTING);
  for (int i = 0; i < 400 && LanesOf(2) == 1; ++i) Beat();
  EXPECT_GE(LanesOf(2), 2);
  EXPECT_EQ(LanesOf(1), 4);
}

}  // namespace
}  // namespace capstan::coordinator::core
