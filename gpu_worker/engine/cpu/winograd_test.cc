// Compares Winograd's convolution with sums in double, for cases that the small graphs of
// tests/contract do not reach: several rounds, weights that are kept and that are not, every
// padding.
#include "gpu_worker/engine/cpu/blocked/winograd.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gpu_worker/engine/cpu/phases_fixture.h"
#include "gtest/gtest.h"

namespace capstan::engine {
namespace {

// Relative to the largest value of a tensor. Twice the largest error in these cases, 1e-5.
// winograd.h explains how rounding errors grow.
constexpr double kTolerance = 2e-5;

struct Case {
  std::string name;
  int64_t channels, outputs, height, width, rows, columns, top, left, blocks;
};

class WinogradTest : public ::testing::TestWithParam<Case> {
 protected:
  WinogradTest()
      : x(of.blocks * of.channels * of.height * of.width * 16, random),
        dy(of.blocks * of.outputs * of.rows * of.columns * 16, random),
        weights(of.outputs * of.channels * 9 + of.outputs, random) {
    run.blocks = of.blocks;
    run.weights = weights.data();
  }

  // A pass gives the same bits in a larger plan and with every available instruction set.
  template <typename Run>
  void ExpectSameBits(const std::vector<float>& want, Run run_for) {
    EXPECT_EQ(run_for(of.blocks + 9), want) << "bits with room for more";
    for (const BlockedMath* const other : PresentMath()) {
      math = other;
      EXPECT_EQ(run_for(of.blocks), want) << other->target;
    }
  }

  WinogradConv Forward(int64_t max_blocks) const {
    return {of.channels, of.height, of.width, of.outputs, of.rows,
            of.columns,  of.top,    of.left,  max_blocks, math};
  }
  std::vector<float> RunForward(int64_t max_blocks) {
    const Floats y(dy.count());
    NodePhases phases;
    EXPECT_TRUE(AddWinogradPass({Forward(max_blocks), x.data(), y.data(), false, 0, false,
                                 of.outputs * of.channels * 9},
                                phases, phases.forward)
                    .ok());
    RunPhases(phases, phases.forward, run);
    return y.values();
  }
  // Added to `before`.
  std::vector<float> RunData(int64_t max_blocks, const Floats& before) {
    const Floats dx(x.count());
    std::copy_n(before.data(), x.count(), dx.data());
    NodePhases phases;
    const WinogradConv conv = {of.outputs, of.rows,    of.columns,  of.channels, of.height,
                               of.width,   2 - of.top, 2 - of.left, max_blocks,  math};
    EXPECT_TRUE(
        AddWinogradPass({conv, dy.data(), dx.data(), true, 0, true, -1}, phases, phases.backward)
            .ok());
    RunPhases(phases, phases.backward, run);
    return dx.values();
  }
  std::vector<float> RunWeights(int64_t max_blocks) {
    const Floats gradient(weights.count());
    run.gradient = gradient.data();
    NodePhases phases;
    AddWinogradWeights({Forward(max_blocks), x.data(), dy.data(), 0}, phases);
    RunPhases(phases, phases.backward, run);
    return gradient.values();
  }

  // The place of x that a place of y reads at (r, s); -1 outside.
  int64_t Read(int64_t p, int64_t q, int64_t r, int64_t s) const {
    const int64_t h = p + r - of.top, w = q + s - of.left;
    return h < 0 || h >= of.height || w < 0 || w >= of.width ? -1 : h * of.width + w;
  }
  int64_t Draw(int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); }

  // Compares random elements of a tensor with sums in double.
  template <typename Want>
  void ExpectClose(const std::vector<float>& got, int64_t count, Want want) {
    std::vector<double> errors;
    double largest = 0;
    for (int i = 0; i < 300; ++i) {
      const int64_t at = Draw(count);
      const double value = want(at);
      largest = std::max(largest, std::abs(value));
      errors.push_back(std::abs(got[at] - value));
    }
    EXPECT_LT(*std::max_element(errors.begin(), errors.end()), kTolerance * largest);
  }

