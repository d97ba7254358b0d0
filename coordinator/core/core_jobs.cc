// The life of a job, from its gang to its end.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/core.h"
#include "coordinator/core/lane_owners.h"
#include "coordinator/core/waiting_text.h"
#include "training/chunks/placement.h"
#include "training/codec/sha256.h"

namespace capstan::coordinator::core {
namespace {

constexpr double kDefaultStallSeconds = 300;
constexpr char kWeightsFile[] = "weights.safetensors";

using common::v1::JOB_STATE_CANCELLED;
using common::v1::JOB_STATE_FAILED;
using common::v1::JOB_STATE_PENDING;
using common::v1::JOB_STATE_RUNNING;
using common::v1::JOB_STATE_STARTING;
using common::v1::JOB_STATE_SUCCEEDED;

bool SameData(const common::v1::DatasetInfo& a, const common::v1::DatasetInfo& b) {
  return a.train_samples() == b.train_samples() && a.test_samples() == b.test_samples() &&
         a.channels() == b.channels() && a.height() == b.height() && a.width() == b.width() &&
         a.num_classes() == b.num_classes();
}

std::string DataText(const common::v1::DatasetInfo& data) {
  return absl::StrCat(data.train_samples(), " + ", data.test_samples(), " samples of ",
                      data.channels(), "x", data.height(), "x", data.width(), ", ",
                      data.num_classes(), " classes");
}

// The folder of a file:// URI, or a plain path as it is; the validator has judged it.
std::string FolderOf(const std::string& uri) {
  constexpr char kScheme[] = "file://";
  return uri.rfind(kScheme, 0) == 0 ? uri.substr(sizeof(kScheme) - 1) : uri;
}

bool IsFileName(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '-' || c == '_';
         });
}

absl::Duration Limit(bool set, double seconds, double otherwise) {
  const double value = set ? seconds : otherwise;
  return value > 0 ? absl::Seconds(value) : absl::InfiniteDuration();
}

}  // namespace

void CoordinatorCore::Advance(JobRecord& job) {
  if (!job.ended() && job.state != JOB_STATE_PENDING) {
    if (job.cancel_asked) {
      AdvanceCancel(job);
    } else if (!job.requeue.empty()) {
      Requeue(job, job.requeue);
    } else {
      if (job.takeover_at <= now_) TakeOverLanes(job);
      if (!job.ended() && !job.resolved.has_value()) AdvanceProbe(job);
      if (!job.ended() && job.has_view()) AdvanceStart(job);
      if (!job.ended() && job.has_view()) AdvanceEnd(job);
      if (!job.ended()) CheckWaiting(job);
      if (!job.ended()) SendLacking(job);
    }
  } else if (job.state == JOB_STATE_PENDING && job.cancel_asked) {
    End(job, JOB_STATE_CANCELLED, "", "cancelled before it started");
  }
  if (job.ended()) WindDown(job);
}

void CoordinatorCore::AdvanceProbe(JobRecord& job) {
  // All answers first: a person wants to know which hosts do have the data.
  const Rank* bad = nullptr;
  std::vector<std::string> good;
  for (const Rank& rank : job.ranks) {
    if (!rank.probed) return;
    if (rank.probe.reason().empty()) {
      good.push_back(rank.host);
    } else if (bad == nullptr) {
      bad = &rank;
    }
  }
  if (bad != nullptr) {
    std::string message = absl::StrCat(NameOf(*bad), ": ", bad->probe.message());
    if (!good.empty())
      absl::StrAppend(&message, "; it is there on host ", absl::StrJoin(good, ", "));
    Fail(job, bad->probe.reason(), message);
    return;
  }
  const common::v1::DatasetInfo& first = job.ranks[0].probe.dataset();
  for (const Rank& rank : job.ranks) {
    if (SameData(rank.probe.dataset(), first)) continue;
    Fail(job, "DataMissing",
         absl::StrCat("the data differ: ", DataText(first), " on host ", job.ranks[0].host, ", ",
                      DataText(rank.probe.dataset()), " on host ", rank.host));
    return;
  }
  ResolveJob(job, first);
}

