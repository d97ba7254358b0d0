// A coordinator's core with a clock, a journal and nodes that do what a test says. For tests alone.
#ifndef CAPSTAN_COORDINATOR_CORE_TEST_WORLD_H_
#define CAPSTAN_COORDINATOR_CORE_TEST_WORLD_H_

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"
#include "coordinator/core/durable_job.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/scheduling.h"

namespace capstan::coordinator::core {

using node::v1::ConnectResponse;

// num_workers x 1 device, num_shards; 10 steps, 2 epochs, lanes = 2 x workers, 8 chunks.
inline absl::StatusOr<job::v1::ResolvedSpec> ToyResolve(const job::v1::JobSpec& spec,
                                                        const common::v1::DatasetInfo& dataset,
                                                        const std::string& job_id,
                                                        const std::string& root) {
  if (dataset.num_classes() != 10)
    return absl::InvalidArgumentError("model.num_classes: 10, data has 9");
  const scheduler::GangRequest request = RequestOf(spec);
  job::v1::ResolvedSpec out;
  out.set_job_id(job_id);
  *out.mutable_spec() = spec;
  out.mutable_spec()->mutable_training()->mutable_optimizer()->set_name("sgd");
  *out.mutable_dataset() = dataset;
  out.set_num_workers(request.num_workers);
  out.set_devices_per_worker(request.devices_per_worker);
  out.set_num_shards(request.num_shards);
  out.set_lanes(2 * request.num_workers);
  out.set_global_batch(16);
  out.set_steps_per_epoch(5);
  out.set_total_steps(10);
  out.set_chunk_count(8);
  out.set_storage_path(absl::StrCat(root, "/", job_id));
  return out;
}

class World {
 public:
  explicit World(CoreOptions options = {}) : core_(Filled(std::move(options))) {}

  static CoreOptions Filled(CoreOptions options) {
    if (options.storage_root.empty()) options.storage_root = "/out";
    if (options.validate == nullptr) {
      options.validate = [](const job::v1::JobSpec& spec) {
        return spec.version() == 1 ? absl::OkStatus()
                                   : absl::InvalidArgumentError("version: want 1");
      };
    }
    if (options.resolve == nullptr) options.resolve = ToyResolve;
    return options;
  }

  static job::v1::JobSpec Spec(int workers, int shards, const std::string& name = "toy") {
    job::v1::JobSpec spec;
    spec.set_version(1);
    spec.set_name(name);
    spec.mutable_resources()->set_num_workers(workers);
    spec.mutable_resources()->set_num_shards(std::max(shards, 1));
    spec.mutable_kvstore()->set_type(shards == 0 ? "local" : "dist_sync");
    return spec;
  }

  // Carries out one step; its records, which become durable together, are one "persist" of order_.
  Effects Do(decltype(Event::what) what) {
    Effects effects = core_.Step({absl::FromUnixSeconds(1000) + now_, std::move(what)}, now_);
    bool persisted = false;
    for (const Effect& effect : effects) {
      if (const auto* persist = std::get_if<Persist>(&effect)) {
        (void)journal_.Append(persist->record);
        if (!persisted) order_.push_back("persist");
        persisted = true;
      } else if (const auto* send = std::get_if<Send>(&effect)) {
        inbox_[send->session].push_back(send->message);
        order_.push_back(absl::StrCat("send:", send->session, ":", send->message.message_case()));
      } else if (const auto* close = std::get_if<CloseSession>(&effect)) {
        closed_[close->session] = close->status;
      } else if (const auto* reply = std::get_if<Reply>(&effect)) {
        replies_[reply->call] = *reply;
        order_.push_back("reply");
      } else if (const auto* write = std::get_if<WriteManifest>(&effect)) {
        manifests_.push_back(*write);
      } else if (const auto* sweep = std::get_if<SweepCheckpoints>(&effect)) {
        sweeps_.push_back(*sweep);
      } else if (const auto* remove = std::get_if<RemoveCheckpoint>(&effect)) {
        removes_.push_back(*remove);
      } else if (const auto* measure = std::get_if<MeasureRoom>(&effect)) {
        measures_.push_back(*measure);
      }
    }
    return effects;
  }

  // Time goes on with ticks when they are due, as an adapter does it; living nodes are heard.
  void Pass(absl::Duration duration, const std::vector<SessionId>& heard = {}) {
    const absl::Duration end = now_ + duration;
    while (now_ < end) {
      now_ = std::min(end, std::max(core_.NextDeadline(), now_ + absl::Milliseconds(1)));
      for (const SessionId session : heard) Do(NodeMessage{session, beats_[session]});
      Do(Tick{});
    }
  }

