// The history of metrics: bounded, of the present weights, and there again after a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/metric_history.h"
#include "coordinator/core/test_world.h"

namespace capstan::coordinator::core {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

job::v1::MetricPoint Point(int64_t step, double loss, int64_t steps = 0, double total = 0) {
  job::v1::MetricPoint point;
  point.set_step(step);
  point.set_loss(loss);
  if (steps > 0) {
    point.mutable_breakdown()->set_steps(steps);
    point.mutable_breakdown()->set_total(total);
  }
  return point;
}

std::vector<int64_t> Steps(const std::vector<job::v1::MetricPoint>& points) {
  std::vector<int64_t> steps;
  for (const job::v1::MetricPoint& point : points) steps.push_back(point.step());
  return steps;
}

TEST(MetricHistoryTest, EverySecondPointGoesAndThenEverySecondReportIsTaken) {
  MetricHistory history(/*max_points=*/4);
  for (int step = 1; step <= 4; ++step) history.Add(Point(step, 0.5, 1, step));
  EXPECT_THAT(Steps(history.points()), ElementsAre(1, 2, 3, 4));
  history.Add(Point(5, 0.5, 1, 5));
  EXPECT_THAT(Steps(history.points()), ElementsAre(2, 4, 5));
  EXPECT_EQ(history.points()[0].breakdown().steps(), 2);
  EXPECT_DOUBLE_EQ(history.points()[0].breakdown().total(), 1.5);  // (1 + 2) / 2
  history.Add(Point(6, 0.5, 3, 10));
  history.Add(Point(7, 0.5, 1, 2));  // in the place of 6
  EXPECT_THAT(Steps(history.points()), ElementsAre(2, 4, 5, 7));
  EXPECT_EQ(history.points()[3].breakdown().steps(), 4);
  EXPECT_DOUBLE_EQ(history.points()[3].breakdown().total(), 8);  // (3 * 10 + 2) / 4
  EXPECT_THAT(Steps(history.Thinned(2)), ElementsAre(4, 7));
  EXPECT_THAT(history.Thinned(0), SizeIs(4));
}

// Each by its steps: of one step of 4 and three of 8.
TEST(MetricHistoryTest, AllPartsOfAStepAreJoined) {
  job::v1::StepBreakdown a, b;
  const auto* const type = a.GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    if (type->field(i)->name() == "steps") continue;
    a.GetReflection()->SetDouble(&a, type->field(i), 4);
    b.GetReflection()->SetDouble(&b, type->field(i), 8);
  }
  a.set_steps(1);
  b.set_steps(3);
  const job::v1::StepBreakdown joined = Joined(a, b);
  EXPECT_EQ(joined.steps(), 4);
  for (int i = 0; i < type->field_count(); ++i) {
    if (type->field(i)->name() == "steps") continue;
    EXPECT_DOUBLE_EQ(joined.GetReflection()->GetDouble(joined, type->field(i)), 7)
        << type->field(i)->name();
  }
}

TEST(MetricHistoryTest, AsManyPointsAsWereAskedFor) {
  MetricHistory history(/*max_points=*/100);
  for (int step = 1; step <= 31; ++step) history.Add(Point(step, 0.5, 1, step));
  for (int count = 1; count <= 31; ++count) {
    const auto points = history.Thinned(count);
    ASSERT_THAT(points, SizeIs(count));
    EXPECT_EQ(points.back().step(), 31) << count;
    int64_t steps = 0;
    double total = 0;
    for (int i = 0; i < count; ++i) {
      const int64_t gap = points[i].step() - (i == 0 ? 0 : points[i - 1].step());
      EXPECT_GE(gap, 31 / count) << count;
      EXPECT_LE(gap, (31 + count - 1) / count) << count;
      steps += points[i].breakdown().steps();
      total += points[i].breakdown().total() * static_cast<double>(points[i].breakdown().steps());
    }
    EXPECT_EQ(steps, 31) << count;
    EXPECT_NEAR(total, 31 * 32 / 2.0, 1e-9) << count;
  }
  EXPECT_THAT(history.Thinned(32), SizeIs(31));
  EXPECT_THAT(history.points(), SizeIs(31));
}

TEST(MetricHistoryTest, ALongJobStaysBoundedEvenAndWhole) {
  MetricHistory history(/*max_points=*/2000);
  for (int64_t step = 1; step <= 100000; ++step) history.Add(Point(step, 1.0 / step, 2, 0.25));
  const auto& points = history.points();
  EXPECT_LE(points.size(), 2000u);
  EXPECT_GE(points.size(), 1000u);
  EXPECT_EQ(points.back().step(), 100000);
  int64_t steps = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    steps += points[i].breakdown().steps();
    EXPECT_THAT(points[i].breakdown().total(), DoubleEq(0.25));
    EXPECT_THAT(points[i].loss(), DoubleEq(1.0 / points[i].step()));
    if (i > 0) {
      EXPECT_LE(points[i].step() - points[i - 1].step(), 128) << i;
    }
  }
  EXPECT_EQ(steps, 200000);
}