void CoordinatorCore::ResolveJob(JobRecord& job, const common::v1::DatasetInfo& dataset) {
  const std::string root = job.spec.checkpoint().storage_path().empty()
                               ? options_.storage_root
                               : FolderOf(job.spec.checkpoint().storage_path());
  absl::StatusOr<job::v1::ResolvedSpec> resolved =
      options_.resolve(job.spec, dataset, job.id, root);
  if (!resolved.ok()) {
    Fail(job, absl::IsInvalidArgument(resolved.status()) ? "InvalidSpec" : kInternalError,
         std::string(resolved.status().message()));
    return;
  }
  const int num_shards = static_cast<int>(job.shards.size());
  if (resolved->num_workers() != static_cast<int>(job.ranks.size()) ||
      resolved->num_shards() != num_shards || resolved->lanes() < 1 ||
      resolved->total_steps() < 1 ||
      resolved->devices_per_worker() != static_cast<int>(job.ranks[0].devices.size())) {
    Fail(job, kInternalError,
         absl::StrCat("the resolved spec has ", resolved->num_workers(), " workers x ",
                      resolved->devices_per_worker(), " devices and ", resolved->num_shards(),
                      " shards, the gang ", job.ranks.size(), " x ", job.ranks[0].devices.size(),
                      " and ", num_shards));
    return;
  }
  common::v1::View view;
  view.set_job_id(job.id);
  view.set_lineage(1);
  view.set_generation(1);
  for (const int32_t owner : DealLanes(resolved->lanes(), resolved->num_workers())) {
    view.add_lane_owners(owner);
  }
  for (const Rank& rank : job.ranks) {
    common::v1::WorkerRef* worker = view.add_workers();
    worker->set_rank(rank.index);
    worker->set_node(rank.node);
  }
  if (num_shards > 0) {
    const absl::StatusOr<training::Placement> placement =
        training::Placement::Create(resolved->chunk_count(), num_shards);
    if (!placement.ok()) {
      Fail(job, "InvalidSpec",
           absl::StrCat("resources.num_shards: ", placement.status().message()));
      return;
    }
    for (const Shard& shard : job.shards) {
      const training::ChunkRun run = placement->Run(shard.index);
      common::v1::ShardRoute* route = view.add_shards();
      route->set_index(shard.index);
      route->set_node(shard.node);
      route->set_address(shard.address);
      route->set_incarnation(shard.incarnation);
      route->set_first_chunk(run.first_chunk);
      route->set_chunk_count(run.chunk_count);
    }
  }
  job.resolved_bytes = resolved->SerializeAsString();
  training::Sha256 sha256;
  sha256.Update(job.resolved_bytes);
  const auto digest = sha256.Finish();
  job.digest.assign(digest.begin(), digest.end());
  job.resolved = *std::move(resolved);
  job.progress.set_total_steps(job.resolved->total_steps());
  job.view = std::move(view);
  job.AddEvent(wall_, "Resolved",
               absl::StrCat(job.resolved->lanes(), " lanes, ", job.resolved->total_steps(),
                            " steps, ", job.resolved->chunk_count(), " chunks"));
  Changed(job);
}

void CoordinatorCore::AdvanceStart(JobRecord& job) {
  if (job.state != JOB_STATE_STARTING) return;
  bool all_run = true;
  for (const Rank& rank : job.ranks) {
    if (rank.lost) continue;
    const node::v1::TaskPhase phase =
        rank.present ? rank.state.phase() : node::v1::TASK_PHASE_UNSPECIFIED;
    all_run = all_run &&
              (phase == node::v1::TASK_PHASE_RUNNING || phase == node::v1::TASK_PHASE_FINISHED);
  }
  if (!all_run && job.lead.step() == 0) return;
  SetState(job, JOB_STATE_RUNNING, "", "");
  if (job.progress.epoch() == 0) job.progress.set_epoch(1);
  job.AddEvent(wall_, "Started",
               absl::StrCat(job.ranks.size(), job.ranks.size() == 1 ? " worker, " : " workers, ",
                            job.shards.size(), job.shards.size() == 1 ? " shard" : " shards"));
}

