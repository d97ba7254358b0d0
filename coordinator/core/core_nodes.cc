// Nodes: registration, leases, their messages.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/cards.h"
#include "coordinator/core/core.h"
#include "services/timestamp/timestamp.h"

namespace capstan::coordinator::core {
namespace {

constexpr int kMaxStates = 4096;  // in one heartbeat
constexpr int kMaxLinesInBatch = 4096;
constexpr int64_t kMaxDropped = int64_t{1} << 32;  // lines, of one batch

}  // namespace

void CoordinatorCore::Handle(const NodeConnected& connected) {
  const node::v1::Register& reg = connected.reg;
  absl::Status status = CheckRegister(reg);
  NodeTable::Admission admission;
  if (status.ok()) {
    absl::StatusOr<NodeTable::Admission> judged = nodes_.Judge(reg, connected.named);
    status = judged.status();
    if (judged.ok()) admission = *judged;
  }
  if (status.ok() && nodes_.Find(reg.name()) == nullptr &&
      nodes_.size() >= static_cast<size_t>(options_.max_nodes)) {
    status = absl::ResourceExhaustedError(absl::StrCat(options_.max_nodes, " nodes is the limit"));
  }
  if (!status.ok()) {
    Emit(CloseSession{connected.session, status});
    return;
  }
  if (admission.replaced != 0) {
    nodes_.Disconnect(admission.replaced);
    Emit(CloseSession{admission.replaced, absl::AbortedError("the node has connected again")});
  }
  if (admission.replaced_process) {
    LoseNode(*nodes_.Find(reg.name()), {.why = "its service has started anew"});
  }
  int64_t incarnation = 0;
  if (!admission.same_process) {
    incarnation = ++last_incarnation_;
    Emit(Persist{IncarnationIssued{incarnation, reg}});
  }
  Node& node = nodes_.Admit(connected.session, reg, admission, incarnation, now_, wall_);
  first_lease_end_ = std::min(first_lease_end_, now_ + options_.lease);

  node::v1::ConnectResponse response;
  node::v1::Registered* registered = response.mutable_registered();
  registered->set_incarnation(node.incarnation);
  registered->set_lease_ms(static_cast<int32_t>(absl::ToInt64Milliseconds(options_.lease)));
  registered->set_heartbeat_ms(static_cast<int32_t>(absl::ToInt64Milliseconds(options_.heartbeat)));
  registered->set_hears_leaving(true);
  // Where the nodes were started together, they are dealt a host's cards on purpose.
  if (options_.expected_nodes == 0) {
    std::string shared = SharedCardsText(nodes_, node);
    if (!shared.empty()) registered->add_warnings(std::move(shared));
  }
  Emit(Send{connected.session, std::move(response)});

  // What was sent on the old stream may be lost: all that the coming heartbeats lack is due at
  // once.
  const std::set<std::string> ids = node.jobs;
  for (const std::string& id : ids) {
    JobRecord* job = FindJob(id);
    if (job == nullptr) continue;
    for (Rank& rank : job->ranks) {
      if (rank.node != node.name()) continue;
      rank.probe_sent = rank.view_sent = rank.stop_sent = -absl::InfiniteDuration();
      rank.keyed = false;
    }
    for (Shard& shard : job->shards) {
      if (shard.node != node.name()) continue;
      shard.generation_sent = 0;
      shard.view_sent = shard.end_sent = -absl::InfiniteDuration();
      shard.keyed = false;
    }
    Advance(*job);
  }
  schedule_ = true;
}

void CoordinatorCore::Handle(const NodeDisconnected& disconnected) {
  // The lease goes on: a broken stream is not yet a lost node. But another process may have its
  // name from now on.
  nodes_.Disconnect(disconnected.session);
  first_lease_end_ = -absl::InfiniteDuration();  // one that is lost may be forgotten now
  if (disconnected.goodbye) {
    Node* node = nodes_.FindFormerSession(disconnected.session);
    if (node != nullptr && !node->lost)
      LoseNode(*node, {.why = "its service has stopped", .goodbye = true});
  }
  schedule_ = true;
}

void CoordinatorCore::Handle(const NodeMessage& message) {
  Node* node = nodes_.FindSession(message.session);
  if (node == nullptr) return;  // closed meanwhile
  node->last_heard = now_;
  first_lease_end_ = std::min(first_lease_end_, now_ + options_.lease);
  node->last_heard_wall = wall_;
  if (node->lost) {
    node->lost = node->left = false;  // its ranks stay lost; its slots are good for other jobs
    node->unheard = true;
  }
  switch (message.message.message_case()) {
    case node::v1::ConnectRequest::kHeartbeat:
      OnHeartbeat(*node, message.message.heartbeat());
      return;
    case node::v1::ConnectRequest::kProbeResult:
      OnProbeResult(*node, message.message.probe_result());
      return;
    case node::v1::ConnectRequest::kLogs:
      OnLogs(*node, message.message.logs());
      return;
    default:
      break;
  }
  const SessionId session = node->session;
  nodes_.Disconnect(session);
  Emit(CloseSession{session,
                    absl::InvalidArgumentError(
                        "want a heartbeat, a probe result or logs after the registration")});
}

void CoordinatorCore::OnHeartbeat(Node& node, const node::v1::Heartbeat& heartbeat) {
  if (heartbeat.tasks_size() + heartbeat.shards_size() > kMaxStates) {
    const SessionId session = node.session;
    nodes_.Disconnect(session);
    Emit(CloseSession{session, absl::InvalidArgumentError(
                                   absl::StrCat("heartbeat: more than ", kMaxStates, " states"))});
    return;
  }
  if (node.is_worker() ? !heartbeat.shards().empty() : !heartbeat.tasks().empty()) {
    const SessionId session = node.session;
    nodes_.Disconnect(session);
    Emit(CloseSession{session,
                      absl::InvalidArgumentError(absl::StrCat(
                          "heartbeat: node ", node.name(), " speaks for ",
                          node.is_worker() ? "shards" : "tasks", ", which is not its role"))});
    return;
  }
  if (heartbeat.has_usage()) node.usage = heartbeat.usage();
  node.leaving = heartbeat.leaving_ms() > 0;
  if (node.unheard) schedule_ = true;
  node.unheard = false;
  // A heartbeat is complete: what it does not name is not there.
  std::set<std::string> ids = node.jobs;
  for (const std::string& id : ids) {
    JobRecord* job = FindJob(id);
    if (job == nullptr) continue;
    for (Rank& rank : job->ranks) {
      if (rank.node == node.name() && rank.incarnation == node.incarnation) rank.present = false;
    }
    for (Shard& shard : job->shards) {
      if (shard.node == node.name() && shard.incarnation == node.incarnation) shard.present = false;
    }
  }
  std::set<std::string> strays;
  std::string unknown;  // a task's job that the journal does not have
  for (const node::v1::TaskState& state : heartbeat.tasks()) {
    JobRecord* job = FindJob(state.job_id());
    Rank* rank =
        job == nullptr ? nullptr : job->FindRank(state.rank(), node.name(), node.incarnation);
    if (rank == nullptr) {
      if (job == nullptr) unknown = state.job_id();
      if (job == nullptr && Spared(node, state.job_id())) continue;
      strays.insert(state.job_id());
      StopStray(node, state.job_id(), /*is_task=*/true);
      continue;
    }
    ids.insert(job->id);
    node.jobs.insert(job->id);
    AcceptTask(*job, *rank, state);
  }
  for (const node::v1::ShardState& state : heartbeat.shards()) {
    JobRecord* job = FindJob(state.job_id());
    Shard* shard =
        job == nullptr ? nullptr : job->FindShard(state.shard(), node.name(), node.incarnation);
    if (shard == nullptr) {
      if (job == nullptr && Spared(node, state.job_id())) continue;
      strays.insert(state.job_id());
      StopStray(node, state.job_id(), /*is_task=*/false);
      continue;
    }
    ids.insert(job->id);
    node.jobs.insert(job->id);
    AcceptShard(*job, *shard, state);
  }
  for (auto it = node.stray_stop_sent.begin(); it != node.stray_stop_sent.end();) {
    if (strays.count(it->first) > 0) {
      ++it;
    } else {
      it = node.stray_stop_sent.erase(it);
      schedule_ = true;
    }
  }
  HoldFree(node, unknown);  // before jobs look for devices
  for (const std::string& id : ids) {
    JobRecord* job = FindJob(id);
    if (job == nullptr) {
      FreeSlots(node, id);
      continue;
    }
    SettleMembers(node, *job);
    Advance(*job);
  }
  // Slots of jobs that were taken from this node while its lease had lapsed.
  for (const std::string& slot : std::vector<std::string>(node.slots)) {
    if (!slot.empty() && slot != unknown && node.jobs.count(slot) == 0) FreeSlots(node, slot);
  }
  HoldFree(node, unknown);
}

// A task does not say what it computes on: it may be any device that no other job here has.
void CoordinatorCore::HoldFree(Node& node, const std::string& unknown_job) {
  for (std::string& slot : node.slots) {
    if (slot.empty()) slot = unknown_job;
  }
}

// A journal that lost the job, or the wrong state folder, would else end work that is good.
bool CoordinatorCore::Spared(const Node& node, const std::string& job_id) {
  if (now_ >= spare_until_) return false;
  Emit(TaskSpared{node.name(), job_id, spare_until_ - now_});
  return true;
}

void CoordinatorCore::StopStray(Node& node, const std::string& job_id, bool is_task) {
  const auto sent = node.stray_stop_sent.find(job_id);
  if (sent != node.stray_stop_sent.end() && !Due(sent->second, options_.resend)) return;
  node.stray_stop_sent[job_id] = now_;
  node::v1::ConnectResponse response;
  if (is_task) {
    response.mutable_stop_task()->set_job_id(job_id);
    response.mutable_stop_task()->set_grace_ms(
        static_cast<int32_t>(absl::ToInt64Milliseconds(options_.stop_grace)));
  } else {
    response.mutable_end_job()->set_job_id(job_id);
  }
  Emit(Send{node.session, std::move(response)});
}

// What a node still holds of an earlier gang of the job would be taken for what it holds of the new
// one: of another resolved spec, perhaps.
void CoordinatorCore::ExcludeStrays(const JobRecord& job, GangRequest& request) const {
  for (const auto& [name, node] : nodes_.all()) {
    if (node.stray_stop_sent.count(job.id) > 0) request.exclude.insert(name);
  }
}

// After a heartbeat: who has gone, because he was stopped or by himself.
void CoordinatorCore::SettleMembers(Node& node, JobRecord& job) {
  bool anything = false;
  const bool stopping = job.resting() || job.cancel_asked;
  // A stop may overtake no start on one stream, but the heartbeat may have left before both.
  const absl::Duration quiet = 2 * options_.heartbeat;
  for (Rank& rank : job.ranks) {
    if (rank.node != node.name() || rank.incarnation != node.incarnation) continue;
    if (rank.present) {
      anything = true;
      continue;
    }
    const bool unwanted = stopping || rank.lost;
    if (unwanted) {
      rank.gone = rank.gone || rank.seen || Due(rank.start_sent, quiet);
    } else if (rank.seen) {
      LoseRank(job, rank, {.why = "its service does not report the task any more"});
      rank.gone = true;
    }
    if (!rank.gone) anything = true;
  }
  FreeSlotsOfTheGone(node, job);
  for (Shard& shard : job.shards) {
    if (shard.node != node.name() || shard.incarnation != node.incarnation) continue;
    // Nobody has told it of the job yet: another gang is found.
    if (node.leaving && job.probing) LoseShard(job, shard, {.why = "its service stops"});
    if (shard.present) {
      anything = true;
      continue;
    }
    if (stopping) {
      shard.gone = shard.gone || shard.seen || Due(shard.lineage_sent, quiet);
    } else if (shard.seen) {
      LoseShard(job, shard, {.why = "its service does not hold the job any more"});
    }
    if (!shard.gone) anything = true;
  }
  if (!anything) node.jobs.erase(job.id);
}

void CoordinatorCore::FreeSlots(Node& node, const std::string& job_id) {
  for (std::string& slot : node.slots) {
    if (slot != job_id) continue;
    slot.clear();
    schedule_ = true;
  }
}

// A newer rank of the same job may have the device of one that has gone.
void CoordinatorCore::FreeSlotsOfTheGone(Node& node, const JobRecord& job) {
  std::set<int> taken;
  for (const Rank& rank : job.ranks) {
    if (rank.gone || rank.node != node.name() || rank.incarnation != node.incarnation) continue;
    taken.insert(rank.devices.begin(), rank.devices.end());
  }
  for (size_t i = 0; i < node.slots.size(); ++i) {
    if (node.slots[i] != job.id || taken.count(static_cast<int>(i)) > 0) continue;
    node.slots[i].clear();
    schedule_ = true;
  }
}

void CoordinatorCore::OnProbeResult(Node& node, const node::v1::ProbeResult& result) {
  JobRecord* job = FindJob(result.job_id());
  if (job == nullptr || job->resting() || result.probe_id() != job->probe_id) {
    return;  // of an earlier gang, or answered
  }
  for (Rank& rank : job->ranks) {
    if (rank.node != node.name() || rank.incarnation != node.incarnation || rank.probed ||
        rank.lost)
      continue;
    rank.probed = true;
    rank.probe = result;
    rank.probe.set_message(Sentence(result.message()));
    if (!result.reason().empty()) rank.probe.set_reason(KnownReason(result.reason()));
  }
  Advance(*job);
}

void CoordinatorCore::OnLogs(Node& node, const node::v1::LogBatch& batch) {
  JobRecord* job = FindJob(batch.job_id());
  if (job == nullptr || batch.lines_size() > kMaxLinesInBatch) return;
  const common::v1::Role role = node.reg.role();
  const bool member =
      role == common::v1::ROLE_WORKER
          ? std::any_of(job->ranks.begin(), job->ranks.end(),
                        [&](const Rank& rank) { return rank.node == node.name(); })
          : std::any_of(job->shards.begin(), job->shards.end(),
                        [&](const Shard& shard) { return shard.node == node.name(); });
  if (!member) return;
  if (log_marks_.count(job->id) == 0) log_marks_[job->id] = job->logs.next();
  for (job::v1::LogLine line : batch.lines()) {
    line.set_role(role);  // a node speaks for itself only
    if (line.host().empty() || line.host().size() > 253) line.set_host(node.host());
    if (line.level().empty() || line.level().size() > 16) line.set_level("info");
    job->logs.Append(std::move(line));
  }
  if (batch.dropped() > 0) {
    job->logs.CountLost(std::min(batch.dropped(), kMaxDropped));
    job->AddLog(
        wall_, "warning",
        absl::StrCat(batch.dropped(), " lines of node ", node.name(), " were dropped there"));
  }
}

void CoordinatorCore::ExpireLeases() {
  std::vector<std::string> forget;
  for (auto& entry : nodes_.all()) {
    Node& node = entry.second;
    const absl::Duration silent = now_ - node.last_heard;
    if (!node.lost && silent >= options_.lease) {
      LoseNode(node, {.why = absl::StrCat("nothing was heard of it for ",
                                          absl::FormatDuration(options_.lease)),
                      .lapsed = true});
    }
    if (node.lost && node.session == 0 && silent >= options_.lost_node_kept && node.jobs.empty()) {
      forget.push_back(node.name());
    }
  }
  for (const std::string& name : forget) {
    nodes_.Erase(name);
    Emit(Persist{NodeForgotten{name}});
  }
}

void CoordinatorCore::LoseNode(Node& node, const Loss& how) {
  Loss loss = how;
  loss.goodbye = loss.goodbye || node.leaving;  // however it went: it was on its way
  node.lost = true;
  node.left = loss.goodbye;
  first_lease_end_ = -absl::InfiniteDuration();
  schedule_ = true;
  const std::set<std::string> ids = node.jobs;
  node.jobs.clear();  // a heartbeat of the same process brings back what still runs
  for (const std::string& id : ids) {
    JobRecord* job = FindJob(id);
    if (job == nullptr) continue;
    for (Rank& rank : job->ranks) {
      if (rank.node != node.name() || rank.incarnation != node.incarnation) continue;
      rank.present = false;
      rank.gone = true;
      LoseRank(*job, rank, loss);
    }
    for (Shard& shard : job->shards) {
      if (shard.node != node.name() || shard.incarnation != node.incarnation) continue;
      shard.present = false;
      LoseShard(*job, shard, loss);
    }
    Advance(*job);
  }
}

}  // namespace capstan::coordinator::core
