// Exhaustive search of a world of the protocol, breadth first: the shortest way to a broken
// invariant is found first.
#ifndef CAPSTAN_TESTS_MODEL_CHECKER_H_
#define CAPSTAN_TESTS_MODEL_CHECKER_H_

#include <cstddef>
#include <string>
#include <vector>

#include "tests/model/protocol.h"

namespace capstan::model {

struct Verdict {
  // Empty: none was broken. Else it begins with the invariant's name:
  //   I1   a lane is exactly once in the weights and in the seals
  //   I2   a gradient or a seal counts in its own history and version alone
  //   I3   a step has gradients of one set of weights
  //   I4   a generation names one assignment
  //   I5   a manifest names files of one history; a lineage begins in the history it continues
  //   I6   from every state something goes on until the job is done
  //   I7   all shards decide alike; nothing that is not finite is applied
  //   I8   weights of manifests are those of an undisturbed run
  //   I9   an order is in force once
  //   AHEAD, DEC  a frame is never ahead of its shard, a decision never of a shard's sum
  std::string violation;
  std::vector<std::string> trace;  // the events that lead there; faults begin with *
  bool complete = false;           // every reachable state was seen
  size_t states = 0;               // 64-bit hashes stand for them
  size_t transitions = 0;
  size_t depth = 0;
  size_t done_states = 0;
};

// `max_states`: the search ends, not complete, when it has seen so many.
Verdict Search(const World& world, size_t max_states);

}  // namespace capstan::model

#endif  // CAPSTAN_TESTS_MODEL_CHECKER_H_
