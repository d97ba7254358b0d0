// Which rank computes which lanes. Pure.
#ifndef CAPSTAN_COORDINATOR_CORE_LANE_OWNERS_H_
#define CAPSTAN_COORDINATOR_CORE_LANE_OWNERS_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace capstan::coordinator::core {

// Contiguous runs: lane l belongs to rank floor(l * num_workers / lanes). Both >= 1.
std::vector<int32_t> DealLanes(int32_t lanes, int32_t num_workers);

// The same owners, but lanes of ranks that are not in `living` go to ranks that are: each orphan to
// the rank that would have the fewest lanes, in runs, so that whole nodes of the lane tree stay
// together where they can. Nobody else's lane moves. `living` is not empty.
std::vector<int32_t> TakeOver(absl::Span<const int32_t> owners, const std::set<int32_t>& living);

// The same owners, but every rank of `living` that has fewer lanes than floor(lanes / living) gets
// so many, from those who then have most, from the end of their lanes. Nobody else's lane moves;
// lanes of ranks that are not in `living` do not count.
std::vector<int32_t> Rebalance(absl::Span<const int32_t> owners, const std::set<int32_t>& living);

// "2,3,7" for people; more than 16 are cut: "0,1,2,... (40 in all)".
std::string NumbersText(absl::Span<const int32_t> numbers);

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_LANE_OWNERS_H_
