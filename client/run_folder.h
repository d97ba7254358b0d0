// The folders that `run` and `launch` leave, one for each job: <storage_path>/<job_id>. It holds
// the checkpoints and the step log of the job and, in kRunState, what its coordinator knows of it.
//
// Thread-safe: functions on files. Errors name the path.
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
// What has no kRunState, as runs of earlier versions, is taken for live so long after its last
// write.
inline constexpr absl::Duration kQuietRun = absl::Minutes(10);

// A new folder in `storage`, which exists, for a job of this name: "<name>-x3n9k4", the job's id.
absl::StatusOr<std::string> MakeRunFolder(const std::string& storage, const std::string& name);

// Makes `run`/kRunState (0700) and returns its path; empty: the file system has no locks, so no
// coordinator can have its state there.
absl::StatusOr<std::string> MakeRunState(const std::string& run);

// Whether a coordinator works in `run`: its state is locked.
bool IsLive(const std::string& run);

// Whether `name` of a run is a path, and no id.
bool IsRunPath(const std::string& name);
// The folder of the run that a person names: an id of ./capstan-out, or a path. NotFound: nothing
// that can be looked at or resumed lies there, as of a run of an earlier version.
absl::StatusOr<std::string> FindRunFolder(const std::string& name);
// What FindRunFolder takes for the run in `folder`, from the working directory: its id, or the
// path.
std::string RunName(const std::string& folder);

// OK: `folder` is a run that can be looked at, or has some. NotFound: it is not there, or has none.
absl::Status CheckRunsIn(const std::string& folder);

struct FoundRun {
  std::string job_id;  // the folder's name
  bool live = false;   // it trains, as far as can be seen
};
// The runs in `folder`, newest first: folders with a metrics.jsonl, a checkpoint or a journal of
// ours. None where there is no such folder.
absl::StatusOr<std::vector<FoundRun>> FindRuns(const std::string& folder);

// Removes all but the newest `keep` runs of `folder`, and none that is live; what was removed, and
// what would have been if it were not live. Files and folders that are no runs are left alone.
struct RemovedRuns {
  std::vector<std::string> removed;
  std::vector<std::string> live;
};
absl::StatusOr<RemovedRuns> RemoveOldRuns(const std::string& folder, int keep);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_RUN_FOLDER_H_
