#include "training/fold/chunk_sum.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/fold/test_folded_chunk.h"
#include "training/fold/tree_fold.h"

namespace capstan::training {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// A block that arrives after its parent is in must not be counted again.
TEST(ChunkSumTest, BlockUnderAHeldAncestorIsCovered) {
  FoldedChunk sum(LaneTree(/*lane_count=*/4), /*size=*/2);
  ASSERT_EQ(*sum.Add({.first_lane = 0, .lane_count = 2}, {1.0f, 2.0f}), Outcome::kStored);

  EXPECT_EQ(*sum.Add({.first_lane = 1, .lane_count = 1}, {9.0f, 9.0f}), Outcome::kCovered);
  EXPECT_EQ(*sum.Add({.first_lane = 2, .lane_count = 2}, {3.0f, -2.0f}), Outcome::kStored);

  EXPECT_THAT(sum.Root(), ElementsAre(4.0f, 0.0f));  // by hand
}

TEST(ChunkSumTest, LargerNodeTakesThePlaceOfItsParts) {
  FoldedChunk sum(LaneTree(4), 1);
  ASSERT_EQ(*sum.Add({1, 1}, {100.0f}), Outcome::kStored);
  ASSERT_EQ(*sum.Add({2, 1}, {100.0f}), Outcome::kStored);

  EXPECT_EQ(*sum.Add({0, 4}, {7.0f}), Outcome::kStored);

  EXPECT_TRUE(sum.held().complete());
  EXPECT_THAT(sum.Root(), ElementsAre(7.0f));
  EXPECT_EQ(*sum.Add({2, 2}, {1.0f}), Outcome::kCovered);
}

// ((2^24 + 1) + 1) loses both ones, (2^24 + (1 + 1)) none: the tree decides, not the order.
TEST(ChunkSumTest, TheTreeDecidesTheRounding) {
  for (const std::vector<int32_t>& order :
       {std::vector<int32_t>{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}}) {
    FoldedChunk sum(LaneTree(4), 1);
    const float lanes[] = {0x1p24f, 0.0f, 1.0f, 1.0f};
    for (const int32_t lane : order) ASSERT_TRUE(sum.Add({lane, 1}, {lanes[lane]}).ok());
    EXPECT_THAT(sum.Root(), ElementsAre(0x1p24f + 2.0f));
  }
}

// The parent of a single child is that child: -0 stays -0, where -0 + 0 would be 0.
TEST(ChunkSumTest, AbsentChildIsNotAZero) {
  FoldedChunk sum(LaneTree(3), 1);
  ASSERT_TRUE(sum.Add({2, 1}, {-0.0f}).ok());
  EXPECT_THAT(sum.Held(), ElementsAre(LaneBlock{2, 2}));
  ASSERT_TRUE(sum.Add({0, 2}, {-0.0f}).ok());
  EXPECT_TRUE(std::signbit(sum.Root()[0]));

  sum.Reset(LaneTree(3).WithEmptyLanes({0, 1}));
  ASSERT_TRUE(sum.Add({2, 1}, {-0.0f}).ok());
  EXPECT_TRUE(sum.held().complete());
  EXPECT_TRUE(std::signbit(sum.Root()[0]));
}

TEST(ChunkSumTest, NodesThatTheTreeHasNotChangeNothing) {
  FoldedChunk sum(LaneTree(4).WithEmptyLanes({3}), 2);
  EXPECT_FALSE(sum.Add({1, 2}, {1.0f, 1.0f}).ok());
  EXPECT_FALSE(sum.Add({3, 1}, {1.0f, 1.0f}).ok());
  EXPECT_THAT(sum.Held(), IsEmpty());
  EXPECT_THAT(sum.held().MissingLanes(), ElementsAre(0, 1, 2));
  EXPECT_EQ(sum.allocated_bytes(), 0u);
}

TEST(ChunkSumTest, SteadyStepsTakeNoNewMemory) {
  FoldedChunk sum(LaneTree(8), 1000);
  const std::vector<float> value(1000, 1.0f);
  size_t after_first = 0;
  for (int step = 0; step < 5; ++step) {
    for (const int32_t lane : {0, 2, 4, 6, 1, 3, 5, 7}) ASSERT_TRUE(sum.Add({lane, 1}, value).ok());
    EXPECT_EQ(sum.Root()[999], 8.0f);
    if (step == 0) after_first = sum.allocated_bytes();
    EXPECT_EQ(sum.allocated_bytes(), after_first);
    sum.Reset(LaneTree(8));
  }
  EXPECT_EQ(after_first, 4 * 1000 * sizeof(float));  // lanes 0, 2, 4 and 6 are held at once
}

// What a shard does with the values, by hand: both children of {0, 2} come, then the larger {0, 4}.
TEST(ChunkFoldTest, CommandsNameSlotsThatAreUsedAgain) {
  using Kind = FoldCommand::Kind;
  ChunkFold fold(LaneTree(8));
  EXPECT_THAT(fold.Store({0, 1}), ElementsAre(FoldCommand{Kind::kTake, 0}));
  EXPECT_THAT(fold.Store({2, 1}), ElementsAre(FoldCommand{Kind::kTake, 1}));
  EXPECT_THAT(fold.Store({1, 1}), ElementsAre(FoldCommand{Kind::kAdd, 0}));
  EXPECT_THAT(fold.Store({4, 1}), ElementsAre(FoldCommand{Kind::kTake, 2}));
  EXPECT_THAT(fold.Store({3, 1}),
              ElementsAre(FoldCommand{Kind::kAdd, 1}, FoldCommand{Kind::kFold, 0, 1}));
  EXPECT_THAT(fold.Store({6, 2}), ElementsAre(FoldCommand{Kind::kTake, 1}));
  EXPECT_THAT(fold.Store({4, 2}),
              ElementsAre(FoldCommand{Kind::kAdd, 1}, FoldCommand{Kind::kFold, 0, 1}));
  EXPECT_TRUE(fold.held().complete());
  fold.Reset(LaneTree(8));
  EXPECT_THAT(fold.Store({6, 2}), ElementsAre(FoldCommand{Kind::kTake, 0}));
}

TEST(HeldBlocksTest, TheEntryAboveABlockIsFoundOrThereIsNone) {
  struct OneSlot {
    int32_t StoreNew() { return 7; }
    void Drop(int32_t) {}
    void FoldNew(int32_t) {}
    void Fold(int32_t, int32_t) {}
  };
  HeldBlocks held(LaneTree(8));
  EXPECT_EQ(held.FindCovering({0, 1}), -1);
  held.Store({2, 2}, OneSlot());
  EXPECT_EQ(held.FindCovering({3, 1}), 0);
  EXPECT_EQ(held.FindCovering({2, 2}), 0);
  EXPECT_EQ(held.FindCovering({0, 1}), -1);  // in front of it
  EXPECT_EQ(held.FindCovering({4, 1}), -1);  // behind it
  EXPECT_EQ(held.FindCovering({0, 4}), -1);  // above it
  EXPECT_EQ(held.entries()[0].slot, 7);
}

// A value that knows how many of its kind there are.
struct Counted {
  Counted() { ++alive; }
  Counted(const Counted& other) : value(other.value) { ++alive; }
  Counted& operator=(const Counted&) = default;
  ~Counted() { --alive; }
  Counted& operator+=(const Counted& right) {
    value += right.value;
    return *this;
  }
  int value = 1;
  static inline int alive = 0;
};

TEST(TreeFoldTest, ResetKeepsNoValueOfTheLastStep) {
  const Counted one;
  TreeFold<Counted> fold(LaneTree(4));
  for (int step = 0; step < 3; ++step) {
    for (const int32_t lane : {0, 2, 1, 3}) ASSERT_TRUE(fold.Add({lane, 1}, one).ok());
    EXPECT_EQ(fold.Root().value, 4);
    EXPECT_EQ(Counted::alive, 1 + 2);  // lanes 0 and 2 were held at once
    fold.Reset(LaneTree(4));
    EXPECT_EQ(Counted::alive, 1);
    EXPECT_FALSE(fold.complete());
  }
}

// ---- any sequence of assignments, crashes, duplicates and block pushes ----

using Value = std::vector<float>;

struct World {
  std::vector<Value> lanes;
  std::vector<double> losses;
  std::set<int32_t> empty;

