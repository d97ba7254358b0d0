#include "coordinator/mounts.h"

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "services/files/beneath.h"
#include "services/files/files.h"

namespace capstan::coordinator {
namespace {

constexpr int64_t kMaxMountInfoBytes = int64_t{16} << 20;
constexpr size_t kMountPointField = 4;  // from 0

bool IsOctal(char c) { return c >= '0' && c <= '7'; }

std::string DecodeMountPoint(absl::string_view text) {
  std::string path;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && IsOctal(text[i + 1]) && IsOctal(text[i + 2]) &&
        IsOctal(text[i + 3])) {
      path.push_back(static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                       (text[i + 3] - '0')));
      i += 3;
    } else {
      path.push_back(text[i]);
    }
  }
  return path;
}

}  // namespace

std::vector<std::string> ReadMountInfo(absl::string_view text) {
  std::vector<std::string> points;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ');
    if (fields.size() > kMountPointField) {
      points.push_back(DecodeMountPoint(fields[kMountPointField]));
    }
  }
  return points;
}

std::vector<std::string> MountPoints() {
  const absl::StatusOr<std::string> text =
      services::ReadWholeFile("/proc/self/mountinfo", kMaxMountInfoBytes);
  return text.ok() ? ReadMountInfo(*text) : std::vector<std::string>();
}

std::vector<std::string> MountPointsAnd(const std::vector<std::string>& folders) {
  std::vector<std::string> all = MountPoints();
  all.insert(all.end(), folders.begin(), folders.end());
  return all;
}

std::string LongestAbove(absl::string_view path, const std::vector<std::string>& folders) {
  std::string longest = "/";
  for (const std::string& folder : folders) {
    if (folder.size() > longest.size() && services::PathBelow(path, folder).has_value()) {
      longest = folder;
    }
  }
  return longest;
}

}  // namespace capstan::coordinator
