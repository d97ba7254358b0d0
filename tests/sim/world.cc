#include "tests/sim/world.h"

#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "services/check/check.h"
#include "training/spec/job_file.h"
#include "training/spec/resolve.h"
#include "training/spec/validate.h"

namespace capstan::sim {
namespace {

namespace core = coordinator::core;
using node::v1::ConnectRequest;
using node::v1::ConnectResponse;

constexpr absl::Duration kHeartbeat = absl::Milliseconds(200);
constexpr absl::Duration kLease = absl::Seconds(1);
constexpr absl::Duration kLimit = absl::Seconds(120);

job::v1::JobSpec SpecOf(const WorldOptions& options) {
  // 8 samples a lane and a last step of an epoch in which the last lanes have none.
  const int64_t batch = 8 * options.lanes;
  const int64_t train = 4 * batch + std::max(1, options.lanes / 2);
  training::spec::JobFile file = training::spec::ParseJobFile(absl::StrCat(
      "version: 1\nname: sim\nresources: {num_workers: ", options.workers,
      ", num_shards: ", options.shards, ", lanes: ", options.lanes,
      "}\nmodel: {name: lenet}\ndata: {format: synthetic_digits, train_samples: ", train,
      ", test_samples: 40}\nkvstore: {type: dist_sync}\ntraining: {max_steps: ", options.steps,
      ", epochs: 1000, global_batch_size: ", batch,
      ", seed: 5, optimizer: {name: sgd, learning_rate: 0.0001}}\n"));
  CAPSTAN_CHECK(file.errors.empty());
  return file.spec;
}

class World {
 public:
  explicit World(const WorldOptions& options)
      : options_(options), random_(options.seed), coordinator_(CoordinatorOptions(options)) {}

  WorldResult Run();

 private:
  // A service: its session to the coordinator, and what it runs.
  struct Node {
    std::string name;
    bool is_worker = false;
    bool alive = true;
    int64_t incarnation = 0;
    core::SessionId session = 0;
    bool registered = false;
    absl::Duration cut_until;  // the coordinator cannot be reached before
    std::shared_ptr<Link> up;
    std::shared_ptr<Link> down;
    std::unique_ptr<SimShard> shard;
    std::unique_ptr<SimTask> task;
    bool report_due = false;
  };

  static core::CoreOptions CoordinatorOptions(const WorldOptions& options);
  void Tell(decltype(core::Event::what) what);
  void CarryOut(const core::Effect& effect);
  void Connect(Node& node);
  void Disconnect(Node& node);
  void Beat(Node& node);
  void ReportSoon(Node& node);
  void BeatForever(Node& node);
  void OnAnswer(Node& node, const std::string& bytes);
  std::shared_ptr<Link> ConnectExchange(Node& from, const std::string& address,
                                        std::function<void(const std::string&)> receive,
                                        std::function<void()> closed);
  void CheckWeights(absl::string_view who, int64_t version, absl::Span<const float> weights,
                    int64_t first_float);
  void PlanFaults();
  void Violation(std::string what) {
    if (result_.violations.size() < 10) result_.violations.push_back(std::move(what));
  }

