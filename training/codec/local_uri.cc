#include "training/codec/local_uri.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace capstan::training {

absl::StatusOr<std::string> LocalPath(absl::string_view uri) {
  absl::string_view path = uri;
  if (absl::StartsWith(path, "file://")) {
    path.remove_prefix(7);
    if (!absl::StartsWith(path, "/")) {
      return absl::InvalidArgumentError(
          absl::StrCat("must be file:///path, without a host, found '", uri, "'"));
    }
  } else if (absl::StrContains(path, "://")) {
    return absl::InvalidArgumentError(absl::StrCat("must begin with file://, found '", uri, "'"));
  }
  if (path.empty() || path.size() > 4096) {
    return absl::InvalidArgumentError(
        absl::StrCat("must have 1 to 4096 bytes, found ", path.size()));
  }
  for (const char c : path) {
    if (absl::ascii_iscntrl(c))
      return absl::InvalidArgumentError("must not hold control characters");
  }
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    if (part == "..")
      return absl::InvalidArgumentError(absl::StrCat("must not hold '..', found '", uri, "'"));
  }
  return std::string(path);
}

}  // namespace capstan::training
