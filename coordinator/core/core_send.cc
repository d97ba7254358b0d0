// What nodes lack of what is wanted, sent again until their reports show it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"
#include "services/check/mutant.h"

namespace capstan::coordinator::core {
namespace {

std::string BaseFolder(const JobRecord& job) {
  return absl::StrCat(job.resolved->storage_path(), "/", job.base);
}

using Certificates = google::protobuf::RepeatedPtrField<node::v1::NodeCertificate>;

// Whose certificate each node of the view has registered with, for shards to know them by.
void TellCertificates(const common::v1::View& view, const NodeTable& nodes, Certificates& out) {
  const auto tell = [&](const std::string& name) {
    const Node* node = nodes.Find(name);
    if (node == nullptr || node->reg.certificate().empty()) return;
    node::v1::NodeCertificate& entry = *out.Add();
    entry.set_node(name);
    entry.set_name(node->reg.certificate());
  };
  for (const common::v1::WorkerRef& worker : view.workers()) tell(worker.node());
  for (const common::v1::ShardRoute& shard : view.shards()) tell(shard.node());
}

}  // namespace

void CoordinatorCore::SendProbes(JobRecord& job) {
  for (Rank& rank : job.ranks) {
    const Node* node = nodes_.FindIncarnation(rank.node, rank.incarnation);
    if (rank.probed || rank.lost || node == nullptr || !node->usable() ||
        !Due(rank.probe_sent, options_.probe_resend)) {
      continue;
    }
    rank.probe_sent = now_;
    node::v1::ConnectResponse response;
    node::v1::Probe* probe = response.mutable_probe();
    probe->set_probe_id(job.probe_id);
    probe->set_job_id(job.id);
    *probe->mutable_spec() = job.resolved.has_value() ? job.resolved->spec() : job.spec;
    Emit(Send{node->session, std::move(response)});
  }
}

// The view, to the shards and then to the tasks, until all of them show it. A shard that does not
// report its generation is told along with every repetition to a task.
void CoordinatorCore::SendView(JobRecord& job) {
  const int64_t generation = job.view.generation();
  const bool behind = std::any_of(job.ranks.begin(), job.ranks.end(), [&](const Rank& rank) {
    return !rank.lost && rank.present && rank.state.generation() < generation;
  });
  node::v1::ConnectResponse response;
  *response.mutable_view_change()->mutable_view() = job.view;
  // The view that the lineage began with is in its StartLineage.
  const bool changed = generation > job.view.lineage();
  for (Shard& shard : job.shards) {
    const Node* node = nodes_.FindIncarnation(shard.node, shard.incarnation);
    if (!changed || node == nullptr || !node->usable()) continue;
    const bool untold = shard.generation_sent < generation;
    const bool unseen =
        shard.state.generation() > 0 ? shard.state.generation() < generation : behind;
    if (!untold && !(unseen && Due(shard.view_sent, options_.resend))) continue;
    shard.view_sent = now_;
    shard.generation_sent = generation;
    node::v1::ConnectResponse to_shard = response;
    TellCertificates(job.view, nodes_, *to_shard.mutable_view_change()->mutable_certificates());
    Emit(Send{node->session, std::move(to_shard)});
  }
  for (Rank& rank : job.ranks) {
    const Node* node = nodes_.FindIncarnation(rank.node, rank.incarnation);
    if (rank.lost || !rank.present || rank.state.generation() >= generation || node == nullptr ||
        !node->usable()) {
      continue;
    }
    if (!Due(rank.view_sent, options_.resend)) continue;
    rank.view_sent = now_;
    Emit(Send{node->session, response});
  }
}

// A process that an earlier coordinator started has the key that it was given then, and the secret
// that it was made with may be lost.
void CoordinatorCore::SendKeys(JobRecord& job) {
  if (!options_.files_key) return;
  const auto send = [&](auto& member, bool is_shard) {
    const Node* node = nodes_.FindIncarnation(member.node, member.incarnation);
    const bool has_view = member.present && member.state.lineage() == job.view.lineage() &&
                          member.state.generation() == job.view.generation();
    if (member.keyed || member.lost || !has_view || node == nullptr || !node->usable()) return;
    member.keyed = true;
    node::v1::ConnectResponse response;
    node::v1::ViewChange& change = *response.mutable_view_change();
    *change.mutable_view() = job.view;
    if (is_shard) TellCertificates(job.view, nodes_, *change.mutable_certificates());
    change.set_files_key(options_.files_key(
        job.id, {.shard = is_shard, .index = member.index, .incarnation = member.incarnation}));
    Emit(Send{node->session, std::move(response)});
  };
  for (Shard& shard : job.shards) send(shard, true);
  for (Rank& rank : job.ranks) send(rank, false);
}

void CoordinatorCore::SendLacking(JobRecord& job) {
  SendProbes(job);
  if (!job.in_history()) return;
  for (Shard& shard : job.shards) {
    const Node* node = nodes_.FindIncarnation(shard.node, shard.incarnation);
    const bool has_it = shard.present && shard.state.lineage() >= job.view.lineage();
    if (shard.lost || has_it || node == nullptr || !node->usable() ||
        !Due(shard.lineage_sent, options_.resend)) {
      continue;
    }
    shard.lineage_sent = now_;
    shard.generation_sent = job.view.generation();
    shard.keyed = true;
    node::v1::ConnectResponse response;
    node::v1::StartLineage* start = response.mutable_start_lineage();
    start->set_job_id(job.id);
    start->set_shard(shard.index);
    start->set_resolved_spec(job.resolved_bytes);
    start->set_spec_digest(job.digest);
    *start->mutable_view() = job.view;
    TellCertificates(job.view, nodes_, *start->mutable_certificates());
    if (!job.base.empty()) start->set_base_manifest(BaseFolder(job));
    if (options_.files_key) {
      start->set_files_key(options_.files_key(
          job.id, {.shard = true, .index = shard.index, .incarnation = shard.incarnation}));
    }
    for (node::v1::Order& order : OrdersBeyondBase(job)) {
      start->add_order_ids(order.id());
      *start->add_orders() = std::move(order);
    }
    Emit(Send{node->session, std::move(response)});
  }
  SendFilesTaken(job);
  SendKeys(job);
  EndThoseWhoLeft(job);
  for (Rank& rank : job.ranks) {
    if (rank.lost) StopRank(job, rank);
  }
  if (!job.AllShardsReady()) return;
  SendView(job);
  SendOrders(job);
  for (Rank& rank : job.ranks) {
    const Node* node = nodes_.FindIncarnation(rank.node, rank.incarnation);
    const auto& members = job.view.workers();
    const bool member = std::any_of(members.begin(), members.end(), [&rank](const auto& worker) {
      return worker.rank() == rank.index;
    });
    if (rank.lost || !member || rank.present || rank.seen || node == nullptr || !node->usable() ||
        !Due(rank.start_sent, options_.resend)) {
      continue;
    }
    rank.start_sent = now_;
    rank.keyed = true;
    node::v1::ConnectResponse response;
    node::v1::StartTask* start = response.mutable_start_task();
    start->set_job_id(job.id);
    start->set_rank(rank.index);
    start->set_resolved_spec(job.resolved_bytes);
    start->set_spec_digest(job.digest);
    *start->mutable_view() = job.view;
    for (const int device : rank.devices) start->add_devices(device);
    if (options_.files_key) {
      start->set_files_key(options_.files_key(
          job.id, {.shard = false, .index = rank.index, .incarnation = rank.incarnation}));
    }
    if (job.shards.empty()) {
      if (!job.base.empty()) start->set_base_manifest(BaseFolder(job));
      for (node::v1::Order& order : OrdersBeyondBase(job)) *start->add_orders() = std::move(order);
    }
    Emit(Send{node->session, std::move(response)});
  }
}

void CoordinatorCore::StopRank(JobRecord& job, Rank& rank) {
  if (CAPSTAN_MUTANT("lapsed_is_gone") && rank.lapsed_at != 0) rank.gone = true;
  if (rank.gone) return;
  Node* node = nodes_.FindIncarnation(rank.node, rank.incarnation);
  if (node == nullptr || node->lost) {
    rank.gone = true;  // that process does not exist any more, or nobody can know
    return;
  }
  if (!rank.present && !rank.seen && rank.start_sent == -absl::InfiniteDuration()) {
    rank.gone = true;  // it was never told to start one
    FreeSlots(*node, job.id);
    node->jobs.erase(job.id);
    return;
  }
  if (!node->usable() || !Due(rank.stop_sent, options_.resend)) return;
  rank.stop_sent = now_;
  node::v1::ConnectResponse response;
  response.mutable_stop_task()->set_job_id(job.id);
  response.mutable_stop_task()->set_grace_ms(
      static_cast<int32_t>(absl::ToInt64Milliseconds(options_.stop_grace)));
  Emit(Send{node->session, std::move(response)});
}

// A job at rest: files are taken, tasks stopped, shards emptied, until nobody reports any of it.
void CoordinatorCore::WindDown(JobRecord& job) {
  if (job.has_view()) SendFilesTaken(job);
  bool all_gone = true;
  for (Rank& rank : job.ranks) {
    StopRank(job, rank);
    all_gone = all_gone && rank.gone;
  }
  for (Shard& shard : job.shards) {
    Node* node = nodes_.FindIncarnation(shard.node, shard.incarnation);
    if (!shard.gone && (node == nullptr || node->lost)) shard.gone = true;
    if (!shard.gone && !shard.present && !shard.seen &&
        shard.lineage_sent == -absl::InfiniteDuration()) {
      shard.gone = true;
      node->jobs.erase(job.id);
    }
    if (shard.gone) continue;
    all_gone = false;
    if (!node->usable() || !Due(shard.end_sent, options_.resend)) continue;
    shard.end_sent = now_;
    node::v1::ConnectResponse response;
    response.mutable_end_job()->set_job_id(job.id);
    Emit(Send{node->session, std::move(response)});
  }
  if (job.wound_down != all_gone) Changed(job);
  job.wound_down = all_gone;
  if (all_gone) {
    if (active_.erase(job.sequence) > 0) schedule_ = true;
    if (!job.ended()) {
      job.ranks.clear();
      job.shards.clear();
    }
  } else {
    active_[job.sequence] = &job;
  }
}

}  // namespace capstan::coordinator::core
