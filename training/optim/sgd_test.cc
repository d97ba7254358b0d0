#include "training/optim/sgd.h"

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::training {
namespace {

// All numbers below are exact in binary. w = 1, g = 0.5 in both steps, learning rate 0.5.
TEST(SgdTest, PlainStepByHand) {
  const Sgd sgd = *Sgd::Create({});
  float w = 1.0f;
  const float g = 0.5f;
  sgd.Apply(&w, &w, &g, nullptr, 1, {0.5});
  EXPECT_EQ(w, 0.75f);
  EXPECT_EQ(sgd.state_floats_per_weight(), 0);
}

TEST(SgdTest, MomentumAndDecayByHand) {
  const Sgd sgd = *Sgd::Create({.momentum = 0.5, .weight_decay = 0.25});
  float w = 1.0f, v = 0.0f;
  const float g = 0.5f;
  sgd.Apply(&w, &w, &g, &v, 1, {0.5});  // g' = 0.75 = v
  EXPECT_EQ(v, 0.75f);
  EXPECT_EQ(w, 0.625f);
  sgd.Apply(&w, &w, &g, &v, 1, {0.5});  // g' = 0.5 + 0.15625, v = 0.375 + 0.65625
  EXPECT_EQ(v, 1.03125f);
  EXPECT_EQ(w, 0.109375f);
  EXPECT_EQ(sgd.state_floats_per_weight(), 1);
}

TEST(SgdTest, NesterovByHand) {
  const Sgd sgd = *Sgd::Create({.momentum = 0.5, .nesterov = true, .weight_decay = 0.25});
  float w = 1.0f, v = 0.0f;
  const float g = 0.5f;
  sgd.Apply(&w, &w, &g, &v, 1, {0.5});  // g' = 0.75 = v, g'' = 0.75 + 0.375
  EXPECT_EQ(v, 0.75f);
  EXPECT_EQ(w, 0.4375f);
}

// Compares with a naive loop of separately rounded operations; in place or not, whole or in pieces.
TEST(SgdTest, SameBitsHoweverTheRangeIsCut) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  constexpr size_t kSize = 1037;
  for (const SgdOptions& options :
       {SgdOptions{}, SgdOptions{.weight_decay = 0.01}, SgdOptions{.momentum = 0.9},
        SgdOptions{.momentum = 0.9, .weight_decay = 0.01},
        SgdOptions{.momentum = 0.9, .nesterov = true},
        SgdOptions{.momentum = 0.9, .nesterov = true, .weight_decay = 0.01}}) {
    const Sgd sgd = *Sgd::Create(options);
    std::vector<float> w(kSize), g(kSize), v(kSize, 0.0f);
    for (float& x : w) x = normal(random);
    std::vector<float> in_place = w, state_in_place = v;
    const float lr = 0.1f, mu = static_cast<float>(options.momentum),
                decay = static_cast<float>(options.weight_decay);
    for (int step = 0; step < 3; ++step) {
      for (float& x : g) x = normal(random);
      std::vector<float> out(kSize), state = v;
      sgd.Apply(out.data(), w.data(), g.data(), state.data(), kSize, {0.1});
      for (size_t first = 0; first < kSize;) {
        const size_t n = std::min<size_t>(kSize - first, 1 + random() % 100);
        sgd.Apply(&in_place[first], &in_place[first], &g[first], &state_in_place[first], n, {0.1});
        first += n;
      }
      for (size_t i = 0; i < kSize; ++i) {
        volatile float d = g[i];  // volatile, so that no operation merges with the next
        if (options.weight_decay > 0) {
          volatile float term = decay * w[i];
          d = d + term;
        }
        if (options.momentum > 0) {
          volatile float old = mu * v[i];
          v[i] = old + d;
          volatile float ahead = mu * v[i];
          d = options.nesterov ? d + ahead : v[i];
        }
        volatile float change = lr * d;
        w[i] = w[i] - change;
      }
      ASSERT_EQ(std::memcmp(out.data(), w.data(), kSize * sizeof(float)), 0);
      ASSERT_EQ(std::memcmp(in_place.data(), w.data(), kSize * sizeof(float)), 0);
      if (options.momentum > 0) {
        ASSERT_EQ(state, v);
        ASSERT_EQ(state_in_place, v);
      }
    }
  }
}

TEST(SgdTest, PaddingStaysZero) {
  const Sgd sgd = *Sgd::Create({.momentum = 0.9, .nesterov = true, .weight_decay = 0.1});
  std::vector<float> w(16, 0.0f), g(16, 0.0f), v(16, 0.0f);
  for (int step = 0; step < 3; ++step) sgd.Apply(w.data(), w.data(), g.data(), v.data(), 16, {0.1});
  EXPECT_THAT(w, testing::Each(0.0f));
  EXPECT_THAT(v, testing::Each(0.0f));
}

TEST(SgdTest, RefusesOptionsOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const SgdOptions& options :
       {SgdOptions{.momentum = 1.0}, SgdOptions{.momentum = -0.1}, SgdOptions{.momentum = nan},
        SgdOptions{.weight_decay = -1}, SgdOptions{.weight_decay = nan},
        SgdOptions{.nesterov = true}}) {
    EXPECT_EQ(Sgd::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace capstan::training
