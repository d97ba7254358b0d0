// Compares rules with adaptive rates with their published formulas in doubles, and checks their
// bits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/chunks/shard_memory.h"
#include "training/optim/adagrad.h"
#include "training/optim/adam.h"
#include "training/optim/ftrl.h"
#include "training/optim/rmsprop.h"

namespace capstan::training {
namespace {

constexpr double kRate = 0.01;

// One weight, in doubles; `state` begins as zeros.
using Naive = std::function<double(double w, double g, int t, double* state)>;

struct RuleCase {
  std::string name;
  std::shared_ptr<const Optimizer> rule;
  Naive naive;
};

// Kingma & Ba, algorithm 1, with the corrections as written there. AdamW: Loshchilov & Hutter,
// algorithm 2; as in PyTorch, the learning rate is its schedule multiplier.
Naive NaiveAdam(const AdamOptions& o) {
  return [o](double w, double g, int t, double* state) {
    const double decayed = o.decoupled ? w - kRate * o.weight_decay * w : w;
    if (!o.decoupled) g += o.weight_decay * w;
    state[0] = o.beta1 * state[0] + (1 - o.beta1) * g;
    state[1] = o.beta2 * state[1] + (1 - o.beta2) * g * g;
    const double m = state[0] / (1 - std::pow(o.beta1, t));
    const double v = state[1] / (1 - std::pow(o.beta2, t));
    return decayed - kRate * m / (std::sqrt(v) + o.epsilon);
  };
}

Naive NaiveRmsprop(const RmspropOptions& o) {
  return [o](double w, double g, int, double* state) {
    g += o.weight_decay * w;
    double& square = state[0];
    double& mean = state[1];
    double& buffer = state[2];
    square = o.alpha * square + (1 - o.alpha) * g * g;
    mean = o.alpha * mean + (1 - o.alpha) * g;
    const double variance = o.centered ? square - mean * mean : square;
    buffer = o.momentum * buffer + g / (std::sqrt(variance) + o.epsilon);
    return w - kRate * buffer;
  };
}

Naive NaiveAdagrad(const AdagradOptions& o) {
  return [o](double w, double g, int, double* state) {
    g += o.weight_decay * w;
    state[0] += g * g;
    return w - kRate * g / (std::sqrt(state[0]) + o.epsilon);
  };
}

// McMahan et al. 2013, algorithm 1, with alpha kRate: eta of a weight is alpha / (beta + sqrt(n)),
// and sigma is the step of 1 / eta.
Naive NaiveFtrl(const FtrlOptions& o) {
  return [o](double w, double g, int, double* state) {
    double& z = state[0];
    double& n = state[1];
    const double before = (o.beta + std::sqrt(n)) / kRate;
    n += g * g;
    const double after = (o.beta + std::sqrt(n)) / kRate;
    z += g - (after - before) * w;
    const double soft = std::max(std::abs(z) - o.l1, 0.0);
    return -std::copysign(soft, z) / (after + o.weight_decay);
  };
}

std::vector<RuleCase> AllRules() {
  std::vector<RuleCase> rules;
  for (const AdamOptions& o :
       {AdamOptions{}, AdamOptions{.beta1 = 0.5, .beta2 = 0.9, .epsilon = 0.1},
        AdamOptions{.weight_decay = 0.1}, AdamOptions{.weight_decay = 0.1, .decoupled = true}}) {
    rules.push_back({o.decoupled ? "adamw" : "adam", std::make_shared<const Adam>(*Adam::Create(o)),
                     NaiveAdam(o)});
  }
  for (const bool centered : {false, true}) {
    for (const double momentum : {0.0, 0.9}) {
      for (const double decay : {0.0, 0.1}) {
        const RmspropOptions o{
            .epsilon = 1e-4, .momentum = momentum, .centered = centered, .weight_decay = decay};
        rules.push_back(
            {"rmsprop", std::make_shared<const Rmsprop>(*Rmsprop::Create(o)), NaiveRmsprop(o)});
      }
    }
  }
  for (const AdagradOptions& o : {AdagradOptions{}, AdagradOptions{.weight_decay = 0.1}}) {
    rules.push_back(
        {"adagrad", std::make_shared<const Adagrad>(*Adagrad::Create(o)), NaiveAdagrad(o)});
  }
  for (const FtrlOptions& o :
       {FtrlOptions{}, FtrlOptions{.l1 = 0, .beta = 1e-3}, FtrlOptions{.l1 = 5, .beta = 0.1},
        FtrlOptions{.l1 = 1, .beta = 0.5, .weight_decay = 50}}) {
    rules.push_back({"ftrl", std::make_shared<const Ftrl>(*Ftrl::Create(o)), NaiveFtrl(o)});
  }
  return rules;
}

std::vector<float> Normals(std::mt19937& random, size_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// 50 steps move a weight by some 0.5. Each step rounds some ten numbers to 2^-24 of themselves, and
// a running square mean gradually forgets its rounding errors. 1e-5 leaves a margin of more than
// ten.
TEST(RulesTest, FollowThePublishedFormulas) {
  constexpr size_t kWeights = 37;
  for (const RuleCase& c : AllRules()) {
    std::mt19937 random(7);
    std::vector<float> weights = Normals(random, kWeights);
    std::vector<float> state(kWeights * c.rule->state_floats_per_weight());
    std::vector<double> want(weights.begin(), weights.end()), want_state(kWeights * 3);
    for (int t = 1; t <= 50; ++t) {
      const std::vector<float> gradient = Normals(random, kWeights);
      c.rule->Apply(weights.data(), weights.data(), gradient.data(), state.data(), kWeights,
                    {.learning_rate = kRate, .number = t});
      for (size_t i = 0; i < kWeights; ++i) {
        want[i] = c.naive(want[i], gradient[i], t, &want_state[3 * i]);
        ASSERT_NEAR(weights[i], want[i], 1e-5) << c.name << " step " << t << " weight " << i;
      }
    }
  }
}

// All numbers are exact in binary. Step 1: g = 2, so m = 0.5 * 2 and v = 0.75 * 4. The corrections
// are 1 - 0.5 and 1 - 0.25, so m' = 2, v' = 4, and the root is 2.
TEST(RulesTest, AdamByHand) {
  const Adam adam = *Adam::Create({.beta1 = 0.5, .beta2 = 0.25, .epsilon = 2});
  float w = 1, g = 2, state[2] = {};
  adam.Apply(&w, &w, &g, state, 1, {.learning_rate = 0.5, .number = 1});
  EXPECT_EQ(state[0], 1.0f);
  EXPECT_EQ(state[1], 3.0f);
  // sqrt(3) / sqrt(0.75) is 2 within a rounding of each: 1 - 1 * 1 / (2 + 2).
  EXPECT_NEAR(w, 0.75f, 1e-7);
}

TEST(RulesTest, AdamWTakesTheDecayOfTheWeightFirst) {
  const Adam adam = *Adam::Create({.epsilon = 1, .weight_decay = 0.5, .decoupled = true});
  float w = 4, g = 0, state[2] = {};
  adam.Apply(&w, &w, &g, state, 1, {.learning_rate = 0.5, .number = 1});
  EXPECT_EQ(w, 3.0f);  // 4 * (1 - 0.5 * 0.5)
  EXPECT_EQ(state[0], 0.0f);
  adam.Apply(&w, &w, &g, state, 1, {.learning_rate = 0.5, .number = 2, .decay = false});
  EXPECT_EQ(w, 3.0f);
}

TEST(RulesTest, RmspropAndAdagradByHand) {
  const Rmsprop rmsprop = *Rmsprop::Create({.alpha = 0.75, .epsilon = 1, .momentum = 0.5});
  float w = 1, g = 2, state[2] = {};
  rmsprop.Apply(&w, &w, &g, state, 1, {0.5});  // v = 0.25 * 4, u = 2 / (1 + 1)
  EXPECT_EQ(state[0], 1.0f);
  EXPECT_EQ(state[1], 1.0f);
  EXPECT_EQ(w, 0.5f);
  const Adagrad adagrad = *Adagrad::Create({.epsilon = 1});
  w = 1, g = 3, state[0] = 16;
  adagrad.Apply(&w, &w, &g, state, 1, {0.5});  // s = 25, 3 / (5 + 1)
  EXPECT_EQ(state[0], 25.0f);
  EXPECT_EQ(w, 0.75f);
}

// One weight with its state.
struct FtrlWeight {
  float w = 0, z = 0, n = 0;

  void Step(const FtrlOptions& options, float g, double rate, bool decay = true) {
    float state[] = {z, n};
    Ftrl::Create(options)->Apply(&w, &w, &g, state, 1, {.learning_rate = rate, .decay = decay});
    z = state[0];
    n = state[1];
  }
};

// The numbers are exact in binary, and so are the results, except 0.4, which is rounded once. Both
// signs.
TEST(RulesTest, FtrlByHand) {
  const FtrlOptions options{.l1 = 3, .beta = 1, .weight_decay = 4};
  for (const float sign : {1.0f, -1.0f}) {
    FtrlWeight x{.w = sign * 2};
    x.Step(options, sign * 3, 0.5);  // sigma = 3 / 0.5
    EXPECT_EQ(x.z, sign * -9);       // 3 - 6 * 2
    EXPECT_EQ(x.n, 9);
    EXPECT_EQ(x.w, sign * 0.5f);     // (-3 + 9) / ((1 + 3) / 0.5 + 4)
    x.Step(options, sign * 4, 0.5);  // sigma = (5 - 3) / 0.5
    EXPECT_EQ(x.z, sign * -7);       // -9 + 4 - 4 * 0.5
    EXPECT_EQ(x.n, 25);
    EXPECT_EQ(x.w, sign * 0.25f);  // (-3 + 7) / ((1 + 5) / 0.5 + 4)
    // Another rate counts in both places: sigma = (13 - 5) / 0.25.
    x.Step(options, sign * -12, 0.25);
    EXPECT_EQ(x.z, sign * -27);  // -7 - 12 - 32 * 0.25
    EXPECT_EQ(x.n, 169);
    EXPECT_EQ(x.w, sign * 0.4f);  // (-3 + 27) / ((1 + 13) / 0.25 + 4)
    // A step without decay: z does not know of it.
    x.w = 0;
    x.Step(options, 0, 0.5, /*decay=*/false);
    EXPECT_EQ(x.z, sign * -27);
    EXPECT_EQ(x.w, sign * (24.0f / 28));  // (-3 + 27) / ((1 + 13) / 0.5)
  }
}

// The third weight and state of a sequence whose bits differ if one product is fused with a sum, a
// division becomes a product with the reciprocal, or the order of two operations changes. Computed
// with a script that rounds every operation of the formula in ftrl.h by itself.
TEST(RulesTest, FtrlRoundsEveryOperation) {
  const FtrlOptions options{.l1 = 0.01, .beta = 0.9, .weight_decay = 0.02};
  FtrlWeight x{.w = 0.7f};
  x.Step(options, 0.93f, 0.3);
  x.Step(options, -0.69f, 0.3);
  x.Step(options, 1.47f, 0.07);
  EXPECT_EQ(x.w, 0x1.7bcaaep-4f);
  EXPECT_EQ(x.z, -0x1.d765acp+1f);
  EXPECT_EQ(x.n, 0x1.c03e44p+1f);
}

// The first step, in which z is -9, with an l1 at it, below and above. A weight that became 0 comes
// back when z has grown.
TEST(RulesTest, FtrlSetsWeightsToZeroUpToL1) {
  const auto after = [](double l1) {
    FtrlWeight x{.w = 2};
    x.Step({.l1 = l1, .beta = 1}, 3, 0.5);
    EXPECT_EQ(x.z, -9);
    return x;
  };
  EXPECT_EQ(after(9).w, 0);
  EXPECT_FALSE(std::signbit(after(9).w));
  EXPECT_EQ(after(1e6).w, 0);
  EXPECT_EQ(after(8).w, 0.125f);  // (-8 + 9) / 8
  FtrlWeight x = after(9);
  x.Step({.l1 = 9, .beta = 1, .weight_decay = 4}, 4, 0.5);
  EXPECT_EQ(x.z, -5);
  EXPECT_EQ(x.w, 0);
  x = after(9);
  x.Step({.l1 = 9, .beta = 1, .weight_decay = 4}, -4, 0.5);
  EXPECT_EQ(x.z, -13);
  EXPECT_EQ(x.w, 0.25f);  // (-9 + 13) / ((1 + 5) / 0.5 + 4)
}

// z has no part of the weight that a job begins with, except what sigma brings in.
TEST(RulesTest, TheFirstStepOfFtrlReplacesTheWeight) {
  FtrlWeight idle{.w = 2}, slow{.w = 2}, fast{.w = 2};
  idle.Step({.l1 = 0}, 0, 0.5);
  EXPECT_EQ(idle.w, 0);
  slow.Step({.l1 = 0, .beta = 1}, 1, 0.5);  // (|g| * w - rate * g) / (beta + |g|)
  EXPECT_EQ(slow.w, 0.75f);
  fast.Step({.l1 = 0, .beta = 1e-30}, 1, 0.5);
  EXPECT_EQ(fast.w, 1.5f);
}

TEST(RulesTest, FtrlFollowsTheRateAtOnce) {
  FtrlWeight x{.w = 2};
  x.Step({.l1 = 0, .beta = 1}, 1, 0.5);
  const FtrlWeight before = x;
  x.Step({.l1 = 0, .beta = 1}, 0, 0.125);
  EXPECT_EQ(x.w, before.w / 4);
  EXPECT_EQ(x.z, before.z);
  EXPECT_EQ(x.n, before.n);
  x.Step({.l1 = 0, .beta = 1}, 0, 0.5);
  EXPECT_EQ(x.w, before.w);
  // 0 in float32: nothing changes, in place or not.
  for (const double rate : {0.0, 1e-300}) {
    x.Step({.l1 = 0, .beta = 1}, 5, rate);
    EXPECT_EQ(x.w, before.w);
    EXPECT_EQ(x.z, before.z);
    EXPECT_EQ(x.n, before.n);
    const float in[] = {3, 0}, gradient[] = {5, 0};
    float out[] = {7, 7}, state[] = {1, 2, 0, 0};
    Ftrl::Create({})->Apply(out, in, gradient, state, 2, {.learning_rate = rate});
    EXPECT_THAT(out, testing::ElementsAre(3, 0));
    EXPECT_THAT(state, testing::ElementsAre(1, 2, 0, 0));
  }
}

// As far as float32 goes: the divisor of padding becomes 0 with the highest rate, and the quotient
// is then not a number.
TEST(RulesTest, FtrlKeepsPaddingAtAnyRate) {
  for (const FtrlOptions& o : {FtrlOptions{.l1 = 0, .beta = 1e-30}, FtrlOptions{}}) {
    for (const double rate : {1e-300, 1e-45, 1e-38, 1.0, 3e38}) {
      std::vector<float> weights(9), gradient(9), state(18);
      Ftrl::Create(o)->Apply(weights.data(), weights.data(), gradient.data(), state.data(), 9,
                             {.learning_rate = rate});
      EXPECT_THAT(weights, testing::Each(0.0f)) << rate;
      EXPECT_THAT(state, testing::Each(0.0f)) << rate;
    }
  }
}

// Quotients by such a rate would be infinite, and a product of one with 0 is not a number.
TEST(RulesTest, FtrlDoesNothingAtATinyRate) {
  FtrlWeight x{.w = 2};
  x.Step({}, 0.25f, 0.5);
  const FtrlWeight before = x;
  for (const double rate : {9e-31, 1e-38, 1e-44, 0.0}) {
    x.Step({}, 0.25f, rate);
    EXPECT_EQ(x.w, before.w) << rate;
    EXPECT_EQ(x.z, before.z) << rate;
    EXPECT_EQ(x.n, before.n) << rate;
  }
  x.Step({}, 0.25f, 2e-30);
  EXPECT_TRUE(std::isfinite(x.w));
  EXPECT_NE(x.z, before.z);
}

// A gradient that is not a number is not hidden by the zeroing.
TEST(RulesTest, FtrlHidesNoNan) {
  FtrlWeight x{.w = 2};
  x.Step({.l1 = 1e6}, std::numeric_limits<float>::quiet_NaN(), 0.5);
  EXPECT_TRUE(std::isnan(x.w));
}

// The mean approaches the gradient, so the difference of squares approaches 0, and rounding takes
// it below 0.
TEST(RulesTest, ACenteredSpreadIsNeverBelowZero) {
  const Rmsprop rmsprop = *Rmsprop::Create({.alpha = 0.5, .epsilon = 1, .centered = true});
  for (const float gradient : {0.1f, 0.3f, 0.7f, 1.1f, 3.3f}) {
    float w = 1, state[2] = {};
    for (int step = 0; step < 200; ++step) {
      rmsprop.Apply(&w, &w, &gradient, state, 1, {1e-3});
      ASSERT_TRUE(std::isfinite(w)) << gradient << " step " << step;
    }
  }
}

// Powers of numbers that are exact in binary are exact as long as they have at most 53 digits.
TEST(RulesTest, PowersBySquaring) {
  EXPECT_EQ(PowerBySquaring(0.75, 0), 1);
  EXPECT_EQ(PowerBySquaring(0.75, 1), 0.75);
  EXPECT_EQ(PowerBySquaring(0.75, 5), 0.2373046875);
  EXPECT_EQ(PowerBySquaring(0.5, 100), std::ldexp(1, -100));
  // At most 2 * 53 products for any step number, each rounded to 2^-53 of itself. An earlier error
  // grows with the number of factors that it stands for.
  EXPECT_NEAR(PowerBySquaring(0.999, 12345), std::pow(0.999, 12345), 12345e-16);
  EXPECT_EQ(PowerBySquaring(0.999, int64_t{1} << 52), 0);
}

// In place or not, whole or in pieces: the vectorised loop gives the same bits as one weight at a
// time.
TEST(RulesTest, SameBitsHoweverTheRangeIsCut) {
  constexpr size_t kWeights = 1037;
  for (const RuleCase& c : AllRules()) {
    SCOPED_TRACE(c.name);
    const int n = c.rule->state_floats_per_weight();
    std::mt19937 random(9);
    std::vector<float> weights = Normals(random, kWeights), pieces = weights;
    std::vector<float> state(kWeights * n), state_of_pieces = state;
    for (int t = 1; t <= 3; ++t) {
      const RuleStep step{.learning_rate = kRate, .number = t};
      const std::vector<float> gradient = Normals(random, kWeights);
      std::vector<float> want = weights, want_state = state, out(kWeights);
      for (size_t i = 0; i < kWeights; ++i) {
        c.rule->Apply(&want[i], &want[i], &gradient[i], &want_state[i * n], 1, step);
      }
      c.rule->Apply(out.data(), weights.data(), gradient.data(), state.data(), kWeights, step);
      for (size_t first = 0; first < kWeights;) {
        const size_t count = std::min<size_t>(kWeights - first, 1 + random() % 100);
        c.rule->Apply(&pieces[first], &pieces[first], &gradient[first], &state_of_pieces[first * n],
                      count, step);
        first += count;
      }
      ASSERT_EQ(std::memcmp(out.data(), want.data(), kWeights * sizeof(float)), 0);
      ASSERT_EQ(std::memcmp(pieces.data(), want.data(), kWeights * sizeof(float)), 0);
      ASSERT_EQ(state, want_state);
      ASSERT_EQ(state_of_pieces, want_state);
      weights = out;
    }
  }
}

TEST(RulesTest, PaddingStaysZero) {
  for (const RuleCase& c : AllRules()) {
    std::vector<float> weights(16), gradient(16), state(16 * c.rule->state_floats_per_weight());
    for (int t = 1; t <= 3; ++t) {
      c.rule->Apply(weights.data(), weights.data(), gradient.data(), state.data(), 16,
                    {.learning_rate = kRate, .number = t});
    }
    EXPECT_THAT(weights, testing::Each(0.0f)) << c.name;
    EXPECT_THAT(state, testing::Each(0.0f)) << c.name;
  }
}

// A step without decay gives the same bits as a rule without decay.
TEST(RulesTest, AStepWithoutDecayIsThatOfARuleWithoutIt) {
  const auto same = [](const Optimizer& with, const Optimizer& without) {
    std::mt19937 random(11);
    std::vector<float> a = Normals(random, 20), b = a;
    const std::vector<float> gradient = Normals(random, 20);
    std::vector<float> state_a(20 * with.state_floats_per_weight()), state_b = state_a;
    with.Apply(a.data(), a.data(), gradient.data(), state_a.data(), 20,
               {.learning_rate = kRate, .decay = false});
    without.Apply(b.data(), b.data(), gradient.data(), state_b.data(), 20, {kRate});
    EXPECT_EQ(a, b);
    EXPECT_EQ(state_a, state_b);
  };
  same(*Adam::Create({.weight_decay = 0.1}), *Adam::Create({}));
  same(*Adam::Create({.weight_decay = 0.1, .decoupled = true}), *Adam::Create({}));
  same(*Rmsprop::Create({.weight_decay = 0.1}), *Rmsprop::Create({}));
  same(*Adagrad::Create({.weight_decay = 0.1}), *Adagrad::Create({}));
  same(*Ftrl::Create({.weight_decay = 0.1}), *Ftrl::Create({}));
}

// The bound on file sizes (coordinator/core/core_files.cc) relies on this.
TEST(RulesTest, NoneHasMoreStateThanTheLimit) {
  int64_t most = 0;
  for (const RuleCase& c : AllRules()) {
    most = std::max<int64_t>(most, c.rule->state_floats_per_weight());
  }
  EXPECT_EQ(most, kMaxStateFloatsPerWeight);
}

TEST(RulesTest, RefuseOptionsOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto refused = [](const auto& created, const char* message) {
    EXPECT_EQ(created.status().code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(created.status().message()), testing::HasSubstr(message));
  };
  refused(Adam::Create({.beta1 = 1}), "beta1: got 1, want a number in [0, 1)");
  refused(Adam::Create({.beta2 = nan}), "beta2: got nan");
  refused(Adam::Create({.epsilon = 0}), "epsilon: got 0, want a number in [1e-30, 1000]");
  refused(Adam::Create({.weight_decay = -1}), "weight_decay: got -1");
  refused(Rmsprop::Create({.alpha = -0.1}), "alpha: got -0.1");
  refused(Rmsprop::Create({.epsilon = 1001}), "epsilon: got 1001");
  refused(Rmsprop::Create({.momentum = 1}), "momentum: got 1");
  refused(Adagrad::Create({.epsilon = nan}), "epsilon: got nan");
  refused(Adagrad::Create({.weight_decay = nan}), "weight_decay: got nan");
  refused(Ftrl::Create({.l1 = -0.1}), "l1: got -0.1, want a number in [0, 1e+06]");
  refused(Ftrl::Create({.l1 = 2e6}), "l1: got 2e+06");
  refused(Ftrl::Create({.beta = 0}), "beta: got 0, want a number in [1e-30, 1000]");
  refused(Ftrl::Create({.beta = nan}), "beta: got nan");
  refused(Ftrl::Create({.weight_decay = -1}), "weight_decay: got -1");
}

}  // namespace
}  // namespace capstan::training
