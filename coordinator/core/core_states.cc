// What heartbeats say of tasks and shards: states, ends, the lead's news.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"
#include "services/check/mutant.h"
#include "services/timestamp/timestamp.h"

namespace capstan::coordinator::core {
namespace {

constexpr size_t kMaxMessageBytes = 2048;  // of a failure's sentence
constexpr size_t kMaxEpochs = 10000;       // records of one job: what fits into one message
constexpr int64_t kBehindVersions = 10;    // left out for a slow reader, then it is told

std::string EpochText(const common::v1::EpochRecord& epoch) {
  std::string text = absl::StrCat("epoch ", epoch.epoch(), " done");
  if (epoch.has_train_loss()) absl::StrAppend(&text, ", loss ", epoch.train_loss());
  if (epoch.has_validation_loss()) {
    absl::StrAppend(&text, ", validation loss ", epoch.validation_loss());
  }
  if (epoch.has_validation_accuracy()) {
    absl::StrAppend(&text, ", validation accuracy ", epoch.validation_accuracy());
  }
  return text;
}

// The process is gone without having said why: another one can do its work. What it said itself
// (no data, out of memory, a non-finite loss) would befall the next one too.
bool DiedSilently(const node::v1::TaskState& state) {
  const bool by_signal = state.has_exit_code() && state.exit_code() < 0;
  return state.reason() == "WorkerLost" ||
         (by_signal && (state.reason().empty() || state.reason() == kInternalError));
}

}  // namespace

std::string KnownReason(const std::string& reason) {
  static constexpr const char* kReasons[] = {
      "InvalidSpec", "DataMissing",   "GpuOutOfMemory",   "HostOutOfMemory",  "NonFiniteLoss",
      "WorkerLost",  "ShardLost",     "Stalled",          "DeadlineExceeded", "MaxRestartsExceeded",
      "NcclTimeout", "InternalError", "CheckpointCorrupt"};
  for (const char* known : kReasons) {
    if (reason == known) return reason;
  }
  return kInternalError;
}

std::string Sentence(const std::string& text) {
  if (text.size() <= kMaxMessageBytes) return text;
  size_t cut = kMaxMessageBytes;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  return text.substr(0, cut) + "...";
}

void CoordinatorCore::AcceptTask(JobRecord& job, Rank& rank, const node::v1::TaskState& state) {
  if (job.unread) {  // the next heartbeats say it again
    rank.present = rank.seen = true;
    rank.gone = false;
    return;
  }
  if (rank.state.phase() != state.phase() || rank.state.step() != state.step()) Changed(job);
  rank.state = state;
  rank.present = rank.seen = true;
  rank.gone = false;
  if (rank.lost) FindRankAgain(job, rank);
  if (rank.lost || job.state == common::v1::JOB_STATE_SUCCEEDED) return;
  if (state.phase() == node::v1::TASK_PHASE_FAILED) {
    TaskFailed(job, rank);
    return;
  }
  if (job.resting() || !job.in_history() || state.lineage() != job.view.lineage()) return;
  if (job.shards.empty()) {
    if (state.has_lead()) TakeLead(job, state.lead());
    if (state.has_files()) TakeFiles(job, 0, state.files());
  }
  const int64_t total = job.resolved->total_steps();
  // Any task may have been told to report; what it says of files that are not its own is no news.
  if (&rank == job.LaneZeroOwner() && state.files().lineage() == job.view.lineage() &&
      state.files().step() == total && state.files().files_size() > 0 &&
      !state.weights_sha256().empty() && job.weights_files.files_size() == 0) {
    job.weights_files = state.files();
    job.weights_sha256 = state.weights_sha256();
    Changed(job);
  }
  if (&rank == job.LaneZeroOwner() && !job.shards.empty() && job.lead.complete() &&
      state.files().lineage() == job.view.lineage() && state.files().step() == total &&
      !state.files().error().empty()) {
    CheckpointFailed(job, total, absl::StrCat(NameOf(rank), ": ", Sentence(state.files().error())));
  }
}

// A task has ended by an error. What would befall every other one too ends the job; the rest is a
// worker less.
void CoordinatorCore::TaskFailed(JobRecord& job, Rank& rank) {
  const node::v1::TaskState& state = rank.state;
  if (rank.failure_told) return;
  if (job.resting() || job.cancel_asked) {
    // Stopped tasks report how they ended; only what they say of themselves is news.
    if (state.reason().empty() || DiedSilently(state)) return;
  }
  if (DiedSilently(state)) {
    std::string why = Sentence(state.message());
    if (why.empty()) {
      why = state.exit_code() < 0
                ? absl::StrCat("its task was ended by signal ", -int64_t{state.exit_code()})
                : "its task is lost";
    }
    LoseRank(job, rank, {.why = std::move(why)});
    return;
  }
  rank.failure_told = true;
  rank.why = Sentence(state.message());
  const std::string reason = KnownReason(state.reason());
  const std::string why = rank.why.empty()
                              ? absl::StrCat("its task ended with exit code ", state.exit_code())
                              : rank.why;
  const std::string text = absl::StrCat(NameOf(rank), ": ", why);
  if (job.resting() || job.cancel_asked || !job.in_history()) {
    Fail(job, reason, text);
  } else if (job.shards.empty() && !job.base.empty() && job.lead.step() <= job.base_step &&
             (reason == "CheckpointCorrupt" || reason == "DataMissing")) {
    RefuseBase(job, text);
  } else {
    LoseRank(job, rank, {.why = why, .reason = reason, .reported = true});
  }
}

void CoordinatorCore::AcceptShard(JobRecord& job, Shard& shard, const node::v1::ShardState& state) {
  if (job.unread) {
    shard.present = shard.seen = true;
    shard.gone = false;
    return;
  }
  if (shard.state.ready() != state.ready() || shard.state.version() != state.version())
    Changed(job);
  shard.state = state;
  shard.present = shard.seen = true;
  shard.gone = false;
  if (shard.lost) FindShardAgain(job, shard);
  if (shard.lost) return;
  if (!state.reason().empty()) {
    ShardFailed(job, shard);
    return;
  }
  if (state.lineage() > job.view.lineage()) BeginAbove(job, state.lineage(), NameOf(shard));
  const bool current =
      state.lineage() == job.view.lineage() || CAPSTAN_MUTANT("manifest_ignores_lineage");
  if (job.resting() || !job.in_history() || !current) return;
  if (shard.index == 0 && state.has_lead()) TakeLead(job, state.lead());
  if (job.in_history() && !job.resting() && state.has_files()) {
    TakeFiles(job, shard.index, state.files());
  }
}

void CoordinatorCore::ShardFailed(JobRecord& job, Shard& shard) {
  const node::v1::ShardState& state = shard.state;
  if (shard.failure_told || job.resting() || job.cancel_asked || !job.in_history() ||
      state.lineage() != job.view.lineage()) {
    return;
  }
  shard.failure_told = true;
  shard.why = Sentence(state.message());
  const std::string reason = KnownReason(state.reason());
  const std::string text = absl::StrCat(NameOf(shard), ": ", shard.why);
  if (!job.base.empty() && !state.ready() &&
      (reason == "CheckpointCorrupt" || reason == "DataMissing")) {
    RefuseBase(job, text);
  } else {
    BeginRecovery(job, reason, text);
  }
}

// A worker that needs longer than a step for the weights gets no lanes: somebody should know why.
void CoordinatorCore::NoteSlowReaders(JobRecord& job, const node::v1::LeadState& lead) {
  std::set<int32_t> slow;
  for (const node::v1::SlowReader& reader : lead.slow_readers()) {
    slow.insert(reader.rank());
    if (reader.rank() < 0 || reader.rank() >= static_cast<int32_t>(job.ranks.size())) continue;
    Rank& rank = job.ranks[static_cast<size_t>(reader.rank())];
    if (rank.behind || rank.lost || reader.missed_versions() < kBehindVersions) continue;
    rank.behind = true;
    job.AddEvent(wall_, "WorkerBehind",
                 absl::StrCat(NameOf(rank), ": it needs longer than a step to take the weights; ",
                              reader.missed_versions(), " versions were left out for it"));
    Changed(job);
  }
  for (Rank& rank : job.ranks) {
    if (slow.count(rank.index) == 0) rank.behind = false;
  }
}

void CoordinatorCore::TakeLead(JobRecord& job, const node::v1::LeadState& lead) {
  if (lead.lineage() != job.view.lineage() || lead.step() < job.lead.step()) return;
  const int64_t total = job.resolved->total_steps();
  if (lead.step() > total || lead.samples_used() < 0 || lead.skipped_steps() < 0 ||
      lead.skipped_steps() > total) {
    return;  // it cannot be: the job waits for a lead that makes sense
  }
  const bool advanced = lead.step() > job.lead.step();
  for (const common::v1::EpochRecord& epoch : lead.epochs()) {
    if (epoch.epoch() < 1) continue;
    // What was dropped as too old must not come back.
    if (!job.epochs.empty() && epoch.epoch() <= job.epochs.rbegin()->first) continue;
    job.epochs.emplace(epoch.epoch(), epoch);
    if (job.epochs.size() > kMaxEpochs) job.epochs.erase(job.epochs.begin());
    job.AddLog(wall_, "info", EpochText(epoch));
    Changed(job);
  }
  if (lead.complete() != job.lead.complete() || lead.suspended() != job.lead.suspended()) {
    Changed(job);
  }
  JournalOrders(job, lead);
  NoteSkipped(job, lead);
  NoteSlowReaders(job, lead);
  if (advanced) NoteStepTime(job, lead.samples_per_second());
  job.lead = lead;
  job.lead.clear_epochs();
  if (!lead.reason().empty()) {
    Fail(job, KnownReason(lead.reason()), Sentence(lead.message()));
    return;
  }
  if (!advanced && !lead.complete()) return;
  Changed(job);
  const job::v1::ResolvedSpec& spec = *job.resolved;
  job.samples_used = lead.samples_used();
  job::v1::Progress& progress = job.progress;
  progress.set_step(lead.step());
  progress.set_total_steps(spec.total_steps());
  if (spec.steps_per_epoch() > 0) {
    const int64_t last = std::max<int64_t>(spec.total_steps() - 1, 0);
    progress.set_epoch(
        static_cast<int32_t>(std::min(lead.step(), last) / spec.steps_per_epoch() + 1));
  }
  progress.clear_loss();
  if (lead.has_loss()) progress.set_loss(lead.loss());
  progress.clear_accuracy();
  if (lead.has_accuracy()) progress.set_accuracy(lead.accuracy());
  if (lead.has_learning_rate()) progress.set_learning_rate(lead.learning_rate());
  if (lead.samples_per_second() > 0) {
    progress.set_samples_per_second(lead.samples_per_second());
    progress.set_eta_seconds(static_cast<double>(spec.total_steps() - lead.step()) *
                             static_cast<double>(spec.global_batch()) / lead.samples_per_second());
  }
  if (!advanced) return;
  SetTime(wall_, progress.mutable_updated_at());
  NotePoint(job);
}

// A step whose loss or gradient was not finite changed nothing; people are told of each.
void CoordinatorCore::NoteSkipped(JobRecord& job, const node::v1::LeadState& lead) {
  const int64_t before = job.progress.skipped_steps();
  if (lead.skipped_steps() == before) return;
  job.progress.set_skipped_steps(lead.skipped_steps());
  Changed(job);
  if (lead.skipped_steps() < before) return;  // gone on from a checkpoint before them
  std::string text = absl::StrCat(lead.skipped_steps() - before, " since then");
  if (lead.has_last_skipped_step()) text = absl::StrCat("step ", lead.last_skipped_step());
  job.AddEvent(
      wall_, "StepSkipped",
      absl::StrCat(text, ": loss or gradient was not finite, the weights stayed as they were; ",
                   lead.skipped_steps(), " skipped in all"));
}

}  // namespace capstan::coordinator::core
