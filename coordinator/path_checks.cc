#include "coordinator/path_checks.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/clock/clock.h"
#include "services/logging/log.h"

namespace capstan::coordinator {
struct PathChecks::Round {
  std::vector<PathPolicy::Claim> claims;
  std::vector<bool> answered;
  PathPolicy::Found found;
  Done done;                      // null: it was called
  std::atomic<bool> over{false};  // nobody waits any more, so checks not begun are skipped
};

absl::Status PathChecks::Silent(const PathPolicy::Claim& claim) const {
  return absl::UnavailableError(absl::StrCat(
      claim.field, ": ", claim.flag, " ", claim.roots[0], " does not answer: ", claim.uri,
      " could not be checked within ", absl::FormatDuration(patience_), "; try again later"));
}

void PathChecks::Check(std::vector<PathPolicy::Claim> claims, Done done) {
  if (claims.empty()) return done(absl::OkStatus(), {});
  const auto round = std::make_shared<Round>();
  round->claims = std::move(claims);
  round->answered.resize(round->claims.size());
  round->done = std::move(done);
  for (size_t i = 0; i < round->claims.size() && round->done != nullptr; ++i) {
    const PathPolicy::Claim& claim = round->claims[i];
    const bool taken = files_.TryPost(claim.roots[0], [this, round, i] {
      PathPolicy::Found found;
      if (!round->over) found = check_(round->claims[i]);
      strand_.Post([round, i, found = std::move(found)] {
        round->answered[i] = true;
        const auto add = [](const auto& from, auto& to) {
          to.insert(to.end(), from.begin(), from.end());
        };
        add(found.violations, round->found.violations);
        add(found.weights_at, round->found.weights_at);
        const auto& all = round->answered;
        if (std::find(all.begin(), all.end(), false) == all.end()) Finish(*round, absl::OkStatus());
      });
    });
    if (!taken) Finish(*round, Silent(claim));
  }
  if (round->done == nullptr) return;
  strand_.CallAt(MonotonicNow() + patience_, [this, round] {
    for (size_t i = 0; i < round->claims.size(); ++i) {
      if (!round->answered[i]) return Finish(*round, Silent(round->claims[i]));
    }
  });
}

void PathChecks::Finish(Round& round, const absl::Status& status) {
  if (round.done == nullptr) return;
  if (!status.ok()) {
    services::Log(services::kWarning, "root_does_not_answer")
        .Kv("status", status)
        .Limit("all", absl::Seconds(10));
  }
  round.over = true;
  std::exchange(round.done, nullptr)(status, round.found);
}

}  // namespace capstan::coordinator
