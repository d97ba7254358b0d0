#include "gpu_worker/service/oom_count.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "services/files/files.h"

namespace capstan::gpu_worker {
namespace {

constexpr int64_t kMaxBytes = 1 << 20;

// The number N in the line "oom_kill N".
std::optional<int64_t> Count(const std::string& file) {
  const auto text = services::ReadWholeFile(file, kMaxBytes);
  if (!text.ok()) return std::nullopt;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> words =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    int64_t kills = 0;
    if (words.first == "oom_kill" && absl::SimpleAtoi(words.second, &kills)) return kills;
  }
  return std::nullopt;
}

}  // namespace

OomCount ReadOomCount(const std::string& root) {
  std::vector<std::string> files;
  const auto groups = services::ReadWholeFile(root + "/proc/self/cgroup", kMaxBytes);
  if (groups.ok()) {
    // "0::/path" in version 2, "8:memory:/path" in version 1. In a container the path may be the
    // host's, although the group itself is mounted at the top.
    for (const absl::string_view line : absl::StrSplit(*groups, '\n')) {
      const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
      if (parts.size() != 3) continue;
      std::vector<absl::string_view> paths = {parts[2]};
      if (parts[2] != "/") paths.push_back("");
      for (const absl::string_view path : paths) {
        if (parts[1].empty()) {
          files.push_back(absl::StrCat(root, "/sys/fs/cgroup", path, "/memory.events"));
        } else if (parts[1] == "memory") {
          files.push_back(absl::StrCat(root, "/sys/fs/cgroup/memory", path, "/memory.oom_control"));
        }
      }
    }
  }
  files.push_back(root + "/proc/vmstat");
  for (const std::string& file : files) {
    if (const std::optional<int64_t> kills = Count(file)) return {*kills, file};
  }
  return {};
}

}  // namespace capstan::gpu_worker
