// What services/version says in a build of another version: linked in front of the one of this tree.
// The next minor version, or what CAPSTAN_TEST_VERSION says.
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
