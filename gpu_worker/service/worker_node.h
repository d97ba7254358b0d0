// A worker's work for the coordinator: answers probes, keeps tasks as child processes, reports
// their states. Holds no tensor, and opens data sets only to probe them.
//
//   StartTask               starts the child; has no effect if the task lives, or if its end has
//                           not been answered yet
//   ViewChange, GiveOrders  passed to the task
//   StopTask                SIGTERM, SIGKILL after the grace; forgets a task that has ended
//   FilesTaken              passed to the task; the files need not be reported again
// A child that ends without a StopTask is FAILED. The reason is the one that it gave; else
// WorkerLost for a SIGKILL that is not ours, or HostOutOfMemory if the system says that memory ran
// out meanwhile (oom_count.h); else InternalError. A task that Shutdown ends keeps its last
// reported state until the service says goodbye, because it was not lost by itself.
//
// Threads: one of its own (the strand), those of its children's links, and those of probes in
// flight. All methods are thread-safe and, except for Shutdown, return at once.
#ifndef CAPSTAN_GPU_WORKER_SERVICE_WORKER_NODE_H_
#define CAPSTAN_GPU_WORKER_SERVICE_WORKER_NODE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "capstan/node/v1/node.pb.h"
#include "gpu_worker/nvml/gpu_metrics.h"
#include "gpu_worker/service/log_forwarder.h"
#include "gpu_worker/service/metrics.h"
#include "gpu_worker/service/oom_count.h"
#include "gpu_worker/service/probe.h"
#include "gpu_worker/service/task_process.h"
#include "services/process/process.h"
#include "services/strand/strand.h"
#include "services/sync/mutex.h"

namespace capstan::gpu_worker {

struct WorkerNodeOptions {
  std::string binary;                // runs the tasks; this binary
  std::string host;                  // for people
  std::vector<std::string> devices;  // names, one per slot
  int cpu_threads = 0;
  services::Security security;
  std::string coordinator;  // for the tasks' files; see TaskProcessOptions
  std::vector<std::string> data_roots;
  std::vector<std::string> checkpoint_roots;
  std::string log_level = "info";
  absl::Duration shutdown_grace = absl::Seconds(2);  // for tasks that run at Shutdown
  // Answers a probe under data_roots; blocks. See ProbeQueue.
  std::function<node::v1::ProbeResult(const node::v1::Probe&, const std::vector<std::string>&)>
      answer_probe = AnswerProbe;
};

class WorkerNode {
 public:
  struct Callbacks {
    std::function<void()> on_state;  // a heartbeat must be sent now
    // Messages to send: probe results, logs. Called by several threads.
    std::function<void(node::v1::ConnectRequest)> on_reply;
  };

  // Borrows the metrics; null for none.
  WorkerNode(WorkerNodeOptions options, WorkerMetrics* metrics, Callbacks callbacks);
  ~WorkerNode();  // Shutdown()
  WorkerNode(const WorkerNode&) = delete;
  WorkerNode& operator=(const WorkerNode&) = delete;

  // Names, in the order of the registration.
  const std::vector<std::string>& devices() const { return options_.devices; }
  node::v1::Heartbeat MakeHeartbeat() const ABSL_LOCKS_EXCLUDED(mu_);
  // Which running task trains on which CUDA device.
  std::vector<GpuUse> GpuUses() const ABSL_LOCKS_EXCLUDED(mu_);
  void OnMessage(const node::v1::ConnectResponse& message);
  // Informs the tasks. A task that reaches nobody for long ends itself (limits.orphan_timeout).
  void SetCoordinatorUp(bool up);
  // Ends all tasks and waits for them, at most for the grace plus a second. Repeatable.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    node::v1::TaskState state;
    std::vector<std::string> devices;
    std::vector<int64_t> planned_bytes;  // by device, if known
    std::unique_ptr<TaskProcess> process;
    std::unique_ptr<LogForwarder> logs;
    bool ended = false;
    bool stopping = false;
    node::v1::FilesTaken taken;  // the last one; its files are not reported any more
  };

  void OnProbeResult(node::v1::ProbeResult result);
  void OnStartTask(const node::v1::StartTask& start);
  void OnViewChange(const node::v1::ViewChange& change);
  void OnStopTask(const node::v1::StopTask& stop);
  void OnFilesTaken(const node::v1::FilesTaken& taken);
  void OnGiveOrders(const node::v1::GiveOrders& orders);
  void OnTaskState(const std::string& job_id, const node::v1::TaskState& state);
  void OnTaskEnd(const std::string& job_id, const services::ExitStatus& exit, bool killed_by_us);
  void OnLine(const std::string& job_id, const std::string& line);
  void FlushLogs(const std::string& job_id);
  void Forget(const std::string& job_id);
  void FailTask(Entry& entry, const std::string& reason, const std::string& message);
  void Publish() ABSL_LOCKS_EXCLUDED(mu_);

  const WorkerNodeOptions options_;
  WorkerMetrics* const metrics_;
  const Callbacks callbacks_;
  ProbeQueue probes_;
  services::ProcessSpawner spawner_;
  std::map<std::string, Entry> tasks_;  // by job; only used on the strand
  OomCount oom_count_;                  // when the first task came, or after a kill; strand
  bool coordinator_up_ = true;          // strand; every StartTask comes from it
  bool leaving_ = false;                // strand; our goodbye tells what happens to the tasks

  mutable Mutex mu_;
  CondVar changed_;
  node::v1::Heartbeat heartbeat_ ABSL_GUARDED_BY(mu_);
  std::vector<GpuUse> gpu_uses_ ABSL_GUARDED_BY(mu_);
  int live_ ABSL_GUARDED_BY(mu_) = 0;  // children
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;

  services::StrandLoop strand_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_SERVICE_WORKER_NODE_H_
