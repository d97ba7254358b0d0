#include "coordinator/coordinator.h"

#include <algorithm>
#include <future>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/mounts.h"
#include "coordinator/stored_file.h"
#include "services/check/check.h"
#include "services/clock/clock.h"
#include "services/files/files.h"
#include "services/logging/log.h"

namespace capstan::coordinator {

using services::kError;
using services::kInfo;
using services::kWarning;
using services::Log;

namespace {
constexpr absl::Duration kHoldRetry = absl::Milliseconds(500);
constexpr absl::Duration kDiskCheck = absl::Seconds(1);
constexpr absl::Duration kThreadRetry = absl::Seconds(1);
constexpr size_t kMaxHeld = 200'000;  // effects; beyond that, a restart is better

constexpr char kMayBeTaken[] =
    "the disk of the coordinator's state folder is full: this is not durable yet, but may become "
    "so once there is room";

absl::Status DiskFull() {
  return absl::ResourceExhaustedError(
      "the disk of the coordinator's state folder is full: running jobs continue, but nothing can "
      "be changed until there is room");
}

// The room of the nearest existing folder above. Blocks.
absl::StatusOr<services::DiskRoom> RoomAbove(std::string folder) {
  while (true) {
    absl::StatusOr<services::DiskRoom> room = services::RoomOf(folder);
    const size_t slash = folder.rfind('/');
    if (!absl::IsNotFound(room.status()) || slash == std::string::npos || folder == "/") {
      return room;
    }
    folder.resize(std::max<size_t>(slash, 1));
  }
}
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
    // Copies, because a stream that is told may remove itself from the list.
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

bool Coordinator::Stop(absl::Duration patience) {
  const absl::Duration deadline = MonotonicNow() + patience;
  bool done = true;
  for (FileThreads* files : {&manifests_, &restores_, &event_appends_}) {
    done = files->Stop(deadline - MonotonicNow()) && done;
  }
  done = paths_.Stop(deadline - MonotonicNow()) && done;
  strand_.Stop();
  return done;
}

void Coordinator::Submit(const std::string& request_id, const job::v1::JobSpec& spec,
                         const core::Caller& caller, std::vector<std::string> weights_at,
                         ReplyFn reply) {
  if (Refused(reply)) return;
  const core::CallId call = ++last_call_;
  calls_[call] = std::move(reply);
  Step(core::Submit{call, request_id, spec, caller, std::move(weights_at)});
}

void Coordinator::Cancel(const std::string& job_id, const core::Caller& caller, ReplyFn reply) {
  // Accepted on a full disk, because the cancellation may make room.
  if (Refused(reply, /*only_held=*/true)) return;
  const core::CallId call = ++last_call_;
  calls_[call] = std::move(reply);
  Step(core::Cancel{call, job_id, caller});
}

void Coordinator::Control(decltype(core::Control::request) request, const core::Caller& caller,
                          ReplyFn reply) {
  if (Refused(reply)) return;
  const core::CallId call = ++last_call_;
  calls_[call] = std::move(reply);
  Step(core::Control{call, std::move(request), caller});
}

void Coordinator::SetDrained(const std::string& node, bool drained, ReplyFn reply) {
  if (Refused(reply)) return;
  const core::CallId call = ++last_call_;
  calls_[call] = std::move(reply);
  Step(core::SetDrained{call, node, drained});
}

core::SessionId Coordinator::Connect(core::NodeConnected registration, NodeStream* stream) {
  const core::SessionId session = ++last_session_;
  streams_[session] = stream;
  registration.session = session;
  Step(std::move(registration));
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
    if (status.ok() && options_.only_looks.empty()) {
      core::Restored at_once{.jobs = std::set<std::string>()};
      for (const auto& entry : state.jobs) {
        const core::Job& job = *core_.Peek(entry.first);
        if (options_.metrics != nullptr) options_.metrics->OnRestored(job);
        event_files_.OnRestored(job);
        at_once.jobs->insert(entry.first);
      }
      std::map<std::string, FolderList> unread;  // by the folder that contains them
      for (const auto& [id, path] : core_.StoragePaths()) {
        at_once.jobs->erase(id);
        unread[path.substr(0, path.rfind('/'))].emplace_back(id, path);
      }
      Step(std::move(at_once));
      const std::vector<std::string> mounts = MountPointsAnd(options_.restore_apart);
      for (auto& [folder, jobs] : unread) {
        ReadFolders(LongestAbove(folder, mounts), std::move(jobs));
      }
      WatchDisk();
    }
    done.set_value(status);
  });
  return done.get_future().get();
}

