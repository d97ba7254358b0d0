#include "coordinator/core/lane_owners.h"

#include <algorithm>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/check/check.h"

namespace capstan::coordinator::core {

std::vector<int32_t> DealLanes(int32_t lanes, absl::Span<const int32_t> shares) {
  CAPSTAN_CHECK(lanes >= 1 && !shares.empty());
  std::vector<int32_t> owner_of_share;
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    CAPSTAN_CHECK(shares[rank] >= 1);
    owner_of_share.insert(owner_of_share.end(), static_cast<size_t>(shares[rank]),
                          static_cast<int32_t>(rank));
  }
  std::vector<int32_t> owners;
  for (int32_t lane = 0; lane < lanes; ++lane) {
    owners.push_back(owner_of_share[static_cast<size_t>(lane) * owner_of_share.size() /
                                    static_cast<size_t>(lanes)]);
  }
  return owners;
}

LaneCosts EqualCosts(const std::set<int32_t>& ranks) {
  LaneCosts costs;
  for (const int32_t rank : ranks) costs[rank] = 1;
  return costs;
}

std::vector<int32_t> TakeOver(absl::Span<const int32_t> owners, const LaneCosts& living) {
  CAPSTAN_CHECK(!living.empty());
  std::map<int32_t, int> held;  // lanes of each living rank
  for (const auto& entry : living) held[entry.first] = 0;
  int orphans = 0;
  for (const int32_t rank : owners) {
    const auto it = held.find(rank);
    if (it == held.end()) {
      ++orphans;
    } else {
      ++it->second;
    }
  }
  std::map<int32_t, int> gets;
  for (; orphans > 0; --orphans) {
    auto first = held.begin();
    double soonest = std::numeric_limits<double>::infinity();
    for (auto it = held.begin(); it != held.end(); ++it) {
      const double done = (it->second + 1) * living.at(it->first);
      if (done >= soonest) continue;
      first = it;
      soonest = done;
    }
    ++first->second;
    ++gets[first->first];
  }
  std::vector<int32_t> result(owners.begin(), owners.end());
  auto taker = gets.begin();
  for (int32_t& rank : result) {
    if (living.count(rank) > 0) continue;
    while (taker->second == 0) ++taker;
    rank = taker->first;
    --taker->second;
  }
  return result;
}

std::vector<int32_t> DealByCost(absl::Span<const int32_t> owners, const LaneCosts& living) {
  CAPSTAN_CHECK(!living.empty());
  std::map<int32_t, std::vector<size_t>> held;  // lanes, ascending
  size_t lanes = 0;
  for (const auto& entry : living) held[entry.first];
  for (size_t lane = 0; lane < owners.size(); ++lane) {
    const auto it = held.find(owners[lane]);
    if (it == held.end()) continue;
    it->second.push_back(lane);
    ++lanes;
  }
  std::map<int32_t, size_t> target;
  for (; lanes > 0; --lanes) {
    int32_t first = -1;
    double soonest = std::numeric_limits<double>::infinity();
    bool keeps = false;  // `first` need not be given this one
    for (const auto& [rank, cost] : living) {
      const double done = static_cast<double>(target[rank] + 1) * cost;
      const bool has = target[rank] < held[rank].size();
      if (done > soonest || (done == soonest && (keeps || !has))) continue;
      first = rank;
      soonest = done;
      keeps = has;
    }
    ++target[first];
  }
  std::vector<size_t> moved;
  for (auto& [rank, mine] : held) {
    while (mine.size() > target[rank]) {
      moved.push_back(mine.back());
      mine.pop_back();
    }
  }
  std::sort(moved.begin(), moved.end());
  std::vector<int32_t> result(owners.begin(), owners.end());
  auto next = moved.begin();
  for (const auto& [rank, mine] : held) {
    for (size_t count = mine.size(); count < target[rank]; ++count) result[*next++] = rank;
  }
  return result;
}

double Makespan(absl::Span<const int32_t> owners, const LaneCosts& costs) {
  std::map<int32_t, double> done;
  double last = 0;
  for (const int32_t rank : owners) {
    const auto cost = costs.find(rank);
    if (cost != costs.end()) last = std::max(last, done[rank] += cost->second);
  }
  return last;
}

std::string NumbersText(absl::Span<const int32_t> numbers) {
  constexpr size_t kMost = 16;
  if (numbers.size() <= kMost) return absl::StrJoin(numbers, ",");
  return absl::StrCat(absl::StrJoin(numbers.subspan(0, kMost), ","), ",... (", numbers.size(),
                      " in all)");
}

}  // namespace capstan::coordinator::core