void CoordinatorCore::AdvanceEnd(JobRecord& job) {
  if (job.manifest == ManifestPhase::kRetry && now_ >= job.manifest_retry_at) {
    job.manifest = ManifestPhase::kNone;
  }
  if (job.manifest != ManifestPhase::kNone || !job.lead.complete() ||
      job.lead.step() != job.resolved->total_steps() || job.weights_files.files_size() == 0) {
    return;
  }
  std::map<std::string, common::v1::FileInfo> files;
  const auto take = [&files](const node::v1::WrittenFiles& written) {
    for (const common::v1::FileInfo& file : written.files()) {
      if (!IsFileName(file.name()) || file.size_bytes() < 0 || file.sha256().size() != 32)
        return false;
      if (!files.emplace(file.name(), file).second) return false;
    }
    return true;
  };
  for (const Shard& shard : job.shards) {
    if (shard.final_files.files_size() == 0) return;
    if (!take(shard.final_files)) {
      Fail(job, kInternalError, absl::StrCat(NameOf(shard), ": reports a file that cannot be"));
      return;
    }
  }
  if (!take(job.weights_files) || files.count(kWeightsFile) == 0 ||
      !training::IsSha256Hex(job.weights_sha256)) {
    Fail(job, kInternalError,
         absl::StrCat("the worker of lane 0 reports no proper ", kWeightsFile));
    return;
  }
  job.manifest = ManifestPhase::kWriting;
  ++job.manifest_attempts;
  WriteManifest write;
  write.job_id = job.id;
  write.lineage = job.view.lineage();
  write.step = job.resolved->total_steps();
  write.folder = CheckpointFolder(job.resolved->storage_path(), write.lineage, write.step);
  write.spec_digest_hex = absl::BytesToHexString(job.digest);
  for (auto& entry : files) write.files.push_back(std::move(entry.second));
  write.weights_sha256 = job.weights_sha256;
  write.optimizer = job.resolved->spec().training().optimizer().name();
  write.samples_used = job.samples_used;
  Emit(std::move(write));
}

void CoordinatorCore::AdvanceCancel(JobRecord& job) {
  if (job.manifest == ManifestPhase::kWriting) return;  // what is on disk decides
  std::vector<std::string> alive;
  for (Rank& rank : job.ranks) {
    StopRank(job, rank);
    if (!rank.gone) alive.push_back(NameOf(rank));
  }
  if (alive.empty()) {
    End(job, JOB_STATE_CANCELLED, "", "");
  } else if (now_ - job.cancel_since > options_.stop_grace + options_.stop_limit) {
    End(job, JOB_STATE_CANCELLED, "",
        absl::StrCat("still reported after its time was over: ", absl::StrJoin(alive, ", ")));
  } else {
    std::string text = absl::StrCat("cancelling: waits for ", absl::StrJoin(alive, ", "));
    if (job.message != text) {
      job.message = std::move(text);
      Changed(job);
    }
  }
}

void CoordinatorCore::LoseRank(JobRecord& job, Rank& rank, const std::string& why) {
  if (rank.lost) return;
  if (job.ended() || job.cancel_asked) return;
  rank.why = why;
  if (!job.has_view()) {
    job.requeue = absl::StrCat(NameOf(rank), ": ", why);
    return;
  }
  rank.lost = true;
  job.AddEvent(wall_, "WorkerLost", absl::StrCat(NameOf(rank), ": ", why));
  Changed(job);
  const bool any =
      std::any_of(job.ranks.begin(), job.ranks.end(), [](const Rank& r) { return !r.lost; });
  if (!any) {
    Fail(job, "WorkerLost", absl::StrCat("no worker is left; ", NameOf(rank), ": ", why));
    return;
  }
  // Many may be lost by one cause: they make one generation.
  if (job.takeover_at == absl::InfiniteDuration()) job.takeover_at = now_ + options_.takeover_batch;
}

