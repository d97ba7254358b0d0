#include "training/chunks/flat_layout.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/chunks/placement.h"

namespace capstan::training {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TensorSpec Weight(std::string name, std::vector<int64_t> shape) {
  return {.name = std::move(name), .shape = std::move(shape), .fan_in = 1, .fan_out = 1};
}
TensorSpec Bias(std::string name, int64_t size) {
  return {.name = std::move(name), .shape = {size}, .init = TensorInit::kZeros};
}
TensorSpec Stat(std::string name, int64_t size) {
  return {.name = std::move(name),
          .shape = {size},
          .kind = TensorKind::kStat,
          .init = TensorInit::kOnes};
}

FlatLayout Layout(std::vector<TensorSpec> tensors) {
  absl::StatusOr<FlatLayout> layout = FlatLayout::Create(std::move(tensors));
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *std::move(layout);
}

FlatLayout LeNet() {
  return Layout({Weight("conv1.weight", {6, 1, 5, 5}), Bias("conv1.bias", 6),
                 Weight("conv2.weight", {16, 6, 3, 3}), Bias("conv2.bias", 16),
                 Weight("fc1.weight", {120, 400}), Bias("fc1.bias", 120),
                 Weight("fc2.weight", {84, 120}), Bias("fc2.bias", 84),
                 Weight("fc3.weight", {10, 84}), Bias("fc3.bias", 10)});
}

// Offsets by hand: each size rounded up to 16, layers from the last to the first.
TEST(FlatLayoutTest, LeNetByHand) {
  const FlatLayout layout = LeNet();
  const std::vector<std::pair<std::string, int64_t>> want = {
      {"fc3.weight", 0},       {"fc3.bias", 848},    {"fc2.weight", 864},     {"fc2.bias", 10944},
      {"fc1.weight", 11040},   {"fc1.bias", 59040},  {"conv2.weight", 59168}, {"conv2.bias", 60032},
      {"conv1.weight", 60048}, {"conv1.bias", 60208}};
  ASSERT_EQ(layout.slots().size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(layout.slots()[i].spec.name, want[i].first);
    EXPECT_EQ(layout.slots()[i].offset, want[i].second) << want[i].first;
  }
  EXPECT_EQ(layout.total_floats(), 60224);
  EXPECT_EQ(layout.weight_floats(), 60224);
  EXPECT_EQ(layout.ElementCount(TensorKind::kWeight), 60170);
  EXPECT_EQ(layout.chunk_floats(), 4096);
  EXPECT_EQ(layout.chunk_count(), 15);
  EXPECT_EQ(layout.ChunkRange(0), (FlatRange{0, 4096}));
  EXPECT_EQ(layout.ChunkRange(14), (FlatRange{57344, 2880}));
}

TEST(FlatLayoutTest, ForwardOrderAndLayers) {
  const FlatLayout layout = LeNet();
  EXPECT_EQ(layout.forward_order().front()->spec.name, "conv1.weight");
  EXPECT_EQ(layout.forward_order()[1]->spec.name, "conv1.bias");
  EXPECT_EQ(layout.forward_order().back()->spec.name, "fc3.bias");
  ASSERT_EQ(layout.layers().size(), 5u);
  EXPECT_EQ(layout.layers()[0].name, "fc3");
  EXPECT_EQ(layout.layers()[2].range, (FlatRange{11040, 48128}));
  EXPECT_EQ(layout.Find("fc1.bias")->index, 5);
  EXPECT_EQ(layout.Find("fc1"), nullptr);
}

TEST(FlatLayoutTest, ChunksAreReadyFromTheFront) {
  const FlatLayout layout = LeNet();
  EXPECT_EQ(layout.CompleteChunks(0), 0);
  EXPECT_EQ(layout.CompleteChunks(864), 0);     // fc3
  EXPECT_EQ(layout.CompleteChunks(11040), 2);   // and fc2: 8192 <= 11040 < 12288
  EXPECT_EQ(layout.CompleteChunks(60048), 14);  // all but conv1
  EXPECT_EQ(layout.CompleteChunks(60224), 15);
}

TEST(FlatLayoutTest, LargeModelsHaveLargeChunks) {
  EXPECT_EQ(Layout({Weight("a.weight", {262143})}).chunk_floats(), 4096);
  EXPECT_EQ(Layout({Weight("a.weight", {512, 512})}).chunk_floats(), 16384);
}

TEST(FlatLayoutTest, StatisticsHaveChunksOfTheirOwn) {
  const FlatLayout layout =
      Layout({Weight("conv.weight", {5000}), Weight("bn.weight", {20}), Bias("bn.bias", 20),
              Stat("bn.running_mean", 20), Stat("bn.running_var", 20), Bias("fc.bias", 3)});
  EXPECT_EQ(layout.Find("fc.bias")->offset, 0);
  EXPECT_EQ(layout.Find("bn.weight")->offset, 16);
  EXPECT_EQ(layout.Find("conv.weight")->offset, 80);
  EXPECT_EQ(layout.weight_floats(), 80 + 5008);
  EXPECT_EQ(layout.Find("bn.running_mean")->offset, 8192);
  EXPECT_EQ(layout.Find("bn.running_var")->offset, 8224);
  EXPECT_EQ(layout.total_floats(), 8256);
  ASSERT_EQ(layout.chunk_count(), 3);
  EXPECT_EQ(layout.ChunkKind(1), TensorKind::kWeight);
  EXPECT_EQ(layout.ChunkKind(2), TensorKind::kStat);
  EXPECT_EQ(layout.CompleteChunks(layout.weight_floats()), 2);
  EXPECT_EQ(layout.ElementCount(TensorKind::kStat), 40);
  EXPECT_EQ(layout.forward_order()[3]->spec.name, "fc.bias");  // statistics last
  EXPECT_EQ(layout.forward_order()[4]->spec.name, "bn.running_mean");
}

TEST(FlatLayoutTest, ErrorsNameTheTensor) {
  const auto error = [](std::vector<TensorSpec> tensors) {
    const absl::Status status = FlatLayout::Create(std::move(tensors)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(error({Weight("conv1.weight", {65536, 65536})}),
            "parameter conv1.weight: 65536x65536 exceeds 2147483648 elements");
  const int64_t huge = INT64_MAX;
  EXPECT_THAT(error({Weight("a", {huge, huge, huge})}), HasSubstr("exceeds 2147483648 elements"));
  EXPECT_THAT(error({Weight("a", {1 << 30}), Weight("b", {1 << 30}), Weight("c", {1})}),
              HasSubstr("parameter c: with those before it and padding 2147483664 exceeds"));
  EXPECT_THAT(error({Weight("a", {3, 0})}), HasSubstr("parameter a: dimension 1: got 0"));
  EXPECT_THAT(error({}), HasSubstr("got none"));
  EXPECT_THAT(error({Weight("", {1})}), HasSubstr("empty name"));
  EXPECT_THAT(error({Weight("a.w", {1}), Weight("a.w", {1})}), HasSubstr("got the name twice"));
  EXPECT_THAT(error({Weight("a.w", {1}), Weight("b.w", {1}), Weight("a.b", {1})}),
              HasSubstr("parameter a.b: got layer a in two places"));
  EXPECT_THAT(error({{.name = "a", .shape = {4}}}), HasSubstr("fan_in and fan_out: got 0 and 0"));
}

TEST(PlacementTest, RunsAreContiguousAndBalanced) {
  for (int32_t shards = 1; shards <= 40; ++shards) {
    for (int32_t chunks = shards; chunks <= 25 * shards; ++chunks) {
      const Placement placement = *Placement::Create(chunks, shards);
      int32_t next = 0;
      double fullest = 0;
      for (int32_t shard = 0; shard < shards; ++shard) {
        const ChunkRun run = placement.Run(shard);
        ASSERT_EQ(run.first_chunk, next);
        ASSERT_GE(run.chunk_count, 1);
        ASSERT_EQ(placement.ShardOf(run.first_chunk), shard);
        ASSERT_EQ(placement.ShardOf(run.end() - 1), shard);
        next = run.end();
        // The last chunk may be almost empty: count it as nothing.
        const double load = run.chunk_count - (next == chunks ? 1 : 0);
        fullest = std::max(fullest, load);
      }
      ASSERT_EQ(next, chunks);
      if (chunks >= 20 * shards) {
        const double slack = shards == 1 ? 1.0 : 1.05;
        ASSERT_LE(fullest / ((chunks - 1.0) / shards), slack + 1e-12) << chunks << " " << shards;
      }
    }
  }
}

TEST(PlacementTest, EveryShardNeedsAChunk) {
  EXPECT_EQ(Placement::Create(15, 16).status().message(),
            "num_shards: got 16, want 1..15 (chunks of the model)");
  EXPECT_FALSE(Placement::Create(15, 0).ok());
}

TEST(PlacementTest, FramesHoldWholeChunks) {
  const FlatLayout layout = Layout({Weight("a.weight", {40 * 16384 + 5})});  // 41 chunks of 64 KiB
  EXPECT_THAT(FramesOf(layout, {0, 41}),
              ElementsAre(ChunkRun{0, 16}, ChunkRun{16, 16}, ChunkRun{32, 9}));
  EXPECT_THAT(FramesOf(layout, {3, 3}, 2 * 65536 + 1), ElementsAre(ChunkRun{3, 2}, ChunkRun{5, 1}));
  EXPECT_THAT(FramesOf(layout, {3, 0}), testing::IsEmpty());
  EXPECT_EQ(RangeOf(layout, {32, 9}), (FlatRange{32 * 16384, 8 * 16384 + 16}));
  EXPECT_EQ(RangeOf(layout, {41, 0}).size, 0);
}

}  // namespace
}  // namespace capstan::training
