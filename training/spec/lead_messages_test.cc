#include "training/spec/lead_messages.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "capstan/node/v1/node.pb.h"
#include "google/protobuf/util/message_differencer.h"
#include "tests/support/fill_message.h"

namespace capstan::training::spec {
namespace {

// If a field got lost on the way, the job would have other bits after a restart.
TEST(LeadMessagesTest, EveryFieldOfASnapshotSurvives) {
  node::v1::LeadSnapshot want;
  int64_t next = 1;
  FillMessage(want, next);
  want.mutable_applied_orders(0)->set_learning_rate(0.25);  // one of each kind of order
  want.mutable_applied_orders(1)->set_checkpoint(true);
  *want.add_applied_orders() = want.applied_orders(0);
  want.mutable_applied_orders(2)->set_suspend(true);
  *want.add_applied_orders() = want.applied_orders(0);
  want.mutable_applied_orders(3)->set_max_staleness(5);

  const auto decoded = DecodeSnapshot(want.SerializeAsString());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  node::v1::LeadSnapshot got;
  ASSERT_TRUE(got.ParseFromString(EncodeSnapshot(*decoded)));

  google::protobuf::util::MessageDifferencer differencer;
  std::string differences;
  differencer.ReportDifferencesToString(&differences);
  EXPECT_TRUE(differencer.Compare(want, got)) << differences;
}

TEST(LeadMessagesTest, WhatIsNoSnapshotIsRefused) {
  EXPECT_EQ(DecodeSnapshot("\xff\xff").status().code(), absl::StatusCode::kDataLoss);
  node::v1::LeadSnapshot snapshot;
  snapshot.add_applied_orders()->set_id(1);  // of no kind
  EXPECT_EQ(DecodeSnapshot(snapshot.SerializeAsString()).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST(LeadMessagesTest, OrdersThatCannotBeAreRefused) {
  const auto read = [](const std::function<void(node::v1::Order&)>& make) {
    node::v1::GiveOrders give;
    node::v1::Order& order = *give.add_orders();
    order.set_id(1);
    order.set_checkpoint(true);
    make(order);
    return ReadOrders(give.orders());
  };
  EXPECT_TRUE(read([](node::v1::Order& order) { order.set_step(0); }).ok());
  EXPECT_TRUE(read([](node::v1::Order& order) { order.set_learning_rate(1e-300); }).ok());
  EXPECT_TRUE(read([](node::v1::Order& order) { order.set_max_staleness(-1); }).ok());
  for (const auto& make : std::vector<std::function<void(node::v1::Order&)>>{
           [](node::v1::Order& order) { order.set_id(0); },
           [](node::v1::Order& order) { order.set_id(-1); },
           [](node::v1::Order& order) { order.set_step(-1); },
           [](node::v1::Order& order) { order.set_learning_rate(0); },
           [](node::v1::Order& order) { order.set_learning_rate(-1); },
           [](node::v1::Order& order) { order.set_learning_rate(std::nan("")); },
           [](node::v1::Order& order) { order.set_learning_rate(HUGE_VAL); },
           [](node::v1::Order& order) { order.set_max_staleness(-2); },
           [](node::v1::Order& order) { order.set_checkpoint(false); },
           [](node::v1::Order& order) { order.set_suspend(false); },
           [](node::v1::Order& order) { order.clear_checkpoint(); }}) {
    EXPECT_EQ(read(make).status().code(), absl::StatusCode::kInvalidArgument);
  }
  const auto message = [&read](const std::function<void(node::v1::Order&)>& make) {
    return std::string(read(make).status().message());
  };
  EXPECT_EQ(message([](node::v1::Order& order) { order.set_id(0); }),
            "order 0: an id is at least 1");
  EXPECT_EQ(message([](node::v1::Order& order) { order.set_step(-2); }),
            "order 1: step -2, want >= 0");
  EXPECT_EQ(message([](node::v1::Order& order) { order.set_learning_rate(-1); }),
            "order 1: learning_rate -1, want a finite number above 0");
  EXPECT_EQ(message([](node::v1::Order& order) { order.clear_checkpoint(); }),
            "order 1: an order that this version does not know");
}

// The coordinator took older epochs from an earlier report.
TEST(LeadMessagesTest, TheLastThousandEpochsAreReported) {
  SamplePlanOptions samples;
  samples.dataset_size = 1;
  samples.global_batch = 1;
  samples.lanes = 1;
  LeadOptions options;
  options.total_steps = 2000;
  ScheduleOptions schedule;
  schedule.learning_rate = 0.5;
  Lead lead(options, *SamplePlan::Create(samples), *EvalPlan::Create(0, 1),
            *Schedule::Create(schedule, 1, 2000), absl::ZeroDuration());
  for (int64_t step = 0; step <= static_cast<int64_t>(kReportedEpochs); ++step) {
    const absl::Duration now = absl::Seconds(step + 1);
    ASSERT_TRUE(lead.AddSeal(step, {0, 1}, {1, 1, 0}, now).ok());
    ASSERT_TRUE(lead.AddPart(step, 0, {true, {}}, now).ok());
    ASSERT_TRUE(lead.Decide(now).has_value());
    const node::v1::LeadState state = MakeLeadState(lead, 1);
    const int first = step < static_cast<int64_t>(kReportedEpochs) ? 1 : 2;
    ASSERT_EQ(state.epochs(0).epoch(), first);
    ASSERT_EQ(state.epochs(state.epochs_size() - 1).epoch(), step + 1);
  }
}

// Four samples in steps of two, two epochs; one test sample. Everything that people see of a job
// comes from this message.
TEST(LeadMessagesTest, ALeadSaysAllOfItself) {
  SamplePlanOptions samples;
  samples.dataset_size = 4;
  samples.global_batch = 2;
  samples.lanes = 1;
  LeadOptions options;
  options.lineage = 7;
  options.total_steps = 4;
  options.evaluate_every_steps = 2;
  ScheduleOptions schedule;
  schedule.learning_rate = 0.5;
  Lead lead(options, *SamplePlan::Create(samples), *EvalPlan::Create(1, 1),
            *Schedule::Create(schedule, 2, 4), absl::ZeroDuration());
  const auto step = [&lead](double loss_sum, int64_t correct, int seconds) {
    const absl::Duration now = absl::Seconds(seconds);
    EXPECT_TRUE(lead.AddSeal(lead.step(), {0, 1}, {2, loss_sum, correct}, now).ok());
    EXPECT_TRUE(lead.AddPart(lead.step(), 0, {true, {}}, now).ok());
    EXPECT_TRUE(lead.Decide(now).has_value());
  };
  node::v1::LeadState state = MakeLeadState(lead, 7);
  EXPECT_EQ(state.lineage(), 7);
  EXPECT_EQ(state.step(), 0);
  EXPECT_FALSE(state.has_loss() || state.has_accuracy() || state.has_learning_rate() ||
               state.has_last_skipped_step() || state.complete() || state.suspended());

  lead.GiveOrders({{3, Order::What::kLearningRate, 0.25, {}}});
  step(std::nan(""), 0, 1);
  step(3, 1, 3);
  state = MakeLeadState(lead, 7);
  EXPECT_EQ(state.step(), 2);
  EXPECT_EQ(state.loss(), 1.5);
  EXPECT_EQ(state.accuracy(), 0.25);
  EXPECT_EQ(state.learning_rate(), 0.25);
  EXPECT_EQ(state.samples_used(), 4);
  EXPECT_EQ(state.skipped_steps(), 1);
  EXPECT_EQ(state.last_skipped_step(), 0);
  EXPECT_EQ(state.samples_per_second(), 1);  // two samples in two seconds
  ASSERT_EQ(state.applied_order_ids_size(), 1);
  EXPECT_EQ(state.applied_order_ids(0), 3);
  EXPECT_EQ(state.applied_order_steps(0), 0);
  EXPECT_EQ(state.epochs_size(), 0);
  EXPECT_FALSE(state.complete());

  ASSERT_TRUE(lead.AddEvaluation(2, 0, {1, 0.75, 1}, absl::Seconds(3)).ok());
  step(2, 2, 4);
  step(1, 2, 5);
  ASSERT_TRUE(lead.AddEvaluation(4, 0, {1, 0.5, 0}, absl::Seconds(5)).ok());
  state = MakeLeadState(lead, 7);
  EXPECT_TRUE(state.complete());
  ASSERT_EQ(state.epochs_size(), 2);
  EXPECT_EQ(state.epochs(0).epoch(), 1);
  EXPECT_FALSE(state.epochs(0).has_train_loss());  // one of its steps had no finite loss
  EXPECT_EQ(state.epochs(0).validation_loss(), 0.75);
  EXPECT_EQ(state.epochs(1).train_loss(), 0.75);  // (2 + 1) / 4
  EXPECT_EQ(state.epochs(1).train_accuracy(), 1);
  EXPECT_EQ(state.epochs(1).validation_accuracy(), 0);
  EXPECT_EQ(state.epochs(1).seconds(), 2);
  EXPECT_EQ(state.epochs(1).samples_per_second(), 2);
  EXPECT_EQ(state.reason(), "");
}

// A sample whose target is a number is neither right nor wrong.
TEST(LeadMessagesTest, WithoutClassesNothingHasAnAccuracy) {
  SamplePlanOptions samples;
  samples.dataset_size = 2;
  samples.global_batch = 2;
  samples.lanes = 1;
  LeadOptions options;
  options.total_steps = 2;
  options.evaluate_every_steps = 2;
  options.has_accuracy = false;
  ScheduleOptions schedule;
  schedule.learning_rate = 0.5;
  Lead lead(options, *SamplePlan::Create(samples), *EvalPlan::Create(1, 1),
            *Schedule::Create(schedule, 1, 2), absl::ZeroDuration());
  for (int64_t step = 0; step < 2; ++step) {
    const absl::Duration now = absl::Seconds(step + 1);
    ASSERT_TRUE(lead.AddSeal(step, {0, 1}, {2, 3, 0}, now).ok());
    ASSERT_TRUE(lead.AddPart(step, 0, {true, {}}, now).ok());
    ASSERT_TRUE(lead.Decide(now).has_value());
  }
  ASSERT_TRUE(lead.AddEvaluation(2, 0, {1, 0.75, 0}, absl::Seconds(3)).ok());
  const node::v1::LeadState state = MakeLeadState(lead, 1);
  EXPECT_EQ(state.loss(), 1.5);
  EXPECT_FALSE(state.has_accuracy());
  ASSERT_EQ(state.epochs_size(), 2);
  EXPECT_EQ(state.epochs(1).train_loss(), 1.5);
  EXPECT_EQ(state.epochs(1).validation_loss(), 0.75);
  for (const common::v1::EpochRecord& epoch : state.epochs()) {
    EXPECT_FALSE(epoch.has_train_accuracy() || epoch.has_validation_accuracy());
  }
}

TEST(LeadMessagesTest, AFailureAndASuspendAreSaid) {
  SamplePlanOptions samples;
  samples.dataset_size = 2;
  samples.global_batch = 1;
  samples.lanes = 1;
  LeadOptions options;
  options.total_steps = 9;
  options.max_nonfinite_steps = 1;
  ScheduleOptions schedule;
  schedule.learning_rate = 0.5;
  const auto make = [&] {
    return Lead(options, *SamplePlan::Create(samples), *EvalPlan::Create(0, 1),
                *Schedule::Create(schedule, 2, 9), absl::ZeroDuration());
  };
  const auto step = [](Lead& lead, double loss) {
    EXPECT_TRUE(lead.AddSeal(0, {0, 1}, {1, loss, 0}, absl::Seconds(1)).ok());
    EXPECT_TRUE(lead.AddPart(0, 0, {true, {}}, absl::Seconds(1)).ok());
    lead.Decide(absl::Seconds(1));
  };
  Lead failed = make();
  step(failed, std::nan(""));
  EXPECT_EQ(MakeLeadState(failed, 1).reason(), "NonFiniteLoss");
  EXPECT_NE(MakeLeadState(failed, 1).message(), "");
  Lead suspended = make();
  suspended.GiveOrders({{1, Order::What::kSuspend, 0, {}}});
  step(suspended, 1);
  EXPECT_TRUE(MakeLeadState(suspended, 1).suspended());
}

}  // namespace
}  // namespace capstan::training::spec
