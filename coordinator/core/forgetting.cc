#include "coordinator/core/forgetting.h"

#include <algorithm>
#include <string>

namespace capstan::coordinator::core {
namespace {

// A disk that did not remove a folder is asked again; what holds a checkpoint may be gone then, too.
constexpr absl::Duration kExpiryRetry = absl::Minutes(10);

}  // namespace

void Forgetting::ForgetOldJobs() {
  BoundLogs();
  const auto most = static_cast<size_t>(ctx_.options().max_ended_jobs);
  while (ctx_.jobs().ended().size() > most) {
    const size_t oldest = ctx_.jobs().OldestOfTheGreatest([this](const Job& job) -> int64_t {
      return ctx_.jobs().IsActive(job) ? 0 : 1;  // 0: something of it may still run
    });
    if (oldest == ctx_.jobs().ended().size()) return;
    ForgetEnded(oldest);
  }
}

void Forgetting::ForgetEnded(size_t index) {
  const Job& job = *ctx_.jobs().Find(ctx_.jobs().ended()[index]);
  ctx_.Emit(Persist{JobForgotten{job.id()}});
  ctx_.ForgetChange(job);
  ctx_.jobs().Forget(index);
}

void Forgetting::ForgetExpiredJobs() {
  if (ctx_.now() < ctx_.expiry_at()) return;
  absl::Duration next = absl::InfiniteDuration();
  for (size_t i = ctx_.jobs().ended().size(); i-- > 0;) {
    Job& job = *ctx_.jobs().Find(ctx_.jobs().ended()[i]);
    const double ttl = job.spec().limits().ttl_after_finished_seconds();
    if (ttl <= 0) continue;
    const absl::Duration due = job.standing().ended_at() + absl::Seconds(ttl);
    if (ctx_.now() < due) {
      next = std::min(next, due);
    } else if (ctx_.jobs().IsActive(job)) {
      next = std::min(next, ctx_.now() + ctx_.options().lease);  // something of it may still run
    } else if (RemoveCheckpoints(job)) {
      ForgetEnded(i);
    } else {
      next = std::min(next, ctx_.now() + kExpiryRetry);
    }
  }
  ctx_.LookForExpiredAt(next);
}

bool Forgetting::RemoveCheckpoints(Job& job) {
  const size_t before = job.checkpoints().all().size();
  for (size_t i = before; i-- > 0;) {
    const std::string id = job.checkpoints().all()[i].saved.id();
    if (!folders_.WhoBeginsFrom(job, id).empty()) continue;
    job.checkpoints().Delete(id);
  }
  if (job.checkpoints().all().size() < before) {
    job.AddEvent(ctx_.wall(), "CheckpointsExpired", "limits.ttl_after_finished is over");
    ctx_.Changed(job);
  }
  folders_.RemoveDeleted(job);
  return job.checkpoints().all().empty() && job.checkpoints().deleted().empty();
}

void Forgetting::BoundLogs() {
  while (ctx_.log_bytes() > ctx_.options().max_all_log_bytes) {
    const size_t ended =
        ctx_.jobs().OldestOfTheGreatest([](const Job& job) { return job.logs().bytes(); });
    if (ended < ctx_.jobs().ended().size()) {
      ctx_.jobs().Find(ctx_.jobs().ended()[ended])->logs().Clear();
      continue;
    }
    Job* longest = nullptr;
    for (const auto& entry : ctx_.jobs().all()) {
      Job* const job = entry.second;
      if (longest == nullptr || job->logs().bytes() > longest->logs().bytes()) longest = job;
    }
    longest->logs().DropTo(longest->logs().bytes() / 2);
  }
}

}  // namespace capstan::coordinator::core
