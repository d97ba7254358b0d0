#include "training/chunks/flat_layout.h"

#include <cmath>

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
  EXPECT_EQ(layout.statistics_begin(), 60224);
  EXPECT_FALSE(layout.has_statistics());
  EXPECT_EQ(layout.ElementCount(TensorKind::kWeight), 60170);
  EXPECT_EQ(layout.chunk_floats(), 512);
  EXPECT_EQ(layout.chunk_count(), 118);
  EXPECT_EQ(layout.ChunkRange(0), (FlatRange{0, 512}));
  EXPECT_EQ(layout.ChunkRange(117), (FlatRange{59904, 320}));
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

TEST(FlatLayoutTest, LargeModelsHaveLargeChunks) {
  EXPECT_EQ(Layout({Weight("a.weight", {655359})}).chunk_floats(), 512);
  EXPECT_EQ(Layout({Weight("a.weight", {160, 4096})}).chunk_floats(), 4096);
  EXPECT_EQ(Layout({Weight("a.weight", {160 * 16384 - 1})}).chunk_floats(), 4096);
  EXPECT_EQ(Layout({Weight("a.weight", {160, 16384})}).chunk_floats(), 16384);
}

TEST(FlatLayoutTest, AGivenSizeOfChunksIsKept) {
  const auto layout = FlatLayout::Create({Weight("a.weight", {10000})}, 4096);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->chunk_floats(), 4096);
  EXPECT_EQ(layout->chunk_count(), 3);
  for (const int64_t wrong : {-512, 1, 8, 500, 262160}) {
    EXPECT_EQ(FlatLayout::Create({Weight("a.weight", {10000})}, wrong).status().code(),
              absl::StatusCode::kInvalidArgument)
        << wrong;
  }
  EXPECT_EQ(FlatLayout::Create({Weight("a.weight", {1 << 22})}, 16).status().message(),
            "chunks: 16 floats each makes more than 131072");
}

TEST(FlatLayoutTest, StatisticsHaveChunksOfTheirOwn) {
  const FlatLayout layout = *FlatLayout::Create(
      {Weight("conv.weight", {5000}), Weight("bn.weight", {20}), Bias("bn.bias", 20),
       Stat("bn.running_mean", 20), Stat("bn.running_var", 20), Bias("fc.bias", 3)},
      /*chunk_floats=*/4096);
  EXPECT_EQ(layout.Find("fc.bias")->offset, 0);
  EXPECT_EQ(layout.Find("bn.weight")->offset, 16);
  EXPECT_EQ(layout.Find("conv.weight")->offset, 80);
  EXPECT_EQ(layout.weight_floats(), 80 + 5008);
  EXPECT_EQ(layout.statistics_begin(), 8192);
  EXPECT_TRUE(layout.has_statistics());
  EXPECT_EQ(layout.Find("bn.running_mean")->offset, 8192);
  EXPECT_EQ(layout.Find("bn.running_var")->offset, 8224);
  EXPECT_EQ(layout.total_floats(), 8256);
  ASSERT_EQ(layout.chunk_count(), 3);
  EXPECT_EQ(layout.ChunkKind(1), TensorKind::kWeight);
  EXPECT_EQ(layout.ChunkKind(2), TensorKind::kStat);
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
  for (const double momentum : {-0.1, 1.1, std::nan("")}) {
    TensorSpec statistic = Stat("bn.running_mean", 4);
    statistic.momentum = momentum;
    EXPECT_THAT(error({statistic}), HasSubstr("parameter bn.running_mean: momentum: got "));
  }
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
        // The last chunk may be almost empty, so do not count it.
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

// The fullest shard of 1 to 8 has at most 1.05 times the mean, in floats.
TEST(PlacementTest, SmallModelsAreBalanced) {
  const FlatLayout d2l = Layout({Weight("conv1.weight", {20, 1, 3, 3}), Bias("conv1.bias", 20),
                                 Weight("conv2.weight", {50, 20, 5, 5}), Bias("conv2.bias", 50),
                                 Weight("fc1.weight", {128, 800}), Bias("fc1.bias", 128),
                                 Weight("fc2.weight", {10, 128}), Bias("fc2.bias", 10)});
  const FlatLayout mlp = Layout({Weight("fc1.weight", {128, 784}), Bias("fc1.bias", 128),
                                 Weight("fc2.weight", {64, 128}), Bias("fc2.bias", 64),
                                 Weight("fc3.weight", {10, 64}), Bias("fc3.bias", 10)});
  for (const FlatLayout& layout : {LeNet(), d2l, mlp, Layout({Weight("a.weight", {655360})}),
                                   Layout({Weight("a.weight", {160 * 16384 - 1})})}) {
    for (int32_t shards = 1; shards <= 8; ++shards) {
      const Placement placement = *Placement::Create(layout.chunk_count(), shards);
      int64_t fullest = 0;
      for (int32_t shard = 0; shard < shards; ++shard) {
        fullest = std::max(fullest, RangeOf(layout, placement.Run(shard)).size);
      }
      EXPECT_LE(static_cast<double>(fullest) * shards / static_cast<double>(layout.total_floats()),
                1.05)
          << layout.total_floats() << " floats over " << shards;
    }
  }
}

TEST(PlacementTest, EveryShardNeedsAChunk) {
  EXPECT_EQ(Placement::Create(15, 16).status().message(),
            "num_shards: got 16, want 1..15 (chunks of the model)");
  EXPECT_FALSE(Placement::Create(15, 0).ok());
}

TEST(PlacementTest, FramesHoldWholeChunks) {
  const FlatLayout layout =
      *FlatLayout::Create({Weight("a.weight", {40 * 16384 + 5})}, kChunkFloats);  // 41 chunks
  EXPECT_THAT(FramesOf(layout, {0, 41}),
              ElementsAre(ChunkRun{0, 16}, ChunkRun{16, 16}, ChunkRun{32, 9}));
  EXPECT_THAT(FramesOf(layout, {3, 3}, 2 * 65536 + 1), ElementsAre(ChunkRun{3, 2}, ChunkRun{5, 1}));
  EXPECT_THAT(FramesOf(layout, {3, 0}), testing::IsEmpty());
  EXPECT_EQ(RangeOf(layout, {32, 9}), (FlatRange{32 * 16384, 8 * 16384 + 16}));
  EXPECT_EQ(RangeOf(layout, {41, 0}).size, 0);
}

}  // namespace
}  // namespace capstan::training
