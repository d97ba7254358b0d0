#include "coordinator/core/vacancies.h"

#include <algorithm>

namespace capstan::coordinator::core {
namespace {

constexpr int kMaxRejoinDoublings = 8;

}  // namespace

void Vacancies::NoteFailure(const std::string& node, absl::Duration worked, absl::Duration delay,
                            absl::Duration forgiven, absl::Duration now) {
  Rejoin& rejoin = rejoins_[node];
  if (worked >= forgiven) rejoin.failures = 0;
  rejoin.not_before = now + delay * (1 << std::min(rejoin.failures, kMaxRejoinDoublings));
  ++rejoin.failures;
}

void Vacancies::NoteRefusal(const std::string& node, absl::Duration delay, absl::Duration now) {
  Rejoin& rejoin = rejoins_[node];
  rejoin.failures += kMaxRejoinDoublings;
  rejoin.not_before = now + delay * (1 << kMaxRejoinDoublings);
}

std::set<std::string> Vacancies::Excluded(absl::Duration now) const {
  std::set<std::string> nodes;
  for (const auto& [node, rejoin] : rejoins_) {
    if (rejoin.not_before > now) nodes.insert(node);
  }
  return nodes;
}

}  // namespace capstan::coordinator::core
