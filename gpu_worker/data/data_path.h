// From `data.uri` of a job file to open files, without leaving the roots that the operator has
// allowed.
//
// Threads: pure except for the file system.
#ifndef CAPSTAN_GPU_WORKER_DATA_DATA_PATH_H_
#define CAPSTAN_GPU_WORKER_DATA_DATA_PATH_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gpu_worker/data/byte_source.h"

namespace capstan::data {

// training::LocalPath for `data.uri`. InvalidArgument carries the reason InvalidSpec.
absl::StatusOr<std::string> ParseDataUri(absl::string_view uri);

// Opens `<folder>/<name>` or, if that is absent, `<folder>/<name>.gz` or `<folder>/<name>.xz`,
// which the source unpacks.
//
// With `roots`, which are absolute folders, the path must be absolute, have no ".." and lie in one
// of them, and no symbolic link may lead out of it (openat2 with RESOLVE_BENEATH). Otherwise:
// InvalidArgument, InvalidSpec, "dataset path escapes the data root". Without roots any path is
// allowed, for a job that a user runs as himself. NotFound, PermissionDenied, FailedPrecondition,
// DataLoss; DataMissing: absent, unreadable, not a regular file. Messages name the file.
absl::StatusOr<std::unique_ptr<ByteSource>> OpenDataFile(const std::string& folder,
                                                         absl::string_view name,
                                                         const std::vector<std::string>& roots);

// Opens the file at `path` itself, with the same rules and errors.
absl::StatusOr<std::unique_ptr<ByteSource>> OpenDataPath(const std::string& path,
                                                         const std::vector<std::string>& roots);

// What `visit` is told of an entry of a folder. A link is what it leads to; kOther: a link that
// leads nowhere, a pipe and the like.
enum class FolderEntry { kFile, kFolder, kOther };
using VisitEntry = std::function<absl::Status(absl::string_view name, FolderEntry kind)>;

// Calls `visit` for each entry of the folder at `path`, except those whose names begin with a dot,
// in no order, until it returns an error, which is then the result. Rules and errors as above;
// NotFound: also if it is no folder.
absl::Status ListDataFolder(const std::string& path, const std::vector<std::string>& roots,
                            const VisitEntry& visit);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_DATA_PATH_H_
