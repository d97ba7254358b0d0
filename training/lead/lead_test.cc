#include "training/lead/lead.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::training {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

absl::Duration At(double seconds) { return absl::Seconds(seconds); }

// 10 samples in batches of 4 over `lanes` lanes, i.e. 3 steps per epoch, of 4, 4 and 2 samples. The
// test set has 3 samples.
class LeadTest : public testing::Test {
 protected:
  static SamplePlan Samples(int32_t lanes = 2) {
    SamplePlanOptions samples;
    samples.dataset_size = 10;
    samples.global_batch = 4;
    samples.lanes = lanes;
    return *SamplePlan::Create(samples);
  }
  Lead Make(const LeadOptions& options, int32_t lanes = 2, int64_t test_samples = 3) {
    ScheduleOptions schedule;
    schedule.kind = ScheduleKind::kStep;
    schedule.learning_rate = 0.5;
    schedule.every = {1, SchedulePeriod::Unit::kEpochs};
    schedule.factor = 0.1;
    return Lead(options, Samples(lanes), *EvalPlan::Create(test_samples, lanes),
                *Schedule::Create(schedule, 3, options.total_steps), At(0));
  }
  LeadOptions Options(int64_t total_steps = 6) {
    LeadOptions options;
    options.lineage = 7;
    options.total_steps = total_steps;
    options.evaluate_every_steps = 3;
    return options;
  }
  // Seals both lanes of a full or short step, and sends one part.
  std::optional<DecidedStep> RunStep(Lead& lead, double loss_sum, int64_t correct, double at,
                                     bool finite = true) {
    const int64_t step = lead.step();
    const int64_t samples = step % 3 == 2 ? 2 : 4;
    EXPECT_TRUE(lead.AddSeal(step, {0, 2}, {samples, loss_sum, correct}, At(at)).ok());
    EXPECT_TRUE(lead.AddPart(step, 0, {finite, {}}, At(at)).ok());
    return lead.Decide(At(at));
  }
  void Evaluate(Lead& lead, double at) {  // blocks of 2 and 1 samples
    EXPECT_TRUE(lead.AddEvaluation(lead.step(), 1, {1, 0.25, 1}, At(at)).ok());
    EXPECT_TRUE(lead.AddEvaluation(lead.step(), 0, {2, 0.5, 1}, At(at)).ok());
  }
};

TEST_F(LeadTest, DecidesOnceAllSealsAndPartsAreIn) {
  LeadOptions options = Options();
  options.num_parts = 2;
  Lead lead = Make(options);
  EXPECT_FALSE(lead.Decide(At(1)).has_value());
  EXPECT_EQ(*lead.AddSeal(0, {1, 1}, {2, 3.0, 1}, At(1)), Told::kTaken);
  EXPECT_EQ(*lead.AddPart(0, 1, {true, {}}, At(1)), Told::kTaken);
  EXPECT_FALSE(lead.Decide(At(1)).has_value());
  EXPECT_THAT(lead.Waiting().lanes, ElementsAre(0));
  EXPECT_THAT(lead.Waiting().parts, ElementsAre(0));
  EXPECT_EQ(*lead.AddSeal(0, {0, 1}, {2, 5.0, 2}, At(2)), Told::kTaken);
  EXPECT_FALSE(lead.Decide(At(2)).has_value());
  EXPECT_EQ(*lead.AddPart(0, 0, {true, {}}, At(2.5)), Told::kTaken);

  const std::optional<DecidedStep> decided = lead.Decide(At(3));
  ASSERT_TRUE(decided.has_value());
  EXPECT_EQ(decided->decision.step, 0);
  EXPECT_TRUE(decided->decision.apply);
  EXPECT_EQ(decided->decision.learning_rate, 0.5);
  EXPECT_FALSE(decided->decision.stop);
  EXPECT_FALSE(decided->decision.checkpoint);
  EXPECT_FALSE(decided->decision.evaluate);
  EXPECT_EQ(decided->decision.gradient_scale, 1);
  EXPECT_EQ(decided->decision.loss_scale, 1);
  EXPECT_EQ(decided->line.lineage, 7);
  EXPECT_EQ(decided->line.loss, 2.0);  // (3 + 5) / 4
  EXPECT_EQ(decided->line.samples, 4);
  EXPECT_EQ(decided->line.seconds, 2.5);
  EXPECT_EQ(lead.step(), 1);
  EXPECT_EQ(lead.samples_used(), 4);
  EXPECT_EQ(lead.last_loss(), 2.0);
  EXPECT_EQ(lead.running_accuracy(), 0.75);
  EXPECT_FALSE(lead.Decide(At(3)).has_value());  // nothing of step 1 has arrived
}

TEST_F(LeadTest, WhatIsToldAgainChangesNothing) {
  Lead lead = Make(Options());
  ASSERT_EQ(*lead.AddSeal(0, {0, 2}, {4, 8.0, 1}, At(1)), Told::kTaken);
  EXPECT_EQ(*lead.AddSeal(0, {0, 2}, {4, 80.0, 4}, At(1)), Told::kKnown);
  EXPECT_EQ(*lead.AddSeal(0, {1, 1}, {2, 80.0, 2}, At(1)), Told::kKnown);  // below a held block
  ASSERT_EQ(*lead.AddPart(0, 0, {true, {}}, At(1)), Told::kTaken);
  EXPECT_EQ(*lead.AddPart(0, 0, {false, {}}, At(1)), Told::kKnown);
  const auto decided = lead.Decide(At(1));
  ASSERT_TRUE(decided.has_value());
  EXPECT_TRUE(decided->decision.apply);
  EXPECT_EQ(decided->line.loss, 2.0);
  EXPECT_EQ(*lead.AddSeal(0, {0, 2}, {4, 8.0, 1}, At(1)), Told::kPast);
  EXPECT_EQ(*lead.AddPart(0, 0, {true, {}}, At(1)), Told::kPast);
  EXPECT_EQ(*lead.AddEvaluation(0, 0, {2, 0, 0}, At(1)), Told::kPast);
}

TEST_F(LeadTest, RefusesWhatThePlanHasNot) {
  LeadOptions options = Options();
  options.num_parts = 2;
  Lead lead = Make(options, /*lanes=*/3);  // the root is lanes [0,4)
  const auto code = [](const absl::StatusOr<Told>& told) { return told.status().code(); };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code(lead.AddSeal(1, {0, 1}, {2, 0, 0}, At(0))), kInvalid);  // ahead
  EXPECT_EQ(code(lead.AddSeal(0, {1, 2}, {2, 0, 0}, At(0))), kInvalid);  // not aligned
  EXPECT_EQ(code(lead.AddSeal(0, {3, 1}, {1, 0, 0}, At(0))), kInvalid);  // no such lane
  EXPECT_EQ(code(lead.AddSeal(0, {0, 1}, {1, 0, 0}, At(0))), kInvalid);  // lane 0 has 2 samples
  EXPECT_EQ(code(lead.AddSeal(0, {0, 1}, {2, 0, 3}, At(0))), kInvalid);  // 3 of 2 correct
  EXPECT_EQ(code(lead.AddSeal(0, {0, 1}, {2, 0, -1}, At(0))), kInvalid);
  EXPECT_EQ(code(lead.AddPart(0, 2, {true, {}}, At(0))), kInvalid);
  EXPECT_EQ(code(lead.AddPart(0, -1, {true, {}}, At(0))), kInvalid);
  EXPECT_EQ(code(lead.AddPart(1, 0, {true, {}}, At(0))), kInvalid);
  EXPECT_EQ(code(lead.AddEvaluation(0, 0, {1, 0, 0}, At(0))),
            kInvalid);  // version 0 is not evaluated
  EXPECT_EQ(code(lead.AddEvaluation(3, 0, {1, 0, 0}, At(0))), kInvalid);
  EXPECT_THAT(lead.Waiting().lanes, ElementsAre(0, 1, 2));
}

