#include "coordinator/core/core.h"

#include <algorithm>
#include <iterator>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "coordinator/core/job_proto.h"
#include "services/check/check.h"
#include "services/check/mutant.h"

namespace capstan::coordinator::core {

CoordinatorCore::CoordinatorCore(CoreOptions options) : ctx_(std::move(options)) {
  CAPSTAN_CHECK(ctx_.options().validate != nullptr && ctx_.options().resolve != nullptr);
}

absl::Status CoordinatorCore::Restore(const DurableState& state, absl::Duration now,
                                      absl::Time wall) {
  CAPSTAN_CHECK(!stepped_ && ctx_.jobs().empty());
  stepped_ = true;
  ctx_.Begin(now, wall);
  heartbeats_.SpareUntil(now + ctx_.options().unknown_jobs_spared);
  node_desk_.LookAtLeases();
  return restorer_.Restore(state, now, wall);
}

template <typename What>
void CoordinatorCore::Handle(const What& what) {
  if constexpr (std::is_same_v<What, Tick>) {
    node_desk_.ExpireLeases();
    std::vector<Job*> active;
    for (const auto& entry : ctx_.jobs().active()) active.push_back(entry.second);
    for (Job* job : active) run_.Advance(*job);
    for (const auto& entry : ctx_.jobs().pending()) {
      if (entry.second->unread()) run_.SayUnread(*entry.second);
    }
    queue_.LookAtRetries();
  } else if constexpr (std::is_same_v<What, ManifestWritten>) {
    if (Job* const job = checkpoints_.Handle(what); job != nullptr) run_.Advance(*job);
  } else if constexpr (std::is_same_v<What, Restored>) {
    restorer_.Handle(what);
  } else if constexpr (std::is_same_v<What, Submit> || std::is_same_v<What, Cancel>) {
    submissions_.Handle(what);
  } else if constexpr (std::is_same_v<What, Control> || std::is_same_v<What, CheckpointRemoved>) {
    changes_.Handle(what);
  } else if constexpr (std::is_same_v<What, RoomMeasured>) {
    run_.Handle(what);
  } else {
    node_desk_.Handle(what);
  }
}

Effects CoordinatorCore::Step(const Event& event, absl::Duration now) {
  // A coordinator that was stopped, or starved, has not listened: its own silence is not held
  // against the nodes. Their messages are in the queue behind this event.
  if (stepped_ && now - ctx_.now() > ctx_.options().lease / 2 &&
      !CAPSTAN_MUTANT("own_silence_counts")) {
    for (auto& entry : ctx_.nodes().all()) entry.second.ForgiveSilence(now - ctx_.now());
  }
  stepped_ = true;
  ctx_.Begin(now, event.wall);

  std::visit([this](const auto& what) { Handle(what); }, event.what);
  queue_.Plan(submissions_.TakeSubmitted());
  forgetting_.ForgetExpiredJobs();
  forgetting_.ForgetOldJobs();

  journaling_.SaveJobs();
  journaling_.SaveHistories();
  Effects& effects = ctx_.effects();
  std::stable_partition(effects.begin(), effects.end(), [](const Effect& effect) {
    return std::holds_alternative<Persist>(effect);
  });
  for (const std::string& id : ctx_.changed()) {
    Job* const job = ctx_.jobs().Find(id);
    if (job == nullptr) continue;
    const Job::News news = job->TakeNews();
    ctx_.Emit(JobChanged{id, news.state, news.generation});
  }
  for (const std::string& id : ctx_.appended()) {
    if (ctx_.jobs().Find(id) != nullptr) ctx_.Emit(LogsAppended{id});
  }
  ctx_.jobs().UpdateIndexes();
  return std::move(effects);
}

absl::Duration CoordinatorCore::NextDeadline() const {
  const absl::Duration now = ctx_.now();
  const absl::Duration tick = now + std::min(ctx_.options().resend, ctx_.options().lease / 4);
  const absl::Duration first_lease_end = node_desk_.FirstLeaseEnd(tick);
  absl::Duration next =
      std::min({first_lease_end, ctx_.jobs().NextDue(now), queue_.NextDue(), ctx_.expiry_at()});
  if (first_lease_end < absl::InfiniteDuration() || !ctx_.jobs().active().empty()) {
    next = std::min(next, tick);
  }
  return std::max(next, now);
}

absl::StatusOr<job::v1::Job> CoordinatorCore::GetJob(absl::string_view job_id) const {
  const Job* job = ctx_.jobs().Find(job_id);
  if (job == nullptr) return absl::NotFoundError(absl::StrCat("no job ", job_id));
  return ToProto(*job, /*with_history=*/true);
}

std::vector<job::v1::Job> CoordinatorCore::ListJobs(int limit, const JobFilter& filter,
                                                    int64_t before) const {
  const auto wanted = [&filter](const Job& job) {
    if (!filter.states.empty() && filter.states.count(job.state()) == 0) return false;
    if (!filter.owner.empty() && job.owner() != filter.owner) return false;
    const auto& has = job.spec().labels();
    return std::all_of(filter.labels.begin(), filter.labels.end(), [&has](const auto& label) {
      const auto it = has.find(label.first);
      return it != has.end() && it->second == label.second;
    });
  };
  std::vector<job::v1::Job> out;
  const auto first = std::make_reverse_iterator(ctx_.jobs().all().lower_bound(before));
  for (auto it = first; it != ctx_.jobs().all().rend(); ++it) {
    if (static_cast<int>(out.size()) >= limit) break;
    if (wanted(*it->second)) out.push_back(ToProto(*it->second, /*with_history=*/false));
  }
  return out;
}

void CoordinatorCore::ForEachJob(const std::function<void(const Job&)>& visit) const {
  for (const auto& entry : ctx_.jobs().all()) visit(*entry.second);
}

const LogBuffer* CoordinatorCore::Logs(absl::string_view job_id) const {
  const Job* job = ctx_.jobs().Find(job_id);
  return job == nullptr ? nullptr : &job->logs();
}

bool CoordinatorCore::HasEnded(absl::string_view job_id) const {
  const Job* job = ctx_.jobs().Find(job_id);
  return job != nullptr && job->ended();
}

std::vector<std::pair<std::string, std::string>> CoordinatorCore::StoragePaths() const {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& entry : ctx_.jobs().all()) {
    const Job& job = *entry.second;
    if (!job.ended()) out.emplace_back(job.id(), folders_.StoragePath(job));
  }
  return out;
}

}  // namespace capstan::coordinator::core
