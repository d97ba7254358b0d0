// Extracts the expected files, and nothing else, from a tar.gz.
//
// Members that are not expected are skipped, whatever they are. No path of the archive is ever
// opened, so none can lead out of the folder. Links, folders and devices are not made.
//
// Threads: functions that use only the files.
#ifndef CAPSTAN_GPU_WORKER_DATA_ARCHIVE_H_
#define CAPSTAN_GPU_WORKER_DATA_ARCHIVE_H_

#include <string>

#include "absl/status/status.h"
#include "gpu_worker/data/catalog.h"

namespace capstan::data {

// Unpacks entry.members from the archive at `path` into `folder`, which must exist. Each file
// appears completely or not at all. The last one is SHA256SUMS, which contains their hashes, for
// VerifyMembers and for `sha256sum -c`. DataLoss, DataMissing: not gzip, not tar (POSIX.1-1988,
// ustar), or a member is absent, repeated, not a regular file or of another size. Otherwise the
// error of writing.
absl::Status UnpackMembers(const std::string& path, const CatalogEntry& entry,
                           const std::string& folder);

// Compares the members in `folder` with entry.members' sizes and with SHA256SUMS. Returns the first
// error, like VerifyFile.
absl::Status VerifyMembers(const std::string& folder, const CatalogEntry& entry);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_ARCHIVE_H_