  bool Absent(int32_t lane) const {
    return lane >= static_cast<int32_t>(lanes.size()) || empty.count(lane) > 0;
  }
  // The plain tree sum, by definition.
  std::optional<Value> Sum(const LaneBlock& block) const {
    if (block.lane_count == 1) {
      if (Absent(block.first_lane)) return std::nullopt;
      return lanes[block.first_lane];
    }
    const int32_t half = block.lane_count / 2;
    std::optional<Value> left = Sum({block.first_lane, half});
    const std::optional<Value> right = Sum({block.first_lane + half, half});
    if (!left || !right) return left ? left : right;
    for (size_t i = 0; i < left->size(); ++i) (*left)[i] = (*left)[i] + (*right)[i];
    return left;
  }
  std::optional<double> Loss(const LaneBlock& block) const {
    if (block.lane_count == 1) {
      if (Absent(block.first_lane)) return std::nullopt;
      return losses[block.first_lane];
    }
    const int32_t half = block.lane_count / 2;
    const std::optional<double> left = Loss({block.first_lane, half});
    const std::optional<double> right = Loss({block.first_lane + half, half});
    if (!left || !right) return left ? left : right;
    return *left + *right;
  }
};

// Signs and exponents spread so wide that every change of the order of additions shows.
float WildFloat(std::mt19937& random) {
  if (random() % 16 == 0) return -0.0f;
  const float magnitude = std::ldexp(1.0f + (random() >> 9) * 0x1p-23f, int(random() % 40) - 20);
  return random() % 2 == 0 ? magnitude : -magnitude;
}

World MakeWorld(int32_t lane_count, size_t size, std::mt19937& random) {
  World world;
  for (int32_t lane = 0; lane < lane_count; ++lane) {
    world.lanes.emplace_back();
    for (size_t i = 0; i < size; ++i) world.lanes.back().push_back(WildFloat(random));
    world.losses.push_back(WildFloat(random) * (1.0 + (random() % 1000) * 1e-9));
  }
  if (random() % 2 == 0) {
    for (int32_t lane = 0; lane < lane_count; ++lane) {
      if (random() % 4 == 0 && static_cast<int32_t>(world.empty.size()) + 1 < lane_count) {
        world.empty.insert(lane);
      }
    }
  }
  return world;
}

// What workers push over some generations: lanes are dealt anew each time, all but the last
// generation's workers may die on the way, and any block may come from some zombie.
std::vector<LaneBlock> MakePushes(const LaneTree& tree, std::mt19937& random) {
  std::vector<LaneBlock> pushes;
  const int generations = 1 + random() % 4;
  for (int generation = 0; generation < generations; ++generation) {
    const bool last = generation + 1 == generations;
    std::vector<std::vector<int32_t>> owned(1 + random() % tree.lane_count());
    for (int32_t lane = 0; lane < tree.lane_count(); ++lane) {
      // In runs mostly, so that large blocks are common.
      const size_t worker =
          random() % 4 == 0 ? random() % owned.size() : lane * owned.size() / tree.lane_count();
      owned[worker].push_back(lane);
    }
    for (const std::vector<int32_t>& lanes : owned) {
      std::vector<LaneBlock> blocks = tree.LargestBlocks(lanes);
      if (!last) blocks.resize(random() % (blocks.size() + 1));
      pushes.insert(pushes.end(), blocks.begin(), blocks.end());
    }
  }
  for (int zombie = random() % 4; zombie > 0; --zombie) {
    int32_t count = 1;
    while (count < tree.root().lane_count && random() % 2 == 0) count *= 2;
    const LaneBlock block{static_cast<int32_t>(random() % (tree.root().lane_count / count)) * count,
                          count};
    if (tree.HasLanes(block)) pushes.push_back(block);
  }
  for (int copies = random() % 4; copies > 0; --copies) {
    pushes.push_back(pushes[random() % pushes.size()]);
  }
  std::shuffle(pushes.begin(), pushes.end(), random);
  return pushes;
}

absl::StatusOr<Outcome> AddSomehow(FoldedChunk& sum, const LaneBlock& block, const Value& value,
                                   std::mt19937& random) {
  if (random() % 2 == 0) return sum.Add(block, value);
  // As bytes that begin anywhere and are cut anywhere.
  const size_t shift = random() % 4;
  std::string bytes(shift + value.size() * sizeof(float), '\0');
  std::memcpy(&bytes[shift], value.data(), value.size() * sizeof(float));
  std::vector<absl::string_view> pieces;
  absl::string_view rest = absl::string_view(bytes).substr(shift);
  while (!rest.empty()) {
    const size_t size = std::min<size_t>(rest.size(), random() % 7);
    pieces.push_back(rest.substr(0, size));
    rest.remove_prefix(size);
  }
  return sum.AddBytes(block, pieces);
}

bool SameBits(absl::Span<const float> a, const Value& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), b.size() * sizeof(float)) == 0;
}

