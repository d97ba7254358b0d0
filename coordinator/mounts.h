// Which mount a path lies on, without a look at the disk, which may hang.
#ifndef CAPSTAN_COORDINATOR_MOUNTS_H_
#define CAPSTAN_COORDINATOR_MOUNTS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace capstan::coordinator {

// The mount points of this process, as /proc/self/mountinfo has them now; none where that cannot be
// read. Never waits for a disk.
std::vector<std::string> MountPoints();
// The same, and `folders`, each of which counts as a mount of its own: it may be a link to one.
std::vector<std::string> MountPointsAnd(const std::vector<std::string>& folders);
// Of the text of that file; "\040" and the like are decoded (proc(5)).
std::vector<std::string> ReadMountInfo(absl::string_view text);

// The longest of `folders` that `path` lies in, by names: a link in the path is not looked at. "/"
// where there is none.
std::string LongestAbove(absl::string_view path, const std::vector<std::string>& folders);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_MOUNTS_H_
