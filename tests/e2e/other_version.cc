// Replaces services/version in a build of another version; it is linked before this tree's own. The
// version is the next minor one, or that of CAPSTAN_TEST_VERSION.
#include <cstdlib>

#include "services/version/version.h"

namespace capstan {

absl::string_view Version() {
  const char* const wanted = std::getenv("CAPSTAN_TEST_VERSION");
  return wanted == nullptr ? CAPSTAN_NEXT_VERSION : wanted;
}
absl::string_view Revision() { return "of-a-test"; }
absl::string_view Compiler() { return "none"; }

}  // namespace capstan
