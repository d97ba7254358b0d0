#include "coordinator/core/node_desk.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/cards.h"
#include "services/check/mutant.h"

namespace capstan::coordinator::core {

void NodeDesk::Handle(const NodeConnected& connected) {
  const node::v1::Register& reg = connected.reg;
  absl::Status status = CheckRegister(reg);
  NodeTable::Admission admission;
  if (status.ok()) {
    absl::StatusOr<NodeTable::Admission> judged = ctx_.nodes().Judge(reg, connected.named);
    status = judged.status();
    if (judged.ok()) admission = *judged;
  }
  if (status.ok() && ctx_.nodes().Find(reg.name()) == nullptr &&
      ctx_.nodes().size() >= static_cast<size_t>(ctx_.options().max_nodes)) {
    status =
        absl::ResourceExhaustedError(absl::StrCat(ctx_.options().max_nodes, " nodes is the limit"));
  }
  if (!status.ok()) {
    ctx_.Emit(CloseSession{connected.session, status});
    return;
  }
  if (admission.replaced != 0) {
    ctx_.nodes().Disconnect(admission.replaced);
    ctx_.Emit(CloseSession{admission.replaced, absl::AbortedError("the node has connected again")});
  }
  if (admission.replaced_process && !CAPSTAN_MUTANT("new_process_has_the_tasks")) {
    LoseNode(*ctx_.nodes().Find(reg.name()), {.why = "its service has started anew"});
  }
  int64_t incarnation = 0;
  if (!admission.same_process) {
    incarnation = ++ctx_.last().incarnation;
    ctx_.Emit(Persist{IncarnationIssued{incarnation, reg}});
  }
  Node& node =
      ctx_.nodes().Admit(connected.session, reg, admission, incarnation, ctx_.now(), ctx_.wall());
  ctx_.Reschedule();
  first_lease_end_ = std::min(first_lease_end_, ctx_.now() + ctx_.options().lease);

  node::v1::ConnectResponse response;
  node::v1::Registered* registered = response.mutable_registered();
  registered->set_incarnation(node.incarnation());
  registered->set_lease_ms(static_cast<int32_t>(absl::ToInt64Milliseconds(ctx_.options().lease)));
  registered->set_heartbeat_ms(
      static_cast<int32_t>(absl::ToInt64Milliseconds(ctx_.options().heartbeat)));
  registered->set_hears_leaving(true);
  // Where the nodes were started together, they are dealt a host's cards on purpose.
  if (ctx_.options().expected_nodes == 0) {
    std::string shared = SharedCardsText(ctx_.nodes(), node);
    if (!shared.empty()) registered->add_warnings(std::move(shared));
  }
  ctx_.Emit(Send{connected.session, std::move(response)});

  // What was sent on the old stream may be lost: all that the coming heartbeats lack is due at
  // once.
  const std::set<std::string> ids = node.jobs();
  for (const std::string& id : ids) {
    Job* job = ctx_.jobs().Find(id);
    if (job == nullptr) continue;
    for (Task& task : job->tasks()) {
      if (task.node != node.name()) continue;
      task.probe_sent = task.view_sent = task.stop_sent = -absl::InfiniteDuration();
      task.keyed = false;
    }
    for (Shard& shard : job->shards()) {
      if (shard.node != node.name()) continue;
      shard.generation_sent = 0;
      shard.view_sent = shard.end_sent = -absl::InfiniteDuration();
      shard.keyed = false;
    }
    run_.Advance(*job);
  }
}

void NodeDesk::Handle(const NodeMessage& message) {
  Node* node = ctx_.nodes().FindSession(message.session);
  if (node == nullptr) return;  // closed meanwhile
  node->Hear(ctx_.now(), ctx_.wall());
  first_lease_end_ = std::min(first_lease_end_, ctx_.now() + ctx_.options().lease);
  if (node->lost()) node->ComeBack();  // its tasks stay lost; its slots are good for other jobs
  switch (message.message.message_case()) {
    case node::v1::ConnectRequest::kHeartbeat:
      heartbeats_.OnHeartbeat(*node, message.message.heartbeat());
      return;
    case node::v1::ConnectRequest::kProbeResult:
      heartbeats_.OnProbeResult(*node, message.message.probe_result());
      return;
    case node::v1::ConnectRequest::kLogs:
      heartbeats_.OnLogs(*node, message.message.logs());
      return;
    default:
      break;
  }
  const SessionId session = node->session();
  ctx_.nodes().Disconnect(session);
  ctx_.Emit(CloseSession{session,
                         absl::InvalidArgumentError(
                             "want a heartbeat, a probe result or logs after the registration")});
}

void NodeDesk::Handle(const NodeDisconnected& disconnected) {
  // The lease goes on: a broken stream is not yet a lost node. But another process may have its
  // name from now on.
  ctx_.nodes().Disconnect(disconnected.session);
  first_lease_end_ = -absl::InfiniteDuration();  // one that is lost may be forgotten now
  if (disconnected.goodbye || CAPSTAN_MUTANT("broken_stream_is_a_loss")) {
    Node* node = ctx_.nodes().FindFormerSession(disconnected.session);
    if (node != nullptr && !node->lost())
      LoseNode(*node, {.why = "its service has stopped", .goodbye = true});
  }
  ctx_.Reschedule();
}

void NodeDesk::Handle(const SetDrained& drain) {
  Reply reply{drain.call, absl::OkStatus(), {}};
  if (ctx_.nodes().Find(drain.node) == nullptr && ctx_.nodes().drained().count(drain.node) == 0) {
    reply.status = absl::NotFoundError(absl::StrCat("no node ", drain.node));
  } else if (ctx_.nodes().SetDrained(drain.node, drain.drained)) {
    ctx_.Emit(Persist{NodeDrained{drain.node, drain.drained}});
    for (const auto& entry : ctx_.jobs().active()) departures_.ReleaseDrained(*entry.second);
    ctx_.Reschedule();
  }
  ctx_.Emit(std::move(reply));
}

void NodeDesk::ExpireLeases() {
  std::vector<std::string> forget;
  for (auto& entry : ctx_.nodes().all()) {
    Node& node = entry.second;
    const absl::Duration silent = ctx_.now() - node.last_heard();
    if (!node.lost() && silent >= ctx_.options().lease) {
      LoseNode(node, {.why = absl::StrCat("nothing was heard of it for ",
                                          absl::FormatDuration(ctx_.options().lease)),
                      .lapsed = true});
    }
    if (node.lost() && node.session() == 0 && silent >= ctx_.options().lost_node_kept &&
        node.jobs().empty()) {
      forget.push_back(node.name());
    }
  }
  for (const std::string& name : forget) {
    ctx_.nodes().Erase(name);
    ctx_.Emit(Persist{NodeForgotten{name}});
  }
}

void NodeDesk::LoseNode(Node& node, const Loss& how) {
  Loss loss = how;
  loss.goodbye = loss.goodbye || node.leaving();  // however it went: it was on its way
  const std::set<std::string> ids = node.Lose(loss.goodbye);
  first_lease_end_ = -absl::InfiniteDuration();
  ctx_.Reschedule();
  if (CAPSTAN_MUTANT("goodbye_loses_nothing") && how.goodbye) return;
  for (const std::string& id : ids) {
    Job* job = ctx_.jobs().Find(id);
    if (job == nullptr) continue;
    for (Task& task : job->tasks()) {
      if (task.node != node.name() || task.incarnation != node.incarnation()) continue;
      task.present = false;
      task.gone = true;
      losses_.LoseTask(*job, task, loss);
    }
    for (Shard& shard : job->shards()) {
      if (shard.node != node.name() || shard.incarnation != node.incarnation()) continue;
      shard.present = false;
      losses_.LoseShard(*job, shard, loss);
    }
    run_.Advance(*job);
  }
}

absl::Duration NodeDesk::FirstLeaseEnd(absl::Duration tick) {
  if (first_lease_end_ >= tick) return first_lease_end_;
  first_lease_end_ = absl::InfiniteDuration();
  for (const auto& [name, node] : ctx_.nodes().all()) {
    const bool forgettable = node.lost() && node.session() == 0 && node.jobs().empty();
    if (node.lost() && !forgettable) continue;
    first_lease_end_ = std::min(
        first_lease_end_,
        node.last_heard() + (forgettable ? ctx_.options().lost_node_kept : ctx_.options().lease));
  }
  return first_lease_end_;
}

}  // namespace capstan::coordinator::core