void CoordinatorCore::LoseShard(JobRecord& job, Shard& shard, const std::string& why) {
  if (shard.lost) return;
  if (job.ended() || job.cancel_asked) return;
  shard.why = why;
  if (!job.has_view()) {
    job.requeue = absl::StrCat(NameOf(shard), ": ", why);
    return;
  }
  shard.lost = true;
  // What it wrote before counts: the manifest can still be made of files that are there.
  if (shard.final_files.files_size() > 0) {
    job.AddEvent(wall_, "ShardLost", absl::StrCat(NameOf(shard), ": ", why));
    return;
  }
  Fail(job, "ShardLost", absl::StrCat(NameOf(shard), ": ", why));
}

// A gang that fell apart before it had a history is no failure: the job waits for another one, at
// its old place in the queue.
void CoordinatorCore::Requeue(JobRecord& job, const std::string& why) {
  for (const Rank& rank : job.ranks) {
    Node* node = nodes_.FindIncarnation(rank.node, rank.incarnation);
    if (node == nullptr) continue;
    FreeSlots(*node, job.id);
    node->jobs.erase(job.id);
  }
  for (const Shard& shard : job.shards) {
    Node* node = nodes_.FindIncarnation(shard.node, shard.incarnation);
    if (node != nullptr) node->jobs.erase(job.id);
  }
  job.AddEvent(wall_, "GangLost", why);
  job.ranks.clear();
  job.shards.clear();
  job.requeue.clear();
  job.waiting.clear();
  active_.erase(job.sequence);
  pending_[job.sequence] = &job;
  SetState(job, JOB_STATE_PENDING, "WaitingForSlots", "its gang was lost: " + why);
  schedule_ = true;
}

void CoordinatorCore::TakeOverLanes(JobRecord& job) {
  job.takeover_at = absl::InfiniteDuration();
  std::set<int32_t> living;
  for (const Rank& rank : job.ranks) {
    if (!rank.lost) living.insert(rank.index);
  }
  const std::vector<int32_t> before(job.view.lane_owners().begin(), job.view.lane_owners().end());
  const std::vector<int32_t> after = TakeOver(before, living);
  common::v1::View view = job.view;
  view.set_generation(view.generation() + 1);
  view.clear_lane_owners();
  for (const int32_t owner : after) view.add_lane_owners(owner);
  view.clear_workers();
  for (const int32_t index : living) {
    common::v1::WorkerRef* worker = view.add_workers();
    worker->set_rank(index);
    worker->set_node(job.ranks[index].node);
  }
  std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>> moved;
  for (size_t lane = 0; lane < after.size(); ++lane) {
    if (before[lane] != after[lane]) {
      moved[{before[lane], after[lane]}].push_back(static_cast<int32_t>(lane));
    }
  }
  std::vector<std::string> texts;
  for (const auto& entry : moved) {
    texts.push_back(absl::StrCat("lanes ", NumbersText(entry.second), " go from w",
                                 entry.first.first, " to w", entry.first.second));
  }
  job.view = std::move(view);
  job.AddEvent(
      wall_, "ViewChanged",
      absl::StrCat("generation ", job.view.generation(), ": ", absl::StrJoin(texts, ", ")));
  Changed(job);
}

// Numbers that only grow while a job gets on. Membership alone is no progress, but gives its time.
std::vector<int64_t> CoordinatorCore::ProgressMark(const JobRecord& job) const {
  int64_t probed = 0, ready = 0, running = 0, files = 0, blocks = 0;
  for (const Rank& rank : job.ranks) {
    probed += rank.probed ? 1 : 0;
    running += rank.seen && rank.state.phase() >= node::v1::TASK_PHASE_RUNNING ? 1 : 0;
  }
  for (const Shard& shard : job.shards) {
    ready += shard.seen && shard.state.ready() ? 1 : 0;
    files += shard.final_files.files_size() > 0 ? 1 : 0;
    if (shard.index == 0) blocks = shard.state.waiting().evaluation_blocks_size();
  }
  files += job.weights_files.files_size() > 0 ? 1 : 0;
  // Within a step, fewer blocks left to evaluate is more done.
  const int64_t evaluated = job.lead.step() * 10000000 - std::min<int64_t>(blocks, 9999999);
  return {job.view.generation(),
          probed,
          ready,
          running,
          job.lead.step(),
          job.lead.complete() ? 1 : 0,
          evaluated,
          files,
          job.manifest_attempts};
}