TEST(MetricHistoryTest, StepsThatAreTrainedAgainStandThereOnce) {
  MetricHistory history(/*max_points=*/100);
  for (int step = 1; step <= 8; ++step) history.Add(Point(step, step));
  history.Add(Point(6, 60));  // back to a checkpoint
  EXPECT_THAT(Steps(history.points()), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(history.points().back().loss(), 60);
}

TEST(MetricHistoryTest, PagesThatChangedAreSavedAndLoadedAgain) {
  std::map<int64_t, std::string> saved;
  MetricHistory history(/*max_points=*/350);
  const auto save = [&] {
    std::vector<int64_t> numbers;
    for (auto& [number, page] : history.TakeChangedPages()) {
      numbers.push_back(number);
      if (page.empty()) {
        saved.erase(number);
      } else {
        saved[number] = page;
      }
    }
    return numbers;
  };
  int64_t step = 0;
  while (step < 250) history.Add(Point(++step, 1));
  EXPECT_THAT(save(), ElementsAre(0, 1, 2));
  EXPECT_THAT(save(), IsEmpty());
  while (step < 320) history.Add(Point(++step, 1));
  EXPECT_THAT(save(), ElementsAre(2, 3));  // two pages were full
  while (step < 351) history.Add(Point(++step, 1));
  EXPECT_THAT(save(), ElementsAre(0, 1, 2, 3));  // halved: 176 points, pages 2 and 3 are gone
  EXPECT_THAT(saved, SizeIs(2));

  MetricHistory again(/*max_points=*/350);
  for (const auto& [number, page] : saved) ASSERT_TRUE(again.LoadPage(number, page));
  EXPECT_EQ(Steps(again.points()), Steps(history.points()));
  EXPECT_THAT(again.TakeChangedPages(), IsEmpty());
  history.Add(Point(352, 1));
  again.Add(Point(352, 1));
  EXPECT_EQ(Steps(again.points()), Steps(history.points()));
  EXPECT_FALSE(again.LoadPage(7, saved[0]));
  EXPECT_FALSE(MetricHistory(10).LoadPage(0, "x"));
}

TEST(HistoryTest, ReportsOfLeadAndWorkersAreKeptOverARestart) {
  auto world = std::make_unique<World>();
  const SessionId worker = world->Worker("w0");
  const SessionId store = world->Store("s0");
  const std::string id = world->Submit(World::Spec(1, 1), "request");
  world->AnswerProbe(worker);
  world->Shard(store, id, 0).set_ready(true);
  world->Beat(store);
  world->Task(worker, id, 0).set_phase(node::v1::TASK_PHASE_RUNNING);
  const auto report = [&](int64_t step, double seconds, std::optional<double> loss) {
    node::v1::StepPhases* phases = world->Task(worker, id, 0).mutable_phases();
    phases->set_steps(step);
    phases->set_total(seconds);
    phases->set_push(seconds / 4);
    phases->set_data_wait(seconds / 8);
    phases->set_local_reduce(seconds / 16);
    phases->set_barrier_wait(seconds / 32);
    phases->set_pull(seconds / 64);
    phases->set_update(seconds / 128);
    phases->set_evaluate(seconds / 256);
    world->Beat(worker);
    node::v1::LeadState* lead = world->Shard(store, id, 0).mutable_lead();
    lead->set_lineage(1);
    lead->set_step(step);
    lead->clear_loss();
    if (loss.has_value()) lead->set_loss(*loss);
    lead->set_samples_per_second(160);
    world->Beat(store);
  };
  report(2, 3, 2.5);
  report(6, 4, std::nan(""));
  const std::vector<job::v1::MetricPoint> points =
      world->core_.Peek(id)->history().metrics().points();
  ASSERT_THAT(points, SizeIs(2));
  EXPECT_EQ(points[0].step(), 2);
  EXPECT_EQ(points[0].loss(), 2.5);
  EXPECT_EQ(points[0].samples_per_second(), 160);
  EXPECT_EQ(points[0].time().seconds(),
            absl::ToUnixSeconds(absl::FromUnixSeconds(1000) + world->now_));
  EXPECT_DOUBLE_EQ(points[0].breakdown().total(), 1.5);  // 3 s of 2 steps
  EXPECT_FALSE(points[1].has_loss());
  EXPECT_EQ(points[1].breakdown().steps(), 4);
  EXPECT_DOUBLE_EQ(points[1].breakdown().total(), 0.25);  // 1 s more of 4 steps
  EXPECT_DOUBLE_EQ(points[1].breakdown().push(), 0.0625);
  EXPECT_DOUBLE_EQ(points[1].breakdown().data_wait(), 0.25 / 8);
  EXPECT_DOUBLE_EQ(points[1].breakdown().local_reduce(), 0.25 / 16);
  EXPECT_DOUBLE_EQ(points[1].breakdown().barrier_wait(), 0.25 / 32);
  EXPECT_DOUBLE_EQ(points[1].breakdown().pull(), 0.25 / 64);
  EXPECT_DOUBLE_EQ(points[1].breakdown().update(), 0.25 / 128);
  EXPECT_DOUBLE_EQ(points[1].breakdown().evaluate(), 0.25 / 256);

  // Nothing is written for a report; after a while all are.
  EXPECT_THAT(world->journal_.state().history, IsEmpty());
  world->Pass(absl::Seconds(11), {worker, store});
  const DurableState state = world->journal_.state();
  EXPECT_THAT(state.history.at(id), SizeIs(1));
  world = std::make_unique<World>();
  ASSERT_TRUE(world->core_.Restore(state, world->now_, absl::UnixEpoch()).ok());
  const auto& restored = world->core_.Peek(id)->history().metrics().points();
  ASSERT_THAT(restored, SizeIs(2));
  EXPECT_EQ(restored[1].SerializeAsString(), points[1].SerializeAsString());

  DurableState damaged = state;
  damaged.history.at(id)[0] = "x";
  EXPECT_TRUE(absl::IsDataLoss(World().core_.Restore(damaged, world->now_, absl::UnixEpoch())));
}

}  // namespace
}  // namespace capstan::coordinator::core
