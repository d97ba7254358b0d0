// The only parser of URIs that name local files or folders: data sets, initial weights,
// checkpoints.
//
// Pure. Every process reads a URI with this function, so a worker opens exactly what a coordinator
// allows.
#ifndef CAPSTAN_TRAINING_CODEC_LOCAL_URI_H_
#define CAPSTAN_TRAINING_CODEC_LOCAL_URI_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::training {

// Returns the path of file:///abs, or a plain path unchanged. Nothing is decoded: a '%' stands for
// itself in both forms. InvalidArgument: another scheme, a host, "..", a control character, or not
// 1 to 4096 bytes. The message does not name the field; the caller does.
absl::StatusOr<std::string> LocalPath(absl::string_view uri);

// The folder of the checkpoint that `path` names, judged by the path alone: `<lineage>-<step>`, or
// the folder of a manifest.json. Empty if it names none.
std::string CheckpointFolderIn(absl::string_view path);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_CODEC_LOCAL_URI_H_