class FoldPropertyTest : public testing::TestWithParam<int32_t> {};

TEST_P(FoldPropertyTest, AnySequenceGivesTheBitsOfThePlainTreeSum) {
  constexpr size_t kSize = 5;
  std::mt19937 random(GetParam());
  FoldedChunk sum(LaneTree(GetParam()), kSize);
  TreeFold<SealSums> seals{LaneTree(GetParam())};
  for (int trial = 0; trial < 4000; ++trial) {
    SCOPED_TRACE(testing::Message() << "trial " << trial);
    const World world = MakeWorld(GetParam(), kSize, random);
    const LaneTree tree =
        LaneTree(GetParam())
            .WithEmptyLanes(std::vector<int32_t>(world.empty.begin(), world.empty.end()));
    sum.Reset(tree);
    seals.Reset(tree);
    std::set<int32_t> missing;
    for (int32_t lane = 0; lane < GetParam(); ++lane) {
      if (!world.Absent(lane)) missing.insert(lane);
    }
    const size_t present = missing.size();
    for (const LaneBlock& block : MakePushes(tree, random)) {
      size_t news = 0;
      for (int32_t lane = block.first_lane; lane < block.first_lane + block.lane_count; ++lane) {
        news += missing.erase(lane);
      }
      const Outcome want = news > 0 ? Outcome::kStored : Outcome::kCovered;
      const absl::StatusOr<Outcome> got = AddSomehow(sum, block, *world.Sum(block), random);
      ASSERT_TRUE(got.ok()) << got.status();
      ASSERT_EQ(*got, want) << ToString(block);
      int64_t lanes = 0;
      for (int32_t lane = block.first_lane; lane < block.first_lane + block.lane_count; ++lane) {
        if (!world.Absent(lane)) ++lanes;
      }
      ASSERT_EQ(*seals.Add(block, {lanes, *world.Loss(block), 2 * lanes}), want);
      ASSERT_EQ(sum.held().MissingLanes(), std::vector<int32_t>(missing.begin(), missing.end()));
      ASSERT_EQ(sum.held().complete(), missing.empty());
      ASSERT_EQ(seals.complete(), missing.empty());
      for (size_t i = 0; i < sum.held().entries().size(); ++i) {
        ASSERT_TRUE(SameBits(sum.Value(i), *world.Sum(sum.Held()[i])));
      }
    }
    ASSERT_TRUE(sum.held().complete());
    ASSERT_TRUE(SameBits(sum.Root(), *world.Sum(tree.root())));
    EXPECT_EQ(seals.Root().samples, static_cast<int64_t>(present));
    EXPECT_EQ(seals.Root().correct, static_cast<int64_t>(2 * present));
    EXPECT_EQ(seals.Root().loss_sum, *world.Loss(tree.root()));
  }
  EXPECT_LE(sum.allocated_bytes(), GetParam() * kSize * sizeof(float));
}

// What a worker holds after its own lanes are what it pushes.
TEST_P(FoldPropertyTest, HeldBlocksAreTheLargestBlocks) {
  std::mt19937 random(200 + GetParam());
  for (int trial = 0; trial < 500; ++trial) {
    const World world = MakeWorld(GetParam(), 1, random);
    const LaneTree tree =
        LaneTree(GetParam())
            .WithEmptyLanes(std::vector<int32_t>(world.empty.begin(), world.empty.end()));
    std::vector<int32_t> owned;
    for (int32_t lane = 0; lane < GetParam(); ++lane) {
      if (!world.Absent(lane) && random() % 3 != 0) owned.push_back(lane);
    }
    std::shuffle(owned.begin(), owned.end(), random);
    FoldedChunk sum(tree, 1);
    for (const int32_t lane : owned) ASSERT_TRUE(sum.Add({lane, 1}, world.lanes[lane]).ok());
    EXPECT_EQ(sum.Held(), tree.LargestBlocks(owned));
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, FoldPropertyTest, testing::Values(3, 5, 8, 16));

}  // namespace
}  // namespace capstan::training
