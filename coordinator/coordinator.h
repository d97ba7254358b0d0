// Runs CoordinatorCore on one thread: carries its effects out and gives adapters serialized access.
//
// Adapters only validate and then Post. Everything else here happens on the strand, so there are no
// locks. Commits are grouped: the strand takes all waiting tasks, steps the core with each, makes
// the results durable with one commit, and only then sends, replies and shows them. A slow stream
// never blocks the strand: it keeps the newest message and is asked again when its last write is
// done.
//
// If the journal's disk is full, nothing is told that is not durable, and nobody is ended because
// of it. Effects are held back, and the commit is retried until there is room. Heartbeats count,
// reads are answered, and changes are refused. Changes are also refused while the journal has room
// but `low` says that it is the last.
#ifndef CAPSTAN_COORDINATOR_COORDINATOR_H_
#define CAPSTAN_COORDINATOR_COORDINATOR_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/core.h"
#include "coordinator/core/journal.h"
#include "coordinator/event_files.h"
#include "coordinator/file_threads.h"
#include "coordinator/manifest_writer.h"
#include "coordinator/metrics.h"
#include "coordinator/path_checks.h"
#include "coordinator/work_thread.h"

namespace capstan::coordinator {

// One node's stream. Its methods are called on the strand.
class NodeStream {
 public:
  virtual ~NodeStream() = default;
  virtual void Send(const node::v1::ConnectResponse& message) = 0;
  virtual void Close(const absl::Status& status) = 0;
};

// A stream that shows one job or all jobs. Called on the strand.
class JobListener {
 public:
  virtual ~JobListener() = default;
  virtual void OnJobChanged(const std::string&) {}
  virtual void OnLogsAppended() {}
  virtual void OnShutdown() = 0;
};

// The diagnosis in progress. Called on the strand.
class DiagnosisListener {
 public:
  virtual ~DiagnosisListener() = default;
  virtual void OnResult(core::SessionId session, const node::v1::DiagnosisResult& result) = 0;
};

class Coordinator {
 public:
  struct Options {
    core::CoreOptions core;
    core::Journal* journal = nullptr;       // borrowed
    CoordinatorMetrics* metrics = nullptr;  // borrowed; may be null
    // Absolute folders that are read like mounts of their own, since they may be links to mounts.
    std::vector<std::string> restore_apart;
    // For a coordinator that only looks: Restore makes jobs known, but none continues, and changes
    // are refused with this reason. Empty: an ordinary coordinator.
    std::string only_looks;
    // The journal failed, so nobody may be told anything any more. Called once, on the strand.
    std::function<void(const absl::Status&)> on_fatal = [](const absl::Status&) {};
  };
  explicit Coordinator(Options options);
  // Calls Stop().
  ~Coordinator();

  // Continues from what an earlier coordinator made durable. Call it once, before anything is
  // posted. The folders of jobs that have not ended are read in the background; a job continues
  // once its own folder has been read. DataLoss: a record is damaged. Do not call it on the strand.
  absl::Status Restore(const core::DurableState& state);
  // Threads for one mount, or one of Options::restore_apart. A hung mount does not block others.
  static constexpr int kRestoreReaders = 8;
  // How long a reader collects results before it posts them.
  static constexpr absl::Duration kRestoreInterval = absl::Milliseconds(100);

  // Any thread.
  void Post(std::function<void()> task) { strand_.Post(std::move(task)); }
  void PostSoon(std::function<void()> task) { strand_.PostSoon(std::move(task)); }
  // For a task that only reads the core. It runs after the commit of the changes that were posted
  // before it, so it causes no commit of its own. Any thread.
  void PostRead(std::function<void()> task);
  // Ends all streams with UNAVAILABLE and refuses new ones. Returns when the streams were told. Do
  // not call it on the strand.
  void Drain();
  // Runs what was posted and ends the strand. All streams must be gone. False: after `patience`
  // some work on files still hangs. It refers to this object, so the process must end without
  // destroying it. Do not call it on the strand.
  bool Stop(absl::Duration patience = absl::InfiniteDuration());

  // ---- on the strand only ----

  // The core as it may be shown: commits first what is not durable yet.
  const core::CoordinatorCore& core();
  bool draining() const { return draining_; }
  WorkThread& strand() { return strand_; }

  using ReplyFn = std::function<void(const core::Reply&)>;
  // `weights_at`: the result of CheckPaths.
  void Submit(const std::string& request_id, const job::v1::JobSpec& spec,
              const core::Caller& caller, std::vector<std::string> weights_at, ReplyFn reply);
  void Cancel(const std::string& job_id, const core::Caller& caller, ReplyFn reply);
  void Control(decltype(core::Control::request) request, const core::Caller& caller, ReplyFn reply);
  // For DrainNode and UndrainNode.
  void SetDrained(const std::string& node, bool drained, ReplyFn reply);

