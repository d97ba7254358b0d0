// Tests parts of the CPU device that the device contract reaches only by chance.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gpu_worker/engine/cpu/arena.h"
#include "gpu_worker/engine/cpu/blocked/math.h"
#include "gpu_worker/engine/cpu/cpu_device.h"
#include "gpu_worker/engine/cpu/thread_pool.h"
#include "gtest/gtest.h"
#include "training/graph/models.h"
#include "training/graph/tensors.h"
#include "training/ops/conv/conv.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gelu/gelu.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/global_average_pool/global_average_pool.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::engine {
namespace {

using ::testing::HasSubstr;

TEST(ArenaTest, BuffersThatMeetDoNotShareAPlace) {
  std::vector<ArenaBuffer> buffers = {
      {100, 0, 4, 0}, {64, 1, 2, 0}, {300, 3, 5, 0}, {0, 0, 9, 0}, {64, 5, 6, 0}};
  const int64_t total = PlaceBuffers(buffers);
  for (size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_EQ(buffers[i].offset % 64, 0);
    EXPECT_LE(buffers[i].offset + buffers[i].bytes, total);
    for (size_t j = 0; j < i; ++j) {
      const ArenaBuffer &a = buffers[i], &b = buffers[j];
      const bool meet = a.first <= b.last && b.first <= a.last;
      const bool overlap = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
      EXPECT_FALSE(meet && overlap) << i << " and " << j;
    }
  }
  // 300 (rounded to 320) and 100 (128) are needed at the same time. The small ones fit beside them
  // or in their places.
  EXPECT_EQ(total, 320 + 128);
}

TEST(BlockedMathTest, AWordNamesItsLoopsOrIsRefused) {
  BlockedMath avx2, emulated;
  avx2.target = kAvx2;
  emulated.target = kEmulated;
  const std::vector<const BlockedMath*> present = {&avx2, &emulated};
  EXPECT_EQ(*MathOf("avx2", present), &avx2);
  EXPECT_EQ(*MathOf("emulated", present), &emulated);
  const absl::Status lacking = MathOf("avx512", present).status();
  EXPECT_EQ(lacking.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(lacking.message(), "'avx512': this processor has avx2, emulated");
  const absl::Status unknown = MathOf("AVX2", present).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(unknown.message(),
            "'AVX2', want avx512, avx2 or emulated; this processor has avx2, emulated");
}

// By hand: (1 + 2^-12)^2 - (1 + 2^-11) = 2^-24. A separately rounded product loses it.
TEST(BlockedMathTest, AllLoopsRoundAMultiplyAddOnce) {
  for (const BlockedMath* const math : PresentMath()) {
    alignas(64) float x[kSideBySide];
    for (float& value : x) value = 1 + 0x1p-12f;
    NormalizeCall call;
    call.size = kSideBySide;
    call.x = x;
    call.scale = 1 + 0x1p-12f;
    call.shift = -(1 + 0x1p-11f);
    call.y = x;
    math->normalize(call);
    for (const float value : x) EXPECT_EQ(value, 0x1p-24f) << math->target;
  }
}

// Each tensor by itself has a size that a machine may have, but their sum overflows int64_t.
TEST(GraphPlanTest, TensorsThatTogetherFitIntoNoMemoryAreRefused) {
  constexpr int kDepth = 1200;
  training::Conv conv;  // gives all later values a gradient, so that they stay
  conv.out_channels = 1;
  std::vector<training::GraphNode> nodes = {{"conv", conv, {0}}};
  for (int i = 1; i <= kDepth; ++i) {
    nodes.push_back({"gelu" + std::to_string(i), training::Gelu(), {i}});
  }
  nodes.push_back({"pool", training::GlobalAveragePool(), {kDepth + 1}});
  nodes.push_back({"flatten", training::Flatten(), {kDepth + 2}});
  nodes.push_back({"fc", training::Gemm{2}, {kDepth + 3}});
  nodes.push_back({"loss", training::SoftmaxCrossEntropyLoss(), {kDepth + 4}});
  const auto graph = training::Graph::Build("deep", {1, 1 << 19, 1 << 19}, std::move(nodes));
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto layout = training::FlatLayout::Create(training::TensorSpecs(*graph));
  ASSERT_TRUE(layout.ok()) << layout.status();
  PlanOptions options;
  options.max_batch = 8000;
  const absl::Status status = MakeCpuDevice({})->Compile(*graph, *layout, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("does not fit into any memory"));
}

TEST(ThreadPoolTest, EachWorkerRunsOncePerCall) {
  ThreadPool pool(3);
  std::atomic<int> calls[3] = {};
  for (int round = 0; round < 1000; ++round) {
    pool.Run(
        1 + round % 3,
        [](void* argument, int worker) { ++static_cast<std::atomic<int>*>(argument)[worker]; },
        calls);
  }
  EXPECT_EQ(calls[0], 1000);
  EXPECT_EQ(calls[1], 666);
  EXPECT_EQ(calls[2], 333);
}

// Longer than a thread polls before it sleeps.
void Busy() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
  while (std::chrono::steady_clock::now() < end) {
  }
}

TEST(ThreadPoolTest, WhoWaitsLongIsWoken) {
  ThreadPool pool(3);
  std::atomic<int> calls = 0;
  for (int late = 0; late < 9; ++late) {
    struct Argument {
      int late;
      std::atomic<int>& calls;
    } argument = {late % 3, calls};
    pool.Run(
        3,
        [](void* of, int worker) {
          auto& [late, calls] = *static_cast<Argument*>(of);
          if (worker == late) Busy();
          ++calls;
        },
        &argument);
    EXPECT_EQ(calls, 3 * (late + 1));
    if (late % 2 == 0) Busy();  // no thread has work
  }
}

}  // namespace
}  // namespace capstan::engine