TEST_F(LeadTest, AnEpochIsRecordedWithItsMeansAndEvaluation) {
  Lead lead = Make(Options());
  RunStep(lead, 8.0, 1, 1);
  RunStep(lead, 4.0, 2, 2);
  const auto last = RunStep(lead, 3.0, 2, 4);
  ASSERT_TRUE(last.has_value());
  EXPECT_TRUE(last->decision.evaluate);
  EXPECT_FALSE(last->decision.checkpoint);
  EXPECT_THAT(lead.epochs(), IsEmpty());  // its evaluation has not arrived
  EXPECT_THAT(lead.Waiting().evaluation_blocks, ElementsAre(0, 1));

  // The next step is trained meanwhile, but decided only after the evaluation of version 3.
  EXPECT_FALSE(RunStep(lead, 4.0, 4, 5).has_value());
  EXPECT_EQ(*lead.AddEvaluation(3, 1, {1, 0.25, 1}, At(6)), Told::kTaken);
  EXPECT_EQ(*lead.AddEvaluation(3, 1, {1, 99, 0}, At(6)), Told::kKnown);
  EXPECT_FALSE(lead.Decide(At(6)).has_value());
  EXPECT_EQ(*lead.AddEvaluation(3, 0, {2, 0.5, 1}, At(7)), Told::kTaken);
  const auto next = lead.Decide(At(7));
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->decision.learning_rate, 0.05);  // after one epoch
  EXPECT_EQ(next->line.epoch, 2);
  EXPECT_EQ(next->line.seconds, 1);  // without the wait for the evaluation

  ASSERT_EQ(lead.epochs().size(), 1u);
  const EpochRecord& epoch = lead.epochs()[0];
  EXPECT_EQ(epoch.epoch, 1);
  EXPECT_EQ(epoch.train_loss, 1.5);      // (8 + 4 + 3) / 10
  EXPECT_EQ(epoch.train_accuracy, 0.5);  // (1 + 2 + 2) / 10
  EXPECT_EQ(epoch.validation_loss, 0.25);
  EXPECT_DOUBLE_EQ(*epoch.validation_accuracy, 2.0 / 3);
  EXPECT_EQ(epoch.seconds, 4);
  EXPECT_EQ(epoch.samples_per_second, 2.5);
}

TEST_F(LeadTest, HostileEvaluationsAreRefusedAndCountNothing) {
  Lead lead = Make(Options());
  for (int step = 0; step < 3; ++step) RunStep(lead, 4, 1, step + 1);
  ASSERT_THAT(lead.Waiting().evaluation_blocks, ElementsAre(0, 1));  // of 2 samples and of 1
  const auto refused = [&lead](int64_t version, int64_t block, SealSums sums) {
    return lead.AddEvaluation(version, block, sums, At(4)).status().code() ==
           absl::StatusCode::kInvalidArgument;
  };
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const int64_t block :
       {int64_t{-1}, int64_t{2}, kMost, std::numeric_limits<int64_t>::min()}) {
    EXPECT_TRUE(refused(3, block, {2, 0.5, 1})) << block;
  }
  for (const int64_t samples : {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{-2}, kMost}) {
    EXPECT_TRUE(refused(3, 0, {samples, 0.5, 0})) << samples;
  }
  for (const int64_t correct : {int64_t{-1}, int64_t{3}, kMost}) {
    EXPECT_TRUE(refused(3, 0, {2, 0.5, correct})) << correct;
  }
  EXPECT_TRUE(refused(4, 0, {2, 0.5, 1}));
  EXPECT_TRUE(refused(kMost, 0, {2, 0.5, 1}));
  EXPECT_THAT(lead.Waiting().evaluation_blocks, ElementsAre(0, 1));
  Evaluate(lead, 5);
  EXPECT_EQ(lead.epochs().at(0).validation_accuracy, 2.0 / 3);
}

TEST_F(LeadTest, TheLastVersionStopsAndIsEvaluated) {
  Lead lead = Make(Options(/*total_steps=*/2));  // cut off inside epoch 1
  RunStep(lead, 8.0, 1, 1);
  const auto last = RunStep(lead, 4.0, 2, 2);
  ASSERT_TRUE(last.has_value());
  EXPECT_TRUE(last->decision.stop);
  EXPECT_TRUE(last->decision.checkpoint);
  EXPECT_TRUE(last->decision.evaluate);
  EXPECT_TRUE(lead.stopped());
  EXPECT_FALSE(lead.complete());
  EXPECT_THAT(lead.Waiting().lanes, IsEmpty());
  EXPECT_THAT(lead.Waiting().evaluation_blocks, ElementsAre(0, 1));
  EXPECT_FALSE(lead.AddSeal(2, {0, 2}, {2, 1, 0}, At(3)).ok());  // there is no such step
  EXPECT_FALSE(lead.AddPart(2, 0, {true, {}}, At(3)).ok());
  Evaluate(lead, 3);
  EXPECT_TRUE(lead.complete());
  EXPECT_TRUE(lead.Waiting().empty());
  EXPECT_FALSE(lead.Decide(At(3)).has_value());
  ASSERT_EQ(lead.epochs().size(), 1u);
  EXPECT_EQ(lead.epochs()[0].train_loss, 1.5);  // (8 + 4) / 8
  EXPECT_EQ(lead.epochs()[0].validation_loss, 0.25);
  EXPECT_EQ(lead.samples_used(), 8);
}

TEST_F(LeadTest, WithoutATestSetNothingIsEvaluated) {
  Lead lead = Make(Options(), 2, /*test_samples=*/0);
  for (int i = 0; i < 6; ++i) {
    const auto decided = RunStep(lead, 4, 1, i + 1);
    ASSERT_TRUE(decided.has_value()) << i;
    EXPECT_FALSE(decided->decision.evaluate);
  }
  EXPECT_TRUE(lead.complete());
  ASSERT_EQ(lead.epochs().size(), 2u);
  EXPECT_EQ(lead.epochs()[1].epoch, 2);
  EXPECT_FALSE(lead.epochs()[1].validation_loss.has_value());
  EXPECT_EQ(lead.samples_used(), 20);  // every sample once an epoch
}

TEST_F(LeadTest, ANonFiniteStepIsSkippedAndItsSamplesCount) {
  Lead lead = Make(Options());
  const auto loss = RunStep(lead, kNan, 0, 1);
  ASSERT_TRUE(loss.has_value());
  EXPECT_FALSE(loss->decision.apply);
  EXPECT_FALSE(lead.last_loss().has_value());
  const auto part = RunStep(lead, 4, 0, 2, /*finite=*/false);
  ASSERT_TRUE(part.has_value());
  EXPECT_FALSE(part->decision.apply);
  EXPECT_EQ(lead.last_loss(), 1.0);
  EXPECT_TRUE(RunStep(lead, 3, 0, 3)->decision.apply);  // the run of skipped steps ends
  EXPECT_EQ(lead.skipped_steps(), 2);
  EXPECT_EQ(lead.samples_used(), 10);
  EXPECT_FALSE(lead.failure().has_value());
  Evaluate(lead, 4);
  EXPECT_FALSE(lead.epochs()[0].train_loss.has_value());  // the mean of a NaN is not set
}

