// Reads the journals that the coordinators of `capstan run` left in a folder of runs, to look at
// them. Nothing in the folder is changed. The journal of a run that trains is read while it is in
// use.
//
// Thread-safe: a function on files.
#ifndef CAPSTAN_COORDINATOR_JOURNAL_RUN_JOURNALS_H_
#define CAPSTAN_COORDINATOR_JOURNAL_RUN_JOURNALS_H_

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/core/journal.h"

namespace capstan::coordinator {

// The jobs of all runs in `folder`, or of the one run that `folder` is, from
// `<run>/state/journal.db`. They are numbered by their times of submission. There are no nodes. A
// job that has not ended and has no living coordinator is SUSPENDED with reason Interrupted. A
// journal that cannot be read is left out and logged; if it is the only one, its error is returned.
//   NotFound  no run in `folder`
absl::StatusOr<core::DurableState> ReadRunJournals(const std::string& folder);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_JOURNAL_RUN_JOURNALS_H_
