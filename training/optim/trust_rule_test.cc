// LARS and LAMB: against values of MXNet, against their formulas in doubles, and their bits.
#include "training/optim/trust_rule.h"

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
#include "training/optim/apply.h"
#include "training/optim/lamb.h"
#include "training/optim/lars.h"

namespace capstan::training {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TensorSpec Tensor(std::string name, int64_t size, TensorInit init = TensorInit::kInitializer) {
  return {.name = std::move(name), .shape = {size}, .init = init, .fan_in = 1, .fan_out = 1};
}

// Steps of one job in one process, in the way in which shards and local tasks make them.
class Job {
 public:
  Job(FlatLayout layout, const Optimizer& optimizer)
      : layout_(std::move(layout)),
        optimizer_(optimizer),
        pieces_(layout_),
        weights(static_cast<size_t>(layout_.total_floats())),
        state(weights.size() * static_cast<size_t>(optimizer.state_floats_per_weight())) {}

  std::vector<PieceSquares> Measure(const std::vector<float>& sum, const VersionUpdate& update) {
    std::vector<PieceSquares> squares;
    for (int32_t chunk = 0; chunk < layout_.chunk_count(); ++chunk) {
      const int64_t at = layout_.ChunkRange(chunk).offset;
      MeasureChunk(layout_, pieces_, chunk, optimizer_, update, At(at, sum, weights), &squares);
    }
    return squares;
  }

  // Updates the vector in ranges of `piece` floats; 0: at once. Returns the ratios.
  std::vector<double> Step(const std::vector<float>& sum, VersionUpdate update, int64_t piece = 0) {
    const std::vector<TensorNorms> norms = *pieces_.Norms(Measure(sum, update));
    std::vector<double> ratios = TrustRatios(layout_, optimizer_, update, norms);
    update.trust_ratios = ratios;
    const std::vector<float> before = weights;
    const int64_t total = layout_.total_floats();
    if (piece == 0) piece = total;
    for (int64_t at = 0; at < total; at += piece) {
      ApplyVersion(layout_, {at, std::min(piece, total - at)}, optimizer_, update,
                   At(at, sum, before));
    }
    return ratios;
  }

  float* Find(const char* name) { return &weights[layout_.Find(name)->offset]; }
  const FlatLayout& layout() const { return layout_; }

 private:
  VersionVectors At(int64_t offset, const std::vector<float>& sum, const std::vector<float>& in) {
    return {
        .out = &weights[offset],
        .in = &in[offset],
        .sum = &sum[offset],
        .state = state.empty() ? nullptr : &state[offset * optimizer_.state_floats_per_weight()]};
  }

  const FlatLayout layout_;
  const Optimizer& optimizer_;
  const TensorPieces pieces_;

