#include "tests/sim/cluster.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/registration.h"
#include "services/check/check.h"
#include "services/security/tokens.h"

namespace capstan::sim {
namespace {

using node::v1::ConnectRequest;
using node::v1::ConnectResponse;

constexpr absl::Duration kLimit = absl::Seconds(120);   // after everything has healed
constexpr absl::Duration kForgets = absl::Seconds(20);  // after the end, at most
const LinkFaults kNoFaults;

}  // namespace

Cluster::Cluster(const Plan& plan)
    : plan_(plan),
      random_(plan.seed),
      network_(queue_, random_, result_.effects),
      disk_(random_, result_.effects),
      histories_(plan.toy),
      exchange_faults_(plan.exchange),
      coordinator_process_(queue_, result_.effects, FaultClass::kCoordinatorPause),
      answered_(plan.orders.size()) {
  disk_.SetErrors(plan.disk_full, plan.sync_error);
}

void Cluster::Violation(const std::string& what) {
  if (result_.violations.size() >= 10) return;
  result_.violations.push_back(
      absl::StrCat(absl::FormatDuration(queue_.now() - absl::Seconds(1000)), ": ", what));
}

// ---- Services ----

Cluster::Node& Cluster::AddNode(const std::string& name, bool is_worker) {
  nodes_.push_back(std::make_unique<Node>(queue_, result_.effects, is_worker));
  Node& node = *nodes_.back();
  node.name = name;
  node.host = static_cast<int>(nodes_.size());
  (is_worker ? workers_ : shards_).push_back(&node);
  if (is_worker && static_cast<int>(workers_.size()) == plan_.thin_worker + 1) {
    node.silenced = true;
    queue_.After(plan_.thin_from,
                 [this, &node] { network_.SetBandwidth(node.host, plan_.thin_bytes_per_second); });
  }
  absl::Duration start = random_.Between(absl::ZeroDuration(), absl::Milliseconds(100));
  for (const LateHost& host : plan_.later) {
    if (!is_worker || host.worker != static_cast<int>(workers_.size()) - 1) continue;
    node.later = true;
    start = host.at;
  }
  queue_.After(start, [this, &node] { StartService(node); });
  return node;
}

void Cluster::StartService(Node& node) {
  if (node.gone || node.service_runs) return;
  node.service_runs = true;
  node.service.Start();
  node.incarnation = 0;
  node.broken = false;
  node.leave_by = absl::InfiniteDuration();
  node.resume_key.clear();
  for (size_t i = 0; i < services::kResumeKeyBytes; ++i)
    node.resume_key.push_back(static_cast<char>(random_.Below(256)));
  if (!node.is_worker) {
    SimShard::Hooks hooks;
    hooks.connect = [this, &node](const std::string& address,
                                  std::function<void(const std::string&)> receive,
                                  std::function<void()> closed) {
      return ConnectExchange(node, node.service, address, std::move(receive), std::move(closed));
    };
    hooks.changed = [this, &node] { ReportSoon(node); };
    hooks.decided = [this, &node](int64_t lineage, const training::Decision& decision) {
      NoteDecision(node, lineage, decision);
    };
    hooks.published = [this, &node](int64_t lineage, int64_t version,
                                    absl::Span<const float> weights, int64_t first_float) {
      if (plan_.asynchronous) {
        // A version says how far the slowest lane is.
        CheckCounts(node.name, version, weights, first_float,
                    std::vector<int64_t>(plan_.lanes, version));
      } else {
        CheckWeights(node.name, lineage, version, weights, first_float);
      }
      newest_[lineage] = std::max(newest_[lineage], version);
    };
    hooks.small_frames = plan_.thin_worker >= 0;
    node.shard = std::make_unique<SimShard>(queue_, random_, disk_, node.service, node.host,
                                            std::move(hooks));
  }
  node.report_due = false;
  Connect(node);
  BeatForever(node);
}

// The host crashes.
void Cluster::StopService(Node& node) {
  EndService(node);
  if (plan_.power_cuts) disk_.PowerCut(node.host);
}

bool Cluster::LeaveService(Node& node) {
  if (!node.service_runs) return false;
  if (node.session != nullptr) goodbyes_.insert(node.session_id);
  EndService(node);
  return true;
}

// The node's processes end, and the peers of their connections are told.
void Cluster::EndService(Node& node) {
  node.service_runs = false;
  node.silenced = true;
  node.service.Kill();
  node.task_process.Kill();
  if (node.session != nullptr) node.session->Close(0);
  node.session.reset();
  if (node.shard != nullptr && node.shard->core() != nullptr &&
      node.shard->core()->drops().ahead > 0) {
    Violation(absl::StrCat(node.name, ": a frame was ahead of it"));
  }
  node.shard.reset();
  node.task.reset();
  node.ended_task.reset();
}

void Cluster::Connect(Node& node) {
  if (node.session != nullptr) return;
  const auto session = ++last_session_;
  node.registered = false;
  Connection::End client;
  client.host = node.host;
  client.receive = [this, &node](const std::string& bytes) {
    node.service.Guard([this, &node, bytes] { OnAnswer(node, bytes); })();
  };
  client.closed = node.service.Guard([this, &node, session] {
    if (node.session == nullptr || last_session_ < session || node.session->open()) return;
    node.session.reset();
    node.service.After(random_.Between(absl::Milliseconds(50), absl::Milliseconds(500)),
                       [this, &node] { Connect(node); });
  });
  Connection::End server;
  server.receive = [this, session](const std::string& bytes) {
    coordinator_process_.Guard([this, session, bytes] {
      if (sessions_.count(session) == 0) return;
      ConnectRequest message;
      CAPSTAN_CHECK(message.ParseFromString(bytes));
      if (message.has_register_()) {
        auto connected = coordinator::ReadRegistration(message.register_(), std::nullopt);
        CAPSTAN_CHECK(connected.ok());
        connected->session = session;
        Tell(*std::move(connected));
      } else {
        Tell(coordinator::core::NodeMessage{session, message});
      }
    })();
  };
  server.closed = coordinator_process_.Guard([this, session] {
    if (sessions_.erase(session) == 0) return;
    // Like the adapter: once as soon as the stream ends, and again when it is known how it ended.
    Tell(coordinator::core::NodeDisconnected{session, /*goodbye=*/false});
    if (goodbyes_.count(session) > 0)
      Tell(coordinator::core::NodeDisconnected{session, /*goodbye=*/true});
  });
  node.session_id = session;
  node.session = network_.Open(kNoFaults, std::move(client), std::move(server));
  if (!coordinator_process_.alive()) return node.session->Break();
  sessions_[session] = node.session;
  ConnectRequest message;
  node::v1::Register& reg = *message.mutable_register_();
  reg.set_name(node.name);
  reg.set_role(node.is_worker ? common::v1::ROLE_WORKER : common::v1::ROLE_PARAM_STORE);
  reg.set_host("host-" + node.name);
  reg.set_last_incarnation(node.incarnation);
  reg.set_resume_key(node.resume_key);
  if (node.is_worker) reg.add_devices()->set_name("cpu");
  if (!node.is_worker) reg.set_data_address("unix:/" + node.name);
  node.session->Send(0, message.SerializeAsString(), true);
}

void Cluster::Beat(Node& node) {
  if (node.session == nullptr || !node.registered) return;
  ConnectRequest message;
  node::v1::Heartbeat& beat = *message.mutable_heartbeat();
  if (node.task != nullptr) *beat.add_tasks() = node.task->State();
  if (node.ended_task.has_value()) *beat.add_tasks() = *node.ended_task;
  if (node.leave_by < absl::InfiniteDuration()) {
    const int64_t left = absl::ToInt64Milliseconds(node.leave_by - queue_.now());
    beat.set_leaving_ms(static_cast<int32_t>(std::max<int64_t>(left, 1)));
  }
  if (node.shard != nullptr) {
    if (auto state = node.shard->State(); state.has_value()) *beat.add_shards() = *std::move(state);
  }
  node.session->Send(0, message.SerializeAsString(), true);
}

void Cluster::ReportSoon(Node& node) {
  if (node.report_due) return;
  node.report_due = true;
  node.service.After(absl::Milliseconds(1), [this, &node] {
    node.report_due = false;
    Beat(node);
  });
}

void Cluster::BeatForever(Node& node) {
  Beat(node);
  node.service.After(kHeartbeat, [this, &node] { BeatForever(node); });
}

void Cluster::NoteRegistered(Node& node, int64_t incarnation) {
  if (node.incarnation != 0 && node.incarnation != incarnation) {
    Violation(absl::StrCat(node.name, ": the process of incarnation ", node.incarnation,
                           " has come back and is ", incarnation));
  }
  const auto [known, fresh] = keys_.emplace(incarnation, node.resume_key);
  if (!fresh && known->second != node.resume_key)
    Violation(absl::StrCat(node.name, ": incarnation ", incarnation, " is another process"));
  if (node.broken) {
    result_.effects.Saw(FaultClass::kSessionBreak);
    ++result_.resumed;
  }
  node.broken = false;
  node.incarnation = incarnation;
  node.registered = true;
}

void Cluster::OnAnswer(Node& node, const std::string& bytes) {
  ConnectResponse message;
  CAPSTAN_CHECK(message.ParseFromString(bytes));
  switch (message.message_case()) {
    case ConnectResponse::kRegistered:
      NoteRegistered(node, message.registered().incarnation());
      return Beat(node);
    case ConnectResponse::kProbe:
      return Answer(node, message.probe());
    case ConnectResponse::kStartTask:
      return StartTask(node, message.start_task());
    case ConnectResponse::kStartLineage:
      node.shard->OnStartLineage(message.start_lineage());
      return ReportSoon(node);
    case ConnectResponse::kViewChange:
      if (node.task != nullptr)
        node.task->OnViewChange(message.view_change().view(),
                                message.view_change().base_manifest());
      if (node.shard != nullptr) node.shard->OnViewChange(message.view_change());
      return;
    case ConnectResponse::kStopTask:
      node.ended_task.reset();
      if (node.task != nullptr) {
        node.task->OnStop();
        node.task_process.After(absl::Milliseconds(5), [this, &node] {
          node.task_process.Kill();
          node.task.reset();
          ReportSoon(node);
        });
      }
      return ReportSoon(node);
    case ConnectResponse::kEndJob:
      node.shard->OnEndJob();
      return ReportSoon(node);
    case ConnectResponse::kFilesTaken:
      if (node.task != nullptr) node.task->OnFilesTaken(message.files_taken());
      if (node.shard != nullptr) node.shard->OnFilesTaken(message.files_taken());
      return;
    case ConnectResponse::kGiveOrders:
      if (node.task != nullptr) node.task->OnGiveOrders(message.give_orders());
      if (node.shard != nullptr) node.shard->OnGiveOrders(message.give_orders());
      return ReportSoon(node);
    case ConnectResponse::kSetLogLevel:  // not asked for in the simulation
    case ConnectResponse::kDiagnose:
    case ConnectResponse::MESSAGE_NOT_SET:
      CAPSTAN_CHECK(false);
  }
}

void Cluster::Answer(Node& node, const node::v1::Probe& probe) {
  ConnectRequest reply;
  node::v1::ProbeResult& result = *reply.mutable_probe_result();
  result.set_probe_id(probe.probe_id());
  result.set_job_id(probe.job_id());
  auto& data = *result.mutable_dataset();
  data.set_train_samples(probe.spec().data().train_samples());
  data.set_test_samples(probe.spec().data().test_samples());
  data.set_channels(1);
  data.set_height(2);
  data.set_width(2);
  data.set_num_classes(2);
  if (node.session != nullptr) node.session->Send(0, reply.SerializeAsString(), true);
}

// ---- Tasks ----

void Cluster::StartTask(Node& node, const node::v1::StartTask& start) {
  if (node.task != nullptr || node.ended_task.has_value()) return;  // repeated until reported
  node.task_process.Start();
  SimTask::Hooks hooks;
  hooks.connect = [this, &node](const std::string& address,
                                std::function<void(const std::string&)> receive,
                                std::function<void()> closed) {
    return ConnectExchange(node, node.task_process, address, std::move(receive), std::move(closed));
  };
  hooks.changed = [this, &node] { ReportSoon(node); };
  hooks.decided = [this, &node](int64_t lineage, const training::Decision& decision) {
    result_.effects.Saw(FaultClass::kLocal);
    NoteDecision(node, lineage, decision);
  };
  hooks.assembled = [this, &node](const exchange::CompleteWeights& weights) {
    if (plan_.asynchronous) {
      CheckCounts(node.name, weights.version, weights.weights->span(), 0, weights.marks);
    } else {
      CheckWeights(node.name, weights.lineage, weights.version, weights.weights->span(), 0);
    }
    if (weights.version < newest_[weights.lineage]) ++result_.late_versions;
  };
  hooks.computes = [this, &node](int64_t lineage, int32_t lane, int64_t step,
                                 absl::Span<const float> weights) {
    CheckStaleness(node.name, lineage, lane, step, weights);
  };
  node.task = std::make_unique<SimTask>(queue_, random_, disk_, node.task_process, node.host,
                                        plan_.toy, start, std::move(hooks));
  ReportSoon(node);
}

// A signal ends the task, and the service sees that at once.
void Cluster::EndTask(Node& node, int signal) {
  node.ended_task = node.task->State();
  node.ended_task->set_phase(node::v1::TASK_PHASE_FAILED);
  node.ended_task->set_reason("InternalError");
  node.ended_task->set_exit_code(-signal);
  node.task_process.Kill();
  node.task.reset();
  ReportSoon(node);
}

std::shared_ptr<Connection> Cluster::ConnectExchange(
    Node& from, Process& process, const std::string& address,
    std::function<void(const std::string&)> receive, std::function<void()> closed) {
  Node* target = nullptr;
  for (Node* node : shards_) {
    if ("unix:/" + node->name == address) target = node;
  }
  CAPSTAN_CHECK(target != nullptr);
  Connection::End client;
  client.host = from.host;
  client.receive = [&process, receive = std::move(receive)](const std::string& bytes) {
    process.Guard([receive, bytes] { receive(bytes); })();
  };
  client.closed = process.Guard(std::move(closed));
  Connection::End server;
  server.host = target->host;
  if (target->shard == nullptr) {  // no shard listens there
    server.receive = [](const std::string&) {};
    server.closed = [] {};
    auto refused = network_.Open(exchange_faults_, std::move(client), std::move(server));
    refused->Break();
    return refused;
  }
  const int64_t stream = target->shard->OpenStream();
  server.receive = [target, stream](const std::string& bytes) {
    target->service.Guard([target, stream, bytes] { target->shard->OnBytes(stream, bytes); })();
  };
  server.closed = target->service.Guard([target, stream] { target->shard->CloseStream(stream); });
  auto connection = network_.Open(exchange_faults_, std::move(client), std::move(server));
  target->shard->SetConnection(stream, connection);
  return connection;
}

// ---- What must hold ----

void Cluster::NoteDecision(const Node& node, int64_t lineage, const training::Decision& decision) {
  decided_.emplace(lineage, decision.step);
  const std::string broken = histories_.NoteDecision(lineage, decision);
  if (!broken.empty()) Violation(absl::StrCat(node.name, ": ", broken));
  if (decision.gradient_scale * decision.loss_scale != 1)
    result_.effects.Saw(FaultClass::kLossScale);
  if (decision.clip_factor < 1) result_.effects.Saw(FaultClass::kClipNorm);
  if (!decision.tensor_norms.empty()) result_.effects.Saw(FaultClass::kTrust);
}

void Cluster::CheckWeights(absl::string_view who, int64_t lineage, int64_t version,
                           absl::Span<const float> weights, int64_t first_float) {
  queue_.Note(absl::StrCat(who, " ", lineage, " ", version));
  const std::vector<float>* const want = histories_.At(lineage, version);
  if (want == nullptr) {
    return Violation(
        absl::StrCat(who, ": version ", version, " of lineage ", lineage, " is of no history"));
  }
  if (std::memcmp(want->data() + first_float, weights.data(), 4 * weights.size()) != 0) {
    Violation(absl::StrCat(who, ": version ", version, " of lineage ", lineage,
                           " differs from the plain sum"));
  }
}

void Cluster::CheckCounts(absl::string_view who, int64_t version, absl::Span<const float> weights,
                          int64_t first_float, const std::vector<int64_t>& marks) {
  queue_.Note(absl::StrCat(who, " at ", version));
  const std::string broken =
      counts_->Check(weights, first_float, marks, /*all=*/version == plan_.steps);
  if (!broken.empty()) Violation(absl::StrCat(who, ": version ", version, ": ", broken));
}

// Of the bounds by which a lane may have begun a step in this lineage.
int64_t Cluster::LoosestStaleness(int64_t lineage) const {
  int64_t loosest = plan_.max_staleness;
  for (const training::Decision& decision : histories_.Decisions(lineage)) {
    if (!decision.max_staleness.has_value()) continue;
    const int64_t bound = *decision.max_staleness;
    if (decision.step < histories_.BaseOf(lineage)) {
      loosest = bound;  // the lineage began with it, or with a later one
    } else {
      loosest = loosest < 0 || bound < 0 ? -1 : std::max(loosest, bound);
    }
  }
  return loosest;
}

void Cluster::CheckStaleness(absl::string_view who, int64_t lineage, int32_t lane, int64_t step,
                             absl::Span<const float> weights) {
  if (!plan_.asynchronous) return;
  const int64_t staleness = step - counts_->Floor(weights);
  if (staleness > 0) ++result_.stale_steps;
  const int64_t bound = LoosestStaleness(lineage);
  if (bound < 0 || staleness <= bound) return;
  Violation(absl::StrCat(who, ": step ", step, " of lane ", lane, " is ", staleness,
                         " steps ahead of its weights, want at most ", bound));
}

void Cluster::CheckEnd() {
  for (const auto& node : nodes_) {
    if (node->task != nullptr) Violation(absl::StrCat(node->name, ": a task after the end"));
    if (node->shard != nullptr && node->shard->core() != nullptr)
      Violation(absl::StrCat(node->name, " still holds the job"));
  }
  const auto job = coordinator_ == nullptr || job_id_.empty()
                       ? absl::NotFoundError("no coordinator")
                       : coordinator_->GetJob(job_id_);
  if (!job.ok()) return Violation("an accepted job is lost");
  result_.job = *job;
  for (const job::v1::Event& event : job->events())
    result_.moves += event.type() == "ShardsMoved" ? 1 : 0;
  CheckForgotten();
  if (job->state() == common::v1::JOB_STATE_FAILED && job->reason() == "CheckpointCorrupt" &&
      plan_.has(FaultClass::kDamage) && NoCheckpointIsWhole()) {
    // The only checkpoint was damaged. The job does not begin anew over files that a person may
    // still be able to save.
    return;
  }
  if (job->state() != common::v1::JOB_STATE_SUCCEEDED) {
    return Violation(absl::StrCat("ended as ", common::v1::JobState_Name(job->state()), ": ",
                                  job->reason(), ": ", job->message()));
  }
  // Each epoch has four whole batches and a small one.
  int64_t samples = 0;
  for (int64_t step = 0; step < plan_.steps; ++step)
    samples += step % 5 == 4 ? std::max(1, plan_.lanes / 2) : int64_t{8} * plan_.lanes;
  if (job->samples_used() != samples)
    Violation(absl::StrCat(job->samples_used(), " samples used, want ", samples));
  for (const common::v1::EpochRecord& epoch : job->epochs()) {
    if (!epoch.has_validation_loss() && plan_.evaluates)
      Violation(absl::StrCat("epoch ", epoch.epoch(), " was not evaluated"));
  }
  if (job->progress().step() != plan_.steps)
    Violation(absl::StrCat("at step ", job->progress().step()));
  CheckOrders(*coordinator_->Peek(job_id_));
}

WorldResult Cluster::Run() {
  for (int i = 0; i < plan_.shards + plan_.spare_shards; ++i) AddNode(absl::StrCat("s", i), false);
  for (int i = 0; i < plan_.workers; ++i) AddNode(absl::StrCat("w", i), true);
  PlanForgetting();
  StartCoordinator();
  queue_.After(absl::ZeroDuration(), [this] { Submit(); });
  PlanOrders();
  PlanMoves();
  PlanFaults();
  const absl::Duration end = queue_.now() + plan_.fault_time + kLimit;
  absl::Duration quiet_at = absl::InfiniteDuration();
  while (queue_.RunOne() && queue_.now() < end && result_.violations.empty()) {
    if (quiet_at == absl::InfiniteDuration() && ended_)
      quiet_at = std::max(queue_.now(), absl::Seconds(1000) + plan_.fault_time) + absl::Seconds(5);
    if (queue_.now() > quiet_at && (HasForgotten() || queue_.now() > quiet_at + kForgets)) break;
  }
  if (result_.violations.empty()) {
    if (quiet_at == absl::InfiniteDuration()) {
      std::string job = "none accepted";
      if (coordinator_ != nullptr && !job_id_.empty())
        job = coordinator_->GetJob(job_id_)->ShortDebugString().substr(0, 600);
      Violation(absl::StrCat("not ended 120 virtual seconds after all healed: ", job));
    } else {
      CheckEnd();
    }
  }
  result_.decided = static_cast<int64_t>(decided_.size());
  result_.trace_hash = queue_.trace_hash();
  return std::move(result_);
}

WorldResult RunWorld(const Plan& plan) { return Cluster(plan).Run(); }

}  // namespace capstan::sim