TEST_F(LeadTest, ThreeNonFiniteStepsInARowFailTheJob) {
  Lead lead = Make(Options());
  EXPECT_TRUE(RunStep(lead, kNan, 0, 1).has_value());
  EXPECT_TRUE(RunStep(lead, 4, 0, 2, /*finite=*/false).has_value());
  ASSERT_EQ(*lead.AddSeal(2, {0, 1}, {1, 1.0, 0}, At(3)), Told::kTaken);
  ASSERT_EQ(*lead.AddSeal(2, {1, 1}, {1, kNan, 0}, At(3)), Told::kTaken);
  ASSERT_EQ(*lead.AddPart(2, 0, {false, {}}, At(3)), Told::kTaken);
  EXPECT_FALSE(lead.Decide(At(3)).has_value());
  ASSERT_TRUE(lead.failure().has_value());
  EXPECT_EQ(lead.failure()->reason, "NonFiniteLoss");
  EXPECT_THAT(lead.failure()->message, HasSubstr("step 2: the loss is not finite in lane 1,"));
  EXPECT_FALSE(lead.Decide(At(4)).has_value());
  EXPECT_FALSE(lead.complete());
}

TEST_F(LeadTest, AFailureSaysWhatIsNotFiniteWhere) {
  LeadOptions options = Options();
  options.num_parts = 3;
  options.max_nonfinite_steps = 1;
  Lead shards = Make(options);
  ASSERT_TRUE(shards.AddSeal(0, {0, 2}, {4, 1.0, 0}, At(1)).ok());
  for (const int32_t shard : {2, 1, 0}) {
    ASSERT_TRUE(shards.AddPart(0, shard, {/*finite=*/shard == 0, {}}, At(1)).ok());
  }
  EXPECT_FALSE(shards.Decide(At(1)).has_value());
  ASSERT_TRUE(shards.failure().has_value());
  EXPECT_EQ(shards.failure()->message,
            "step 0: the gradient is not finite on shard 1, 2, for the 1. step in a row");

  options.num_parts = 1;
  Lead sum = Make(options);  // each loss is finite, but their sum is not
  ASSERT_TRUE(sum.AddSeal(0, {0, 1}, {2, 1e308, 0}, At(1)).ok());
  EXPECT_THAT(sum.Waiting().lanes, ElementsAre(1));
  ASSERT_TRUE(sum.AddSeal(0, {1, 1}, {2, 1e308, 0}, At(1)).ok());
  ASSERT_TRUE(sum.AddPart(0, 0, {/*finite=*/true, {}}, At(1)).ok());
  EXPECT_FALSE(sum.Decide(At(1)).has_value());
  ASSERT_TRUE(sum.failure().has_value());
  EXPECT_EQ(sum.failure()->message, "step 0: the loss is not finite, for the 1. step in a row");
}

TEST_F(LeadTest, AFailedLeadWaitsForNothing) {
  LeadOptions options = Options();
  options.max_nonfinite_steps = 1;
  options.evaluate_every_steps = 1;
  Lead lead = Make(options);
  RunStep(lead, 4, 1, 1);
  Evaluate(lead, 1);
  EXPECT_FALSE(lead.Waiting().empty());
  EXPECT_FALSE(RunStep(lead, kNan, 0, 2).has_value());
  ASSERT_TRUE(lead.failure().has_value());
  EXPECT_TRUE(lead.Waiting().empty());
}

TEST_F(LeadTest, NothingIsSaidBeforeTheFirstDecision) {
  Lead lead = Make(Options());
  EXPECT_FALSE(lead.last_decision().has_value());
  EXPECT_FALSE(lead.last_loss().has_value());
  EXPECT_FALSE(lead.last_learning_rate().has_value());
  EXPECT_FALSE(lead.running_accuracy().has_value());
  EXPECT_FALSE(lead.last_skipped_step().has_value());
  EXPECT_EQ(lead.samples_per_second(), 0);
  RunStep(lead, 4, 1, 1);
  ASSERT_TRUE(lead.last_decision().has_value());
  EXPECT_EQ(lead.last_decision()->step, 0);
  EXPECT_EQ(lead.last_learning_rate(), 0.5);
  EXPECT_FALSE(lead.last_skipped_step().has_value());
  RunStep(lead, kNan, 0, 2);
  RunStep(lead, 2, 1, 3);
  EXPECT_EQ(lead.last_skipped_step(), 1);
}

TEST_F(LeadTest, TheNextEpochBeginsAtZero) {
  Lead lead = Make(Options(), 2, /*test_samples=*/0);
  for (int i = 0; i < 3; ++i) RunStep(lead, 8, 2, i + 1);
  RunStep(lead, 2, 1, 4);
  EXPECT_EQ(lead.running_accuracy(), 0.25);  // 1 of 4, of the second epoch only
  RunStep(lead, 2, 1, 5);
  RunStep(lead, 1, 0, 7);
  ASSERT_EQ(lead.epochs().size(), 2u);
  const EpochRecord& epoch = lead.epochs()[1];
  EXPECT_EQ(epoch.epoch, 2);
  EXPECT_EQ(epoch.train_loss, 0.5);      // (2 + 2 + 1) / 10
  EXPECT_EQ(epoch.train_accuracy, 0.2);  // (1 + 1 + 0) / 10
  EXPECT_EQ(epoch.seconds, 4);
  EXPECT_EQ(epoch.samples_per_second, 2.5);
}

TEST_F(LeadTest, TheSecondsOfAStepEndWithItsLastSealOrPart) {
  Lead lead = Make(Options());
  ASSERT_TRUE(lead.AddPart(0, 0, {true, {}}, At(1)).ok());
  ASSERT_TRUE(lead.AddSeal(0, {0, 1}, {2, 1, 0}, At(2)).ok());
  ASSERT_TRUE(lead.AddSeal(0, {1, 1}, {2, 1, 0}, At(3)).ok());
  ASSERT_EQ(*lead.AddPart(0, 0, {true, {}}, At(4)), Told::kKnown);
  EXPECT_EQ(lead.Decide(At(5))->line.seconds, 3);
  ASSERT_TRUE(lead.AddSeal(1, {0, 2}, {4, 1, 0}, At(6)).ok());
  ASSERT_TRUE(lead.AddPart(1, 0, {true, {}}, At(7)).ok());
  ASSERT_EQ(*lead.AddSeal(1, {0, 2}, {4, 1, 0}, At(8)), Told::kKnown);
  EXPECT_EQ(lead.Decide(At(9))->line.seconds, 2);  // from the decision at 5
}

TEST_F(LeadTest, LanesWithoutSamplesAreNotWaitedFor) {
  Lead lead = Make(Options(), /*lanes=*/4);  // the third step has 2 samples, for lanes 0 and 1
  for (int step = 0; step < 2; ++step) {
    ASSERT_TRUE(lead.AddSeal(step, {0, 4}, {4, 4, 0}, At(1)).ok());
    ASSERT_TRUE(lead.AddPart(step, 0, {true, {}}, At(1)).ok());
    ASSERT_TRUE(lead.Decide(At(1)).has_value());
  }
  EXPECT_THAT(lead.Waiting().lanes, ElementsAre(0, 1));
  EXPECT_FALSE(lead.AddSeal(2, {2, 2}, {0, 0, 0}, At(1)).ok());
  EXPECT_EQ(*lead.AddSeal(2, {0, 2}, {2, 4, 0}, At(1)), Told::kTaken);
  ASSERT_TRUE(lead.AddPart(2, 0, {true, {}}, At(1)).ok());
  EXPECT_TRUE(lead.Decide(At(1)).has_value());
}

