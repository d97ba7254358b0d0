#include "coordinator/core/sender.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/check/mutant.h"

namespace capstan::coordinator::core {
namespace {

bool InBase(const Job& job, int64_t id) {
  const SavedManifest* base = job.checkpoints().Find(job.lineages().base());
  return base != nullptr &&
         std::find(base->orders.begin(), base->orders.end(), id) != base->orders.end();
}

std::string BaseFolder(const Job& job) {
  return absl::StrCat(job.resolved()->storage_path(), "/", job.lineages().base());
}

using Certificates = google::protobuf::RepeatedPtrField<node::v1::NodeCertificate>;

// Whose certificate each node of the view has registered with, for shards to know them by.
void TellCertificates(const common::v1::View& view, const NodeTable& nodes, Certificates& out) {
  const auto tell = [&](const std::string& name) {
    const Node* node = nodes.Find(name);
    if (node == nullptr || node->reg().certificate().empty()) return;
    node::v1::NodeCertificate& entry = *out.Add();
    entry.set_node(name);
    entry.set_name(node->reg().certificate());
  };
  for (const common::v1::WorkerRef& worker : view.workers()) tell(worker.node());
  for (const common::v1::ShardRoute& shard : view.shards()) tell(shard.node());
}

}  // namespace

void Sender::SendLacking(Job& job) {
  SendProbes(job);
  if (!job.in_history()) return;
  for (Shard& shard : job.shards()) {
    const Node* node = ctx_.nodes().FindIncarnation(shard.node, shard.incarnation);
    const bool has_it = shard.present && shard.state.lineage() >= job.view().lineage();
    if (shard.lost || has_it || node == nullptr || !node->usable() ||
        !ctx_.Due(shard.lineage_sent, ctx_.options().resend)) {
      continue;
    }
    shard.lineage_sent = ctx_.now();
    shard.generation_sent = job.view().generation();
    shard.keyed = true;
    node::v1::ConnectResponse response;
    node::v1::StartLineage* start = response.mutable_start_lineage();
    start->set_job_id(job.id());
    start->set_shard(shard.index);
    start->set_resolved_spec(job.resolution().bytes());
    start->set_spec_digest(job.resolution().digest());
    *start->mutable_view() = job.view();
    TellCertificates(job.view(), ctx_.nodes(), *start->mutable_certificates());
    if (!job.lineages().base().empty()) start->set_base_manifest(BaseFolder(job));
    if (ctx_.options().files_key) {
      start->set_files_key(ctx_.options().files_key(
          job.id(), {.shard = true, .index = shard.index, .incarnation = shard.incarnation}));
    }
    for (node::v1::Order& order : ChangesBeyondBase(job)) {
      *start->add_orders() = std::move(order);
    }
    ctx_.Emit(Send{node->session(), std::move(response)});
  }
  SendFilesTaken(job);
  SendKeys(job);
  EndThoseWhoLeft(job);
  for (Task& task : job.tasks()) {
    if (task.lost) StopTask(job, task);
  }
  if (!job.AllShardsReady()) return;
  SendView(job);
  SendChanges(job);
  for (Task& task : job.tasks()) {
    const Node* node = ctx_.nodes().FindIncarnation(task.node, task.incarnation);
    const auto& members = job.view().workers();
    const bool member = std::any_of(members.begin(), members.end(), [&task](const auto& worker) {
      return worker.rank() == task.index;
    });
    if (task.lost || !member || task.present || task.seen || node == nullptr || !node->usable() ||
        !ctx_.Due(task.start_sent, ctx_.options().resend)) {
      continue;
    }
    task.start_sent = ctx_.now();
    task.keyed = true;
    node::v1::ConnectResponse response;
    node::v1::StartTask* start = response.mutable_start_task();
    start->set_job_id(job.id());
    start->set_rank(task.index);
    start->set_resolved_spec(job.resolution().bytes());
    start->set_spec_digest(job.resolution().digest());
    *start->mutable_view() = job.view();
    for (const int device : task.devices) start->add_devices(device);
    if (ctx_.options().files_key) {
      start->set_files_key(ctx_.options().files_key(
          job.id(), {.shard = false, .index = task.index, .incarnation = task.incarnation}));
    }
    if ((job.shards().empty() || job.KeepsResiduals()) && !job.lineages().base().empty()) {
      start->set_base_manifest(BaseFolder(job));
    }
    if (job.shards().empty()) {
      for (node::v1::Order& order : ChangesBeyondBase(job)) *start->add_orders() = std::move(order);
    }
    ctx_.Emit(Send{node->session(), std::move(response)});
  }
}

void Sender::SendProbes(Job& job) {
  for (Task& task : job.tasks()) {
    const Node* node = ctx_.nodes().FindIncarnation(task.node, task.incarnation);
    if (task.probed || task.lost || node == nullptr || !node->usable() ||
        !ctx_.Due(task.probe_sent, ctx_.options().probe_resend)) {
      continue;
    }
    task.probe_sent = ctx_.now();
    node::v1::ConnectResponse response;
    node::v1::Probe* probe = response.mutable_probe();
    probe->set_probe_id(job.members().probe_id());
    probe->set_job_id(job.id());
    *probe->mutable_spec() = job.resolved().has_value() ? job.resolved()->spec() : job.spec();
    ctx_.Emit(Send{node->session(), std::move(response)});
  }
}

void Sender::SendView(Job& job) {
  const int64_t generation = job.view().generation();
  const bool behind = std::any_of(job.tasks().begin(), job.tasks().end(), [&](const Task& task) {
    return !task.lost && task.present && task.state.generation() < generation;
  });
  node::v1::ConnectResponse response;
  *response.mutable_view_change()->mutable_view() = job.view();
  node::v1::ConnectResponse to_task = response;
  if (job.KeepsResiduals() && !job.lineages().base().empty()) {
    to_task.mutable_view_change()->set_base_manifest(BaseFolder(job));
  }
  // The view that the lineage began with is in its StartLineage.
  const bool changed = generation > job.view().lineage();
  for (Shard& shard : job.shards()) {
    const Node* node = ctx_.nodes().FindIncarnation(shard.node, shard.incarnation);
    if (!changed || node == nullptr || !node->usable()) continue;
    const bool untold = shard.generation_sent < generation;
    const bool unseen =
        shard.state.generation() > 0 ? shard.state.generation() < generation : behind;
    if (!untold && !(unseen && ctx_.Due(shard.view_sent, ctx_.options().resend))) continue;
    shard.view_sent = ctx_.now();
    shard.generation_sent = generation;
    node::v1::ConnectResponse to_shard = response;
    TellCertificates(job.view(), ctx_.nodes(),
                     *to_shard.mutable_view_change()->mutable_certificates());
    ctx_.Emit(Send{node->session(), std::move(to_shard)});
  }
  for (Task& task : job.tasks()) {
    const Node* node = ctx_.nodes().FindIncarnation(task.node, task.incarnation);
    if (task.lost || !task.present || task.state.generation() >= generation || node == nullptr ||
        !node->usable()) {
      continue;
    }
    if (!ctx_.Due(task.view_sent, ctx_.options().resend)) continue;
    task.view_sent = ctx_.now();
    ctx_.Emit(Send{node->session(), to_task});
  }
}

void Sender::SendKeys(Job& job) {
  if (!ctx_.options().files_key) return;
  const auto send = [&](auto& member, bool is_shard) {
    const Node* node = ctx_.nodes().FindIncarnation(member.node, member.incarnation);
    const bool has_view = member.present && member.state.lineage() == job.view().lineage() &&
                          member.state.generation() == job.view().generation();
    if (member.keyed || member.lost || !has_view || node == nullptr || !node->usable()) return;
    member.keyed = true;
    node::v1::ConnectResponse response;
    node::v1::ViewChange& change = *response.mutable_view_change();
    *change.mutable_view() = job.view();
    if (is_shard) TellCertificates(job.view(), ctx_.nodes(), *change.mutable_certificates());
    change.set_files_key(ctx_.options().files_key(
        job.id(), {.shard = is_shard, .index = member.index, .incarnation = member.incarnation}));
    ctx_.Emit(Send{node->session(), std::move(response)});
  };
  for (Shard& shard : job.shards()) send(shard, true);
  for (Task& task : job.tasks()) send(task, false);
}

void Sender::WindDown(Job& job) {
  if (job.has_view()) SendFilesTaken(job);
  bool all_gone = true;
  for (Task& task : job.tasks()) {
    StopTask(job, task);
    all_gone = all_gone && task.gone;
  }
  for (Shard& shard : job.shards()) {
    Node* node = ctx_.nodes().FindIncarnation(shard.node, shard.incarnation);
    if (!shard.gone && (node == nullptr || node->lost())) shard.gone = true;
    if (!shard.gone && !shard.present && !shard.seen &&
        shard.lineage_sent == -absl::InfiniteDuration()) {
      shard.gone = true;
      node->RemoveJob(job.id());
    }
    if (shard.gone) continue;
    all_gone = false;
    if (!node->usable() || !ctx_.Due(shard.end_sent, ctx_.options().resend)) continue;
    shard.end_sent = ctx_.now();
    node::v1::ConnectResponse response;
    response.mutable_end_job()->set_job_id(job.id());
    ctx_.Emit(Send{node->session(), std::move(response)});
  }
  if (job.wound_down() != all_gone) ctx_.Changed(job);
  job.set_wound_down(all_gone);
  if (all_gone) {
    if (ctx_.jobs().Deactivate(job)) ctx_.Reschedule();
    if (!job.ended()) job.members().Clear();
  } else {
    ctx_.jobs().Activate(job);
  }
}

void Sender::StopTask(Job& job, Task& task) {
  if (CAPSTAN_MUTANT("lapsed_is_gone") && task.lapsed_at != 0) task.gone = true;
  if (task.gone) return;
  if (CAPSTAN_MUTANT("the_failed_are_not_stopped") &&
      task.state.phase() == node::v1::TASK_PHASE_FAILED) {
    return;
  }
  Node* node = ctx_.nodes().FindIncarnation(task.node, task.incarnation);
  if (node == nullptr || node->lost()) {
    task.gone = true;  // that process does not exist any more, or nobody can know
    return;
  }
  if (!task.present && !task.seen && task.start_sent == -absl::InfiniteDuration()) {
    task.gone = true;  // it was never told to start one
    states_.FreeSlots(*node, job.id());
    node->RemoveJob(job.id());
    return;
  }
  if (!node->usable() || !ctx_.Due(task.stop_sent, ctx_.options().resend)) return;
  task.stop_sent = ctx_.now();
  node::v1::ConnectResponse response;
  response.mutable_stop_task()->set_job_id(job.id());
  response.mutable_stop_task()->set_grace_ms(
      static_cast<int32_t>(absl::ToInt64Milliseconds(ctx_.options().stop_grace)));
  ctx_.Emit(Send{node->session(), std::move(response)});
}

void Sender::SendFilesTaken(Job& job) {
  const auto settled = [&job](const node::v1::WrittenFiles& files) {
    return files.lineage() > 0 && (files.lineage() < job.view().lineage() ||
                                   (files.lineage() == job.view().lineage() &&
                                    files.step() <= job.written().settled_step()));
  };
  const auto send = [&](const std::string& name, int64_t incarnation,
                        const node::v1::WrittenFiles& files, absl::Duration& sent) {
    const Node* node = ctx_.nodes().FindIncarnation(name, incarnation);
    if (node == nullptr || !node->usable() || !settled(files) ||
        !ctx_.Due(sent, ctx_.options().resend))
      return;
    sent = ctx_.now();
    node::v1::ConnectResponse response;
    node::v1::FilesTaken* taken = response.mutable_files_taken();
    taken->set_job_id(job.id());
    taken->set_lineage(files.lineage());
    taken->set_step(files.step());
    ctx_.Emit(Send{node->session(), std::move(response)});
  };
  for (Shard& shard : job.shards()) {
    if (shard.present) send(shard.node, shard.incarnation, shard.state.files(), shard.taken_sent);
  }
  for (Task& task : job.tasks()) {
    if (task.present) send(task.node, task.incarnation, task.state.files(), task.taken_sent);
  }
}

void Sender::SendChanges(Job& job) {
  if (job.changes().empty() || !job.changes().Due(ctx_.now(), ctx_.options().resend)) return;
  node::v1::ConnectResponse response;
  node::v1::GiveOrders* give = response.mutable_give_orders();
  give->set_job_id(job.id());
  give->set_lineage(job.view().lineage());
  for (const JobChange& change : job.changes()) {
    if (change.lineage == job.view().lineage() || InBase(job, change.order.id())) continue;
    *give->add_orders() = change.order;
  }
  if (give->orders().empty()) return;
  const Node* node = nullptr;
  if (!job.shards().empty()) {
    const Shard& lead = job.shards()[0];
    if (lead.present) node = ctx_.nodes().FindIncarnation(lead.node, lead.incarnation);
  } else {
    for (const Task& task : job.tasks()) {
      if (!task.lost && task.present)
        node = ctx_.nodes().FindIncarnation(task.node, task.incarnation);
    }
  }
  if (node == nullptr || !node->usable()) return;
  job.changes().NoteGiven(ctx_.now());
  ctx_.Emit(Send{node->session(), std::move(response)});
}

std::vector<node::v1::Order> Sender::ChangesBeyondBase(const Job& job) const {
  std::vector<node::v1::Order> out;
  for (const JobChange& change : job.changes()) {
    if (!InBase(job, change.order.id())) out.push_back(change.order);
  }
  return out;
}

void Sender::EndThoseWhoLeft(Job& job) {
  for (Shard& shard : job.shards()) {
    const Node* const node = ctx_.nodes().FindIncarnation(shard.node, shard.incarnation);
    if (!shard.lost || !shard.present || node == nullptr || !node->usable() || !node->leaving() ||
        !ctx_.Due(shard.end_sent, ctx_.options().resend)) {
      continue;
    }
    shard.end_sent = ctx_.now();
    node::v1::ConnectResponse response;
    response.mutable_end_job()->set_job_id(job.id());
    ctx_.Emit(Send{node->session(), std::move(response)});
  }
}

}  // namespace capstan::coordinator::core
