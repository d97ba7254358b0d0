// Searches a world of the protocol exhaustively, breadth first, so that the shortest way to a
// broken invariant is found first.
#ifndef CAPSTAN_TESTS_MODEL_CHECKER_H_
#define CAPSTAN_TESTS_MODEL_CHECKER_H_

#include <cstddef>

#include "tests/model/protocol.h"
#include "tests/model/searcher.h"

namespace capstan::model {

// Invariants. A violation begins with the name of one:
//   I1   a lane is exactly once in the weights and in the seals
//   I2   a gradient or a seal counts only in its own history and version
//   I3   a step has gradients of one set of weights
//   I4   a generation names one assignment of lanes
//   I5   a manifest names files of one history; a lineage begins in the history it continues
//   I6   from every state something can happen until the job is done
//   I7   all shards decide alike; nothing that is not finite is applied
//   I8   the weights of manifests are those of an undisturbed run
//   I9   an order takes effect once
//   I10  a replica has the weights and the state of each shard that is at its version
//   I11  a move of shards loses no step that a living shard has
//   AHEAD, DEC  a frame is never ahead of its shard, a decision never ahead of a shard's sum
//
// `max_states`: after this many states the search ends, and `complete` is false.
Verdict Search(const World& world, size_t max_states);

}  // namespace capstan::model

#endif  // CAPSTAN_TESTS_MODEL_CHECKER_H_