TEST_F(LeadTest, TheRateIsThatOfAboutASecond) {
  Lead lead = Make(Options(600), 2, /*test_samples=*/0);
  RunStep(lead, 1, 0, 0);
  EXPECT_EQ(lead.samples_per_second(), 0);  // 4 samples in no time
  RunStep(lead, 1, 0, 0.25);
  EXPECT_EQ(lead.samples_per_second(), 32);  // 8 in a quarter of a second: a first estimate
  RunStep(lead, 1, 0, 0.75);
  EXPECT_EQ(lead.samples_per_second(), 32);
  RunStep(lead, 1, 0, 1.0);
  EXPECT_EQ(lead.samples_per_second(), 14);
  RunStep(lead, 1, 0, 3.0);
  EXPECT_EQ(lead.samples_per_second(), 2);  // 4 in two seconds
}

// ---- Clipping by norm ----

TEST_F(LeadTest, AGradientWithALargeNormIsScaledDown) {
  LeadOptions options = Options();
  options.num_parts = 2;
  options.clip_norm = 2.5;
  options.norm_chunks = 3;
  Lead lead = Make(options);
  const auto run = [&](std::vector<BlockSquares> first, std::vector<BlockSquares> second) {
    const int64_t step = lead.step();
    EXPECT_TRUE(lead.AddSeal(step, {0, 2}, {step % 3 == 2 ? 2 : 4, 1.0, 1}, At(1)).ok());
    EXPECT_TRUE(lead.AddPart(step, 1, {true, std::move(second)}, At(1)).ok());
    EXPECT_TRUE(lead.AddPart(step, 0, {true, std::move(first)}, At(1)).ok());
    return *lead.Decide(At(1));
  };
  // sqrt(9 + 16) = 5
  DecidedStep decided = run({{{0, 1}, 9}}, {{{1, 1}, 0}, {{2, 2}, 16}});
  EXPECT_EQ(decided.decision.clip_factor, 0.5);
  EXPECT_EQ(decided.decision.gradient_scale, 1);
  EXPECT_EQ(decided.line.gradient_norm, 5);
  // sqrt(4 + 2.25) = 2.5: not above the limit
  decided = run({{{0, 2}, 4}}, {{{2, 2}, 2.25}});
  EXPECT_EQ(decided.decision.clip_factor, 1);
  EXPECT_EQ(decided.line.gradient_norm, 2.5);
  decided = run({{{0, 2}, 0}}, {{{2, 2}, 0}});
  EXPECT_EQ(decided.decision.clip_factor, 1);
  EXPECT_EQ(decided.line.gradient_norm, 0);
}

// The limit is for the gradient itself: sums and square sums have the loss scale in them.
TEST_F(LeadTest, TheNormIsWithoutTheLossScale) {
  LeadOptions options = Options();
  options.dynamic_loss_scale = true;
  options.clip_norm = 1;
  options.norm_chunks = 1;
  Lead lead = Make(options);
  ASSERT_TRUE(lead.AddSeal(0, {0, 2}, {4, 1.0, 1}, At(1)).ok());
  ASSERT_TRUE(lead.AddPart(0, 0, {true, {{{0, 1}, 16.0 * 65536 * 65536}}}, At(1)).ok());
  const DecidedStep decided = *lead.Decide(At(1));
  EXPECT_EQ(decided.line.gradient_norm, 4);
  EXPECT_EQ(decided.decision.clip_factor, 0.25);
  EXPECT_EQ(decided.decision.gradient_scale, 1.0 / 65536);
}

TEST_F(LeadTest, ASkippedStepHasNoNorm) {
  LeadOptions options = Options();
  options.evaluate_every_steps = 0;
  options.num_parts = 2;
  options.clip_norm = 1;
  options.norm_chunks = 2;
  Lead lead = Make(options);
  const double infinite = std::numeric_limits<double>::infinity();
  const auto run = [&](double loss, bool first, bool second) {
    const int64_t step = lead.step();
    EXPECT_TRUE(lead.AddSeal(step, {0, 2}, {step % 3 == 2 ? 2 : 4, loss, 1}, At(1)).ok());
    const auto report = [](bool finite, int32_t chunk) {
      return finite ? RootReport{true, {{{chunk, 1}, 100}}} : RootReport{false, {}};
    };
    EXPECT_TRUE(lead.AddPart(step, 0, report(first, 0), At(1)).ok());
    EXPECT_TRUE(lead.AddPart(step, 1, report(second, 1), At(1)).ok());
    const DecidedStep decided = *lead.Decide(At(1));
    EXPECT_EQ(decided.decision.apply, decided.line.gradient_norm.has_value());
    EXPECT_EQ(decided.decision.clip_factor, decided.decision.apply ? 1 / std::sqrt(200.0) : 1);
    return decided.decision.apply;
  };
  EXPECT_FALSE(run(1, true, false));
  EXPECT_FALSE(run(1, false, true));
  EXPECT_TRUE(run(1, true, true));
  EXPECT_FALSE(run(infinite, true, true));
}

TEST_F(LeadTest, RefusesSquareSumsThatAreNotThoseOfTheGradient) {
  LeadOptions options = Options();
  options.num_parts = 2;
  options.clip_norm = 1;
  options.norm_chunks = 4;
  Lead lead = Make(options);
  const auto refused = [&](int32_t shard, std::vector<BlockSquares> squares) {
    return std::string(
        lead.AddPart(0, shard, {true, std::move(squares)}, At(1)).status().message());
  };
  EXPECT_THAT(refused(0, {{{0, 3}, 1}}), HasSubstr("chunks [0,+3)"));
  EXPECT_THAT(refused(0, {{{0, 2}, -1}}), HasSubstr("got -1"));
  EXPECT_THAT(lead.Waiting().parts, ElementsAre(0, 1));
  EXPECT_EQ(refused(0, {{{0, 2}, 1}}), "");
  EXPECT_FALSE(lead.failure().has_value());
  ASSERT_TRUE(lead.AddSeal(0, {0, 2}, {4, 1.0, 1}, At(1)).ok());
  EXPECT_EQ(refused(1, {{{3, 1}, 1}}), "");
  ASSERT_TRUE(lead.failure().has_value());
  EXPECT_EQ(lead.failure()->reason, "InternalError");
  EXPECT_EQ(lead.failure()->message, "step 0: square sums: chunk 2 of 4 has none");
  EXPECT_FALSE(lead.Decide(At(2)).has_value());
}

// The first tensor is in two chunks.
std::shared_ptr<const TensorPieces> TwoTensors() {
  return std::make_shared<const TensorPieces>(
      *FlatLayout::Create({{.name = "b.weight", .shape = {16}, .fan_in = 1, .fan_out = 1},
                           {.name = "a.weight", .shape = {32}, .fan_in = 1, .fan_out = 1}},
                          /*chunk_floats=*/16));
}

TEST_F(LeadTest, TheDecisionHasTheNormsOfAllTensors) {
  LeadOptions options = Options();
  options.evaluate_every_steps = 0;
  options.num_parts = 2;
  options.pieces = TwoTensors();
  Lead lead = Make(options);
  const auto run = [&](double loss, const RootReport& first, const RootReport& second) {
    const int64_t step = lead.step();
    EXPECT_TRUE(lead.AddSeal(step, {0, 2}, {step % 3 == 2 ? 2 : 4, loss, 1}, At(1)).ok());
    EXPECT_TRUE(lead.AddPart(step, 1, second, At(1)).ok());
    EXPECT_TRUE(lead.AddPart(step, 0, first, At(1)).ok());
    return lead.Decide(At(1))->decision;
  };
  const RootReport first{true, {}, {{0, 0, 9, 1}}};
  const RootReport second{true, {}, {{1, 0, 16, 3}, {2, 1, 4, 0}}};
  const std::vector<TensorNorms> norms = {{5, 2}, {2, 0}};
  EXPECT_EQ(run(1, first, second).tensor_norms, norms);
  EXPECT_THAT(run(1, first, {false, {}}).tensor_norms, IsEmpty());
  EXPECT_THAT(run(HUGE_VAL, first, second).tensor_norms, IsEmpty());
  // Those of a step are forgotten with it.
  EXPECT_EQ(run(1, {true, {}, {{0, 0, 0, 0}}}, second).tensor_norms,
            (std::vector<TensorNorms>{{4, std::sqrt(3.0)}, {2, 0}}));
}

