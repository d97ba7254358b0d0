// The folders that `run` leaves under its default storage path.
#ifndef CAPSTAN_CLIENT_OLD_RUNS_H_
#define CAPSTAN_CLIENT_OLD_RUNS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace capstan::client {

inline constexpr int kKeptRuns = 10;
inline constexpr char kDefaultRunsFolder[] = "capstan-out";

// Removes all but the newest `keep` runs (folders that hold a metrics.jsonl or a checkpoint of
// ours) of `folder` and returns the names of those removed. Files and folders that are not runs are
// left alone. OK where there is no such folder.
absl::StatusOr<std::vector<std::string>> RemoveOldRuns(const std::string& folder, int keep);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_OLD_RUNS_H_
