// Paths that must not leave the folders that an operator allowed.
//
// The kernel decides (openat2 with RESOLVE_BENEATH and RESOLVE_NO_MAGICLINKS), not a comparison of
// strings: "..", a symbolic link out of a root, and one that is swapped in at the last moment all
// fail. Links that stay inside a root work, also those with an absolute target. Roots are absolute
// folders and may be links themselves. Thread-safe.
#ifndef CAPSTAN_SERVICES_FILES_BENEATH_H_
#define CAPSTAN_SERVICES_FILES_BENEATH_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace capstan::services {

// What follows `root` in `path`, by whole components: "a/b"; "." for the root itself. nullopt: the
// path is relative, has a "..", or begins otherwise. Looks at the names alone.
std::optional<std::string> PathBelow(absl::string_view path, absl::string_view root);

// A descriptor of `root`/`below`, or -1 with errno: EXDEV or ELOOP where it leaves the root.
int OpenBeneath(const std::string& root, const std::string& below, int flags);

// A descriptor (O_PATH) of the folder `root`/`below`. What of it is missing is made, level by level,
// never outside of the root, which exists. -1 with errno likewise.
int MakeFolderBeneath(const std::string& root, const std::string& below, mode_t mode = 0755);

// Whether `path`, as far as it exists, lies in one of `roots`: for paths that are to be made, or
// that another host has. True also where it may not be searched.
bool LiesBeneath(absl::string_view path, const std::vector<std::string>& roots);

// Where `path` really lies, as far as it exists and may be searched, under the name of the root:
// "/root/set/a" for "/root/link/a". nullopt: not LiesBeneath, a link to nowhere, or the kernel does
// not say.
std::optional<std::string> PlaceBeneath(absl::string_view path,
                                        const std::vector<std::string>& roots);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_FILES_BENEATH_H_
