// The coordinator's work on checkpoint folders: writes manifest.json last and removes folders that
// are not checkpoints (any more). None of it runs on the strand.
#ifndef CAPSTAN_COORDINATOR_MANIFEST_WRITER_H_
#define CAPSTAN_COORDINATOR_MANIFEST_WRITER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/types.h"

namespace capstan::coordinator {

// Checks that every file is in `write.folder` and has the size that its writer reported. (It trusts
// the writer's hash, because every reader checks it.) Then creates manifest.json atomically:
// temporary name, fsync, link, fsync of the folder and of the two folders above it, the job's and
// that of all jobs. Blocks.
// DataLoss: a file is missing or has another size, or another manifest has the name already. OK if
// the same manifest exists already.
absl::Status WriteManifestFile(const core::WriteManifest& write);

// Removes the folders that `sweep` names. Removes manifest.json first in each, so that a partly
// removed checkpoint is not one any more. What cannot be removed stays for the next time. Blocks.
// Returns the number of removed folders.
int SweepCheckpointFolders(const core::SweepCheckpoints& sweep);

// Removes the folder of one checkpoint, `<storage_path>/<checkpoint>`, with manifest.json first. OK
// if it does not exist. Blocks.
absl::Status RemoveCheckpointFolder(const std::string& storage_path, const std::string& checkpoint);

// The manifests of one job in `<storage_path>/<lineage>-<step>/manifest.json`, by lineage and step.
// Syncs their folders, because the writer may have died before it did. Manifests that are damaged,
// that are of another job, or whose folders cannot be synced are left out and logged. Blocks.
std::vector<core::FoundManifest> FindManifests(const std::string& job_id,
                                               const std::string& storage_path);

// The highest lineage in the names of the folders `<lineage>-<step>` in `storage_path`, whatever
// they contain. 0: there is none. Blocks.
int64_t HighestLineage(const std::string& storage_path);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_MANIFEST_WRITER_H_
