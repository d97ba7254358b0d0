#include "client/old_runs.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"

namespace capstan::client {
namespace {

namespace fs = std::filesystem;

// A run of ours holds its step log, or a checkpoint's folder "<lineage>-<step>" with a manifest.
bool IsRun(const fs::path& folder) {
  std::error_code ignored;
  if (fs::is_regular_file(folder / "metrics.jsonl", ignored)) return true;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (fs::is_regular_file(entry.path() / "manifest.json", ignored)) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> RemoveOldRuns(const std::string& folder, int keep) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return std::vector<std::string>{};
  std::vector<std::pair<fs::file_time_type, fs::path>> runs;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::error_code ignored;
    if (!entry.is_symlink(ignored) && entry.is_directory(ignored) && IsRun(entry.path())) {
      runs.emplace_back(fs::last_write_time(entry.path(), ignored), entry.path());
    }
  }
  if (error)
    return absl::UnavailableError(absl::StrCat("cannot list ", folder, ": ", error.message()));
  std::sort(runs.rbegin(), runs.rend());
  std::vector<std::string> removed;
  for (size_t i = static_cast<size_t>(std::max(keep, 0)); i < runs.size(); ++i) {
    fs::remove_all(runs[i].second, error);
    if (error)
      return absl::UnavailableError(
          absl::StrCat("cannot remove ", runs[i].second.string(), ": ", error.message()));
    removed.push_back(runs[i].second.filename().string());
  }
  return removed;
}

}  // namespace capstan::client
