#include "training/spec/nearest.h"

#include <algorithm>

namespace capstan::training::spec {
namespace {

int EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string Nearest(absl::string_view word, const std::vector<std::string>& names) {
  std::string best;
  int best_distance = 3;
  for (const std::string& name : names) {
    if (name == word) return "";
    const int distance = EditDistance(word.substr(0, 100), name);
    if (distance < best_distance && distance < static_cast<int>(name.size())) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace capstan::training::spec