void Coordinator::OnFiles(FileThreads& threads, const std::string& key,
                          const std::shared_ptr<const std::function<void()>>& work) {
  if (threads.Post(key, [work] { (*work)(); })) return;
  strand_.CallAt(MonotonicNow() + kThreadRetry,
                 [this, &threads, key, work] { OnFiles(threads, key, work); });
}

void Coordinator::OnFiles(FileThreads& threads, const std::string& key,
                          std::function<void()> work) {
  OnFiles(threads, key, std::make_shared<const std::function<void()>>(std::move(work)));
}

// Reads all jobs of one folder as one piece of work. So a hung disk blocks one thread per such
// folder, however many jobs it stores, and at most kRestoreReaders threads per mount.
void Coordinator::ReadFolders(const std::string& mount, FolderList folders) {
  OnFiles(restores_, mount, [this, jobs = std::move(folders)] {
    // Many jobs in one event, since each event makes the core look at the whole queue.
    core::Restored read{.jobs = std::set<std::string>()};
    absl::Duration told_at = MonotonicNow();
    const auto tell = [&] {
      Post([this, restored = std::move(read)]() mutable { Step(std::move(restored)); });
      read = {.jobs = std::set<std::string>()};
      told_at = MonotonicNow();
    };
    for (const auto& [id, path] : jobs) {
      std::vector<core::FoundManifest> found = FindManifests(id, path);
      if (!found.empty()) read.manifests[id] = std::move(found);
      read.lineages[id] = HighestLineage(path);
      (void)RemoveOldLooks(path);
      read.jobs->insert(id);
      if (MonotonicNow() - told_at >= kRestoreInterval) tell();
    }
    if (!read.jobs->empty()) tell();
  });
}

