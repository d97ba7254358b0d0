// The folders that `run` and `launch` make, one per job: <storage_path>/<job_id>. Such a folder
// holds the job's checkpoints and step log and, in kRunState, its coordinator's state.
//
// Thread-safe, because all functions work on files only. Errors name the path.
#ifndef CAPSTAN_CLIENT_RUN_FOLDER_H_
#define CAPSTAN_CLIENT_RUN_FOLDER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace capstan::client {

inline constexpr char kDefaultRunsFolder[] = "capstan-out";
inline constexpr char kRunState[] = "state";
// A run without kRunState, as of earlier versions, counts as live for this long after its last
// write.
inline constexpr absl::Duration kQuietRun = absl::Minutes(10);

// Makes a new folder in `storage`, which must exist, for a job named `name`. Returns the job's id,
// "<name>-x3n9k4".
absl::StatusOr<std::string> MakeRunFolder(const std::string& storage, const std::string& name);

// Makes `run`/kRunState (0700) and returns its path. Empty: the file system has no locks, so no
// coordinator can keep its state there.
absl::StatusOr<std::string> MakeRunState(const std::string& run);

// Whether a coordinator works in `run`, that is, holds the lock of its state.
bool IsLive(const std::string& run);

// Whether `name` is the path of a run, not an id.
bool IsRunPath(const std::string& name);
// Returns the folder of the run that a person names: by a path, or for ./capstan-out by an id, by a
// unique beginning of an id, or as @last (the run started or resumed last). NotFound: there is no
// run that can be looked at or resumed; a run of an earlier version is one that cannot.
// InvalidArgument: several ids begin with `name`; the message lists them.
absl::StatusOr<std::string> FindRunFolder(const std::string& name);
// The name by which FindRunFolder finds the run in `folder` from the working directory: its id, or
// the path.
std::string RunName(const std::string& folder);

// OK: `folder` is a run that can be looked at, or contains some. NotFound: neither.
absl::Status CheckRunsIn(const std::string& folder);

struct FoundRun {
  std::string job_id;  // the folder's name
  bool live = false;   // it trains, as far as can be seen from outside
};
// The runs in `folder`, newest first: all folders with a metrics.jsonl, a checkpoint or a journal
// of Capstan. Empty if `folder` does not exist.
absl::StatusOr<std::vector<FoundRun>> FindRuns(const std::string& folder);

// Removes all runs in `folder` except the newest `keep` and the live ones. Returns the removed
// runs, and the old ones that were kept because they are live. Does not touch anything that is not
// a run.
struct RemovedRuns {
  std::vector<std::string> removed;
  std::vector<std::string> live;
};
absl::StatusOr<RemovedRuns> RemoveOldRuns(const std::string& folder, int keep);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_RUN_FOLDER_H_