TEST_F(LeadTest, RefusesPiecesThatAreNotThoseOfTheTensors) {
  LeadOptions options = Options();
  options.num_parts = 2;
  options.pieces = TwoTensors();
  Lead lead = Make(options);
  const auto refused = [&](int32_t shard, std::vector<PieceSquares> pieces) {
    return std::string(
        lead.AddPart(0, shard, {true, {}, std::move(pieces)}, At(1)).status().message());
  };
  EXPECT_THAT(refused(0, {{1, 1, 1, 1}}), HasSubstr("chunk 1, tensor 1: no such piece"));
  EXPECT_EQ(refused(0, {{0, 0, 1, 1}}), "");
  EXPECT_EQ(refused(1, {{1, 0, 1, 1}}), "");
  EXPECT_EQ(lead.failure()->message, "step 0: tensor squares: chunk 2, tensor 1 has none");
}

TEST_F(LeadTest, WithoutClippingNothingIsSaidOfTheNorm) {
  Lead lead = Make(Options());
  const auto decided = RunStep(lead, 4.0, 1, 1);
  EXPECT_EQ(decided->decision.clip_factor, 1);
  EXPECT_FALSE(decided->line.gradient_norm.has_value());
}

// Steps that a scale of 65536 may have overflowed are skipped and do not count against the job. The
// gradient of a step is divided by the scale that its lanes used.
TEST_F(LeadTest, TheLossScaleFallsUntilStepsAreFinite) {
  LeadOptions options = Options(/*total_steps=*/60);
  options.evaluate_every_steps = 0;
  options.dynamic_loss_scale = true;
  Lead lead = Make(options);
  EXPECT_EQ(lead.loss_scale(), 65536);
  for (int i = 0; i < 4; ++i) {
    const auto decided = RunStep(lead, 4.0, 1, i, /*finite=*/false);
    ASSERT_TRUE(decided.has_value()) << i;
    EXPECT_FALSE(decided->decision.apply);
    EXPECT_EQ(decided->decision.loss_scale, 32768 >> i);
    EXPECT_EQ(lead.loss_scale(), 32768 >> i);
  }
  const auto good = RunStep(lead, 4.0, 1, 5);
  ASSERT_TRUE(good.has_value());
  EXPECT_TRUE(good->decision.apply);
  EXPECT_EQ(good->decision.applied_steps, 0);  // those before it were skipped
  EXPECT_EQ(good->decision.gradient_scale, 1.0 / 4096);
  EXPECT_EQ(good->decision.loss_scale, 4096);
  // 4096 = 2^12. Thirteen more steps lead to 0.5; then the third counted step ends the job.
  for (int i = 0; i < 15; ++i) ASSERT_TRUE(RunStep(lead, 4.0, 1, 6, false).has_value()) << i;
  EXPECT_FALSE(RunStep(lead, 4.0, 1, 7, false).has_value());
  ASSERT_TRUE(lead.failure().has_value());
  EXPECT_EQ(lead.failure()->reason, "NonFiniteLoss");
  EXPECT_EQ(lead.skipped_steps(), 19);
}

// ---- Checkpoints, orders, snapshots ----

TEST_F(LeadTest, CheckpointsByStepsWaitForTheOneUnderWay) {
  LeadOptions options = Options(/*total_steps=*/9);
  options.evaluate_every_steps = 0;
  options.checkpoint_every_steps = 2;
  Lead lead = Make(options);
  std::vector<int64_t> saved;
  for (int step = 0; step < 9; ++step) {
    if (RunStep(lead, 1, 0, step)->decision.checkpoint) saved.push_back(step + 1);
    if (step == 4) lead.FilesTaken(7);  // another version
    if (step == 5) lead.FilesTaken(2);
  }
  // 4 was due and had to wait until 2 was taken. 7 stays in flight. 9 is the last.
  EXPECT_THAT(saved, ElementsAre(2, 7, 9));
}

// There is no coordinator in this test: each save waits longer, and saved versions are taken later.
TEST_F(LeadTest, WhatIsWrittenAndNotTakenHoldsBackTheNextForAWhileAlone) {
  LeadOptions options = Options(/*total_steps=*/60);
  options.evaluate_every_steps = 0;
  options.checkpoint_every_steps = 1;
  Lead lead = Make(options);
  std::vector<int64_t> saved;
  const auto run_to = [&](int end, bool written) {
    for (int step = static_cast<int>(lead.step()); step < end; ++step) {
      if (!RunStep(lead, 1, 0, step)->decision.checkpoint) continue;
      saved.push_back(step + 1);
      if (written) lead.FilesWritten(step + 1);
    }
  };
  run_to(10, /*written=*/false);
  EXPECT_THAT(saved, ElementsAre(1)) << "files that are not written yet are waited for";
  lead.FilesWritten(1);
  run_to(45, /*written=*/true);
  EXPECT_THAT(saved, ElementsAre(1, 11, 21, 36)) << "10 and 15 s behind the one before";
  lead.FilesTaken(1);
  lead.FilesTaken(21);  // and all older versions
  lead.FilesTaken(36);
  run_to(47, /*written=*/true);
  EXPECT_THAT(saved, ElementsAre(1, 11, 21, 36, 46)) << "all are taken: at once";
}

TEST_F(LeadTest, EveryStepMayBeSaved) {
  LeadOptions options = Options(/*total_steps=*/9);
  options.evaluate_every_steps = 0;
  options.checkpoint_every_steps = 1;
  Lead lead = Make(options);
  for (int step = 0; step < 3; ++step) {
    EXPECT_TRUE(RunStep(lead, 1, 0, step)->decision.checkpoint) << step;
    lead.FilesTaken(step + 1);
  }
}

TEST_F(LeadTest, AnOrderedCheckpointWaitsUnlessItsStepIsKnown) {
  LeadOptions options = Options(/*total_steps=*/9);
  options.evaluate_every_steps = 0;
  Lead lead = Make(options);
  using What = Order::What;
  const auto saves = [&] { return RunStep(lead, 1, 0, 1)->decision.checkpoint; };
  EXPECT_FALSE(saves());
  lead.GiveOrders({{1, What::kCheckpoint, 0, {}}});
  EXPECT_TRUE(saves());  // version 2
  lead.GiveOrders({{2, What::kCheckpoint, 0, {}}});
  EXPECT_FALSE(saves());  // version 2 is in flight
  lead.GiveOrders({{3, What::kCheckpoint, 0, 3}});
  EXPECT_TRUE(saves());  // version 4, for both
  lead.FilesTaken(4);
  EXPECT_FALSE(saves());
  ASSERT_EQ(lead.applied_orders().size(), 3u);
  EXPECT_EQ(lead.applied_orders()[0].step, 1);
  EXPECT_EQ(lead.applied_orders()[1].step, 2);
  EXPECT_EQ(lead.applied_orders()[2].step, 3);
}

