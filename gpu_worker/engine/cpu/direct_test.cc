// Compares direct convolutions with sums in double, for cases that the small graphs of
// tests/contract do not reach: several bands, channels in several parts, outputs in several pieces,
// every relation of kernel, stride and margin.
#include "gpu_worker/engine/cpu/blocked/direct.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gpu_worker/engine/cpu/phases_fixture.h"
#include "gtest/gtest.h"

namespace capstan::engine {
namespace {

// Relative to the largest value of a tensor. Twice the largest error in these cases, 1.5e-6.
constexpr double kTolerance = 3e-6;

struct Case {
  std::string name;
  int64_t groups, channels, outputs;  // outputs, channels: per group
  int64_t height, width;
  training::Window window;
  int64_t blocks;
};

DirectConv ConvOf(const Case& of) {
  DirectConv conv;
  conv.window = of.window;
  conv.groups = of.groups;
  conv.channels = of.channels;
  conv.outputs = of.outputs;
  conv.height = of.height;
  conv.width = of.width;
  const training::Window& w = of.window;
  conv.rows = (of.height + w.pads[0] + w.pads[2] - conv.reach(0)) / w.strides[0] + 1;
  conv.columns = (of.width + w.pads[1] + w.pads[3] - conv.reach(1)) / w.strides[1] + 1;
  return conv;
}

class DirectTest : public ::testing::TestWithParam<Case> {
 protected:
  DirectTest()
      : conv(ConvOf(of)),
        x(of.blocks * conv.x_block(), random),
        dy(of.blocks * conv.y_block(), random),
        weights(WeightCount() + of.groups * of.outputs, random) {
    run.blocks = of.blocks;
    run.weights = weights.data();
  }
  int64_t WeightCount() const { return of.groups * of.outputs * of.channels * conv.tap_count(); }

