// Paths that must not leave the folders that an operator has allowed.
//
// The kernel decides (openat2 with RESOLVE_BENEATH and RESOLVE_NO_MAGICLINKS), not a comparison of
// strings. "..", a symbolic link out of a root, and a link that is swapped in at the last moment
// all fail. Links that stay inside a root work, even those with an absolute target. Roots are
// absolute folders and may be links themselves. Thread-safe.
#ifndef CAPSTAN_SERVICES_FILES_BENEATH_H_
#define CAPSTAN_SERVICES_FILES_BENEATH_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace capstan::services {

// The part of `path` below `root`, by whole components: "a/b"; "." for the root itself. nullopt:
// the path is relative, has a "..", or is not below `root`. Looks only at the names.
std::optional<std::string> PathBelow(absl::string_view path, absl::string_view root);

// A descriptor of `root`/`below`, or -1 with errno. EXDEV or ELOOP means that the path leaves the
// root.
int OpenBeneath(const std::string& root, const std::string& below, int flags);

// A descriptor (O_PATH) of the folder `root`/`below`. Makes missing folders level by level, never
// outside the root, which must exist. -1 with errno as above.
int MakeFolderBeneath(const std::string& root, const std::string& below, mode_t mode = 0755);

// Whether `path`, as far as it exists, lies in one of `roots`. For paths that will be made, or that
// lie on another host. Also true if a part may not be searched.
bool LiesBeneath(absl::string_view path, const std::vector<std::string>& roots);

// Where `path` really lies, as far as it exists and may be searched, under the name of the root:
// "/root/set/a" for "/root/link/a". nullopt: LiesBeneath is false, a link is dangling, or the
// kernel does not tell.
std::optional<std::string> PlaceBeneath(absl::string_view path,
                                        const std::vector<std::string>& roots);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_FILES_BENEATH_H_
