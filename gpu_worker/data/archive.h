// The expected files out of a tar.gz, and nothing else of it.
//
// A member that is not expected is read over, whatever it is: no path of the archive is ever
// opened, so none can lead out of the folder, and links, folders and devices are not made.
//
// Threads: functions of the files.
#ifndef CAPSTAN_GPU_WORKER_DATA_ARCHIVE_H_
#define CAPSTAN_GPU_WORKER_DATA_ARCHIVE_H_

#include <string>

#include "absl/status/status.h"
#include "gpu_worker/data/catalog.h"

namespace capstan::data {

// Unpacks entry.members from the archive at `path` into `folder`, which exists. Each file appears
// whole or not at all; the last one is SHA256SUMS, with their hashes, for VerifyMembers and for
// `sha256sum -c`.
// DataLoss, DataMissing: no gzip, no tar (POSIX.1-1988, ustar), a member that is absent, comes
// twice, is no regular file or has another size. Else the error of writing.
absl::Status UnpackMembers(const std::string& path, const CatalogEntry& entry,
                           const std::string& folder);

// Compares the members in `folder` with entry.members' sizes and with SHA256SUMS; the first error,
// as VerifyFile's.
absl::Status VerifyMembers(const std::string& folder, const CatalogEntry& entry);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_ARCHIVE_H_
