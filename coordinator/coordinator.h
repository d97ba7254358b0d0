// The core on its strand: carries its effects out, and lets adapters at it.
//
// Adapters only validate, then Post; everything else here happens on the strand, so nothing is
// locked. Group commit: the strand takes all that waits, steps the core with each, makes what came
// of it durable with one commit, and only then sends, replies and shows. Streams that are slow never hold it up: they keep what is newest and are asked again when
// their last write is done.
//
// Where the disk of the journal is full, nothing is told that is not durable, and nobody is ended
// for it: effects are held back and the commit is tried again until there is room, heartbeats count,
// reads are answered, and what people want to change is refused. The same refusals hold while the
// journal has room but `low` says that it is the last.
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
#include "coordinator/file_threads.h"
#include "coordinator/manifest_writer.h"
#include "coordinator/metrics.h"
#include "coordinator/path_checks.h"
#include "coordinator/strand.h"

namespace capstan::coordinator {

// One node's stream. Called on the strand.
class NodeStream {
 public:
  virtual ~NodeStream() = default;
  virtual void Send(const node::v1::ConnectResponse& message) = 0;
  virtual void Close(const absl::Status& status) = 0;
};

// Whoever looks at one job, or at all. Called on the strand.
class JobListener {
 public:
  virtual ~JobListener() = default;
  virtual void OnJobChanged(const std::string&) {}
  virtual void OnLogsAppended() {}
  virtual void OnShutdown() = 0;
};

// Whoever asked nodes for a diagnosis. Called on the strand.
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
    // Absolute folders that are read like mounts of their own: they may be links to mounts.
    std::vector<std::string> restore_apart;
    // Only looks: Restore makes jobs known and nothing goes on by itself; what people want to
    // change is refused with this, which says why. Empty: an ordinary coordinator.
    std::string only_looks;
    // The journal failed: nobody may be told anything any more. Once; on the strand.
    std::function<void(const absl::Status&)> on_fatal = [](const absl::Status&) {};
  };
  explicit Coordinator(Options options);
  // Stop().
  ~Coordinator();

  // Goes on from what a coordinator before this one made durable. Once, before anything else is
  // posted. The folders of jobs that have not ended are read behind its back; a job goes on when its
  // own one has answered. DataLoss: a record is damaged. Not on the strand.
  absl::Status Restore(const core::DurableState& state);
  // Of one mount, or of one of Options::restore_apart: one that hangs holds up no other.
  static constexpr int kRestoreReaders = 8;
  // So long a reader gathers what it has read.
  static constexpr absl::Duration kRestoreInterval = absl::Milliseconds(100);

  // Any thread.
  void Post(std::function<void()> task) { strand_.Post(std::move(task)); }
  void PostSoon(std::function<void()> task) { strand_.PostSoon(std::move(task)); }
  // The same for a task that looks at the core and changes nothing: it is run behind the commit of
  // what was posted before it, which it would else have to wait for alone. Any thread.
  void PostRead(std::function<void()> task);
  // Ends all streams with UNAVAILABLE; new ones are refused. Returns when they were told. Not on
  // the strand.
  void Drain();
  // Ends the strand, after what was posted. All streams are gone by then. False: `patience` was over
  // and work on files hangs, which still refers to this object: the process ends without destroying
  // it. Not on the strand.
  bool Stop(absl::Duration patience = absl::InfiniteDuration());

  // ---- on the strand only ----

  // As it may be shown: commits first what is not durable yet.
  const core::CoordinatorCore& core();
  bool draining() const { return draining_; }
  Strand& strand() { return strand_; }

  using ReplyFn = std::function<void(const core::Reply&)>;
  // `weights_at`: as CheckPaths has found it.
  void Submit(const std::string& request_id, const job::v1::JobSpec& spec,
              const core::Caller& caller, std::vector<std::string> weights_at, ReplyFn reply);
  void Cancel(const std::string& job_id, const core::Caller& caller, ReplyFn reply);
  void Control(decltype(core::Control::request) request, const core::Caller& caller, ReplyFn reply);
  // DrainNode and UndrainNode.
  void SetDrained(const std::string& node, bool drained, ReplyFn reply);

  // What PathChecks says, before a Submit.
  void CheckPaths(std::vector<PathPolicy::Claim> claims, PathChecks::Done done) {
    paths_.Check(std::move(claims), std::move(done));
  }

  // The node's session, to be given with everything else. `stream` is borrowed until it was closed
  // or Disconnect was called.
  core::SessionId Connect(core::NodeConnected registration, NodeStream* stream);
  void Receive(core::SessionId session, node::v1::ConnectRequest message);
  // Once when the stream ends, and again with `goodbye` where it turns out that the node ended it.
  void Disconnect(core::SessionId session, bool goodbye);

  // Streams that have not registered yet are told of a shutdown too.
  void AddIdle(NodeStream* stream) { idle_.insert(stream); }
  void RemoveIdle(NodeStream* stream) { idle_.erase(stream); }

  // To a node, beside what the core sends it. NotFound: no such node; FailedPrecondition: it
  // is not connected.
  absl::Status SendToNode(const std::string& name, const node::v1::ConnectResponse& message);

  // An empty `job_id`: all jobs.
  void Listen(const std::string& job_id, JobListener* listener) {
    listeners_[job_id].insert(listener);
  }
  void Unlisten(const std::string& job_id, JobListener* listener);
  // The one that is told of DiagnosisResults, until it is set to null. False: there is one already.
  bool ListenForDiagnosis(DiagnosisListener* listener);
  // Told at once and at each change whether the disk of the journal is full. Null: nobody.
  void ListenForDisk(std::function<void(bool full)> listener);

 private:
  // Jobs whose folders lie in one folder, with these.
  using FolderList = std::vector<std::pair<std::string, std::string>>;
  // On the strand.
  void ReadFolders(const std::string& mount, FolderList folders);
  // Where the process may start no thread, as at a limit of its container, again kThreadRetry later.
  void OnFiles(FileThreads& threads, const std::string& key,
               const std::shared_ptr<const std::function<void()>>& work);
  void OnFiles(FileThreads& threads, const std::string& key, std::function<void()> work);
  void Step(decltype(core::Event::what) what);
  void Flush();
  void Die(const absl::Status& status);
  void Hold(const absl::Status& status);
  void CheckDisk();
  void WatchDisk();
  // Answers, where the disk is full, that nothing can be changed.
  bool Refused(const ReplyFn& reply, bool only_held = false);
  void CarryOut(core::Effect& effect);
  void ArmTick();
  void TellListeners(const std::string& job_id,
                     const std::function<void(JobListener*)>& tell) const;
  void UpdateNodeMetrics();

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
  // Effects, and tasks that read, in their order; behind the commit of what was appended.
  std::deque<std::variant<core::Effect, std::function<void()>>> waiting_;
  bool appended_ = false;         // something to commit
  bool appended_lazily_ = false;  // the same, but nothing waits for it
  bool dead_ = false;             // the journal has failed
  bool held_ = false;             // the last commit found no room; what waits for it is held back
  absl::Duration retry_at_;       // the next attempt, where held_
  bool disk_full_ = false;        // as it was told
  absl::Duration disk_checked_ = -absl::InfiniteDuration();
  std::function<void(bool)> disk_listener_;

  Strand strand_;
  FileThreads manifests_;  // by job; posts to the strand: goes first
  // By mount; likewise.
  FileThreads restores_{{.threads = kRestoreReaders}};
  PathChecks paths_{strand_};
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_COORDINATOR_H_
