#include "coordinator/coordinator.h"

#include <future>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "services/check/check.h"
#include "services/clock/clock.h"
#include "services/logging/log.h"

namespace capstan::coordinator {

using services::kError;
using services::kInfo;
using services::kWarning;
using services::Log;

namespace {
constexpr char kChecks[] = "";  // the one key of checks_: they run one at a time
}  // namespace

Coordinator::Coordinator(Options options)
    : options_(std::move(options)), core_(options_.core), strand_([this] { Flush(); }) {
  CAPSTAN_CHECK(options_.journal != nullptr);
}

Coordinator::~Coordinator() { Stop(); }

void Coordinator::Drain() {
  std::promise<void> done;
  Post([this, &done] {
    draining_ = true;
    const absl::Status status = absl::UnavailableError("the coordinator shuts down");
    // Copies: whoever is told may take itself off the list.
    const std::map<core::SessionId, NodeStream*> streams = streams_;
    for (const auto& entry : streams) entry.second->Close(status);
    const std::set<NodeStream*> idle = idle_;
    for (NodeStream* stream : idle) stream->Close(status);
    const std::map<std::string, std::set<JobListener*>> listeners = listeners_;
    for (const auto& entry : listeners) {
      for (JobListener* listener : entry.second) listener->OnShutdown();
    }
    done.set_value();
  });
  done.get_future().wait();
}

void Coordinator::Stop() {
  manifests_.Stop();
  checks_.Stop();
  strand_.Stop();
}

void Coordinator::Submit(const std::string& request_id, const job::v1::JobSpec& spec,
                         const core::Caller& caller, ReplyFn reply) {
  const core::CallId call = ++last_call_;
  calls_[call] = std::move(reply);
  Step(core::Submit{call, request_id, spec, caller});
}

void Coordinator::Cancel(const std::string& job_id, const core::Caller& caller, ReplyFn reply) {
  const core::CallId call = ++last_call_;
  calls_[call] = std::move(reply);
  Step(core::Cancel{call, job_id, caller});
}

void Coordinator::Control(decltype(core::Control::request) request, const core::Caller& caller,
                          ReplyFn reply) {
  const core::CallId call = ++last_call_;
  calls_[call] = std::move(reply);
  Step(core::Control{call, std::move(request), caller});
}

void Coordinator::SetDrained(const std::string& node, bool drained, ReplyFn reply) {
  const core::CallId call = ++last_call_;
  calls_[call] = std::move(reply);
  Step(core::SetDrained{call, node, drained});
}

absl::Status Coordinator::Verify(const job::v1::SavedCheckpoint& saved,
                                 std::function<void(const absl::Status&)> done) {
  const std::string folder(absl::StripPrefix(saved.uri(), "file://"));
  if (checks_.TryPost(kChecks, [this, folder, saved, done = std::move(done)] {
        const absl::Status status = VerifyCheckpointFolder(folder, saved);
        Post([status, done] { done(status); });
      })) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError("too many checkpoints are being verified; try again later");
}

core::SessionId Coordinator::Connect(const node::v1::Register& reg, NodeStream* stream) {
  const core::SessionId session = ++last_session_;
  streams_[session] = stream;
  Step(core::NodeConnected{session, reg});
  return session;
}

void Coordinator::Receive(core::SessionId session, node::v1::ConnectRequest message) {
  if (message.has_diagnosis_result()) {  // concerns no job, so the core does not know it
    if (diagnosis_ != nullptr) diagnosis_->OnResult(session, message.diagnosis_result());
    return;
  }
  Step(core::NodeMessage{session, std::move(message)});
}

void Coordinator::Disconnect(core::SessionId session, bool goodbye) {
  streams_.erase(session);
  Step(core::NodeDisconnected{session, goodbye});
}

void Coordinator::Unlisten(const std::string& job_id, JobListener* listener) {
  const auto it = listeners_.find(job_id);
  if (it == listeners_.end()) return;
  it->second.erase(listener);
  if (it->second.empty()) listeners_.erase(it);
}

bool Coordinator::ListenForDiagnosis(DiagnosisListener* listener) {
  if (listener != nullptr && diagnosis_ != nullptr) return false;
  diagnosis_ = listener;
  return true;
}

absl::Status Coordinator::Restore(const core::DurableState& state) {
  std::promise<absl::Status> done;
  Post([&] {
    const absl::Status status = core_.Restore(state, MonotonicNow(), absl::Now());
    if (status.ok()) {
      if (options_.metrics != nullptr) {
        for (const auto& entry : state.jobs) options_.metrics->OnRestored(*core_.Peek(entry.first));
      }
      core::Restored restored;
      for (const auto& [id, path] : core_.StoragePaths()) {
        std::vector<core::FoundManifest> found = FindManifests(id, path);
        if (!found.empty()) restored.manifests[id] = std::move(found);
        restored.lineages[id] = HighestLineage(path);
      }
      Step(std::move(restored));
    }
    done.set_value(status);
  });
  return done.get_future().get();
}

void Coordinator::PostRead(std::function<void()> task) {
  Post([this, task = std::move(task)]() mutable {
    if (!appended_) return task();
    waiting_.emplace_back(std::move(task));
  });
}

const core::CoordinatorCore& Coordinator::core() {
  if (appended_) Flush();
  return core_;
}

void Coordinator::Step(decltype(core::Event::what) what) {
  core::Effects effects = core_.Step({absl::Now(), std::move(what)}, MonotonicNow());
  for (core::Effect& effect : effects) {
    if (const auto* persist = std::get_if<core::Persist>(&effect); persist != nullptr && !dead_) {
      (std::holds_alternative<core::HistoryPage>(persist->record) ? appended_lazily_ : appended_) =
          true;
      const absl::Status status = options_.journal->Append(persist->record);
      if (!status.ok()) Die(status);
    }
    waiting_.emplace_back(std::move(effect));
  }
  ArmTick();
}

void Coordinator::Flush() {
  while (appended_ || !waiting_.empty()) {
    if (appended_ && !dead_) {
      const absl::Duration start = MonotonicNow();
      const absl::Status status = options_.journal->Commit();
      if (options_.metrics != nullptr) options_.metrics->OnCommit(MonotonicNow() - start);
      if (!status.ok()) Die(status);
    }
    appended_ = false;
    // What these step into being stands behind them, and waits for the next commit.
    for (size_t count = waiting_.size(); count > 0 && !waiting_.empty(); --count) {
      auto next = std::move(waiting_.front());
      waiting_.pop_front();
      if (auto* effect = std::get_if<core::Effect>(&next)) {
        CarryOut(*effect);
      } else {
        std::get<std::function<void()>>(next)();
      }
    }
  }
  if (std::exchange(appended_lazily_, false) && !dead_) {
    const absl::Status status = options_.journal->Commit();
    if (!status.ok()) Die(status);
  }
}

void Coordinator::Die(const absl::Status& status) {
  dead_ = true;
  Log(kError, "journal_failed").Kv("status", status);
  options_.on_fatal(status);
}

void Coordinator::ArmTick() {
  const absl::Duration due = core_.NextDeadline();
  if (due >= tick_at_) return;  // the tick that is set comes early enough
  tick_at_ = due;
  strand_.CallAt(due, [this, due] {
    if (tick_at_ != due) return;  // an earlier one was set meanwhile and has taken over
    tick_at_ = absl::InfiniteDuration();
    if (draining_) return;  // nobody is connected any more: that is no loss
    Step(core::Tick{});
    UpdateNodeMetrics();
  });
}

void Coordinator::CarryOut(core::Effect& effect) {
  if (dead_) {
    if (const auto* reply = std::get_if<core::Reply>(&effect)) {
      const auto call = calls_.find(reply->call);
      if (call == calls_.end()) return;
      call->second(
          {reply->call, absl::UnavailableError("the journal of the coordinator failed"), {}});
      calls_.erase(call);
    }
    return;
  }
  if (auto* persist = std::get_if<core::Persist>(&effect)) {
    if (const auto* issued = std::get_if<core::IncarnationIssued>(&persist->record)) {
      Log(kInfo, "node_registered")
          .Kv("node", issued->reg.name())
          .Kv("incarnation", issued->incarnation);
    } else if (const auto* forgotten = std::get_if<core::JobForgotten>(&persist->record)) {
      if (options_.metrics != nullptr) options_.metrics->OnForgotten(forgotten->job_id);
    }
  } else if (auto* send = std::get_if<core::Send>(&effect)) {
    const auto stream = streams_.find(send->session);
    if (stream != streams_.end()) stream->second->Send(send->message);
  } else if (auto* close = std::get_if<core::CloseSession>(&effect)) {
    const auto stream = streams_.find(close->session);
    if (stream == streams_.end()) return;
    Log(kWarning, "node_refused").Kv("status", close->status).Limit("all", absl::Seconds(1));
    NodeStream* closed = stream->second;
    streams_.erase(stream);
    closed->Close(close->status);
  } else if (auto* reply = std::get_if<core::Reply>(&effect)) {
    const auto call = calls_.find(reply->call);
    CAPSTAN_CHECK(call != calls_.end());
    const ReplyFn fn = std::move(call->second);
    calls_.erase(call);
    fn(*reply);
  } else if (auto* write = std::get_if<core::WriteManifest>(&effect)) {
    core::ManifestWritten written{write->job_id, write->lineage, write->step, absl::OkStatus()};
    manifests_.Post(written.job_id, [this, written, write = std::move(*write)]() mutable {
      written.status = WriteManifestFile(write);
      Post([this, written] { Step(written); });
    });
  } else if (auto* sweep = std::get_if<core::SweepCheckpoints>(&effect)) {
    const std::string job_id = sweep->job_id;
    manifests_.Post(job_id, [sweep = std::move(*sweep)] {
      const int removed = SweepCheckpointFolders(sweep);
      if (removed > 0)
        Log(kInfo, "checkpoints_removed").Kv("job", sweep.job_id).Kv("count", removed);
    });
  } else if (auto* changed = std::get_if<core::JobChanged>(&effect)) {
    const core::JobRecord* job = core_.Peek(changed->job_id);
    if (job == nullptr) return;
    if (changed->new_state) {
      Log(kInfo, "job_state")
          .Kv("job", job->id)
          .Kv("to", common::v1::JobState_Name(job->state).substr(sizeof("JOB_STATE_") - 1))
          .Kv("reason", job->reason)
          .Kv("message", job->message);
    }
    if (changed->new_generation) {
      Log(kInfo, "view")
          .Kv("job", job->id)
          .Kv("lineage", job->view.lineage())
          .Kv("generation", job->view.generation());
    }
    if (options_.metrics != nullptr) options_.metrics->OnJob(*job);
    for (const std::string& key : {changed->job_id, std::string()}) {
      TellListeners(key, [&](JobListener* listener) { listener->OnJobChanged(changed->job_id); });
    }
  } else if (auto* logs = std::get_if<core::LogsAppended>(&effect)) {
    TellListeners(logs->job_id, [](JobListener* listener) { listener->OnLogsAppended(); });
  }
}

void Coordinator::TellListeners(const std::string& job_id,
                                const std::function<void(JobListener*)>& tell) const {
  const auto it = listeners_.find(job_id);
  if (it == listeners_.end()) return;
  const std::set<JobListener*> listeners = it->second;  // whoever is told may take itself off
  for (JobListener* listener : listeners) tell(listener);
}

absl::Status Coordinator::SendToNode(const std::string& name,
                                     const node::v1::ConnectResponse& message) {
  const core::Node* const node = core_.nodes().Find(name);
  if (node == nullptr) return absl::NotFoundError(absl::StrCat("no node ", name));
  const auto stream = streams_.find(node->session);
  if (node->session == 0 || stream == streams_.end()) {
    return absl::FailedPreconditionError(absl::StrCat(name, " is not connected"));
  }
  stream->second->Send(message);
  return absl::OkStatus();
}

void Coordinator::UpdateNodeMetrics() {
  if (options_.metrics == nullptr || MonotonicNow() < node_metrics_at_) return;
  node_metrics_at_ = MonotonicNow() + absl::Seconds(1);
  options_.metrics->OnNodes(core_.nodes());
}

}  // namespace capstan::coordinator
