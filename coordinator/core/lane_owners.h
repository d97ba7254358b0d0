// Which rank computes which lanes. Pure.
#ifndef CAPSTAN_COORDINATOR_CORE_LANE_OWNERS_H_
#define CAPSTAN_COORDINATOR_CORE_LANE_OWNERS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace capstan::coordinator::core {

// Contiguous runs by the shares of the ranks: rank r has shares[r] >= 1 of their sum. `lanes` >= 1. With
// equal shares lane l belongs to rank floor(l * ranks / lanes). Not empty.
std::vector<int32_t> DealLanes(int32_t lanes, absl::Span<const int32_t> shares);

// What a rank takes for one lane, against the others: 1 is usual, 10 is ten times as long. Above 0.
using LaneCosts = std::map<int32_t, double>;
LaneCosts EqualCosts(const std::set<int32_t>& ranks);

// The same owners, but lanes of ranks that are not in `living` go to ranks that are: each orphan to
// the rank that would be done with its lanes first, in runs, so that whole nodes of the lane tree
// stay together if they can. No other lane moves. `living` is not empty.
std::vector<int32_t> TakeOver(absl::Span<const int32_t> owners, const LaneCosts& living);

// The same owners, but the ranks of `living` have as many lanes each as makes the last of them done
// soonest. Of equal ways it takes the one that moves fewest lanes, from the end of a rank's lanes. A rank
// that is too slow has none. Lanes of ranks that are not in `living` stay and do not count. Not empty.
std::vector<int32_t> DealByCost(absl::Span<const int32_t> owners, const LaneCosts& living);

// When the last rank of `costs` is done, in lanes of cost 1.
double Makespan(absl::Span<const int32_t> owners, const LaneCosts& costs);

// "2,3,7" for people; more than 16 are cut: "0,1,2,... (40 in all)".
std::string NumbersText(absl::Span<const int32_t> numbers);

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_LANE_OWNERS_H_