  NodePlaces Places(int64_t max_blocks) const {
    NodePlaces places;
    places.math = math;
    places.x = {x.data()};
    places.dy = dy.data();
    places.dx = {{nullptr, false}};
    places.parameters = {0, WeightCount()};
    places.backward = true;
    places.max_blocks = max_blocks;
    return places;
  }
  std::vector<float> RunForward(int64_t max_blocks) {
    const Floats y(dy.count());
    NodePlaces places = Places(max_blocks);
    places.y = y.data();
    NodePhases phases;
    EXPECT_TRUE(AddDirectForward(conv, places, /*bias=*/true, phases).ok());
    RunPhases(phases, phases.forward, run);
    return y.values();
  }
  // Added to `before`, or stored if that is null.
  std::vector<float> RunData(int64_t max_blocks, const Floats* before) {
    const Floats dx(x.count(), random);
    if (before != nullptr) std::copy_n(before->data(), x.count(), dx.data());
    NodePlaces places = Places(max_blocks);
    places.dx = {{dx.data(), before != nullptr}};
    NodePhases phases;
    EXPECT_TRUE(AddDirectData(conv, places, phases).ok());
    RunPhases(phases, phases.backward, run);
    return dx.values();
  }
  std::vector<float> RunWeights(int64_t max_blocks) {
    const Floats gradient(weights.count());
    run.gradient = gradient.data();
    NodePhases phases;
    AddDirectWeights(conv, Places(max_blocks), phases);
    RunPhases(phases, phases.backward, run);
    return gradient.values();
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

  // The place of x that place (p, q) of y reads at a tap; -1 outside.
  int64_t Read(int64_t p, int64_t q, int64_t tap) const {
    const training::Window& w = conv.window;
    const int64_t h = p * w.strides[0] + tap / w.kernel_shape[1] * w.dilations[0] - w.pads[0];
    const int64_t v = q * w.strides[1] + tap % w.kernel_shape[1] * w.dilations[1] - w.pads[1];
    return h < 0 || h >= conv.height || v < 0 || v >= conv.width ? -1 : h * conv.width + v;
  }

  // Compares random elements of a tensor with sums in double.
  template <typename Want>
  void ExpectClose(const std::vector<float>& got, int64_t count, Want want) {
    double largest = 0, error = 0;
    for (int i = 0; i < 300; ++i) {
      const auto at = static_cast<int64_t>(random() % static_cast<uint64_t>(count));
      const double value = want(at);
      largest = std::max(largest, std::abs(value));
      const double off = std::abs(got[at] - value);
      error = off <= error ? error : off;  // a NaN stays
    }
    EXPECT_LE(error, kTolerance * largest);
  }

  const Case& of = GetParam();
  const DirectConv conv;
  const BlockedMath* math = PresentMath().front();
  std::mt19937 random{7};
  const Floats x, dy, weights;
  BatchRun run;
};

TEST_P(DirectTest, Forward) {
  const int64_t plane = conv.rows * conv.columns, all = of.groups * of.outputs;
  const std::vector<float> y = RunForward(of.blocks);
  ExpectClose(y, dy.count(), [&](int64_t at) {
    const int64_t lane = at % 16, place = at / 16 % plane;
    const int64_t o = at / 16 / plane % all, block = at / 16 / plane / all;
    double sum = weights[WeightCount() + o];
    for (int64_t c = 0; c < of.channels; ++c) {
      const int64_t channel = (block * of.groups + o / of.outputs) * of.channels + c;
      for (int64_t k = 0; k < conv.tap_count(); ++k) {
        const int64_t from = Read(place / conv.columns, place % conv.columns, k);
        if (from < 0) continue;
        sum += double{weights[(o * of.channels + c) * conv.tap_count() + k]} *
               x[channel * conv.x_plane() + from * 16 + lane];
      }
    }
    return sum;
  });
  ExpectSameBits(y, [&](int64_t most) { return RunForward(most); });
}

TEST_P(DirectTest, DataGradient) {
  const int64_t all = of.groups * of.channels;
  const Floats before(x.count(), random);
  for (const bool add : {false, true}) {
    SCOPED_TRACE(add ? "added" : "stored");
    const Floats* const start = add ? &before : nullptr;
    const std::vector<float> dx = RunData(of.blocks, start);
    ExpectClose(dx, x.count(), [&](int64_t at) {
      const int64_t lane = at % 16, place = at % conv.x_plane() / 16;
      const int64_t c = at / conv.x_plane() % all, block = at / conv.x_plane() / all;
      double sum = add ? before[at] : 0;
      for (int64_t p = 0; p < conv.rows; ++p) {
        for (int64_t q = 0; q < conv.columns; ++q) {
          for (int64_t k = 0; k < conv.tap_count(); ++k) {
            if (Read(p, q, k) != place) continue;
            for (int64_t o = 0; o < of.outputs; ++o) {
              const int64_t output = c / of.channels * of.outputs + o;
              sum +=
                  double{weights[(output * of.channels + c % of.channels) * conv.tap_count() + k]} *
                  dy[block * conv.y_block() + output * conv.y_plane() +
                     (p * conv.columns + q) * 16 + lane];
            }
          }
        }
      }
      return sum;
    });
    ExpectSameBits(dx, [&](int64_t most) { return RunData(most, start); });
  }
}

TEST_P(DirectTest, WeightGradient) {
  const std::vector<float> gradient = RunWeights(of.blocks);
  ExpectClose(gradient, WeightCount(), [&](int64_t at) {
    const int64_t k = at % conv.tap_count(), c = at / conv.tap_count() % of.channels;
    const int64_t o = at / conv.tap_count() / of.channels;
    double sum = 0;
    for (int64_t block = 0; block < of.blocks; ++block) {
      for (int64_t i = 0; i < conv.rows * conv.columns; ++i) {
        const int64_t place = Read(i / conv.columns, i % conv.columns, k);
        if (place < 0) continue;
        const float* const from = x.data() + block * conv.x_block() +
                                  (o / of.outputs * of.channels + c) * conv.x_plane() + place * 16;
        const float* const by = dy.data() + block * conv.y_block() + o * conv.y_plane() + i * 16;
        for (int64_t lane = 0; lane < 16; ++lane) sum += double{from[lane]} * by[lane];
      }
    }
    return sum;
  });
  ExpectSameBits(gradient, [&](int64_t most) { return RunWeights(most); });
}

training::Window Square(int64_t kernel, int64_t stride, int64_t pad) {
  training::Window window;
  window.kernel_shape = {kernel, kernel};
  window.strides = {stride, stride};
  window.pads.fill(pad);
  return window;
}

INSTANTIATE_TEST_SUITE_P(
    All, DirectTest,
    ::testing::Values(
        // More channels than are processed together, runs of 64 outputs and one of 17.
        Case{"stride", 1, 90, 81, 11, 9, Square(3, 2, 1), 3},
        Case{"pointwise", 1, 70, 33, 9, 8, Square(1, 1, 0), 2},
        Case{"pointwise_stride", 1, 20, 52, 9, 10, Square(1, 2, 0), 3},
        Case{"many_channels", 1, 1100, 16, 3, 3, Square(1, 1, 0), 1},
        Case{"many_outputs", 1, 5, 1040, 3, 4, Square(1, 1, 0), 1},
        Case{"bands", 1, 33, 16, 40, 70, Square(3, 2, 1), 1},
        Case{"first_layer", 1, 3, 20, 29, 31, Square(7, 2, 3), 2},
        Case{"one_channel", 1, 1, 6, 12, 13, Square(5, 1, 0), 2},
        Case{"few_outputs", 1, 17, 3, 8, 7, Square(3, 1, 1), 2},
        Case{"depthwise", 11, 1, 1, 9, 7, Square(3, 2, 1), 2},
        // Several groups to a piece, the last of which has fewer.
        Case{"depthwise_small", 150, 1, 1, 4, 4, Square(3, 1, 1), 2},
        Case{"depthwise_stride", 150, 1, 1, 4, 5, Square(3, 2, 1), 1},
        // Several bands, and rows that are not a multiple of the places computed at a time.
        Case{"depthwise_bands", 2, 1, 1, 31, 37, Square(3, 1, 1), 1},
        Case{"depthwise_wide", 2, 1, 1, 9, 71, Square(5, 2, 2), 1},
        Case{"groups", 3, 5, 18, 8, 9, Square(3, 1, 1), 1},
        // Nothing reads some places between the kernel's steps.
        Case{"wide_steps", 1, 6, 19, 13, 14, Square(2, 3, 0), 1},
        Case{"wide_margins", 1, 9, 17, 4, 5, Square(3, 2, 4), 1},
        Case{"dilation", 2, 7, 16, 15, 13, {{3, 2}, {2, 3}, {3, 0, 1, 2}, {2, 3}}, 2},
        Case{"larger_than_the_image", 1, 4, 16, 2, 3, Square(5, 2, 3), 1},
        Case{"one_place", 1, 8, 24, 1, 1, Square(1, 1, 0), 9}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace capstan::engine