TEST_F(LeadTest, CheckpointsByTime) {
  LeadOptions options = Options(/*total_steps=*/9);
  options.evaluate_every_steps = 0;
  options.checkpoint_every = absl::Seconds(10);
  Lead lead = Make(options);
  EXPECT_FALSE(RunStep(lead, 1, 0, 9.5)->decision.checkpoint);
  EXPECT_TRUE(RunStep(lead, 1, 0, 11)->decision.checkpoint);
  lead.FilesTaken(2);
  EXPECT_FALSE(RunStep(lead, 1, 0, 20)->decision.checkpoint);
  EXPECT_TRUE(RunStep(lead, 1, 0, 21)->decision.checkpoint);
}

TEST_F(LeadTest, AnOrderTakesEffectOnceAndAtItsStep) {
  Lead lead = Make(Options());
  using What = Order::What;
  lead.GiveOrders({{2, What::kLearningRate, 0.25, {}}, {1, What::kLearningRate, 9, {}}});
  lead.GiveOrders({{3, What::kCheckpoint, 0, 1}, {4, What::kLearningRate, 7, 2}});
  const Decision first = RunStep(lead, 1, 0, 1)->decision;
  EXPECT_THAT(first.order_ids, ElementsAre(1, 2));
  EXPECT_EQ(first.learning_rate, 0.25);  // the higher id wins
  EXPECT_FALSE(first.checkpoint);

  lead.GiveOrders({{1, What::kLearningRate, 9, {}}, {5, What::kLearningRate, 3, 0}});  // past
  const Decision second = RunStep(lead, 1, 0, 2)->decision;
  EXPECT_THAT(second.order_ids, ElementsAre(3));
  EXPECT_TRUE(second.checkpoint);
  EXPECT_EQ(second.learning_rate, 0.25);
  EXPECT_EQ(RunStep(lead, 1, 0, 3)->decision.learning_rate, 7);
  Evaluate(lead, 3);
  EXPECT_EQ(RunStep(lead, 1, 0, 4)->decision.learning_rate, 0.1 * 7);  // the schedule continues
  ASSERT_EQ(lead.applied_orders().size(), 4u);
  EXPECT_EQ(lead.applied_orders()[3].id, 4);
  EXPECT_EQ(lead.applied_orders()[3].step, 2);
}

TEST_F(LeadTest, ASuspendEndsTheLineageAndOwesTheEvaluation) {
  Lead lead = Make(Options());
  RunStep(lead, 1, 0, 1);
  RunStep(lead, 1, 0, 2);
  lead.GiveOrders({{1, Order::What::kSuspend, 0, {}}});
  const Decision last = RunStep(lead, 1, 1, 3)->decision;
  EXPECT_TRUE(last.stop && last.checkpoint);
  EXPECT_FALSE(last.evaluate);
  EXPECT_TRUE(lead.suspended() && lead.stopped());
  EXPECT_FALSE(lead.complete());
  EXPECT_FALSE(lead.AddSeal(3, {0, 2}, {4, 1, 1}, At(4)).ok());

  Lead next = Make(Options());
  next.Restore(lead.Snapshot(), At(100));
  EXPECT_TRUE(next.evaluating());
  EXPECT_FALSE(next.stopped());
  next.GiveOrders({{1, Order::What::kSuspend, 0, {}}});  // it has already taken effect
  EXPECT_THAT(next.epochs(), IsEmpty());
  Evaluate(next, 101);
  ASSERT_EQ(next.epochs().size(), 1u);
  EXPECT_EQ(*next.epochs()[0].validation_accuracy, 2.0 / 3);
  EXPECT_EQ(next.epochs()[0].seconds, 3);
  EXPECT_FALSE(RunStep(next, 1, 0, 102)->decision.stop);
}

TEST_F(LeadTest, ASuspendAtTheLastStepButOneTakesEffect) {
  Lead lead = Make(Options(/*total_steps=*/2));
  lead.GiveOrders({{1, Order::What::kSuspend, 0, {}}});
  EXPECT_TRUE(RunStep(lead, 1, 0, 1)->decision.stop);
  EXPECT_TRUE(lead.suspended());
}

TEST_F(LeadTest, ASuspendAtTheLastStepHasNoEffect) {
  Lead lead = Make(Options(/*total_steps=*/1));
  lead.GiveOrders({{1, Order::What::kSuspend, 0, {}}});
  const Decision last = RunStep(lead, 1, 0, 1)->decision;
  EXPECT_TRUE(last.stop && last.evaluate);
  EXPECT_FALSE(lead.suspended());
  Evaluate(lead, 2);
  EXPECT_TRUE(lead.complete());
}

// The sum of these losses depends on the order of the additions.
TEST_F(LeadTest, ARestoredLeadGoesOnWithTheSameBits) {
  const auto step = [this](Lead& lead) {
    const double loss = 0.1 + 1e10 * (lead.step() % 2);
    if (lead.evaluating()) Evaluate(lead, lead.step());
    return RunStep(lead, loss, 1, lead.step() + 1, lead.step() != 1);
  };
  for (int64_t at = 0; at <= 6; ++at) {
    Lead whole = Make(Options());
    Lead before = Make(Options());
    whole.GiveOrders({{1, Order::What::kLearningRate, 0.3, 2}});
    before.GiveOrders({{1, Order::What::kLearningRate, 0.3, 2}});
    for (int64_t s = 0; s < at; ++s) {
      step(whole);
      step(before);
    }
    const LeadSnapshot snapshot = before.Snapshot();
    const SamplePlan plan = Samples();
    ASSERT_TRUE(CheckSnapshot(snapshot, at, 6, plan).ok())
        << at << CheckSnapshot(snapshot, at, 6, plan);
    EXPECT_FALSE(CheckSnapshot(snapshot, at + 1, 6, plan).ok());
    Lead after = Make(Options());
    after.Restore(snapshot, At(static_cast<double>(at)));
    after.GiveOrders({{1, Order::What::kLearningRate, 0.3, 2}});
    for (int64_t s = at; s < 6; ++s) {
      const auto want = step(whole);
      const auto got = step(after);
      EXPECT_EQ(want->decision.learning_rate, got->decision.learning_rate) << at << " " << s;
      EXPECT_EQ(want->decision.apply, got->decision.apply);
      EXPECT_EQ(want->line.epoch, got->line.epoch);
    }
    Evaluate(whole, 9);
    Evaluate(after, 9);
    EXPECT_TRUE(after.complete());
    EXPECT_EQ(whole.samples_used(), after.samples_used());
    EXPECT_EQ(whole.skipped_steps(), after.skipped_steps());
    ASSERT_EQ(whole.epochs().size(), after.epochs().size());
    for (size_t i = 0; i < whole.epochs().size(); ++i) {
      EXPECT_EQ(*whole.epochs()[i].train_loss, *after.epochs()[i].train_loss);
      EXPECT_EQ(*whole.epochs()[i].validation_loss, *after.epochs()[i].validation_loss);
    }
  }
}

