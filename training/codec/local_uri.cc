#include "training/codec/local_uri.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

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

std::string CheckpointFolderIn(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  if (absl::ConsumeSuffix(&path, "/manifest.json")) {
    return path.empty() ? "/" : std::string(path);
  }
  const absl::string_view name = path.substr(path.rfind('/') + 1);
  const size_t dash = name.find('-');
  if (dash == absl::string_view::npos) return "";
  const auto is_number = [](absl::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == absl::string_view::npos;
  };
  const bool named = is_number(name.substr(0, dash)) && is_number(name.substr(dash + 1));
  return named ? std::string(path) : "";
}

}  // namespace capstan::training
