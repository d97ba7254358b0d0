#include "training/optim/apply.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "training/optim/adagrad.h"
#include "training/optim/adam.h"
#include "training/optim/ftrl.h"
#include "training/optim/rmsprop.h"
#include "training/optim/sgd.h"

namespace capstan::training {
namespace {

TensorSpec WeightOf(std::string name, int64_t size) {
  return {.name = std::move(name), .shape = {size}, .fan_in = 1, .fan_out = 1};
}
TensorSpec StatisticOf(std::string name, int64_t size, double momentum) {
  return {.name = std::move(name),
          .shape = {size},
          .kind = TensorKind::kStat,
          .init = TensorInit::kZeros,
          .momentum = momentum};
}

// Chunks of 64 floats: 150 weights in three of them, the third one with padding, and statistics of
// two momenta in a fourth.
FlatLayout TwoKinds() {
  return *FlatLayout::Create(
      {WeightOf("bn1.weight", 150), StatisticOf("bn1.running_mean", 20, 0.25),
       StatisticOf("bn1.running_var", 3, 0.25), StatisticOf("bn2.running_mean", 2, 0.5)},
      /*chunk_floats=*/64);
}

// All numbers are exact in binary.
TEST(ApplyVersionTest, WeightsAndStatisticsByHand) {
  const FlatLayout layout = TwoKinds();
  const int64_t mean = layout.Find("bn1.running_mean")->offset;
  const int64_t other = layout.Find("bn2.running_mean")->offset;
  ASSERT_EQ(layout.statistics_begin(), 192);
  ASSERT_EQ(other, 192);
  ASSERT_EQ(mean, 208);
  std::vector<float> in(layout.total_floats()), sum(in.size()), state(in.size()), out(in.size(), 7);
  in[0] = 1;
  sum[0] = 4;
  in[mean] = 1;        // 1 + 0.25 * (3 - 1)
  sum[mean] = 24;      // times 0.125
  in[other + 1] = -2;  // -2 + 0.5 * (0.5 - -2)
  sum[other + 1] = 4;
  const Sgd sgd = *Sgd::Create({.momentum = 0.5, .weight_decay = 0.25});
  ApplyVersion(layout, {0, layout.total_floats()}, sgd, {0.5, 0.125},
               {out.data(), in.data(), sum.data(), state.data()});
  EXPECT_EQ(state[0], 0.75f);  // 4 * 0.125 + 0.25 * 1
  EXPECT_EQ(out[0], 0.625f);   // 1 - 0.5 * 0.75
  EXPECT_EQ(out[mean], 1.5f);
  EXPECT_EQ(out[other + 1], -0.75f);
  // The sum is unchanged, and so is everything else: padding, and the state of statistics.
  EXPECT_EQ(sum[0], 4);
  for (size_t i = 1; i < out.size(); ++i) {
    if (static_cast<int64_t>(i) == mean || static_cast<int64_t>(i) == other + 1) continue;
    ASSERT_EQ(out[i], 0) << i;
    ASSERT_EQ(state[i], 0) << i;
  }
}

// Neither the optimizer nor the loss scale, which is in the sum, changes statistics.
TEST(ApplyVersionTest, NothingElseActsOnStatistics) {
  const FlatLayout layout = TwoKinds();
  const FlatRange range = {layout.statistics_begin(),
                           layout.total_floats() - layout.statistics_begin()};
  std::vector<float> in(range.size, 1.0f), sum(range.size, 2.0f), state(range.size, 5.0f);
  const std::vector<float> scaled(range.size, 2.0f * 1024);
  std::vector<float> plain(range.size), other(range.size);
  ApplyVersion(layout, range, *Sgd::Create({}), {0.1, 1},
               {plain.data(), in.data(), sum.data(), nullptr});
  ApplyVersion(layout, range, *Sgd::Create({.momentum = 0.9, .nesterov = true, .weight_decay = 3}),
               {77, 1.0 / 1024}, {other.data(), in.data(), scaled.data(), state.data()});
  EXPECT_EQ(plain, other);
  EXPECT_EQ(state, std::vector<float>(range.size, 5.0f));
  EXPECT_EQ(plain[0], 1.5f);
  EXPECT_EQ(plain[16], 1.25f);
}

// Cut by chunks, in odd pieces or not at all, with more floats than one block of scaling.
TEST(ApplyVersionTest, SameBitsHoweverTheVectorIsCut) {
  const FlatLayout layout =
      *FlatLayout::Create({WeightOf("conv.weight", 9000), StatisticOf("bn.running_mean", 700, 0.1),
                           StatisticOf("bn.running_var", 333, 0.3)},
                          /*chunk_floats=*/512);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> in(layout.total_floats(), 0.0f), sum = in;
  for (const TensorSlot& slot : layout.slots()) {
    for (int64_t i = slot.offset; i < slot.range().end(); ++i) {
      in[i] = normal(random);
      sum[i] = normal(random);
    }
  }
  const Sgd sgd = *Sgd::Create({.momentum = 0.9, .weight_decay = 0.01});
  const VersionUpdate update = {0.1, 1.0 / 3};
  std::vector<float> want = in, want_state(in.size(), 0.5f);
  for (size_t i = 0; i < in.size(); ++i) {
    if (static_cast<int64_t>(i) < layout.statistics_begin()) {
      float g = sum[i] * static_cast<float>(1.0 / 3);
      sgd.Apply(&want[i], &want[i], &g, &want_state[i], 1, {0.1});
    }
  }
  for (const auto& [name, momentum] :
       {std::pair("bn.running_mean", 0.1f), std::pair("bn.running_var", 0.3f)}) {
    const FlatRange range = layout.Find(name)->range();
    for (int64_t i = range.offset; i < range.end(); ++i) {
      const float average = sum[i] * static_cast<float>(1.0 / 3);
      const float way = average - in[i];
      const float part = momentum * way;
      want[i] = in[i] + part;
    }
  }
  for (const int64_t piece : {layout.total_floats(), int64_t{512}, int64_t{4097}, int64_t{7}}) {
    std::vector<float> out(in.size(), -1.0f), state(in.size(), 0.5f), in_place = in;
    std::vector<float> in_place_state = state;
    for (int64_t at = 0; at < layout.total_floats(); at += piece) {
      const FlatRange range = {at, std::min(piece, layout.total_floats() - at)};
      ApplyVersion(layout, range, sgd, update, {&out[at], &in[at], &sum[at], &state[at]});
      ApplyVersion(layout, range, sgd, update,
                   {&in_place[at], &in_place[at], &sum[at], &in_place_state[at]});
    }
    EXPECT_EQ(std::memcmp(out.data(), want.data(), want.size() * 4), 0) << piece;
    EXPECT_EQ(std::memcmp(in_place.data(), want.data(), want.size() * 4), 0) << piece;
    EXPECT_EQ(std::memcmp(state.data(), want_state.data(), state.size() * 4), 0) << piece;
    EXPECT_EQ(state, in_place_state) << piece;
  }
}

// ---- Decay by tensors, clipping ----

TensorSpec BiasOf(std::string name, int64_t size, TensorInit init = TensorInit::kZeros) {
  return {.name = std::move(name), .shape = {size}, .init = init};
}

// Chunks of 64 floats with tensor borders inside them. The shapes are not those of a model.
FlatLayout WithBiases() {
  return *FlatLayout::Create(
      {WeightOf("conv.weight", 100), BiasOf("conv.bias", 20),
       BiasOf("bn.weight", 30, TensorInit::kOnes), BiasOf("bn.bias", 30),
       StatisticOf("bn.running_mean", 30, 0.25), WeightOf("fc.weight", 50), BiasOf("fc.bias", 5)},
      /*chunk_floats=*/64);
}

// Decides for each weight by its tensor. The cuts may lie anywhere.
TEST(ApplyVersionTest, OnlyWhatTheInitializerFillsIsDecayed) {
  const FlatLayout layout = WithBiases();
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> in(layout.total_floats()), sum(in.size());
  for (const TensorSlot& slot : layout.slots()) {
    for (int64_t i = slot.offset; i < slot.range().end(); ++i) {
      in[i] = normal(random);
      sum[i] = normal(random);
    }
  }
  const AdamOptions options{.weight_decay = 0.5, .decoupled = true};
  const Adam all = *Adam::Create(options);
  const Adam weights_only = *Adam::Create(options, {.decay_weights_only = true});
  const VersionUpdate update{.learning_rate = 0.1, .applied_steps = 6};
  std::vector<float> want = in, want_state(2 * in.size());
  int decayed = 0, others = 0;
  for (const TensorSlot& slot : layout.slots()) {
    if (slot.spec.kind != TensorKind::kWeight) continue;
    const std::string& name = slot.spec.name;
    const bool decays = name == "conv.weight" || name == "fc.weight";
    ++(decays ? decayed : others);
    for (int64_t i = slot.offset; i < slot.range().end(); ++i) {
      all.Apply(&want[i], &want[i], &sum[i], &want_state[2 * i], 1,
                {.learning_rate = 0.1, .number = 7, .decay = decays});
    }
  }
  ASSERT_EQ(decayed, 2);
  ASSERT_EQ(others, 4);
  const TensorSlot& mean = *layout.Find("bn.running_mean");
  for (int64_t i = mean.offset; i < mean.range().end(); ++i) {
    want[i] = in[i] + 0.25f * (sum[i] - in[i]);
  }
  for (const int64_t piece : {layout.total_floats(), int64_t{64}, int64_t{7}}) {
    std::vector<float> out(in.size(), -1.0f), state(2 * in.size());
    for (int64_t at = 0; at < layout.total_floats(); at += piece) {
      const FlatRange range = {at, std::min(piece, layout.total_floats() - at)};
      ApplyVersion(layout, range, weights_only, update,
                   {&out[at], &in[at], &sum[at], &state[2 * at]});
    }
    EXPECT_EQ(std::memcmp(out.data(), want.data(), want.size() * 4), 0) << piece;
    EXPECT_EQ(state, want_state) << piece;
  }
}

TEST(ApplyVersionTest, WhatIsNotDecayedMayComeFirst) {
  TensorSpec bias = WeightOf("fc.bias", 3);
  bias.init = TensorInit::kZeros;
  const FlatLayout layout = *FlatLayout::Create({bias}, /*chunk_floats=*/64);
  const Adam adam = *Adam::Create({.weight_decay = 0.5}, {.decay_weights_only = true});
  const auto floats = static_cast<size_t>(layout.total_floats());
  std::vector<float> in(floats, 2.0f), sum(floats, 1.0f), state(2 * floats), out(floats);
  ApplyVersion(layout, {0, layout.total_floats()}, adam, {.learning_rate = 0.1},
               {out.data(), in.data(), sum.data(), state.data()});
  EXPECT_LT(out[0], 2.0f);
  EXPECT_EQ(out[0], out[1]);
}

// Its decay is no part of the gradient. The numbers are those of FtrlByHand in rules_test.cc, first
// step.
TEST(ApplyVersionTest, FtrlDecaysNoBias) {
  TensorSpec bias = WeightOf("fc.bias", 1);
  bias.init = TensorInit::kZeros;
  const FlatLayout layout =
      *FlatLayout::Create({WeightOf("fc.weight", 1), bias}, /*chunk_floats=*/64);
  const Ftrl ftrl =
      *Ftrl::Create({.l1 = 3, .beta = 1, .weight_decay = 4}, {.decay_weights_only = true});
  std::vector<float> in(layout.total_floats()), sum(in.size()), out(in), state(2 * in.size());
  const int64_t weight = layout.Find("fc.weight")->offset, other = layout.Find("fc.bias")->offset;
  in[weight] = in[other] = 2;
  sum[weight] = sum[other] = 3;
  ApplyVersion(layout, {0, layout.total_floats()}, ftrl, {.learning_rate = 0.5},
               {out.data(), in.data(), sum.data(), state.data()});
  EXPECT_EQ(out[weight], 0.5f);  // 6 / (8 + 4)
  EXPECT_EQ(out[other], 0.75f);  // 6 / 8
  EXPECT_EQ(state[2 * weight], -9);
  EXPECT_EQ(state[2 * other], -9);
}

// All numbers are exact in binary. Scaled by 1/8 they are 0.5, 2, -3, 0.25. There are more than are
// clipped at a time. Also without a scale.
TEST(ApplyVersionTest, GradientsAreClippedAfterTheyAreScaled) {
  const FlatLayout layout = *FlatLayout::Create(
      {WeightOf("fc.weight", 9000), StatisticOf("bn.running_mean", 4, 0.5)}, /*chunk_floats=*/512);
  const Sgd clipped = *Sgd::Create({}, {.clip_value = 1});
  std::vector<float> in(layout.total_floats()), sum(in.size()), out(in.size());
  const float sums[] = {4, 16, -24, 2};
  for (int64_t i = 0; i < 9000; ++i) sum[i] = sums[i % 4];
  const int64_t mean = layout.Find("bn.running_mean")->offset;
  sum[mean] = 100;
  const VersionVectors vectors{out.data(), in.data(), sum.data(), nullptr};
  const auto expect = [&](const float(&gradients)[4], float average) {
    for (int64_t i = 0; i < 9000; ++i) ASSERT_EQ(out[i], -0.5f * gradients[i % 4]) << i;
    EXPECT_EQ(out[mean], 0.5f * average);  // a statistic is not clipped
  };
  ApplyVersion(layout, {0, layout.total_floats()}, clipped, {0.5, 0.125}, vectors);
  expect({0.5f, 1, -1, 0.25f}, 12.5f);
  ApplyVersion(layout, {0, layout.total_floats()}, clipped, {0.5, 1}, vectors);
  expect({1, 1, -1, 1}, 100);
  ApplyVersion(layout, {0, layout.total_floats()}, *Sgd::Create({}), {0.5, 1}, vectors);
  expect({4, 16, -24, 2}, 100);
}

// The factor of clipping by norm is for gradients alone, and comes before clipping by value.
TEST(ApplyVersionTest, StatisticsHaveNoClipFactor) {
  const FlatLayout layout = *FlatLayout::Create(
      {WeightOf("fc.weight", 5000), StatisticOf("bn.running_mean", 4, 0.5)}, /*chunk_floats=*/512);
  std::vector<float> in(layout.total_floats()), sum(in.size()), out(in.size());
  for (int64_t i = 0; i < 5000; ++i) sum[i] = i % 2 == 0 ? 16.0f : -2.0f;
  const int64_t mean = layout.Find("bn.running_mean")->offset;
  sum[mean] = 100;
  const VersionVectors vectors{out.data(), in.data(), sum.data(), nullptr};
  const VersionUpdate update{.learning_rate = 1, .gradient_scale = 0.5, .clip_factor = 0.25};
  const auto expect = [&](float even, float odd) {
    for (int64_t i = 0; i < 5000; ++i) ASSERT_EQ(out[i], i % 2 == 0 ? even : odd) << i;
    EXPECT_EQ(out[mean], 0.5f * 50);
  };
  ApplyVersion(layout, {0, layout.total_floats()}, *Sgd::Create({}), update, vectors);
  expect(-2, 0.25f);
  ApplyVersion(layout, {0, layout.total_floats()}, *Sgd::Create({}, {.clip_value = 1}), update,
               vectors);
  expect(-1, 0.25f);
}

// Every rule that has numbers, each in several forms.
std::vector<std::unique_ptr<const Optimizer>> RulesWithNumbers(const UpdateOptions& update) {
  std::vector<std::unique_ptr<const Optimizer>> rules;
  const auto add = [&](auto rule) {
    rules.push_back(std::make_unique<const std::decay_t<decltype(*rule)>>(*std::move(rule)));
  };
  for (const double decay : {0.0, 0.01}) {
    add(Sgd::Create({0, false, decay}, update));
    add(Sgd::Create({0.9, false, decay}, update));
    add(Sgd::Create({0.9, true, decay}, update));
    AdamOptions adam;
    adam.weight_decay = decay;
    for (const bool decoupled : {false, true}) {
      adam.decoupled = decoupled;
      add(Adam::Create(adam, update));
    }
    for (const bool centered : {false, true}) {
      for (const double momentum : {0.0, 0.9}) {
        add(Rmsprop::Create({0.9, 1e-6, momentum, centered, decay}, update));
      }
    }
    add(Adagrad::Create({1e-8, decay}, update));
    add(Ftrl::Create({0.01, 1, decay}, update));
  }
  return rules;
}

// A device gets only the parts, so they must give the bits of the host: with padding, tensors that
// are not decayed, statistics of two momenta, factors and clipping.
TEST(UpdatePartsTest, NumbersGiveTheBitsOfTheRules) {
  TensorSpec bias = WeightOf("fc.bias", 37);
  bias.init = TensorInit::kZeros;
  const FlatLayout layout = *FlatLayout::Create(
      {WeightOf("fc.weight", 150), bias, StatisticOf("bn1.running_mean", 20, 0.25),
       StatisticOf("bn2.running_mean", 3, 0.5)},
      /*chunk_floats=*/64);
  const auto floats = static_cast<size_t>(layout.total_floats());
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  int count = 0;
  for (const UpdateOptions& options : {UpdateOptions{}, UpdateOptions{true, 0},
                                       UpdateOptions{false, 0.5}, UpdateOptions{true, 0.5}}) {
    for (const auto& rule : RulesWithNumbers(options)) {
      const int states = rule->state_floats_per_weight();
      std::vector<float> want(floats), sum(floats), state(floats * states);
      for (float& v : want) v = normal(random);
      std::vector<float> got = want, got_state = state;
      for (int64_t step = 0; step < 6; ++step) {
        for (float& v : sum) v = 3 * normal(random);
        // Ftrl leaves everything as it is at the rate of step 4.
        const VersionUpdate update{.learning_rate = step == 4 ? 1e-40 : 0.1 / (step + 1),
                                   .gradient_scale = step == 2 ? 1.0 / 1024 : 1,
                                   .clip_factor = step == 3 ? 0.3 : 1,
                                   .applied_steps = step};
        ApplyVersion(layout, {0, layout.total_floats()}, *rule, update,
                     {want.data(), want.data(), sum.data(), state.data()});
        int64_t at = 0;
        for (const UpdatePart& part : UpdateParts(layout, *rule, update)) {
          EXPECT_TRUE(StatesOf(part.rule.form) == states || StatesOf(part.rule.form) == 0);
          for (int64_t i = 0; i < part.size; ++i, ++at) {
            got[at] = UpdateByNumbers(
                part.rule, got[at], GradientOf(sum[at], part.scale, part.clip),
                got_state.data() + at * states, [](float x) { return std::sqrt(x); });
          }
        }
        ASSERT_EQ(at, layout.total_floats());
        ASSERT_EQ(std::memcmp(got.data(), want.data(), floats * 4), 0) << count << " " << step;
        ASSERT_TRUE(got_state == state) << count << " " << step;
      }
      ++count;
    }
  }
  EXPECT_EQ(count, 4 * 2 * 11);
}

// Neighbours that are updated alike are one part.
TEST(UpdatePartsTest, AsFewAsPossible) {
  const FlatLayout layout = TwoKinds();
  const Sgd plain = *Sgd::Create({.weight_decay = 0.5});
  const std::vector<UpdatePart> parts = UpdateParts(layout, plain, {0.5, 0.25, 0.5, 7});
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].size, 192);
  EXPECT_EQ(parts[0].scale, 0.125f);
  EXPECT_EQ(parts[0].rule.form, RuleForm::kSgd);
  EXPECT_EQ(parts[0].rule.numbers[2], 0.5f);
  EXPECT_EQ(parts[1].size, 16);  // bn2
  EXPECT_EQ(parts[1].scale, 0.25f);
  EXPECT_EQ(parts[1].rule.numbers[0], 0.5f);
  EXPECT_EQ(parts[2].size, layout.total_floats() - 208);  // both of bn1
  EXPECT_EQ(parts[2].rule.form, RuleForm::kStatistic);
}

}  // namespace
}  // namespace capstan::training
