#include "coordinator/core/lane_owners.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/check/check.h"

namespace capstan::coordinator::core {

std::vector<int32_t> DealLanes(int32_t lanes, int32_t num_workers) {
  CAPSTAN_CHECK(lanes >= 1 && num_workers >= 1);
  std::vector<int32_t> owners(lanes);
  for (int32_t lane = 0; lane < lanes; ++lane) {
    owners[lane] = static_cast<int32_t>(int64_t{lane} * num_workers / lanes);
  }
  return owners;
}

std::vector<int32_t> TakeOver(absl::Span<const int32_t> owners, const std::set<int32_t>& living) {
  CAPSTAN_CHECK(!living.empty());
  std::map<int32_t, int> held;  // lanes of each living rank
  for (const int32_t rank : living) held[rank] = 0;
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
    auto fewest = held.begin();
    for (auto it = held.begin(); it != held.end(); ++it) {
      if (it->second < fewest->second) fewest = it;
    }
    ++fewest->second;
    ++gets[fewest->first];
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

std::vector<int32_t> Rebalance(absl::Span<const int32_t> owners, const std::set<int32_t>& living) {
  CAPSTAN_CHECK(!living.empty());
  std::vector<int32_t> result(owners.begin(), owners.end());
  std::map<int32_t, std::vector<int32_t>> held;  // lanes, ascending
  size_t lanes = 0;
  for (const int32_t rank : living) held[rank];
  for (size_t lane = 0; lane < result.size(); ++lane) {
    const auto it = held.find(result[lane]);
    if (it == held.end()) continue;
    it->second.push_back(static_cast<int32_t>(lane));
    ++lanes;
  }
  const size_t share = lanes / living.size();
  for (auto& [rank, mine] : held) {
    while (mine.size() < share) {
      auto most = held.begin();
      for (auto it = held.begin(); it != held.end(); ++it) {
        if (it->second.size() > most->second.size()) most = it;
      }
      const int32_t lane = most->second.back();
      most->second.pop_back();
      mine.push_back(lane);
      result[static_cast<size_t>(lane)] = rank;
    }
  }
  return result;
}

std::string NumbersText(absl::Span<const int32_t> numbers) {
  constexpr size_t kMost = 16;
  if (numbers.size() <= kMost) return absl::StrJoin(numbers, ",");
  return absl::StrCat(absl::StrJoin(numbers.subspan(0, kMost), ","), ",... (", numbers.size(),
                      " in all)");
}

}  // namespace capstan::coordinator::core