void Coordinator::PostRead(std::function<void()> task) {
  Post([this, task = std::move(task)]() mutable {
    if (!appended_ || held_) return task();
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
  if (held_ && waiting_.size() > kMaxHeld) Die(DiskFull());
  ArmTick();
}

void Coordinator::Flush() {
  if (held_ && !dead_ && MonotonicNow() < retry_at_) return;
  while (appended_ || !waiting_.empty()) {
    if (appended_ && !dead_) {
      const absl::Duration start = MonotonicNow();
      const absl::Status status = options_.journal->Commit();
      if (options_.metrics != nullptr) options_.metrics->OnCommit(MonotonicNow() - start);
      if (absl::IsResourceExhausted(status)) return Hold(status);
      if (!status.ok()) Die(status);
      held_ = false;
    }
    appended_ = false;
    // Effects of these tasks are appended behind them and wait for the next commit.
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
  if (appended_lazily_ && !dead_) {
    const absl::Status status = options_.journal->Commit();
    if (absl::IsResourceExhausted(status)) return;  // a later commit includes it
    appended_lazily_ = false;
    if (!status.ok()) Die(status);
  }
}

// Nothing that waits may be carried out. Callers get an answer at once; all other effects wait.
void Coordinator::Hold(const absl::Status& status) {
  if (!held_) Log(kError, "journal_held").Kv("status", status);
  held_ = true;
  retry_at_ = MonotonicNow() + kHoldRetry;
  strand_.CallAt(retry_at_, [] {});  // every round ends with Flush
  std::vector<std::function<void()>> reads;
  std::vector<core::CallId> calls;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    auto* effect = std::get_if<core::Effect>(&*it);
    const auto* reply = effect == nullptr ? nullptr : std::get_if<core::Reply>(effect);
    if (effect != nullptr && reply == nullptr) {
      ++it;
      continue;
    }
    if (effect == nullptr) reads.push_back(std::move(std::get<std::function<void()>>(*it)));
    if (reply != nullptr) calls.push_back(reply->call);
    it = waiting_.erase(it);
  }
  for (const auto& read : reads) read();
  for (const core::CallId id : calls) {
    const auto call = calls_.find(id);
    if (call == calls_.end()) continue;
    const ReplyFn fn = std::move(call->second);
    calls_.erase(call);
    fn({id, absl::ResourceExhaustedError(kMayBeTaken), {}});
  }
  disk_checked_ = -absl::InfiniteDuration();
  CheckDisk();
}

bool Coordinator::Refused(const ReplyFn& reply, bool only_held) {
  if (!options_.only_looks.empty()) {
    reply({0, absl::FailedPreconditionError(options_.only_looks), {}});
    return true;
  }
  CheckDisk();
  if (!(only_held ? held_ : disk_full_)) return false;
  reply({0, DiskFull(), {}});
  return true;
}

void Coordinator::CheckDisk() {
  if (MonotonicNow() - disk_checked_ < kDiskCheck) return;
  disk_checked_ = MonotonicNow();
  const bool full = held_ || options_.journal->low();
  if (options_.metrics != nullptr) options_.metrics->OnDisk(full);
  if (full == disk_full_) return;
  disk_full_ = full;
  Log(full ? kError : kInfo, full ? "state_disk_full" : "state_disk_has_room")
      .Kv("held", held_ ? "yes" : "no");
  if (disk_listener_) disk_listener_(full);
}

void Coordinator::ListenForDisk(std::function<void(bool)> listener) {
  disk_listener_ = std::move(listener);
  if (disk_listener_) disk_listener_(disk_full_);
}

void Coordinator::WatchDisk() {
  CheckDisk();
  strand_.CallAt(MonotonicNow() + kDiskCheck, [this] { WatchDisk(); });
}

void Coordinator::Die(const absl::Status& status) {
  dead_ = true;
  Log(kError, "journal_failed").Kv("status", status);
  options_.on_fatal(status);
}

void Coordinator::ArmTick() {
  const absl::Duration due = core_.NextDeadline();
  if (due >= tick_at_) return;  // the tick that is set is early enough
  tick_at_ = due;
  strand_.CallAt(due, [this, due] {
    if (tick_at_ != due) return;  // an earlier tick was set meanwhile and replaces this one
    tick_at_ = absl::InfiniteDuration();
    if (draining_) return;  // all nodes are disconnected by the shutdown, which is no loss
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
      event_files_.OnForgotten(forgotten->job_id);
    }
  } else if (auto* send = std::get_if<core::Send>(&effect)) {
    const auto stream = streams_.find(send->session);
    if (stream != streams_.end()) stream->second->Send(send->message);
  } else if (const auto* spared = std::get_if<core::TaskSpared>(&effect)) {
    Log(kWarning, "unknown_job")
        .Limit(absl::StrCat(spared->node, "/", spared->job_id), absl::Seconds(20))
        .Kv("node", spared->node)
        .Kv("job", spared->job_id)
        .Kv("stopped_in", spared->left);
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
    OnFiles(manifests_, written.job_id, [this, written, write = std::move(*write)] {
      core::ManifestWritten done = written;
      done.status = WriteManifestFile(write);
      Post([this, done] { Step(done); });
    });
  } else if (auto* sweep = std::get_if<core::SweepCheckpoints>(&effect)) {
    const std::string job_id = sweep->job_id;
    OnFiles(manifests_, job_id, [sweep = std::move(*sweep)] {
      const int removed = SweepCheckpointFolders(sweep);
      if (removed > 0)
        Log(kInfo, "checkpoints_removed").Kv("job", sweep.job_id).Kv("count", removed);
    });
  } else if (auto* remove = std::get_if<core::RemoveCheckpoint>(&effect)) {
    const core::CheckpointRemoved removed{remove->job_id, remove->checkpoint, absl::OkStatus()};
    OnFiles(manifests_, removed.job_id, [this, removed, folder = remove->storage_path] {
      core::CheckpointRemoved done = removed;
      done.status = RemoveCheckpointFolder(folder, removed.checkpoint);
      Log(done.status.ok() ? kInfo : kWarning, "checkpoint_removed")
          .Kv("job", done.job_id)
          .Kv("checkpoint", done.checkpoint)
          .Kv("status", done.status);
      Post([this, done] { Step(done); });
    });
  } else if (auto* measure = std::get_if<core::MeasureRoom>(&effect)) {
    // By mount: a hung disk blocks at most kRestoreReaders threads, however many jobs it stores.
    const std::string mount = LongestAbove(measure->folder, MountPointsAnd(options_.restore_apart));
    OnFiles(restores_, mount, [this, measure = std::move(*measure)] {
      const absl::StatusOr<services::DiskRoom> room = RoomAbove(measure.folder);
      if (!room.ok()) return;  // writers of that folder report the error
      core::RoomMeasured measured{measure.job_id, measure.folder, room->free_bytes,
                                  room->usable_bytes()};
      Post([this, measured] { Step(measured); });
    });
  } else if (auto* changed = std::get_if<core::JobChanged>(&effect)) {
    const core::Job* job = core_.Peek(changed->job_id);
    if (job == nullptr) return;
    if (changed->new_state) {
      Log(kInfo, "job_state")
          .Kv("job", job->id())
          .Kv("to", common::v1::JobState_Name(job->state()).substr(sizeof("JOB_STATE_") - 1))
          .Kv("reason", job->standing().reason())
          .Kv("message", job->standing().message());
    }
    if (changed->new_generation) {
      Log(kInfo, "view")
          .Kv("job", job->id())
          .Kv("lineage", job->view().lineage())
          .Kv("generation", job->view().generation());
    }
    if (options_.metrics != nullptr) options_.metrics->OnJob(*job);
    event_files_.OnJob(*job, MonotonicNow(), absl::Now());
    for (const std::string& key : {changed->job_id, std::string()}) {
      TellListeners(key, [&](JobListener* listener) { listener->OnJobChanged(changed->job_id); });
    }
  } else if (auto* logs = std::get_if<core::LogsAppended>(&effect)) {
    TellListeners(logs->job_id, [](JobListener* listener) { listener->OnLogsAppended(); });
  }
}

void Coordinator::AppendEvents(const std::string& job_id, EventFiles::Bytes bytes) {
  const auto complain = [job_id](const absl::Status& status) {
    Log(kWarning, "events_not_written")
        .Limit(job_id, absl::Minutes(1))
        .Kv("job", job_id)
        .Kv("status", status);
  };
  const bool posted = event_appends_.TryPost(job_id, [complain, bytes = std::move(bytes)] {
    const absl::Status status = EventFiles::Append(bytes);
    if (!status.ok()) complain(status);
  });
  if (!posted) complain(absl::ResourceExhaustedError("earlier writes of the job have not ended"));
}

void Coordinator::TellListeners(const std::string& job_id,
                                const std::function<void(JobListener*)>& tell) const {
  const auto it = listeners_.find(job_id);
  if (it == listeners_.end()) return;
  const std::set<JobListener*> listeners = it->second;  // a listener may remove itself
  for (JobListener* listener : listeners) tell(listener);
}

absl::Status Coordinator::SendToNode(const std::string& name,
                                     const node::v1::ConnectResponse& message) {
  const core::Node* const node = core_.nodes().Find(name);
  if (node == nullptr) return absl::NotFoundError(absl::StrCat("no node ", name));
  const auto stream = streams_.find(node->session());
  if (node->session() == 0 || stream == streams_.end()) {
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
