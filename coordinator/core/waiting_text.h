// What a job waits for, in a sentence for a person.
#ifndef CAPSTAN_COORDINATOR_CORE_WAITING_TEXT_H_
#define CAPSTAN_COORDINATOR_CORE_WAITING_TEXT_H_

#include <string>

#include "absl/time/time.h"
#include "coordinator/core/job.h"
#include "coordinator/core/node_table.h"

namespace capstan::coordinator::core {

// "step 812: lanes 2,3 of worker w3 on host b, last seen 14 s ago, 2 of 8 chunks missing", or what
// stands for it before the first step and after the last. From the newest reports alone; never
// empty.
std::string WaitingText(const Job& job, const NodeTable& nodes, absl::Duration now);

// "cannot save step 1407: No space left on device: write /ckpt/x (shard 0 on host a)": why the version
// that the job owes, its last or that of a suspend, is not on disk yet. WaitingText says the same. Empty:
// nothing is known to be wrong.
std::string CannotSaveText(const Job& job);

// "last seen 14 s ago".
std::string LastSeenText(const NodeTable& nodes, const std::string& node, int64_t incarnation,
                         absl::Duration now);

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_WAITING_TEXT_H_
