#include "training/fold/chunk_sum.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/fold/tree_fold.h"

namespace capstan::training {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A node that arrives after its parent is in must not be counted again.
TEST(ChunkSumTest, NodeUnderAHeldAncestorIsCovered) {
  ChunkSum sum(LaneTree(/*lane_count=*/4), /*size=*/2);
  ASSERT_EQ(*sum.Add({.first_lane = 0, .lane_count = 2}, {1.0f, 2.0f}), Outcome::kStored);

  EXPECT_EQ(*sum.Add({.first_lane = 1, .lane_count = 1}, {9.0f, 9.0f}), Outcome::kCovered);
  EXPECT_EQ(*sum.Add({.first_lane = 2, .lane_count = 2}, {3.0f, -2.0f}), Outcome::kStored);

  EXPECT_THAT(sum.Root(), ElementsAre(4.0f, 0.0f));  // by hand
}

TEST(ChunkSumTest, LargerNodeTakesThePlaceOfItsParts) {
  ChunkSum sum(LaneTree(4), 1);
  ASSERT_EQ(*sum.Add({1, 1}, {100.0f}), Outcome::kStored);
  ASSERT_EQ(*sum.Add({2, 1}, {100.0f}), Outcome::kStored);

  EXPECT_EQ(*sum.Add({0, 4}, {7.0f}), Outcome::kStored);

  EXPECT_TRUE(sum.complete());
  EXPECT_THAT(sum.Root(), ElementsAre(7.0f));
  EXPECT_EQ(*sum.Add({2, 2}, {1.0f}), Outcome::kCovered);
}

// ((2^24 + 1) + 1) loses both ones, (2^24 + (1 + 1)) none: the tree decides, not the order.
TEST(ChunkSumTest, TheTreeDecidesTheRounding) {
  for (const std::vector<int32_t>& order :
       {std::vector<int32_t>{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}}) {
    ChunkSum sum(LaneTree(4), 1);
    const float lanes[] = {0x1p24f, 0.0f, 1.0f, 1.0f};
    for (const int32_t lane : order) ASSERT_TRUE(sum.Add({lane, 1}, {lanes[lane]}).ok());
    EXPECT_THAT(sum.Root(), ElementsAre(0x1p24f + 2.0f));
  }
}

// The parent of a single child is that child: -0 stays -0, where -0 + 0 would be 0.
TEST(ChunkSumTest, AbsentChildIsNotAZero) {
  ChunkSum sum(LaneTree(3), 1);
  ASSERT_TRUE(sum.Add({2, 1}, {-0.0f}).ok());
  EXPECT_THAT(sum.Held(), ElementsAre(Node{2, 2}));
  ASSERT_TRUE(sum.Add({0, 2}, {-0.0f}).ok());
  EXPECT_TRUE(std::signbit(sum.Root()[0]));

  sum.Reset(LaneTree(3).WithEmptyLanes({0, 1}));
  ASSERT_TRUE(sum.Add({2, 1}, {-0.0f}).ok());
  EXPECT_TRUE(sum.complete());
  EXPECT_TRUE(std::signbit(sum.Root()[0]));
}

TEST(ChunkSumTest, ErrorsChangeNothing) {
  ChunkSum sum(LaneTree(4).WithEmptyLanes({3}), 2);
  const absl::Status length = sum.Add({0, 1}, {1.0f}).status();
  EXPECT_EQ(length.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(length.message()), HasSubstr("lane 0: got 1 floats, want 2"));
  EXPECT_FALSE(sum.Add({1, 2}, {1.0f, 1.0f}).ok());
  EXPECT_FALSE(sum.Add({3, 1}, {1.0f, 1.0f}).ok());
  EXPECT_FALSE(sum.AddBytes({0, 1}, {"1234567"}).ok());
  EXPECT_THAT(sum.Held(), IsEmpty());
  EXPECT_THAT(sum.MissingLanes(), ElementsAre(0, 1, 2));
  EXPECT_EQ(sum.allocated_bytes(), 0u);
}

TEST(ChunkSumTest, SteadyStepsTakeNoNewMemory) {
  ChunkSum sum(LaneTree(8), 1000);
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

TEST(ChunkSumTest, NodesFarAheadWait) {
  ChunkSum sum(LaneTree(32), 1, {.max_ahead_nodes = 2});
  ASSERT_TRUE(sum.Add({2, 1}, {1.0f}).ok());
  ASSERT_TRUE(sum.Add({4, 1}, {1.0f}).ok());
  const absl::Status full = sum.Add({6, 1}, {1.0f}).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("beyond missing lane 0, want at most 2"));
  // What folds, what takes the place of others, and the lowest missing lane are always welcome.
  EXPECT_EQ(*sum.Add({5, 1}, {1.0f}), Outcome::kStored);
  EXPECT_EQ(*sum.Add({2, 2}, {2.0f}), Outcome::kStored);
  EXPECT_EQ(*sum.Add({0, 1}, {1.0f}), Outcome::kStored);
  EXPECT_THAT(sum.Held(), ElementsAre(Node{0, 1}, Node{2, 2}, Node{4, 2}));
}

// Also into the first of all held nodes, and where no node at all may lie ahead.
TEST(ChunkSumTest, ANodeThatFoldsIsAlwaysWelcome) {
  ChunkSum sum(LaneTree(8), 1, {.max_ahead_nodes = 1});
  ASSERT_TRUE(sum.Add({2, 1}, {1.0f}).ok());
  ASSERT_EQ(sum.Add({4, 1}, {1.0f}).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*sum.Add({3, 1}, {1.0f}), Outcome::kStored);
  ChunkSum none(LaneTree(4), 1, {.max_ahead_nodes = 0});
  EXPECT_EQ(none.Add({1, 1}, {1.0f}).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*none.Add({0, 1}, {1.0f}), Outcome::kStored);
}

TEST(HeldNodesTest, TheEntryAboveANodeIsFoundOrThereIsNone) {
  struct OneSlot {
    int32_t StoreNew() { return 7; }
    void Drop(int32_t) {}
    void FoldNew(int32_t) {}
    void Fold(int32_t, int32_t) {}
  };
  HeldNodes held(LaneTree(8), /*max_ahead=*/-1);
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

// ---- any sequence of assignments, crashes, duplicates and node pushes ----

using Value = std::vector<float>;

struct World {
  std::vector<Value> lanes;
  std::vector<double> losses;
  std::set<int32_t> empty;

  bool Absent(int32_t lane) const {
    return lane >= static_cast<int32_t>(lanes.size()) || empty.count(lane) > 0;
  }
  // The plain tree sum, by definition.
  std::optional<Value> Sum(const Node& node) const {
    if (node.lane_count == 1) {
      if (Absent(node.first_lane)) return std::nullopt;
      return lanes[node.first_lane];
    }
    const int32_t half = node.lane_count / 2;
    std::optional<Value> left = Sum({node.first_lane, half});
    const std::optional<Value> right = Sum({node.first_lane + half, half});
    if (!left || !right) return left ? left : right;
    for (size_t i = 0; i < left->size(); ++i) (*left)[i] = (*left)[i] + (*right)[i];
    return left;
  }
  std::optional<double> Loss(const Node& node) const {
    if (node.lane_count == 1) {
      if (Absent(node.first_lane)) return std::nullopt;
      return losses[node.first_lane];
    }
    const int32_t half = node.lane_count / 2;
    const std::optional<double> left = Loss({node.first_lane, half});
    const std::optional<double> right = Loss({node.first_lane + half, half});
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
// generation's workers may die on the way, and any node may come from some zombie.
std::vector<Node> MakePushes(const LaneTree& tree, std::mt19937& random) {
  std::vector<Node> pushes;
  const int generations = 1 + random() % 4;
  for (int generation = 0; generation < generations; ++generation) {
    const bool last = generation + 1 == generations;
    std::vector<std::vector<int32_t>> owned(1 + random() % tree.lane_count());
    for (int32_t lane = 0; lane < tree.lane_count(); ++lane) {
      // In runs mostly, so that large nodes are common.
      const size_t worker =
          random() % 4 == 0 ? random() % owned.size() : lane * owned.size() / tree.lane_count();
      owned[worker].push_back(lane);
    }
    for (const std::vector<int32_t>& lanes : owned) {
      std::vector<Node> nodes = tree.LargestNodes(lanes);
      if (!last) nodes.resize(random() % (nodes.size() + 1));
      pushes.insert(pushes.end(), nodes.begin(), nodes.end());
    }
  }
  for (int zombie = random() % 4; zombie > 0; --zombie) {
    int32_t count = 1;
    while (count < tree.root().lane_count && random() % 2 == 0) count *= 2;
    const Node node{static_cast<int32_t>(random() % (tree.root().lane_count / count)) * count,
                    count};
    if (tree.HasLanes(node)) pushes.push_back(node);
  }
  for (int copies = random() % 4; copies > 0; --copies) {
    pushes.push_back(pushes[random() % pushes.size()]);
  }
  std::shuffle(pushes.begin(), pushes.end(), random);
  return pushes;
}

absl::StatusOr<Outcome> AddSomehow(ChunkSum& sum, const Node& node, const Value& value,
                                   std::mt19937& random) {
  if (random() % 2 == 0) return sum.Add(node, value);
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
  return sum.AddBytes(node, pieces);
}

bool SameBits(absl::Span<const float> a, const Value& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), b.size() * sizeof(float)) == 0;
}

class FoldPropertyTest : public testing::TestWithParam<int32_t> {};

TEST_P(FoldPropertyTest, AnySequenceGivesTheBitsOfThePlainTreeSum) {
  constexpr size_t kSize = 5;
  std::mt19937 random(GetParam());
  ChunkSum sum(LaneTree(GetParam()), kSize);
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
    for (const Node& node : MakePushes(tree, random)) {
      size_t news = 0;
      for (int32_t lane = node.first_lane; lane < node.first_lane + node.lane_count; ++lane) {
        news += missing.erase(lane);
      }
      const Outcome want = news > 0 ? Outcome::kStored : Outcome::kCovered;
      const absl::StatusOr<Outcome> got = AddSomehow(sum, node, *world.Sum(node), random);
      ASSERT_TRUE(got.ok()) << got.status();
      ASSERT_EQ(*got, want) << ToString(node);
      int64_t lanes = 0;
      for (int32_t lane = node.first_lane; lane < node.first_lane + node.lane_count; ++lane) {
        if (!world.Absent(lane)) ++lanes;
      }
      ASSERT_EQ(*seals.Add(node, {lanes, *world.Loss(node), 2 * lanes}), want);
      ASSERT_EQ(sum.MissingLanes(), std::vector<int32_t>(missing.begin(), missing.end()));
      ASSERT_EQ(sum.complete(), missing.empty());
      ASSERT_EQ(seals.complete(), missing.empty());
      for (const Node& held : sum.Held()) ASSERT_TRUE(SameBits(sum.Value(held), *world.Sum(held)));
    }
    ASSERT_TRUE(sum.complete());
    ASSERT_TRUE(SameBits(sum.Root(), *world.Sum(tree.root())));
    EXPECT_EQ(seals.Root().samples, static_cast<int64_t>(present));
    EXPECT_EQ(seals.Root().correct, static_cast<int64_t>(2 * present));
    EXPECT_EQ(seals.Root().loss_sum, *world.Loss(tree.root()));
  }
  EXPECT_LE(sum.allocated_bytes(), GetParam() * kSize * sizeof(float));
}

// With few nodes allowed ahead, whoever is refused comes again: every step still completes, in
// bounded memory.
TEST_P(FoldPropertyTest, BoundedSumsCompleteToo) {
  constexpr size_t kSize = 3;
  std::mt19937 random(100 + GetParam());
  size_t depth = 0;
  while ((1 << depth) < GetParam()) ++depth;
  int refused = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    const int32_t limit = random() % 3;
    const World world = MakeWorld(GetParam(), kSize, random);
    const LaneTree tree =
        LaneTree(GetParam())
            .WithEmptyLanes(std::vector<int32_t>(world.empty.begin(), world.empty.end()));
    ChunkSum sum(tree, kSize, {.max_ahead_nodes = limit});
    const std::vector<Node> pushes = MakePushes(tree, random);
    std::deque<Node> waiting(pushes.begin(), pushes.end());
    for (int turns = 0; !waiting.empty(); ++turns) {
      ASSERT_LT(turns, 100000);
      const Node node = waiting.front();
      waiting.pop_front();
      const absl::StatusOr<Outcome> got = sum.Add(node, *world.Sum(node));
      if (!got.ok()) {
        ASSERT_EQ(got.status().code(), absl::StatusCode::kResourceExhausted);
        waiting.push_back(node);
        ++refused;
      }
      ASSERT_LE(sum.held_count(), limit + depth + 1);
    }
    ASSERT_TRUE(sum.complete());
    ASSERT_TRUE(SameBits(sum.Root(), *world.Sum(tree.root())));
  }
  EXPECT_GT(refused, 100);
}

// What a worker holds after its own lanes are what it pushes.
TEST_P(FoldPropertyTest, HeldNodesAreTheLargestNodes) {
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
    ChunkSum sum(tree, 1);
    for (const int32_t lane : owned) ASSERT_TRUE(sum.Add({lane, 1}, world.lanes[lane]).ok());
    EXPECT_EQ(sum.Held(), tree.LargestNodes(owned));
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, FoldPropertyTest, testing::Values(3, 5, 8, 16));

}  // namespace
}  // namespace capstan::training
