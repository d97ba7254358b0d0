// Finds the mount of a path without touching the disk, which may hang.
#ifndef CAPSTAN_COORDINATOR_MOUNTS_H_
#define CAPSTAN_COORDINATOR_MOUNTS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace capstan::coordinator {

// The present mount points of this process, from /proc/self/mountinfo. Empty if that cannot be
// read. Never waits for a disk.
std::vector<std::string> MountPoints();
// The mount points, and `folders`. Each of these counts as a mount, since it may be a link to one.
std::vector<std::string> MountPointsAnd(const std::vector<std::string>& folders);
// Parses the text of /proc/self/mountinfo. Decodes "\040" and the like (proc(5)).
std::vector<std::string> ReadMountInfo(absl::string_view text);

// The longest of `folders` that contains `path` by name; links in the path are not followed. "/" if
// there is none.
std::string LongestAbove(absl::string_view path, const std::vector<std::string>& folders);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_MOUNTS_H_