 public:
  std::vector<float> weights, state;
};

// ---- Values of mxnet 1.9.1 from PyPI ----

// Three updates of a weight {1, -2, 0.5, 4} and a bias {0, 0.5} by the gradients
// {0.5, 1, -2, 0.25 t} and {1, -0.5 t}, t from 1. Both are decayed, as in MXNet without names.
void ExpectMxnet(const Optimizer& optimizer, double rate, const std::vector<double>& weight,
                 const std::vector<double>& bias) {
  Job job(*FlatLayout::Create({Tensor("fc.weight", 4), Tensor("fc.bias", 2, TensorInit::kZeros)},
                              /*chunk_floats=*/16),
          optimizer);
  float* const w = job.Find("fc.weight");
  float* const b = job.Find("fc.bias");
  const float start[] = {1, -2, 0.5, 4};
  std::copy(start, start + 4, w);
  b[1] = 0.5;
  for (int t = 1; t <= 3; ++t) {
    std::vector<float> sum(job.weights.size());
    const auto step = static_cast<float>(t);
    const float gradient[] = {0.5, 1, -2, 0.25f * step};
    std::copy(gradient, gradient + 4, &sum[w - job.weights.data()]);
    sum[b - job.weights.data()] = 1;
    sum[b - job.weights.data() + 1] = -0.5f * step;
    job.Step(sum, {.learning_rate = rate, .applied_steps = t - 1});
  }
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(w[i], weight[i], 2e-6) << i;
  for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(b[i], bias[i], 2e-6) << i;
}

TEST(TrustRuleTest, LarsIsThatOfMxnet) {
  // mx.optimizer.LARS(learning_rate=0.5, momentum=0.9, eta=0.1, wd=0.125)
  ExpectMxnet(*Lars::Create({.momentum = 0.9, .weight_decay = 0.125, .eta = 0.1}), 0.5,
              {0x1.73796p-1, -0x1.2a2864p+1, 0x1.59d0acp+0, 0x1.cc2edap+1},
              {-0x1.54170ap+1, 0x1.4f96ep+1});
  // mx.optimizer.LARS(learning_rate=0.5, eta=0.1)
  ExpectMxnet(*Lars::Create({.eta = 0.1}), 0.5,
              {0x1.b4351ap-1, -0x1.25e572p+1, 0x1.1795cap+0, 0x1.ed2616p+1}, {-1.5, 2});
}

TEST(TrustRuleTest, LambIsThatOfMxnet) {
  // mx.optimizer.LAMB(learning_rate=0.125, wd=0.25)
  ExpectMxnet(*Lamb::Create({.weight_decay = 0.25}), 0.125,
              {0x1.b26a9ep-3, -0x1.2856fp+1, 0x1.0d304ep+0, 0x1.60c25cp+1},
              {-0x1.3f8636p-3, 0x1.43b716p-1});
  // mx.optimizer.LAMB(learning_rate=0.125, lower_bound=2, upper_bound=3, bias_correction=False)
  ExpectMxnet(*Lamb::Create({.bias_correction = false, .lower_bound = 2, .upper_bound = 3}), 0.125,
              {0x1.bc5654p-2, -0x1.4875a8p+1, 0x1.10ebc2p+0, 0x1.b967bep+1},
              {-0x1.130a38p-1, 0x1.05f958p+0});
}

// ---- A model with tensors of all kinds ----

// A chunk cuts the largest tensor, in more floats than are measured at a time, and has several others.
FlatLayout Model() {
  return *FlatLayout::Create({Tensor("conv.weight", 100),
                              Tensor("bn.weight", 30, TensorInit::kOnes),
                              Tensor("bn.bias", 30, TensorInit::kZeros),
                              {.name = "bn.running_mean",
                               .shape = {30},
                               .kind = TensorKind::kStat,
                               .init = TensorInit::kZeros,
                               .momentum = 0.25},
                              Tensor("fc.weight", 5000),
                              Tensor("fc.bias", 5, TensorInit::kZeros)},
                             /*chunk_floats=*/4096 + 64);
}

std::vector<float> Normals(const FlatLayout& layout, int seed) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(layout.total_floats()));
  for (const TensorSlot& slot : layout.slots()) {
    for (int64_t i = slot.offset; i < slot.range().end(); ++i) values[i] = normal(random);
  }
  return values;
}