  const WorldOptions options_;
  Random random_;
  EventQueue queue_;
  core::CoordinatorCore coordinator_;
  core::MemoryJournal journal_;
  absl::Duration tick_at_ = absl::InfiniteDuration();
  core::SessionId last_session_ = 0;
  std::map<core::SessionId, Node*> sessions_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::string job_id_;
  std::vector<std::vector<float>> reference_;
  std::map<int64_t, std::string> assignments_;  // generation -> lane owners
  WorldResult result_;
};

core::CoreOptions World::CoordinatorOptions(const WorldOptions& options) {
  core::CoreOptions out;
  out.lease = kLease;
  out.heartbeat = kHeartbeat;
  out.storage_root = "/sim";
  out.seed = options.seed;
  out.validate = training::spec::ValidateSpec;
  out.resolve = [](const job::v1::JobSpec& spec, const common::v1::DatasetInfo& dataset,
                   const std::string& job_id, const std::string& root) {
    return training::spec::Resolve(spec, dataset, {.job_id = job_id, .storage_path = root});
  };
  return out;
}

void World::Tell(decltype(core::Event::what) what) {
  const core::Effects effects =
      coordinator_.Step({absl::UnixEpoch() + queue_.now(), std::move(what)}, queue_.now());
  for (const core::Effect& effect : effects) CarryOut(effect);
  const absl::Duration due = coordinator_.NextDeadline();
  if (due < tick_at_) {
    tick_at_ = due;
    queue_.At(due, [this, due] {
      if (tick_at_ != due) return;
      tick_at_ = absl::InfiniteDuration();
      Tell(core::Tick{});
    });
  }
}

void World::CarryOut(const core::Effect& effect) {
  if (const auto* e = std::get_if<core::Persist>(&effect)) {
    CAPSTAN_CHECK(journal_.Append(e->record).ok());
  } else if (const auto* e = std::get_if<core::Send>(&effect)) {
    const auto found = sessions_.find(e->session);
    if (found != sessions_.end() && found->second->down != nullptr) {
      found->second->down->Send(e->message.SerializeAsString(), true);
    }
  } else if (const auto* e = std::get_if<core::CloseSession>(&effect)) {
    const auto found = sessions_.find(e->session);
    if (found != sessions_.end()) Disconnect(*found->second);
  } else if (const auto* e = std::get_if<core::Reply>(&effect)) {
    CAPSTAN_CHECK(e->status.ok());
    if (const auto* submitted = std::get_if<job::v1::SubmitJobResponse>(&e->response))
      job_id_ = submitted->job_id();
  } else if (const auto* e = std::get_if<core::JobChanged>(&effect)) {
    const core::JobRecord* job = coordinator_.Peek(e->job_id);
    if (job == nullptr || !e->new_generation) return;
    if (reference_.empty()) reference_ = ReferenceVersions(*job->resolved, options_.toy);
    std::string owners;
    for (const int32_t owner : job->view.lane_owners()) absl::StrAppend(&owners, owner, ",");
    const auto [known, fresh] = assignments_.emplace(job->view.generation(), owners);
    if (!fresh && known->second != owners)
      Violation(absl::StrCat("generation ", job->view.generation(), " names two assignments"));
    queue_.Note(absl::StrCat("view ", job->view.generation(), " ", owners));
  } else if (const auto* e = std::get_if<core::WriteManifest>(&effect)) {
    if (static_cast<int>(e->files.size()) != options_.shards + 1)
      Violation("a manifest that does not name every file");
    queue_.After(random_.Between(absl::Milliseconds(1), absl::Milliseconds(30)),
                 [this, write = *e] {
                   absl::Status status;
                   if (random_.Chance(0.2))
                     status = absl::ResourceExhaustedError("disk full");  // tried again
                   Tell(core::ManifestWritten{write.job_id, write.lineage, write.step, status});
                 });
  }
}

void World::Connect(Node& node) {
  if (!node.alive || node.up != nullptr) return;
  if (queue_.now() < node.cut_until) {
    queue_.At(node.cut_until, [this, &node] { Connect(node); });
    return;
  }
  const core::SessionId session = ++last_session_;
  node.session = session;
  node.registered = false;
  sessions_[session] = &node;
  node.up = std::make_shared<Link>(queue_, random_, LinkFaults{},
                                   [this, session](const std::string& bytes) {
                                     ConnectRequest message;
                                     CAPSTAN_CHECK(message.ParseFromString(bytes));
                                     if (message.has_register_()) {
                                       Tell(core::NodeConnected{session, message.register_()});
                                     } else {
                                       Tell(core::NodeMessage{session, message});
                                     }
                                   });
  node.down =
      std::make_shared<Link>(queue_, random_, LinkFaults{},
                             [this, &node](const std::string& bytes) { OnAnswer(node, bytes); });
  ConnectRequest message;
  node::v1::Register& reg = *message.mutable_register_();
  reg.set_name(node.name);
  reg.set_role(node.is_worker ? common::v1::ROLE_WORKER : common::v1::ROLE_PARAM_STORE);
  reg.set_host("host-" + node.name);
  reg.set_last_incarnation(node.incarnation);
  if (node.is_worker) reg.add_devices()->set_name("cpu");
  if (!node.is_worker) reg.set_data_address("unix:/" + node.name);
  node.up->Send(message.SerializeAsString(), true);
}

void World::Disconnect(Node& node) {
  if (node.up == nullptr) return;
  node.up->Break();
  node.down->Break();
  node.up.reset();
  node.down.reset();
  sessions_.erase(node.session);
  Tell(core::NodeDisconnected{node.session, false});
  queue_.After(random_.Between(absl::Milliseconds(50), absl::Milliseconds(500)),
               [this, &node] { Connect(node); });
}

void World::Beat(Node& node) {
  if (!node.alive || node.up == nullptr || !node.registered) return;
  ConnectRequest message;
  node::v1::Heartbeat& beat = *message.mutable_heartbeat();
  if (node.task != nullptr) *beat.add_tasks() = node.task->State();
  if (node.shard != nullptr) {
    if (auto state = node.shard->State(); state.has_value()) *beat.add_shards() = *std::move(state);
  }
  node.up->Send(message.SerializeAsString(), true);
}

void World::ReportSoon(Node& node) {
  if (node.report_due) return;
  node.report_due = true;
  queue_.After(absl::Milliseconds(1), [this, &node] {
    node.report_due = false;
    Beat(node);
  });
}

void World::BeatForever(Node& node) {
  Beat(node);
  queue_.After(kHeartbeat, [this, &node] { BeatForever(node); });
}

void World::OnAnswer(Node& node, const std::string& bytes) {
  ConnectResponse message;
  CAPSTAN_CHECK(message.ParseFromString(bytes));
  switch (message.message_case()) {
    case ConnectResponse::kRegistered:
      node.incarnation = message.registered().incarnation();
      node.registered = true;
      return Beat(node);
    case ConnectResponse::kProbe: {
      ConnectRequest reply;
      node::v1::ProbeResult& result = *reply.mutable_probe_result();
      result.set_probe_id(message.probe().probe_id());
      result.set_job_id(message.probe().job_id());
      auto& data = *result.mutable_dataset();
      data.set_train_samples(message.probe().spec().data().train_samples());
      data.set_test_samples(message.probe().spec().data().test_samples());
      data.set_channels(1);
      data.set_height(28);
      data.set_width(28);
      data.set_num_classes(10);
      return node.up->Send(reply.SerializeAsString(), true);
    }
    case ConnectResponse::kStartTask:
      if (node.task != nullptr) return;  // a task that lives is left alone
      node.task = std::make_unique<SimTask>(
          queue_, random_, options_.toy, message.start_task(),
          SimTask::Hooks{
              [this, &node](const std::string& address,
                            std::function<void(const std::string&)> receive,
                            std::function<void()> closed) {
                return ConnectExchange(node, address, std::move(receive), std::move(closed));
              },
              [this, &node] { ReportSoon(node); },
              [this, name = node.name](int64_t version, absl::Span<const float> weights) {
                CheckWeights(name, version, weights, 0);
              }});
      return ReportSoon(node);
    case ConnectResponse::kStartLineage:
      node.shard->OnStartLineage(message.start_lineage());
      return ReportSoon(node);
    case ConnectResponse::kViewChange:
      if (node.task != nullptr) node.task->OnViewChange(message.view_change().view());
      if (node.shard != nullptr) node.shard->OnViewChange(message.view_change());
      return;
    case ConnectResponse::kStopTask:
      if (node.task == nullptr) return;
      node.task->OnStop();
      queue_.After(absl::Milliseconds(5), [this, &node] {
        node.task.reset();
        ReportSoon(node);
      });
      return;
    case ConnectResponse::kEndJob:
      node.shard->OnEndJob();
      return ReportSoon(node);
    case ConnectResponse::kFilesTaken:
      if (node.task != nullptr) node.task->OnFilesTaken();
      if (node.shard != nullptr) node.shard->OnFilesTaken(message.files_taken());
      return;
    case ConnectResponse::kGiveOrders:
    case ConnectResponse::kSetLogLevel:  // nobody gives any here
    case ConnectResponse::MESSAGE_NOT_SET:
      CAPSTAN_CHECK(false);
  }
}

std::shared_ptr<Link> World::ConnectExchange(Node& from, const std::string& address,
                                             std::function<void(const std::string&)> receive,
                                             std::function<void()> closed) {
  Node* target = nullptr;
  for (const auto& node : nodes_) {
    if ("unix:/" + node->name == address) target = node.get();
  }
  CAPSTAN_CHECK(target != nullptr && target->shard != nullptr);
  auto back = std::make_shared<Link>(queue_, random_, options_.exchange, std::move(receive));
  // `closed` may free what holds `forth`, so it comes as an event of its own.
  auto close = [this, closed = std::move(closed)] { queue_.After(absl::Microseconds(50), closed); };
  const int64_t stream = target->shard->OpenStream(
      [back](const std::string& bytes, bool in_order) { back->Send(bytes, in_order); }, close);
  return std::make_shared<Link>(
      queue_, random_, options_.exchange,
      [target, stream](const std::string& bytes) { target->shard->OnBytes(stream, bytes); });
}

void World::CheckWeights(absl::string_view who, int64_t version, absl::Span<const float> weights,
                         int64_t first_float) {
  queue_.Note(absl::StrCat(who, " ", version));
  const std::vector<float>& want = reference_.at(static_cast<size_t>(version));
  if (std::memcmp(want.data() + first_float, weights.data(), 4 * weights.size()) != 0) {
    Violation(absl::StrCat(who, ": version ", version, " differs from the plain sum"));
  }
}

void World::PlanFaults() {
  const auto when = [this] {
    return queue_.now() + random_.Between(absl::Milliseconds(100), options_.fault_time);
  };
  std::vector<Node*> workers;
  for (const auto& node : nodes_) {
    if (node->is_worker) workers.push_back(node.get());
  }
  const auto pick = [&] { return workers[random_.Below(static_cast<int64_t>(workers.size()))]; };
  for (int i = 0; i < options_.stream_breaks; ++i) {
    queue_.At(when(), [this, node = pick()] {
      if (node->task == nullptr) return;
      ++result_.faults;
      node->task->BreakStreams();
    });
  }
  for (int i = 0; i < options_.pauses; ++i) {
    queue_.At(when(), [this, node = pick()] {
      if (node->task == nullptr) return;
      ++result_.faults;
      node->task->Pause(queue_.now() + random_.Between(absl::Milliseconds(100), absl::Seconds(2)));
    });
  }
  // A worker that is cut off or killed has lost its lanes for good, and a job without any worker
  // ends: different ones, never all.
  const int kills = std::min(options_.worker_kills, options_.workers - 1);
  for (int i = 0; i < kills; ++i) {
    queue_.At(when(), [this, node = workers[i]] {
      if (!node->alive || node->task == nullptr) return;
      ++result_.faults;
      node->alive = false;
      node->task.reset();
      Disconnect(*node);
    });
  }
  for (int i = kills; i < std::min(kills + options_.worker_cuts, options_.workers - 1); ++i) {
    queue_.At(when(), [this, node = workers[i]] {
      ++result_.faults;
      node->cut_until =
          queue_.now() + kLease + random_.Between(absl::Milliseconds(10), absl::Seconds(1));
      Disconnect(*node);
    });
  }
}

WorldResult World::Run() {
  const auto add = [this](const std::string& name, bool is_worker) {
    nodes_.push_back(std::make_unique<Node>());
    Node& node = *nodes_.back();
    node.name = name;
    node.is_worker = is_worker;
    if (!is_worker) {
      node.shard = std::make_unique<SimShard>(
          queue_, random_,
          SimShard::Hooks{[this, &node](const std::string& address,
                                        std::function<void(const std::string&)> receive,
                                        std::function<void()> closed) {
                            return ConnectExchange(node, address, std::move(receive),
                                                   std::move(closed));
                          },
                          [this, &node] { ReportSoon(node); },
                          [this, name](int32_t, int64_t version, absl::Span<const float> weights,
                                       int64_t first_float) {
                            CheckWeights(name, version, weights, first_float);
                          }});
    }
    queue_.After(random_.Between(absl::ZeroDuration(), absl::Milliseconds(100)),
                 [this, &node] { Connect(node); });
    BeatForever(node);
  };
  for (int i = 0; i < options_.shards; ++i) add(absl::StrCat("s", i), false);
  for (int i = 0; i < options_.workers; ++i) add(absl::StrCat("w", i), true);
  Tell(core::Submit{1, "request", SpecOf(options_)});
  PlanFaults();
  const absl::Duration end = queue_.now() + kLimit;
  absl::Duration quiet_at = absl::InfiniteDuration();
  while (queue_.RunOne() && queue_.now() < end) {
    if (quiet_at == absl::InfiniteDuration() && coordinator_.HasEnded(job_id_))
      quiet_at = queue_.now() + absl::Seconds(2);
    if (queue_.now() > quiet_at) break;
  }
  if (quiet_at == absl::InfiniteDuration()) {
    Violation("the job did not end within 120 virtual seconds");
  }
  for (const auto& node : nodes_) {
    if (node->alive && node->task != nullptr)
      Violation(absl::StrCat(node->name, " still has a task after the end"));
    if (node->shard != nullptr && node->shard->core() != nullptr)
      Violation(absl::StrCat(node->name, " still holds the job"));
  }
  result_.job = *coordinator_.GetJob(job_id_);
  result_.trace_hash = queue_.trace_hash();
  return std::move(result_);
}

}  // namespace

WorldResult RunWorld(const WorldOptions& options) { return World(options).Run(); }

}  // namespace capstan::sim