void CoordinatorCore::CheckWaiting(JobRecord& job) {
  const std::vector<int64_t> mark = ProgressMark(job);
  if (job.progress_mark.empty()) {
    job.progress_mark = mark;
    job.progress_at = now_;
  }
  bool grown = false;
  for (size_t i = 0; i < mark.size(); ++i) {
    if (mark[i] <= job.progress_mark[i]) continue;
    job.progress_mark[i] = mark[i];
    grown = true;
  }
  const job::v1::Limits& limits = job.spec.limits();
  if (grown) {
    job.progress_at = now_;
    job.waiting_logged_at = -absl::InfiniteDuration();
    if (!job.waiting.empty()) {
      job.waiting.clear();
      Changed(job);
    }
  }
  if (job.manifest == ManifestPhase::kWriting) return;  // the disk has its own limit
  const absl::Duration deadline =
      Limit(limits.has_active_deadline_seconds(), limits.active_deadline_seconds(), 0);
  if (now_ - job.started >= deadline) {
    Fail(job, "DeadlineExceeded",
         absl::StrCat("limits.active_deadline: ", absl::FormatDuration(deadline), " are over"));
    return;
  }
  const absl::Duration waited = now_ - job.progress_at;
  const absl::Duration stall = Limit(limits.has_stall_timeout_seconds(),
                                     limits.stall_timeout_seconds(), kDefaultStallSeconds);
  if (waited >= stall) {
    Fail(job, "Stalled", WaitingText(job, nodes_, now_));
    return;
  }
  if (waited < options_.say_waiting_after || now_ - job.waiting_said_at < absl::Seconds(1)) return;
  std::string text = WaitingText(job, nodes_, now_);
  job.waiting_said_at = now_;
  if (now_ - job.waiting_logged_at >= absl::Minutes(1)) {
    job.waiting_logged_at = now_;
    job.AddLog(wall_, "warning", absl::StrCat("waits for ", text));
  }
  if (job.waiting != text) {
    job.waiting = std::move(text);
    Changed(job);
  }
}

void CoordinatorCore::SetState(JobRecord& job, common::v1::JobState state,
                               const std::string& reason, const std::string& message) {
  job.state = state;
  job.reason = reason;
  job.message = message;
  Changed(job);
}

void CoordinatorCore::Fail(JobRecord& job, const std::string& reason, const std::string& message) {
  if (job.ended() || job.cancel_asked) {
    // The root cause stands; this followed from it, or from a person's wish.
    job.AddEvent(wall_, "Consequence", absl::StrCat(reason, ": ", message));
    Changed(job);
    return;
  }
  if (job.manifest == ManifestPhase::kWriting) {
    job.AddEvent(wall_, "Consequence", absl::StrCat(reason, ": ", message));
    return;  // all files are in: nothing that happens to a process now can undo them
  }
  End(job, JOB_STATE_FAILED, reason, message);
}

void CoordinatorCore::End(JobRecord& job, common::v1::JobState state, const std::string& reason,
                          const std::string& message) {
  job.waiting.clear();
  job.takeover_at = absl::InfiniteDuration();
  job.finished_at = wall_;
  job.progress.clear_eta_seconds();
  SetState(job, state, reason, message);
  const char* type = state == JOB_STATE_SUCCEEDED   ? "Succeeded"
                     : state == JOB_STATE_CANCELLED ? "Cancelled"
                                                    : "Failed";
  job.AddEvent(
      wall_, type,
      reason.empty() ? message : absl::StrCat(reason, message.empty() ? "" : ": ", message));
  pending_.erase(job.sequence);
  ended_.push_back(job.id);
  job.counted_log_bytes = job.logs.bytes();
  ended_log_bytes_ += job.counted_log_bytes;
  schedule_ = true;
}

}  // namespace capstan::coordinator::core