  // See PathChecks; call it before Submit.
  void CheckPaths(std::vector<PathPolicy::Claim> claims, PathChecks::Done done) {
    paths_.Check(std::move(claims), std::move(done));
  }

  // Registers a node and returns its session, which all other calls need. `stream` is borrowed
  // until it is closed or Disconnect is called.
  core::SessionId Connect(core::NodeConnected registration, NodeStream* stream);
  void Receive(core::SessionId session, node::v1::ConnectRequest message);
  // Call it once when the stream ends, and again with `goodbye` if the node ended the stream
  // itself.
  void Disconnect(core::SessionId session, bool goodbye);

  // Streams without a registration are also told of a shutdown.
  void AddIdle(NodeStream* stream) { idle_.insert(stream); }
  void RemoveIdle(NodeStream* stream) { idle_.erase(stream); }

  // Sends a message to a node, besides those of the core. NotFound: no such node.
  // FailedPrecondition: the node is not connected.
  absl::Status SendToNode(const std::string& name, const node::v1::ConnectResponse& message);

  // An empty `job_id`: all jobs.
  void Listen(const std::string& job_id, JobListener* listener) {
    listeners_[job_id].insert(listener);
  }
  void Unlisten(const std::string& job_id, JobListener* listener);
  // Sets the listener for DiagnosisResults; null removes it. False: there is a listener already.
  bool ListenForDiagnosis(DiagnosisListener* listener);
  // Calls `listener` at once, and whenever the journal's disk becomes full or has room again. Null
  // removes it.
  void ListenForDisk(std::function<void(bool full)> listener);

 private:
  // Jobs whose folders are in one folder, as (id, path).
  using FolderList = std::vector<std::pair<std::string, std::string>>;
  // Strand only.
  void ReadFolders(const std::string& mount, FolderList folders);
  // Posts `work`. If the process may start no thread, as at its container's limit, it tries again
  // after kThreadRetry.
  void OnFiles(FileThreads& threads, const std::string& key,
               const std::shared_ptr<const std::function<void()>>& work);
  void OnFiles(FileThreads& threads, const std::string& key, std::function<void()> work);
  void Step(decltype(core::Event::what) what);
  void Flush();
  void Die(const absl::Status& status);
  void Hold(const absl::Status& status);
  void CheckDisk();
  void WatchDisk();
  // If the disk is full or the coordinator only looks, answers that nothing can be changed.
  bool Refused(const ReplyFn& reply, bool only_held = false);
  void CarryOut(core::Effect& effect);
  void ArmTick();
  void TellListeners(const std::string& job_id,
                     const std::function<void(JobListener*)>& tell) const;
  void UpdateNodeMetrics();
  void AppendEvents(const std::string& job_id, EventFiles::Bytes bytes);

  const Options options_;
  core::CoordinatorCore core_;
  std::map<core::SessionId, NodeStream*> streams_;
  std::set<NodeStream*> idle_;
  std::map<core::CallId, ReplyFn> calls_;
  std::map<std::string, std::set<JobListener*>> listeners_;
  DiagnosisListener* diagnosis_ = nullptr;
  core::SessionId last_session_ = 0;
  core::CallId last_call_ = 0;
  absl::Duration tick_at_ = absl::InfiniteDuration();
  absl::Duration node_metrics_at_;
  bool draining_ = false;
  // Effects and reading tasks, in order. They wait for the commit of what was appended.
  std::deque<std::variant<core::Effect, std::function<void()>>> waiting_;
  bool appended_ = false;         // something to commit
  bool appended_lazily_ = false;  // likewise, but nothing waits for the commit
  bool dead_ = false;             // the journal has failed
  bool held_ = false;             // the last commit found no room, so effects are held back
  absl::Duration retry_at_;       // if held_: the next attempt
  bool disk_full_ = false;        // as it was last told
  absl::Duration disk_checked_ = -absl::InfiniteDuration();
  std::function<void(bool)> disk_listener_;

  WorkThread strand_;
  EventFiles event_files_{[this](const std::string& job_id, EventFiles::Bytes bytes) {
    AppendEvents(job_id, std::move(bytes));
  }};
  FileThreads event_appends_;  // by job
  FileThreads manifests_;      // by job; it posts to the strand and so is destroyed first
  // By mount; destroyed first for the same reason.
  FileThreads restores_{{.threads = kRestoreReaders}};
  PathChecks paths_{strand_};
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_COORDINATOR_H_