// A version whose evaluation is due, restored with one block to evaluate and with none.
TEST_F(LeadTest, WhatARestoredLeadOwesIsWhatItCanEvaluate) {
  Lead lead = Make(Options(), 2, /*test_samples=*/1);
  RunStep(lead, 1, 0, 1);
  RunStep(lead, 1, 0, 2);
  lead.GiveOrders({{1, Order::What::kSuspend, 0, {}}});
  RunStep(lead, 1, 1, 3);
  const LeadSnapshot snapshot = lead.Snapshot();
  ASSERT_TRUE(snapshot.ending.has_value());

  Lead one = Make(Options(), 2, /*test_samples=*/1);
  one.Restore(snapshot, At(9));
  EXPECT_TRUE(one.evaluating());
  EXPECT_THAT(one.epochs(), IsEmpty());
  EXPECT_EQ(*one.AddEvaluation(3, 0, {1, 0.5, 1}, At(9)), Told::kTaken);
  ASSERT_EQ(one.epochs().size(), 1u);
  EXPECT_EQ(one.epochs()[0].validation_loss, 0.5);

  Lead none = Make(Options(), 2, /*test_samples=*/0);
  none.Restore(snapshot, At(9));
  EXPECT_FALSE(none.evaluating());
  ASSERT_EQ(none.epochs().size(), 1u);
  EXPECT_EQ(none.epochs()[0].train_accuracy, 0.1);
  EXPECT_FALSE(none.epochs()[0].validation_loss.has_value());
}

TEST_F(LeadTest, ASnapshotHasTheLastThousandEpochs) {
  Lead lead = Make(Options(/*total_steps=*/6000), 2, /*test_samples=*/0);
  for (int step = 0; step < 3 * 1001; ++step) RunStep(lead, 1, 0, step);
  EXPECT_EQ(lead.epochs().size(), 1001u);
  const LeadSnapshot snapshot = lead.Snapshot();
  ASSERT_EQ(snapshot.epochs.size(), kSnapshotEpochs);
  EXPECT_EQ(snapshot.epochs.front().epoch, 2);
  EXPECT_EQ(snapshot.epochs.back().epoch, 1001);
}

// A snapshot comes from a file.
TEST_F(LeadTest, ASnapshotThatCannotBeIsRefusedByFieldAndValue) {
  Lead lead = Make(Options());
  RunStep(lead, 1, 0, 1);
  RunStep(lead, 1, 0, 2);
  lead.GiveOrders({{1, Order::What::kSuspend, 0, {}}});
  RunStep(lead, 1, 1, 3);
  const LeadSnapshot good = lead.Snapshot();
  const auto said = [&](const LeadSnapshot& snapshot, int64_t version, int64_t total) {
    const absl::Status status = CheckSnapshot(snapshot, version, total, Samples());
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kDataLoss);
    return std::string(status.message());
  };
  // A snapshot of version 3 in a job of six steps.
  const auto with = [&](auto change) {
    LeadSnapshot snapshot = good;
    change(snapshot);
    return said(snapshot, 3, 6);
  };
  ASSERT_EQ(with([](auto&) {}), "");
  EXPECT_EQ(said(good, 3, 3), "");
  EXPECT_THAT(said(good, 3, 2), HasSubstr("step is 3, want 3, at most 2"));
  EXPECT_THAT(said(good, 2, 6), HasSubstr("step is 3, want 2, at most 6"));
  EXPECT_THAT(said({.step = -1}, -1, 6), HasSubstr("step is -1"));

  EXPECT_EQ(with([](auto& s) { s.samples_used = 0; }), "");
  EXPECT_THAT(with([](auto& s) { s.samples_used = -1; }), HasSubstr("-1 samples used, 0 of 3"));
  EXPECT_EQ(with([](auto& s) { s.skipped_steps = 3; }), "");
  EXPECT_THAT(with([](auto& s) { s.skipped_steps = 4; }), HasSubstr("4 of 3 steps skipped"));
  EXPECT_THAT(with([](auto& s) { s.skipped_steps = -1; }), HasSubstr("-1 of 3 steps skipped"));
  EXPECT_EQ(with([](auto& s) { s.nonfinite_in_a_row = 1000; }), "");
  for (const int32_t bad : {-1, 1001}) {
    EXPECT_THAT(with([bad](auto& s) { s.nonfinite_in_a_row = bad; }),
                HasSubstr(absl::StrCat("nonfinite_in_a_row is ", bad)));
  }
  EXPECT_EQ(with([](auto& s) { s.learning_rate = 1e-9; }), "");
  for (const double bad : {-1e-9, kNan, HUGE_VAL}) {
    EXPECT_THAT(with([bad](auto& s) { s.learning_rate = bad; }), HasSubstr("learning_rate is "));
    EXPECT_THAT(with([bad](auto& s) { s.epoch.seconds = bad; }), HasSubstr("epoch.seconds is "));
  }
  EXPECT_EQ(with([](auto& s) { s.epoch.seconds = 0; }), "");
  for (const int32_t bad : {0, 2}) {
    EXPECT_THAT(with([bad](auto& s) { s.epoch.epoch = bad; }),
                HasSubstr(absl::StrCat("epoch.epoch is ", bad, ", want 1")));
    EXPECT_THAT(with([bad](auto& s) { s.ending->epoch = bad; }),
                HasSubstr(absl::StrCat("ending.epoch is ", bad, ", want 1")));
    EXPECT_THAT(with([bad](auto& s) { s.epochs = {{.epoch = bad}}; }),
                HasSubstr(absl::StrCat("epochs: ", bad, ", want 1..1")));
  }
  EXPECT_EQ(with([](auto& s) { s.epochs = {{.epoch = 1}}; }), "");
  EXPECT_EQ(with([](auto& s) { s.epoch.seals = {0, 0, 0}; }), "");
  EXPECT_EQ(with([](auto& s) { s.epoch.seals = {5, 0, 5}; }), "");
  for (const SealSums& bad : {SealSums{5, 0, 6}, SealSums{5, 0, -1}, SealSums{-1, 0, 0}}) {
    EXPECT_THAT(with([&](auto& s) { s.epoch.seals = bad; }),
                HasSubstr(absl::StrCat("epoch: ", bad.correct, " of ", bad.samples, " samples")));
  }
  EXPECT_EQ(with([](auto& s) { s.ending->seals = {1, 0, 0}; }), "");
  EXPECT_THAT(with([](auto& s) {
                s.ending->seals = {0, 0, 0};
              }),
              HasSubstr("ending has no samples"));

  // An epoch ends with its last step or with the job. None ends before the first step.
  LeadSnapshot ending = good;
  ending.applied_orders.clear();
  for (const int64_t version : {1, 2}) {
    ending.step = version;
    EXPECT_EQ(said(ending, version, version), "");
    EXPECT_THAT(said(ending, version, 6),
                HasSubstr(absl::StrCat("an epoch ends at step ", version)));
  }
  LeadSnapshot none{.ending = EpochSums{.epoch = 0, .seals = {1, 0, 0}}};
  EXPECT_THAT(said(none, 0, 6), HasSubstr("an epoch ends at step 0"));
  none.ending.reset();
  EXPECT_EQ(said(none, 0, 6), "");

  EXPECT_EQ(with([](auto& s) { s.max_staleness = -1; }), "");
  EXPECT_THAT(with([](auto& s) { s.max_staleness = -2; }), HasSubstr("max_staleness is -2"));
  const auto scale = [&](double value, int64_t good_steps) {
    return with([&](auto& s) {
      s.loss_scale = value;
      s.loss_scale_good_steps = good_steps;
    });
  };
  EXPECT_EQ(scale(4096, 1999), "");
  EXPECT_THAT(scale(4096, 2000), HasSubstr("loss_scale is 4096 after 2000 good steps"));
  EXPECT_THAT(scale(4096, -1), HasSubstr("loss_scale is 4096 after -1 good steps"));
  EXPECT_THAT(scale(3, 0), HasSubstr("loss_scale is 3 after 0 good steps"));

  const auto orders = [&](const std::vector<Order>& applied) {
    return with([&](auto& s) { s.applied_orders = applied; });
  };
  using What = Order::What;
  EXPECT_EQ(orders({{1, What::kCheckpoint, 0, 0}, {2, What::kCheckpoint, 0, 2}}), "");
  EXPECT_THAT(orders({{0, What::kCheckpoint, 0, 0}}), HasSubstr("id 0 at step 0"));
  EXPECT_THAT(orders({{1, What::kCheckpoint, 0, {}}}), HasSubstr("id 1 at step -1"));
  EXPECT_THAT(orders({{1, What::kCheckpoint, 0, -2}}), HasSubstr("id 1 at step -2"));
  EXPECT_THAT(orders({{1, What::kCheckpoint, 0, 3}}), HasSubstr("id 1 at step 3"));
  EXPECT_THAT(orders({{1, What::kCheckpoint, 0, 0}, {1, What::kCheckpoint, 0, 1}}),
              HasSubstr("id 1 at step 1"));
}