  SessionId Connect(const std::string& name, common::v1::Role role, int64_t last_incarnation = 0,
                    int devices = 1, const std::string& version = "") {
    const SessionId session = ++sessions_;
    node::v1::Register reg;
    reg.set_version(version);
    reg.set_name(name);
    reg.set_role(role);
    reg.set_host("host-" + name);
    reg.set_last_incarnation(last_incarnation);
    if (role == common::v1::ROLE_WORKER) {
      for (int i = 0; i < devices; ++i) reg.add_devices()->set_name("cpu");
    } else {
      reg.set_data_address(absl::StrCat("unix:/", name));
    }
    beats_[session].mutable_heartbeat();
    Do(NodeConnected{session, reg});
    return session;
  }
  SessionId Worker(const std::string& name) { return Connect(name, common::v1::ROLE_WORKER); }
  SessionId Store(const std::string& name) { return Connect(name, common::v1::ROLE_PARAM_STORE); }

  // The state that the node's next heartbeats carry.
  node::v1::TaskState& Task(SessionId session, const std::string& job, int rank) {
    for (node::v1::TaskState& task : *beats_[session].mutable_heartbeat()->mutable_tasks()) {
      if (task.job_id() == job && task.rank() == rank) return task;
    }
    node::v1::TaskState& task = *beats_[session].mutable_heartbeat()->add_tasks();
    task.set_job_id(job);
    task.set_rank(rank);
    task.set_lineage(1);
    task.set_generation(1);
    return task;
  }
  node::v1::ShardState& Shard(SessionId session, const std::string& job, int shard) {
    for (node::v1::ShardState& state : *beats_[session].mutable_heartbeat()->mutable_shards()) {
      if (state.job_id() == job) return state;
    }
    node::v1::ShardState& state = *beats_[session].mutable_heartbeat()->add_shards();
    state.set_job_id(job);
    state.set_shard(shard);
    state.set_lineage(1);
    return state;
  }
  void Forget(SessionId session) { beats_[session].mutable_heartbeat()->Clear(); }
  void Beat(SessionId session) { Do(NodeMessage{session, beats_[session]}); }

  std::string Submit(const job::v1::JobSpec& spec, const std::string& request = "") {
    const CallId call = ++calls_;
    Do(core::Submit{call, request.empty() ? absl::StrCat("r", call) : request, spec, caller_});
    const Reply& reply = replies_[call];
    if (!reply.status.ok()) return "";
    return std::get<job::v1::SubmitJobResponse>(reply.response).job_id();
  }
  void Cancel(const std::string& job) { Do(core::Cancel{++calls_, job, caller_}); }
  const Reply& LastReply() { return replies_[calls_]; }

  // Answers every probe that waits in `session`.
  void AnswerProbe(SessionId session, const std::string& reason = "", int classes = 10,
                   int batches = 0) {
    for (const ConnectResponse& message : Take(session, ConnectResponse::kProbe)) {
      node::v1::ConnectRequest request;
      node::v1::ProbeResult* result = request.mutable_probe_result();
      result->set_probe_id(message.probe().probe_id());
      result->set_job_id(message.probe().job_id());
      result->set_reason(reason);
      if (reason.empty()) {
        result->mutable_dataset()->set_train_samples(80);
        result->mutable_dataset()->set_test_samples(20);
        result->mutable_dataset()->set_num_classes(classes);
        result->mutable_dataset()->set_train_batches(batches);
      } else {
        result->set_message("/data: no such folder");
      }
      Do(NodeMessage{session, request});
    }
  }

  // Removes and returns what `session` was sent of one kind.
  std::vector<ConnectResponse> Take(SessionId session, ConnectResponse::MessageCase kind) {
    std::vector<ConnectResponse> out, rest;
    for (ConnectResponse& message : inbox_[session]) {
      (message.message_case() == kind ? out : rest).push_back(std::move(message));
    }
    inbox_[session] = std::move(rest);
    return out;
  }

  // What the journal has of a job.
  v1::DurableJob Saved(const std::string& id) const {
    v1::DurableJob job;
    const auto it = journal_.state().jobs.find(id);
    if (it != journal_.state().jobs.end()) (void)job.ParseFromString(it->second);
    return job;
  }

  job::v1::Job Job(const std::string& id) { return *core_.GetJob(id); }
  std::vector<std::string> EventTypes(const std::string& id) {
    std::vector<std::string> types;
    const job::v1::Job job = Job(id);
    for (const job::v1::Event& event : job.events()) types.push_back(event.type());
    return types;
  }

  CoordinatorCore core_;
  MemoryJournal journal_;
  absl::Duration now_ = absl::Seconds(50);  // an arbitrary origin
  std::map<SessionId, std::vector<ConnectResponse>> inbox_;
  std::map<SessionId, absl::Status> closed_;
  std::map<SessionId, node::v1::ConnectRequest> beats_;
  std::map<CallId, Reply> replies_;
  std::vector<WriteManifest> manifests_;
  std::vector<SweepCheckpoints> sweeps_;
  std::vector<RemoveCheckpoint> removes_;
  std::vector<MeasureRoom> measures_;
  std::vector<std::string> order_;  // of persists, sends and replies
  SessionId sessions_ = 0;
  CallId calls_ = 0;
  Caller caller_{.name = "", .any_job = true};  // of Submit, Cancel and Ask
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_TEST_WORLD_H_
