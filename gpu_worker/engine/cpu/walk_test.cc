#include "gpu_worker/engine/cpu/blocked/walk.h"

#include <algorithm>
#include <array>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/ops/broadcast.h"

namespace capstan::engine {
namespace {

using ::testing::ElementsAre;
using training::Shape;
using Places = std::array<int64_t, 3>;

// The places of every index, row after row.
std::vector<Places> PlacesOf(const RowWalk& walk) {
  std::vector<Places> places;
  walk.ForRows([&](const RowWalk::Places& at) {
    for (int64_t i = 0; i < walk.size(); ++i) {
      places.push_back(
          {at[0] + i * walk.step(0), at[1] + i * walk.step(1), at[2] + i * walk.step(2)});
    }
  });
  return places;
}

// Two inputs that are broadcast to their output. The second is in the weights.
struct Broadcast {
  Shape a, b;
};

RowWalk WalkOf(const Broadcast& of) {
  const Shape y = *training::BroadcastShape(of.a, of.b);
  return {y,
          {training::BroadcastStrides(of.a, y), training::BroadcastStrides(of.b, y),
           training::StridesOf(y)},
          {kSideBySide, 1, kSideBySide}};
}

std::vector<Places> Naive(const Broadcast& of) {
  const Shape y = *training::BroadcastShape(of.a, of.b);
  std::vector<Places> places;
  training::ForPlaces<3>(y,
                         {training::BroadcastStrides(of.a, y), training::BroadcastStrides(of.b, y),
                          training::StridesOf(y)},
                         {0, 0, 0}, [&](const Places& at) {
                           places.push_back({at[0] * 16, at[1], at[2] * 16});
                         });
  return places;
}

const Broadcast kBroadcasts[] = {{{1}, {1}},
                                 {{7}, {7}},
                                 {{2, 3, 4}, {2, 3, 4}},
                                 {{2, 3, 4}, {4}},
                                 {{2, 3, 4}, {3, 1}},
                                 {{2, 1, 4}, {3, 1}},
                                 {{1}, {5, 2}},
                                 {{40, 1, 130}, {1, 90, 1}},
                                 {{3, 1, 2, 1}, {1, 5, 1, 7}}};

TEST(WalkTest, VisitsEveryIndexInOrder) {
  for (const Broadcast& of : kBroadcasts) {
    SCOPED_TRACE(training::ShapeToString(of.a) + training::ShapeToString(of.b));
    EXPECT_EQ(PlacesOf(WalkOf(of)), Naive(of));
  }
}

TEST(WalkTest, WalksAxesThatGoOnAsOne) {
  EXPECT_EQ(WalkOf({{2, 3, 4}, {2, 3, 4}}).size(), 24);
  EXPECT_EQ(WalkOf({{2, 3, 4}, {3, 4}}).size(), 12);
  EXPECT_EQ(WalkOf({{2, 3, 4}, {2, 1, 1}}).size(), 12);
  EXPECT_EQ(WalkOf({{2, 3, 4}, {3, 1}}).size(), 4);
}

// The parts write different places of the tensor along which the walk is cut.
TEST(WalkTest, PartsVisitEveryIndexOnce) {
  int cut = 0;
  for (const Broadcast& of : kBroadcasts) {
    SCOPED_TRACE(training::ShapeToString(of.a) + training::ShapeToString(of.b));
    const RowWalk walk = WalkOf(of);
    const std::vector<Places> want = Naive(of);
    for (const size_t tensor : {0, 1, 2}) {
      for (const int64_t parts : {int64_t{1}, walk.Parts(tensor)}) {
        std::vector<Places> places;
        std::vector<int64_t> owner(want.size() * 16, -1);
        for (int64_t part = 0; part < parts; ++part) {
          for (const Places& at : PlacesOf(walk.Part(tensor, part, parts))) {
            places.push_back(at);
            int64_t& of_place = owner[at[tensor]];
            ASSERT_TRUE(of_place == -1 || of_place == part);
            of_place = part;
          }
        }
        std::sort(places.begin(), places.end());
        std::vector<Places> sorted = want;
        std::sort(sorted.begin(), sorted.end());
        EXPECT_TRUE(places == sorted);
        cut += static_cast<int>(parts > 1);
      }
    }
  }
  EXPECT_GT(cut, 0) << "no walk is long enough to be cut";
}

TEST(WalkTest, OnceLeavesOutRepetitions) {
  const RowWalk walk = WalkOf({{2, 3, 2}, {3, 1}});
  const auto of = [](const RowWalk& once, size_t tensor) {
    std::vector<int64_t> places;
    for (const Places& at : PlacesOf(once)) places.push_back(at[tensor]);
    return places;
  };
  EXPECT_THAT(of(walk.Once(1), 1), ElementsAre(0, 1, 2));
  EXPECT_EQ(of(walk.Once(0), 0).size(), 12u);
}

// Every second column of the last two rows, backwards.
TEST(WalkTest, BeginsAtAnyPlaceAndGoesBackwards) {
  const RowWalk walk({2, 2}, {training::Strides{4, -2}, {2, 1}, {}}, {16, 16, 1}, {7, 0, 0});
  const std::vector<Places> want = {{112, 0, 0}, {80, 16, 0}, {176, 32, 0}, {144, 48, 0}};
  EXPECT_EQ(PlacesOf(walk), want);
}

}  // namespace
}  // namespace capstan::engine