// The scale must fall and rise at the same steps, so that the lanes of a restored job compute the
// same bits.
TEST_F(LeadTest, ARestoredLeadGoesOnWithTheSameLossScale) {
  const int64_t total = 2 * LossScale::kGoodSteps + 20;
  LeadOptions options = Options(total);
  options.evaluate_every_steps = 0;
  options.dynamic_loss_scale = true;
  const auto finite = [](const Lead& lead) { return lead.step() > 1 && lead.step() != 9; };
  for (const int64_t at : {int64_t{1}, int64_t{2}, int64_t{10}, int64_t{40}}) {
    Lead whole = Make(options), before = Make(options), after = Make(options);
    for (int64_t s = 0; s < at; ++s) {
      RunStep(whole, 1, 1, static_cast<double>(s), finite(whole));
      RunStep(before, 1, 1, static_cast<double>(s), finite(before));
    }
    after.Restore(before.Snapshot(), At(static_cast<double>(at)));
    ASSERT_EQ(after.loss_scale(), whole.loss_scale()) << at;
    int rises = 0;
    for (int64_t s = at; s < total; ++s) {
      const double last = whole.loss_scale();
      const auto want = RunStep(whole, 1, 1, static_cast<double>(s), finite(whole));
      const auto got = RunStep(after, 1, 1, static_cast<double>(s), finite(after));
      ASSERT_EQ(want->decision.loss_scale, got->decision.loss_scale) << at << " " << s;
      ASSERT_EQ(want->decision.gradient_scale, got->decision.gradient_scale) << at << " " << s;
      ASSERT_EQ(want->decision.apply, got->decision.apply) << at << " " << s;
      // Steps 0, 1 and 9 are skipped.
      const int64_t skipped = std::min<int64_t>(s, 2) + (s > 9 ? 1 : 0);
      ASSERT_EQ(want->decision.applied_steps, s - skipped) << at << " " << s;
      ASSERT_EQ(got->decision.applied_steps, s - skipped) << at << " " << s;
      rises += want->decision.loss_scale > last ? 1 : 0;
    }
    EXPECT_EQ(rises, 2) << at;
  }
}

// Asynchronous jobs: lanes run ahead of the step that is decided.
TEST_F(LeadTest, ASealOfALaterStepIsKeptUntilItsTurn) {
  LeadOptions options = Options();
  options.asynchronous = true;
  Lead lead = Make(options);
  for (int64_t step = 0; step < 3; ++step) {
    // The last step of an epoch has one sample in each lane.
    const int64_t samples = step == 2 ? 1 : 2;
    EXPECT_EQ(*lead.AddSeal(step, {0, 1}, {samples, 1.0, 1}, At(1)), Told::kTaken);
    EXPECT_EQ(*lead.AddSeal(step, {0, 1}, {samples, 1.0, 1}, At(1)), Told::kKnown);
  }
  EXPECT_FALSE(lead.AddSeal(1, {0, 2}, {4, 1.0, 1}, At(1)).ok()) << "only a single lane runs ahead";
  EXPECT_FALSE(lead.AddSeal(1, {1, 1}, {3, 1.0, 1}, At(1)).ok()) << "not its samples";
  EXPECT_FALSE(lead.AddSeal(6, {1, 1}, {2, 1.0, 1}, At(1)).ok()) << "after the end";
  for (int64_t step = 0; step < 3; ++step) {
    const int64_t samples = step == 2 ? 1 : 2;
    EXPECT_TRUE(lead.AddPart(step, 0, {true, {}}, At(2)).ok());
    EXPECT_EQ(lead.Decide(At(2)), std::nullopt);
    EXPECT_EQ(*lead.AddSeal(step, {1, 1}, {samples, 3.0, 0}, At(3)), Told::kTaken);
    const auto decided = lead.Decide(At(3));
    ASSERT_TRUE(decided.has_value());
    EXPECT_EQ(decided->line.samples, 2 * samples);
    EXPECT_EQ(decided->line.loss, 4.0 / (2 * samples));
  }
  EXPECT_EQ(lead.step(), 3);
}

TEST_F(LeadTest, ASkippedLaneCountsAsAStepThatIsNotFinite) {
  LeadOptions options = Options();
  options.asynchronous = true;
  Lead lead = Make(options);
  for (int64_t step = 0; step < 3; ++step) {
    const int64_t samples = step == 2 ? 1 : 2;
    EXPECT_TRUE(lead.AddSeal(step, {0, 1}, {samples, NAN, 0}, At(1)).ok());
    EXPECT_TRUE(lead.AddSeal(step, {1, 1}, {samples, 1.0, 0}, At(1)).ok());
    EXPECT_TRUE(lead.AddPart(step, 0, {true, {}}, At(1)).ok());
    EXPECT_EQ(lead.Decide(At(1)).has_value(), step < 2);
  }
  ASSERT_TRUE(lead.failure().has_value());
  EXPECT_THAT(lead.failure()->message,
              HasSubstr("the loss or the gradient is not finite in lane 0, for the 3. step"));
}

TEST_F(LeadTest, ShardsAreToldTheBoundOfStalenessThatAnOrderHasSet) {
  LeadOptions options = Options();
  options.evaluate_every_steps = 0;
  options.asynchronous = true;
  Lead lead = Make(options);
  EXPECT_EQ(RunStep(lead, 4.0, 1, 1)->decision.max_staleness, std::nullopt);
  using What = Order::What;
  lead.GiveOrders({{.id = 1, .what = What::kMaxStaleness, .step = {}, .max_staleness = 4}});
  EXPECT_EQ(RunStep(lead, 4.0, 1, 1)->decision.max_staleness, 4);
  EXPECT_EQ(lead.Snapshot().max_staleness, 4);
  lead.GiveOrders({{.id = 2, .what = What::kMaxStaleness, .step = {}, .max_staleness = -1}});
  Lead next = Make(options);
  next.Restore(lead.Snapshot(), At(1));
  EXPECT_EQ(RunStep(next, 2.0, 1, 1)->decision.max_staleness, 4);
  EXPECT_EQ(RunStep(lead, 2.0, 1, 1)->decision.max_staleness, -1);
}

TEST_F(LeadTest, ShardsAreToldTheBaseRateThatAnOrderHasSet) {
  LeadOptions options = Options();
  options.asynchronous = true;
  Lead lead = Make(options);
  EXPECT_EQ(RunStep(lead, 1, 0, 1)->decision.base_learning_rate, 0);
  lead.GiveOrders(
      {{.id = 1, .what = Order::What::kLearningRate, .learning_rate = 0.25, .step = {}}});
  EXPECT_EQ(RunStep(lead, 1, 0, 2)->decision.base_learning_rate, 0.25);
}

}  // namespace
}  // namespace capstan::training