double Norm(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

// One tensor, in doubles. `m` and `v` begin as zeros.
struct NaiveTensor {
  std::vector<double> w, m, v;

  void Lars(const LarsOptions& o, double rate, bool scaled, bool decay,
            const std::vector<double>& g) {
    const double wd = decay ? o.weight_decay : 0;
    const double ratio = scaled ? o.eta * Norm(w) / (Norm(g) + wd * Norm(w) + o.epsilon) : 1;
    for (size_t i = 0; i < w.size(); ++i) {
      m[i] = o.momentum * m[i] + ratio * (g[i] + wd * w[i]);
      w[i] -= rate * m[i];
    }
  }
  void Lamb(const LambOptions& o, double rate, int t, bool decay, const std::vector<double>& g) {
    std::vector<double> u(w.size());
    for (size_t i = 0; i < w.size(); ++i) {
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g[i];
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * g[i] * g[i];
      u[i] = m[i] / (1 - std::pow(o.beta1, t)) /
                 (std::sqrt(v[i] / (1 - std::pow(o.beta2, t))) + o.epsilon) +
             (decay ? o.weight_decay * w[i] : 0);
    }
    const double ratio = Norm(w) > 0 ? Norm(w) / Norm(u) : 1;
    for (size_t i = 0; i < w.size(); ++i) w[i] -= rate * ratio * u[i];
  }
};

// Twenty steps with a loss scale of 8, against `naive`, which updates one tensor.
void ExpectFormula(const Optimizer& optimizer, double rate,
                   const std::function<void(NaiveTensor&, int t, bool initialized,
                                            const std::vector<double>& g)>& naive) {
  Job job(Model(), optimizer);
  job.weights = Normals(job.layout(), 1);
  std::vector<NaiveTensor> tensors;
  for (const TensorSlot& slot : job.layout().slots()) {
    NaiveTensor& tensor = tensors.emplace_back();
    tensor.w.assign(&job.weights[slot.offset], &job.weights[slot.offset] + slot.size);
    tensor.m.resize(tensor.w.size());
    tensor.v.resize(tensor.w.size());
  }
  for (int t = 1; t <= 20; ++t) {
    const std::vector<float> sum = Normals(job.layout(), t + 1);
    job.Step(sum, {.learning_rate = rate, .gradient_scale = 0.125, .applied_steps = t - 1});
    for (size_t i = 0; i < tensors.size(); ++i) {
      const TensorSlot& slot = job.layout().slots()[i];
      if (slot.spec.kind == TensorKind::kStat) continue;
      std::vector<double> g(&sum[slot.offset], &sum[slot.offset] + slot.size);
      for (double& value : g) value *= 0.125;
      naive(tensors[i], t, slot.spec.init == TensorInit::kInitializer, g);
      for (int64_t k = 0; k < slot.size; ++k) {
        ASSERT_NEAR(job.weights[slot.offset + k], tensors[i].w[k], 2e-5)
            << slot.spec.name << " " << k << ", step " << t;
      }
    }
  }
}

TEST(TrustRuleTest, LarsFollowsItsFormula) {
  const LarsOptions options{.momentum = 0.9, .weight_decay = 0.05, .eta = 0.02, .epsilon = 1e-3};
  for (const bool weights_only : {false, true}) {
    ExpectFormula(*Lars::Create(options, {.decay_weights_only = weights_only}), 0.1,
                  [&](NaiveTensor& tensor, int, bool initialized, const auto& g) {
                    tensor.Lars(options, 0.1, initialized, initialized || !weights_only, g);
                  });
  }
}

TEST(TrustRuleTest, LambFollowsItsFormula) {
  const LambOptions options{.beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.05};
  for (const bool weights_only : {false, true}) {
    ExpectFormula(*Lamb::Create(options, {.decay_weights_only = weights_only}), 0.01,
                  [&](NaiveTensor& tensor, int t, bool initialized, const auto& g) {
                    tensor.Lamb(options, 0.01, t, initialized || !weights_only, g);
                  });
  }
}

// Neither where the vector is cut nor a loss scale changes a bit.
TEST(TrustRuleTest, SameBitsHoweverTheVectorIsCut) {
  const std::vector<std::shared_ptr<const Optimizer>> rules = {
      std::make_shared<const Lars>(*Lars::Create({.momentum = 0.9, .weight_decay = 0.01})),
      std::make_shared<const Lars>(*Lars::Create({})),
      std::make_shared<const Lamb>(*Lamb::Create({.weight_decay = 0.01}))};
  for (const auto& rule : rules) {
    std::vector<std::vector<float>> results;
    for (const int64_t piece : {0, 4160, 1024, 7}) {
      for (const double scale : {1.0, 1.0 / 1024}) {
        Job job(Model(), *rule);
        job.weights = Normals(job.layout(), 1);
        for (int64_t step = 0; step < 3; ++step) {
          std::vector<float> sum = Normals(job.layout(), 2 + static_cast<int>(step));
          for (float& value : sum) value /= static_cast<float>(scale);
          job.Step(sum, {.learning_rate = 0.1, .gradient_scale = scale, .applied_steps = step},
                   piece);
        }
        results.push_back(job.weights);
        results.back().insert(results.back().end(), job.state.begin(), job.state.end());
      }
    }
    for (const std::vector<float>& other : results) {
      EXPECT_EQ(std::memcmp(other.data(), results[0].data(), 4 * other.size()), 0);
    }
  }
}

// To measure changes nothing, and what is measured is that of the very step that follows.
TEST(TrustRuleTest, MeasuringLeavesTheStateAlone) {
  const Lamb lamb = *Lamb::Create({.weight_decay = 0.01});
  Job job(Model(), lamb);
  job.weights = Normals(job.layout(), 1);
  const std::vector<float> sum = Normals(job.layout(), 2);
  job.Step(sum, {.learning_rate = 0.1, .applied_steps = 0});
  const std::vector<float> weights = job.weights, state = job.state;
  const VersionUpdate next{.learning_rate = 0.1, .applied_steps = 1};
  const std::vector<PieceSquares> squares = job.Measure(sum, next);
  EXPECT_EQ(job.weights, weights);
  EXPECT_EQ(job.state, state);
  EXPECT_EQ(job.Measure(sum, next), squares);
  EXPECT_NE(job.Measure(sum, {.applied_steps = 2}), squares);  // the corrections of Adam
}

TEST(TrustRuleTest, OnlyLarsLeavesBiasesAndScalesAlone) {
  const auto ratios = [](const Optimizer& optimizer) {
    Job job(*FlatLayout::Create({Tensor("a.weight", 1), Tensor("a.scale", 1, TensorInit::kOnes),
                                 Tensor("a.bias", 1, TensorInit::kZeros)},
                                /*chunk_floats=*/64),
            optimizer);
    *job.Find("a.weight") = 3;
    *job.Find("a.scale") = 3;
    std::vector<float> sum(job.weights.size(), 0.0f);
    for (const TensorSlot& slot : job.layout().slots()) sum[slot.offset] = 6;
    return job.Step(sum, {.learning_rate = 0.1});
  };
  const double lars = 0.5 * 3 / (6 + 0.25);
  EXPECT_THAT(ratios(*Lars::Create({.eta = 0.5, .epsilon = 0.25})), ElementsAre(lars, 1, 1));
  // Adam's first direction is 1; a bias of 0 has no norm.
  EXPECT_THAT(ratios(*Lamb::Create({})),
              ElementsAre(testing::DoubleNear(3, 1e-5), testing::DoubleNear(3, 1e-5), 1));
}

TEST(TrustRuleTest, ANormThatSaysNothingGivesOne) {
  const Lars lars = *Lars::Create({.eta = 0.5});
  const Lamb lamb = *Lamb::Create({});
  const double infinite = std::numeric_limits<double>::infinity();
  for (const TensorNorms& norms :
       {TensorNorms{0, 1}, TensorNorms{1, 0}, TensorNorms{0, 0}, TensorNorms{infinite, 1},
        TensorNorms{1, infinite}, TensorNorms{std::nan(""), 1}, TensorNorms{1, std::nan("")}}) {
    EXPECT_EQ(lars.Ratio(norms, true), 1);
    EXPECT_EQ(lamb.Ratio(norms, true), 1);
  }
  EXPECT_EQ(lamb.Ratio({6, 3}, true), 2);
  const Lamb bounded = *Lamb::Create({.lower_bound = 2, .upper_bound = 4});
  EXPECT_EQ(bounded.Ratio({1, 4}, true), 0.5);
  EXPECT_EQ(bounded.Ratio({3, 4}, true), 0.75);
  EXPECT_EQ(bounded.Ratio({5, 4}, true), 1);
  EXPECT_EQ(bounded.Ratio({0, 4}, true), 0.5);
}

// |g| is that of the clipped gradient.
TEST(TrustRuleTest, ClippingByNormComesFirst) {
  const Lars lars = *Lars::Create({.eta = 0.5, .epsilon = 1e-30});
  const FlatLayout layout = *FlatLayout::Create({Tensor("a.weight", 1)}, /*chunk_floats=*/64);
  const std::vector<TensorNorms> norms = {{3, 6}};
  EXPECT_THAT(TrustRatios(layout, lars, {}, norms), ElementsAre(0.25));
  EXPECT_THAT(TrustRatios(layout, lars, {.clip_factor = 0.5}, norms), ElementsAre(0.5));
}

TEST(TrustRuleTest, RefusesOptionsOutsideTheirRange) {
  const auto lars = [](const LarsOptions& o) {
    return std::string(Lars::Create(o).status().message());
  };
  EXPECT_THAT(lars({.momentum = 1}), HasSubstr("momentum: got 1"));
  EXPECT_THAT(lars({.weight_decay = -1}), HasSubstr("weight_decay: got -1"));
  EXPECT_THAT(lars({.eta = 0}), HasSubstr("eta: got 0"));
  EXPECT_THAT(lars({.epsilon = 0}), HasSubstr("epsilon: got 0"));
  const auto lamb = [](const LambOptions& o) {
    return std::string(Lamb::Create(o).status().message());
  };
  EXPECT_THAT(lamb({.beta1 = 1}), HasSubstr("beta1: got 1"));
  EXPECT_THAT(lamb({.beta2 = -0.1}), HasSubstr("beta2: got -0.1"));
  EXPECT_THAT(lamb({.epsilon = 0}), HasSubstr("epsilon: got 0"));
  EXPECT_THAT(lamb({.weight_decay = -1}), HasSubstr("weight_decay: got -1"));
  EXPECT_THAT(lamb({.lower_bound = 3, .upper_bound = 2}), HasSubstr("lower_bound: got 3"));
  EXPECT_THAT(lamb({.upper_bound = -1}), HasSubstr("upper_bound: got -1"));
}

}  // namespace
}  // namespace capstan::training
