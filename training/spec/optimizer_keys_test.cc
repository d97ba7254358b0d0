// Tests what the keys of `training.optimizer` and of its schedule make.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "training/chunks/shard_memory.h"
#include "training/optim/average.h"
#include "training/optim/trust_rule.h"
#include "training/spec/test_specs.h"

namespace capstan::training::spec {
namespace {

using ::testing::HasSubstr;

// Each does one step on one weight, by hand: learning rate 0.2, weight 1, gradient 4 without
// clipping.
TEST(OptimizerKeysTest, OptimizersAreMadeOfTheirKeys) {
  const auto resolved = [](const std::vector<std::pair<std::string, std::string>>& keys) {
    const auto spec = Resolve(Spec(keys), FashionMnist(), kOptions);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return *spec;
  };
  const auto make = [&](const std::string& text) {
    return *MakeOptimizer(resolved({{"training.optimizer", text}}));
  };
  const auto step = [](const Optimizer& optimizer) {
    float weight = 1, gradient = 4, state[kMaxStateFloatsPerWeight] = {};
    optimizer.Apply(&weight, &weight, &gradient, state, 1, {0.2});
    return weight;
  };
  // In the first step m / sqrt(v) is 1. The decay of adam is part of both.
  const auto adam = make("{name: adam, learning_rate: 0.2, weight_decay: 1}");
  EXPECT_EQ(adam->state_floats_per_weight(), 2);
  EXPECT_NEAR(step(*adam), 0.8, 1e-6);
  EXPECT_NEAR(step(*make("{name: adam, learning_rate: 0.2, beta1: 0, beta2: 0, epsilon: 4}")), 0.9,
              1e-6);
  EXPECT_NEAR(step(*make("{name: adamw, learning_rate: 0.2, weight_decay: 1}")), 0.6, 1e-6);
  EXPECT_NEAR(step(*make("{name: adamw, learning_rate: 0.2}")), 0.798, 1e-6);  // 0.01 by default
  const auto rmsprop = make("{name: rmsprop, learning_rate: 0.2, alpha: 0.75, epsilon: 2}");
  EXPECT_EQ(rmsprop->state_floats_per_weight(), 1);
  EXPECT_NEAR(step(*rmsprop), 0.8, 1e-6);  // 4 / (sqrt(0.25 * 16) + 2)
  EXPECT_EQ(make("{name: rmsprop, learning_rate: 0.2, momentum: 0.5, centered: true}")
                ->state_floats_per_weight(),
            3);
  EXPECT_NEAR(step(*make("{name: adagrad, learning_rate: 0.2, epsilon: 4}")), 0.9, 1e-6);
  // With a decay of 4 the gradient becomes 8: 8 / (sqrt(0.25 * 64) + 2) and 8 / (8 + 4).
  EXPECT_NEAR(step(*make("{name: rmsprop, learning_rate: 0.2, alpha: 0.75, epsilon: 2, "
                         "weight_decay: 4}")),
              1 - 0.2 * 8 / 6, 1e-6);
  EXPECT_NEAR(step(*make("{name: adagrad, learning_rate: 0.2, epsilon: 4, weight_decay: 4}")),
              1 - 0.2 * 8 / 12, 1e-6);
  // sigma is 4 / 0.2, z = 4 - 20, n = 16: (16 - 1) / ((0.25 + 4) / 0.2 + 3.75), as z is below -l1.
  const auto ftrl = make("{name: ftrl, learning_rate: 0.2, l1: 1, beta: 0.25, weight_decay: 3.75}");
  EXPECT_EQ(ftrl->state_floats_per_weight(), 2);
  EXPECT_NEAR(step(*ftrl), 0.6, 1e-6);
  EXPECT_EQ(step(*make("{name: ftrl, learning_rate: 0.2, l1: 16}")), 0);
  EXPECT_NEAR(step(*make("{name: ftrl, learning_rate: 0.2}")), 15.99 / 25, 1e-6);
  // A rule alone has a trust ratio of 1. That of a tensor: 3 * 1 / (4 + 1 * 1 + 1).
  const auto lars =
      make("{name: lars, learning_rate: 0.2, eta: 3, momentum: 0.5, weight_decay: 1, epsilon: 1}");
  EXPECT_EQ(lars->state_floats_per_weight(), 1);
  EXPECT_NEAR(step(*lars), 0, 1e-6);  // 1 - 0.2 * (4 + 1)
  EXPECT_EQ(lars->trust_rule()->Ratio({1, 4}, true), 0.5);
  EXPECT_EQ(make("{name: lars, learning_rate: 0.2}")->state_floats_per_weight(), 0);
  const auto lamb =
      make("{name: lamb, learning_rate: 0.2, weight_decay: 1, lower_bound: 2, upper_bound: 4}");
  EXPECT_EQ(lamb->state_floats_per_weight(), 2);
  EXPECT_NEAR(step(*lamb), 0.6, 1e-6);  // 1 - 0.2 * (1 + 1)
  EXPECT_EQ(lamb->trust_rule()->Ratio({1, 4}, true), 0.5);
  EXPECT_EQ(lamb->trust_rule()->Ratio({5, 4}, true), 1);
  // 4 (1 - beta1) / (4 sqrt(1 - beta2) + epsilon) without corrections.
  EXPECT_NEAR(step(*make("{name: lamb, learning_rate: 0.2, beta1: 0.5, beta2: 0.75, epsilon: 2, "
                         "bias_correction: false}")),
              0.9, 1e-6);
  EXPECT_EQ(make("{name: adam, learning_rate: 0.2}")->trust_rule(), nullptr);
  // The first step has no past. With beta1 and beta2 of 0 the second step has none either: 12 / (12
  // + 4).
  float weight = 1, state[kMaxStateFloatsPerWeight] = {};
  const auto forgetful = make("{name: adam, learning_rate: 0.2, beta1: 0, beta2: 0, epsilon: 4}");
  for (int64_t number = 1; number <= 2; ++number) {
    const float gradient = number == 1 ? 4 : 12;
    forgetful->Apply(&weight, &weight, &gradient, state, 1,
                     {.learning_rate = 0.2, .number = number});
  }
  EXPECT_NEAR(weight, 0.9 - 0.2 * 0.75, 1e-6);

  EXPECT_FALSE(make("{learning_rate: 0.2}")->update().decay_weights_only);
  EXPECT_EQ(make("{learning_rate: 0.2}")->update().clip_value, 0);
  EXPECT_TRUE(make("{learning_rate: 0.2, decayed: weights}")->update().decay_weights_only);
  const std::pair<std::string, std::string> clip = {"training.gradient_clip_value", "0.5"};
  EXPECT_EQ((*MakeOptimizer(resolved({clip})))->update().clip_value, 0.5);
  const std::pair<std::string, std::string> clip_norm = {"training.gradient_clip_norm", "2.5"};
  EXPECT_EQ(ClipNorm(resolved({clip_norm})), 2.5);
  EXPECT_EQ(ClipNorm(resolved({clip})), 0);

  // Which optimizers devices that keep the weights carry out.
  EXPECT_EQ(WhyTheHostUpdates(resolved({{"training.optimizer.decayed", "weights"}})), "");
  EXPECT_EQ(WhyTheHostUpdates(resolved({clip})), "");
  EXPECT_EQ(WhyTheHostUpdates(resolved({clip_norm})), "for gradient_clip_norm");
  for (const char* name : {"sgd", "adam", "adamw", "rmsprop", "adagrad", "ftrl", "lars", "lamb"}) {
    const job::v1::ResolvedSpec spec = resolved({{"training.optimizer.name", name}});
    const bool numbers = (*MakeOptimizer(spec))->Numbers({.learning_rate = 0.1}).has_value();
    EXPECT_EQ(WhyTheHostUpdates(spec), numbers ? "" : absl::StrCat("for ", name));
    EXPECT_EQ(numbers, name[0] != 'l') << name;
  }
  // A rule of any name that has no form for devices yet.
  const Average unknown;
  EXPECT_EQ(WhyTheHostUpdates(resolved({}), unknown), "for sgd");
}

// Two floats of state per weight need three buffers more than the momentum of the plan above (4
// bytes * 64608 * 3 = 0.74 MiB). So there are 15 + 4 of them, 4.68 MiB, rounded up.
TEST(OptimizerKeysTest, ThePlanCountsTheStateOfTheOptimizer) {
  const std::pair<std::string, std::string> adam = {"training.optimizer.name", "adam"};
  EXPECT_THAT(PlanText(*Resolve(Spec({adam}), FashionMnist(), kOptions)),
              HasSubstr("memory of a shard at most 4.7 MiB\n"));
  const auto device = [](const std::pair<std::string, std::string>& more) {
    return PlanText(
        *Resolve(Spec({more, {"resources", "{num_workers: 1}"}, {"kvstore.type", "device"}}),
                 FashionMnist(), kOptions));
  };
  EXPECT_THAT(device(adam), HasSubstr("device (GPUs add and update; CPUs as local)"));
  EXPECT_THAT(device({"training.optimizer.name", "lamb"}),
              HasSubstr("device (GPUs add, the host updates for lamb; CPUs as local)"));
}

// A change of the rate scales all weights (training/optim/ftrl.h).
TEST(OptimizerKeysTest, ThePlanWarnsOfFtrlWithAChangingRate) {
  const auto plan = [](const char* keys) {
    const std::string text = absl::StrCat("{learning_rate: 0.2, ", keys, "}");
    return PlanText(*Resolve(Spec({{"training.optimizer", text}}), FashionMnist(), kOptions));
  };
  const std::string warning = "      warning: with ftrl, all weights change by the factor";
  EXPECT_THAT(plan("name: ftrl"), testing::Not(HasSubstr("warning")));
  EXPECT_THAT(plan("name: adam, lr_schedule: cosine"), testing::Not(HasSubstr("warning")));
  EXPECT_THAT(plan("name: ftrl, lr_schedule: cosine"), HasSubstr(warning));
  EXPECT_THAT(plan("name: ftrl, lr_schedule: {name: constant, warmup: 5 steps}"),
              HasSubstr(warning));
}

// Periods become steps of this job: 235 per epoch, 2350 in all.
TEST(OptimizerKeysTest, SchedulesAreMadeOfTheirKeys) {
  const auto make = [](const char* schedule) {
    const auto spec =
        Resolve(Spec({{"training.optimizer.lr_schedule", schedule}}), FashionMnist(), kOptions);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return *MakeSchedule(*spec);
  };
  const Schedule steps = make("{name: multi_step, milestones: [2 epochs, 471 steps], factor: 0.5}");
  EXPECT_DOUBLE_EQ(steps.LearningRate(469), 0.2);
  EXPECT_DOUBLE_EQ(steps.LearningRate(470), 0.1);
  EXPECT_DOUBLE_EQ(steps.LearningRate(471), 0.05);
  const Schedule polynomial = make("{name: polynomial, power: 2, min_rate: 0.1}");
  EXPECT_DOUBLE_EQ(polynomial.LearningRate(1175), 0.125);
  const Schedule cycle = make("{name: one_cycle, pct_start: 0.5, div_factor: 2}");
  EXPECT_DOUBLE_EQ(cycle.LearningRate(0), 0.1);
  EXPECT_DOUBLE_EQ(cycle.LearningRate(1174), 0.2);
  EXPECT_NEAR(cycle.LearningRate(2349), 1e-5, 1e-15);
  const Schedule shallow = make("{name: one_cycle, div_factor: 2, final_div_factor: 100}");
  EXPECT_NEAR(shallow.LearningRate(2349), 1e-3, 1e-15);
  EXPECT_THAT(std::string(Resolve(Spec({{"training.optimizer.lr_schedule",
                                         "{name: multi_step, milestones: [2 epochs, 470 steps]}"}}),
                                  FashionMnist(), kOptions)
                              .status()
                              .message()),
              HasSubstr("milestones: got step 470 behind step 470, want them ascending"));
}

}  // namespace
}  // namespace capstan::training::spec
