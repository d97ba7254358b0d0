#include "coordinator/core/losses.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/core/reasons.h"
#include "services/check/mutant.h"

namespace capstan::coordinator::core {
namespace {

using common::v1::JOB_STATE_RECOVERING;

}  // namespace

void Losses::LoseTask(Job& job, Task& task, const Loss& loss) {
  if (task.lost || job.resting() || job.cancel_asked()) return;
  task.why = loss.why;
  const std::string text = absl::StrCat(NameOf(task), ": ", loss.why);
  if (!job.in_history()) {
    job.members().Break(text);
    return;
  }
  task.lost = true;
  task.lapsed_at = loss.lapsed ? job.view().generation() : 0;
  job.AddEvent(ctx_.wall(), loss.drained ? "WorkerDrained" : "WorkerLost", text);
  ctx_.Changed(job);
  if (job.unread()) return;         // GoOn sees to it
  if (job.EndIsReported()) return;  // the manifest can be made of files that are there
  ctx_.Reschedule();
  if (!loss.lapsed && !loss.drained) {
    job.vacancies().NoteFailure(task.node, ctx_.now() - task.deal_at, ctx_.options().rejoin_delay,
                                ctx_.options().rejoin_forgiven, ctx_.now());
  }
  if (NeverRetried(job.recovery_spec(), loss.reason)) {
    states_.Fail(job, loss.reason, text);
    return;
  }
  if (job.LanesAreFixed() && !job.shards().empty() && job.lineages().Owns(task.index)) {
    // Nobody else has the residuals of its lanes.
    if (loss.goodbye || loss.drained) {
      if (!job.recovery().wanted()) recoveries_.RecoverFreely(job, kLanesMove, text);
      return;
    }
    return recoveries_.BeginRecovery(job, loss.reason, text);
  }
  if (job.members().living() > 0) {
    // Many may be lost by one cause: they make one generation.
    const absl::Duration due =
        loss.goodbye ? ctx_.now() : ctx_.now() + ctx_.options().takeover_batch;
    job.recovery().TakeOverBy(due);
    return;
  }
  const std::string none = absl::StrCat("no worker is left; ", text);
  if (job.shards().empty()) {
    if (loss.goodbye) return recoveries_.RecoverFreely(job, loss.reason, none);
    recoveries_.BeginRecovery(job, loss.reason, none);
    return;
  }
  // The shards hold the version: the next worker goes on from it, in the same lineage. A task that
  // said why it failed would say so again and again: that is a restart.
  job.recovery().NoTakeover();
  if (loss.reported && !recoveries_.CountRestart(job, loss.reason, text)) return;
  job.restarts().set_loss_counted(loss.reported || loss.goodbye);
  if (!job.recovery().wanted()) states_.SetState(job, JOB_STATE_RECOVERING, loss.reason, none);
}

void Losses::LoseShard(Job& job, Shard& shard, const Loss& loss) {
  if (shard.lost || job.resting() || job.cancel_asked()) return;
  shard.why = loss.why;
  const std::string text = absl::StrCat(NameOf(shard), ": ", loss.why);
  if (!job.in_history()) {
    job.members().Break(text);
    return;
  }
  const bool planned = loss.goodbye || loss.drained;
  shard.lost = true;
  shard.lapsed = loss.lapsed && !planned;
  job.AddEvent(ctx_.wall(), planned ? kShardLeft : "ShardLost", text);
  ctx_.Changed(job);
  if (job.unread() || job.EndIsReported()) return;
  if (!planned) {
    recoveries_.BeginRecovery(job, "ShardLost", text);
  } else if (!job.recovery().wanted()) {
    recoveries_.RecoverFreely(job, kShardLeft, text);
  }
}

void Losses::FindShardAgain(Job& job, Shard& shard) {
  if (!shard.lapsed || job.recovery().cause() != Recovery::Cause::kShardsLost ||
      !shard.state.ready() || !shard.state.reason().empty() ||
      shard.state.lineage() != job.view().lineage()) {
    return;
  }
  shard.lost = shard.lapsed = false;
  shard.why.clear();
  job.AddEvent(ctx_.wall(), "ShardBack", NameOf(shard));
  ctx_.Changed(job);
  if (job.members().AnyShardLost()) return;
  if (CAPSTAN_MUTANT("shard_back_recovery_stays")) {
    job.recovery().PutOff(absl::InfiniteDuration());
  } else {
    job.recovery().CallOff();
  }
  job.recovery().TakeOverAt(ctx_.now());  // of workers that were lost meanwhile
  job.restarts().TakeBack();              // it was none
}

void Losses::FindTaskAgain(Job& job, Task& task) {
  if (task.lapsed_at == 0 || task.lapsed_at != job.view().generation() || !job.in_history() ||
      job.resting() || job.cancel_asked() || task.state.phase() == node::v1::TASK_PHASE_FAILED) {
    return;
  }
  task.lost = false;
  task.lapsed_at = 0;
  task.why.clear();
  job.AddEvent(ctx_.wall(), "WorkerBack", NameOf(task));
  ctx_.Changed(job);
  if (job.recovery().cause() != Recovery::Cause::kOwnersLost || job.members().AnyShardLost() ||
      recoveries_.LostOwner(job) != nullptr) {
    return;
  }
  job.recovery().CallOff();
  job.restarts().TakeBack();  // it was none
}

}  // namespace capstan::coordinator::core
