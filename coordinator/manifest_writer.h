// The coordinator's work on checkpoint folders: manifest.json, written last; what is no checkpoint
// (any more), removed. All of it off the strand.
#ifndef CAPSTAN_COORDINATOR_MANIFEST_WRITER_H_
#define CAPSTAN_COORDINATOR_MANIFEST_WRITER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/types.h"

namespace capstan::coordinator {

// Checks that every file is in `write.folder` with the size that its writer reported (the hash is
// the writer's word: whoever reads the file checks it), then makes manifest.json appear there whole
// or not at all: temporary name, fsync, link, fsync of the folder and of the two above it, those of
// the job and of all jobs. Blocks.
// DataLoss: a file is missing or has another size, or another manifest has the name already. The
// same manifest there already: OK.
absl::Status WriteManifestFile(const core::WriteManifest& write);

// Removes the folders that `sweep` names, each one's manifest.json first, so that a half removed
// checkpoint is none. What cannot be removed stays for the next time. Blocks. Returns how many went.
int SweepCheckpointFolders(const core::SweepCheckpoints& sweep);

// Removes the folder of one checkpoint, `<storage_path>/<checkpoint>`, manifest.json first. OK where it
// is not there. Blocks.
absl::Status RemoveCheckpointFolder(const std::string& storage_path, const std::string& checkpoint);

// The manifests of one job that lie in `<storage_path>/<lineage>-<step>/manifest.json`, by lineage
// and step; their folders are synced, for whoever wrote one may have died before. One that is
// damaged, or of another job, or whose folders cannot be synced, is none: that is logged. Blocks.
std::vector<core::FoundManifest> FindManifests(const std::string& job_id,
                                               const std::string& storage_path);

// The highest lineage that a folder `<lineage>-<step>` in `storage_path` is named after, whatever
// lies in it; 0: there is none. Blocks.
int64_t HighestLineage(const std::string& storage_path);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_MANIFEST_WRITER_H_