  const Case& of = GetParam();
  const BlockedMath* math = PresentMath().front();
  std::mt19937 random{7};
  const Floats x, dy, weights;
  BatchRun run;
};

TEST_P(WinogradTest, Forward) {
  const int64_t plane = of.rows * of.columns;
  const std::vector<float> y = RunForward(of.blocks);
  ExpectClose(y, dy.count(), [&](int64_t at) {
    const int64_t lane = at % 16, q = at / 16 % of.columns, p = at / 16 / of.columns % of.rows;
    const int64_t o = at / 16 / plane % of.outputs, block = at / 16 / plane / of.outputs;
    double sum = weights[of.outputs * of.channels * 9 + o];
    for (int64_t c = 0; c < of.channels; ++c) {
      for (int64_t k = 0; k < 9; ++k) {
        const int64_t place = Read(p, q, k / 3, k % 3);
        if (place < 0) continue;
        sum += double{weights[(o * of.channels + c) * 9 + k]} *
               x[((block * of.channels + c) * of.height * of.width + place) * 16 + lane];
      }
    }
    return sum;
  });
  ExpectSameBits(y, [&](int64_t most) { return RunForward(most); });
}

TEST_P(WinogradTest, DataGradient) {
  const int64_t plane = of.height * of.width;
  const Floats before(x.count(), random);
  const std::vector<float> dx = RunData(of.blocks, before);
  ExpectClose(dx, x.count(), [&](int64_t at) {
    const int64_t lane = at % 16, w = at / 16 % of.width, h = at / 16 / of.width % of.height;
    const int64_t c = at / 16 / plane % of.channels, block = at / 16 / plane / of.channels;
    double sum = before[at];
    for (int64_t o = 0; o < of.outputs; ++o) {
      for (int64_t k = 0; k < 9; ++k) {
        const int64_t p = h - k / 3 + of.top, q = w - k % 3 + of.left;
        if (p < 0 || p >= of.rows || q < 0 || q >= of.columns) continue;
        sum += double{weights[(o * of.channels + c) * 9 + k]} *
               dy[(((block * of.outputs + o) * of.rows + p) * of.columns + q) * 16 + lane];
      }
    }
    return sum;
  });
  ExpectSameBits(dx, [&](int64_t most) { return RunData(most, before); });
}

TEST_P(WinogradTest, WeightGradient) {
  const std::vector<float> gradient = RunWeights(of.blocks);
  ExpectClose(gradient, of.outputs * of.channels * 9, [&](int64_t at) {
    const int64_t k = at % 9, c = at / 9 % of.channels, o = at / 9 / of.channels;
    double sum = 0;
    for (int64_t block = 0; block < of.blocks; ++block) {
      for (int64_t i = 0; i < of.rows * of.columns; ++i) {
        const int64_t place = Read(i / of.columns, i % of.columns, k / 3, k % 3);
        if (place < 0) continue;
        const float* const from =
            x.data() + ((block * of.channels + c) * of.height * of.width + place) * 16;
        const float* const by =
            dy.data() + ((block * of.outputs + o) * of.rows * of.columns + i) * 16;
        for (int64_t lane = 0; lane < 16; ++lane) sum += double{from[lane]} * by[lane];
      }
    }
    return sum;
  });
  ExpectSameBits(gradient, [&](int64_t most) { return RunWeights(most); });
}

INSTANTIATE_TEST_SUITE_P(
    All, WinogradTest,
    ::testing::Values(Case{"same", 17, 21, 6, 9, 6, 9, 1, 1, 2},
                      Case{"valid", 16, 16, 9, 7, 7, 5, 0, 0, 3},
                      Case{"wide_margins", 18, 33, 4, 5, 8, 7, 2, 2, 1},
                      Case{"uneven_margins", 20, 16, 6, 6, 6, 5, 0, 2, 1},
                      // 25 tiles in rounds of 20 and, for the gradient by the weights, of 16; kept
                      // weights.
                      Case{"rounds", 160, 16, 18, 18, 18, 18, 1, 1, 1},
                      // Eight runs of outputs, so each piece makes its own weights.
                      Case{"weights_in_pieces", 130, 128, 4, 4, 4, 4, 1, 1, 2}),
    [](const auto& info) { return info.param.name; });

// The rule depends on the shape alone.
TEST(WinogradRuleTest, PaysFromSixteenChannelsAndThreePlaces) {
  const auto pays = [](int64_t channels, int64_t outputs, int64_t places) {
    return WinogradPays({channels, places, places, outputs, places, places, 1, 1, 4});
  };
  EXPECT_TRUE(pays(64, 64, 32));
  EXPECT_TRUE(pays(512, 512, 4));
  EXPECT_TRUE(pays(16, 16, 5));
  EXPECT_FALSE(pays(3, 64, 32));
  EXPECT_FALSE(pays(64, 15, 32));
  EXPECT_FALSE(pays(64, 64, 2));
}

}  // namespace
}  // namespace capstan::engine
