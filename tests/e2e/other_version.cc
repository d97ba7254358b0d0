// What services/version says in a build of another version: linked in front of the one of this tree.
#include "services/version/version.h"

namespace capstan {

absl::string_view Version() { return "99.0.0"; }
absl::string_view Revision() { return "of-a-test"; }
absl::string_view Compiler() { return "none"; }

}  // namespace capstan
