// What the coordinators of `capstan run` left behind: the journals in a folder of runs, read to be
// looked at. Nothing in the folder is changed; the journal of a run that trains is read beside it.
//
// Thread-safe: a function on files.
#ifndef CAPSTAN_COORDINATOR_JOURNAL_RUN_JOURNALS_H_
#define CAPSTAN_COORDINATOR_JOURNAL_RUN_JOURNALS_H_

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/core/journal.h"

namespace capstan::coordinator {

// The jobs of all runs in `folder`, or of the one that `folder` is: `<run>/state/journal.db`. Their
// numbers follow their times of submission. There are no nodes. A job that no living coordinator
// has and that has not ended is SUSPENDED, reason Interrupted. A journal that cannot be read is
// left out and logged; where it is the only one, its error is that of the call.
//   NotFound  no run in `folder`
absl::StatusOr<core::DurableState> ReadRunJournals(const std::string& folder);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_JOURNAL_RUN_JOURNALS_H_
