// The version of this build.
//
// Only the generated version.cc contains the stamp, so a commit rebuilds one file. Thread-safe; the
// strings live as long as the process. Library: capstan::version (cmake/CapstanVersion.cmake).
#ifndef CAPSTAN_SERVICES_VERSION_VERSION_H_
#define CAPSTAN_SERVICES_VERSION_VERSION_H_

#include "absl/strings/string_view.h"

namespace capstan {

// The project's version, e.g. "0.2.0".
absl::string_view Version();

// The git revision that was built, with "-dirty" appended if tracked files differed from it, e.g.
// "a7e1d2b4c012" or "a7e1d2b4c012-dirty"; "unknown" if it was not built in a git checkout.
absl::string_view Revision();

// The compiler, e.g. "GNU 12.2.0".
absl::string_view Compiler();

}  // namespace capstan

#endif  // CAPSTAN_SERVICES_VERSION_VERSION_H_
