#include "gpu_worker/service/worker_node.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/logging/log.h"

namespace capstan::gpu_worker {

using services::Log;

constexpr absl::Duration kLogInterval = absl::Milliseconds(200);

WorkerNode::WorkerNode(WorkerNodeOptions options, WorkerMetrics* metrics, Callbacks callbacks)
    : options_(std::move(options)),
      metrics_(metrics),
      callbacks_(std::move(callbacks)),
      probes_([answer = options_.answer_probe, roots = options_.data_roots](
                  const node::v1::Probe& probe) { return answer(probe, roots); },
              [this](node::v1::ProbeResult result) { OnProbeResult(std::move(result)); }),
      thread_([this] { strand_.Run(); }) {}

WorkerNode::~WorkerNode() {
  Shutdown();
  strand_.Stop();
  thread_.join();
  tasks_.clear();
}

void WorkerNode::Shutdown() {
  {
    MutexLock lock(mu_);
    shut_down_ = true;
  }
  strand_.Post([this] {
    leaving_ = true;
    for (auto& task : tasks_) {
      if (task.second.process != nullptr && !task.second.ended) {
        task.second.stopping = true;
        task.second.process->Stop(options_.shutdown_grace);
      }
    }
  });
  const absl::Duration end = strand_.Now() + options_.shutdown_grace + absl::Seconds(1);
  MutexLock lock(mu_);
  while (live_ > 0 && strand_.Now() < end) changed_.WaitWithTimeout(mu_, end - strand_.Now());
}

node::v1::Heartbeat WorkerNode::MakeHeartbeat() const {
  MutexLock lock(mu_);
  return heartbeat_;
}

std::vector<GpuUse> WorkerNode::GpuUses() const {
  MutexLock lock(mu_);
  return gpu_uses_;
}

void WorkerNode::Publish() {
  node::v1::Heartbeat heartbeat;
  std::vector<GpuUse> gpu_uses;
  int live = 0;
  for (const auto& task : tasks_) {
    if (task.second.process != nullptr && !task.second.ended) {
      ++live;
      const Entry& entry = task.second;
      for (size_t i = 0; i < entry.devices.size(); ++i) {
        const std::optional<int> gpu = CudaIndex(entry.devices[i]);
        if (!gpu.has_value()) continue;
        const int64_t bytes = i < entry.planned_bytes.size() ? entry.planned_bytes[i] : 0;
        gpu_uses.push_back({*gpu, task.first, entry.state.rank(), bytes});
      }
    }
    node::v1::TaskState& state = *heartbeat.add_tasks();
    state = task.second.state;
    if (state.files().lineage() == task.second.taken.lineage() &&
        state.files().step() == task.second.taken.step() && state.files().error().empty()) {
      state.clear_files();
    }
  }
  {
    MutexLock lock(mu_);
    heartbeat_ = std::move(heartbeat);
    gpu_uses_ = std::move(gpu_uses);
    live_ = live;
    changed_.NotifyAll();
  }
  callbacks_.on_state();
}

void WorkerNode::OnMessage(const node::v1::ConnectResponse& message) {
  strand_.Post([this, message] {
    if (message.has_probe()) probes_.Add(message.probe());
    if (message.has_start_task()) OnStartTask(message.start_task());
    if (message.has_view_change()) OnViewChange(message.view_change());
    if (message.has_stop_task()) OnStopTask(message.stop_task());
    if (message.has_files_taken()) OnFilesTaken(message.files_taken());
    if (message.has_give_orders()) OnGiveOrders(message.give_orders());
    // StartLineage and EndJob are for shards.
  });
}

void WorkerNode::OnProbeResult(node::v1::ProbeResult result) {
  Log(services::kInfo, "probe")
      .Kv("job", result.job_id())
      .Kv("samples", result.dataset().train_samples())
      .Kv("reason", result.reason());
  node::v1::ConnectRequest reply;
  *reply.mutable_probe_result() = std::move(result);
  callbacks_.on_reply(std::move(reply));
}

void WorkerNode::FailTask(Entry& entry, const std::string& reason, const std::string& message) {
  entry.ended = true;
  entry.state.set_phase(node::v1::TASK_PHASE_FAILED);
  entry.state.set_reason(reason);
  entry.state.set_message(message);
}

void WorkerNode::OnStartTask(const node::v1::StartTask& start) {
  const std::string& job_id = start.job_id();
  if (tasks_.count(job_id) > 0) return;  // the order is repeated until the state is reported
  {
    MutexLock lock(mu_);
    if (shut_down_) return;
  }
  if (tasks_.empty()) oom_count_ = ReadOomCount();  // earlier kills did not concern our tasks
  Entry& entry = tasks_[job_id];
  entry.state.set_job_id(job_id);
  entry.state.set_rank(start.rank());
  entry.state.set_lineage(start.view().lineage());
  entry.state.set_generation(start.view().generation());
  entry.state.set_phase(node::v1::TASK_PHASE_STARTING);
  entry.logs = std::make_unique<LogForwarder>(job_id, start.rank(), options_.host);

  TaskProcessOptions process;
  process.cpu_threads = options_.cpu_threads;
  process.security = options_.security;
  process.coordinator = options_.coordinator;
  process.data_roots = options_.data_roots;
  process.checkpoint_roots = options_.checkpoint_roots;
  process.log_level = options_.log_level;
  for (const int32_t device : start.devices()) {
    if (device < 0 || device >= static_cast<int32_t>(options_.devices.size())) {
      FailTask(entry, "InternalError",
               absl::StrCat("device ", device, ", want 0 to ", options_.devices.size() - 1));
      return Publish();
    }
    process.devices.push_back(options_.devices[device]);
  }
  if (process.devices.empty()) {
    FailTask(entry, "InternalError", "no device is given");
    return Publish();
  }
  entry.devices = process.devices;
  TaskProcess::Callbacks callbacks;
  callbacks.on_state = [this, job_id](const node::v1::TaskState& state) {
    OnTaskState(job_id, state);
  };
  callbacks.on_counters = [this, job_id](const TaskCounters& counters) {
    tasks_[job_id].planned_bytes = counters.planned_bytes;
    if (metrics_ != nullptr) metrics_->Update(job_id, tasks_[job_id].state.rank(), counters);
  };
  callbacks.on_line = [this, job_id](const std::string& line) { OnLine(job_id, line); };
  callbacks.on_end = [this, job_id](const services::ExitStatus& exit, bool killed_by_us) {
    OnTaskEnd(job_id, exit, killed_by_us);
  };
  // Not a newer binary that an upgrade has installed meanwhile.
  auto task = TaskProcess::Start(spawner_, strand_, services::SameBinary(options_.binary),
                                 std::move(process), start, std::move(callbacks));
  if (!task.ok()) {
    FailTask(entry, "InternalError", std::string(task.status().message()));
    return Publish();
  }
  entry.process = *std::move(task);
  if (!coordinator_up_) entry.process->SetCoordinatorUp(false);
  Log(services::kInfo, "task_started")
      .Kv("job", job_id)
      .Kv("rank", start.rank())
      .Kv("pid", entry.process->pid());
  Publish();
}

void WorkerNode::OnViewChange(const node::v1::ViewChange& change) {
  const auto it = tasks_.find(change.view().job_id());
  if (it != tasks_.end() && it->second.process != nullptr && !it->second.ended) {
    it->second.process->ChangeView(change);
  }
}

void WorkerNode::OnStopTask(const node::v1::StopTask& stop) {
  const auto it = tasks_.find(stop.job_id());
  if (it == tasks_.end()) return;
  Entry& entry = it->second;
  if (entry.process == nullptr || entry.ended) return Forget(stop.job_id());
  if (entry.stopping) return;  // the order is repeated until the state is no longer reported
  entry.stopping = true;
  entry.process->Stop(absl::Milliseconds(std::max(0, stop.grace_ms())));
}

void WorkerNode::Forget(const std::string& job_id) {
  FlushLogs(job_id);
  tasks_.erase(job_id);
  if (metrics_ != nullptr) metrics_->Retire(job_id);
  Publish();
}

void WorkerNode::OnFilesTaken(const node::v1::FilesTaken& taken) {
  const auto it = tasks_.find(taken.job_id());
  if (it == tasks_.end()) return;
  it->second.taken = taken;
  if (it->second.process != nullptr && !it->second.ended) it->second.process->FilesTaken(taken);
  Publish();
}

void WorkerNode::OnGiveOrders(const node::v1::GiveOrders& orders) {
  const auto it = tasks_.find(orders.job_id());
  if (it != tasks_.end() && it->second.process != nullptr && !it->second.ended) {
    it->second.process->GiveOrders(orders);
  }
}

void WorkerNode::SetCoordinatorUp(bool up) {
  strand_.Post([this, up] {
    if (coordinator_up_ == up) return;
    coordinator_up_ = up;
    for (auto& task : tasks_) {
      if (task.second.process != nullptr && !task.second.ended) {
        task.second.process->SetCoordinatorUp(up);
      }
    }
  });
}

void WorkerNode::OnTaskState(const std::string& job_id, const node::v1::TaskState& state) {
  Entry& entry = tasks_[job_id];
  if (entry.ended) return;
  if (state.phase() != entry.state.phase()) {
    Log(services::kInfo, "task_phase")
        .Kv("job", job_id)
        .Kv("phase", node::v1::TaskPhase_Name(state.phase()))
        .Kv("step", state.step())
        .Kv("reason", state.reason());
  }
  const int32_t rank = entry.state.rank();
  entry.state = state;
  entry.state.set_job_id(job_id);
  entry.state.set_rank(rank);
  if (metrics_ != nullptr && state.has_phases()) metrics_->Update(job_id, rank, state.phases());
  Publish();
}

void WorkerNode::OnTaskEnd(const std::string& job_id, const services::ExitStatus& exit,
                           bool killed_by_us) {
  const auto it = tasks_.find(job_id);
  if (it == tasks_.end()) return;
  Entry& entry = it->second;
  Log(entry.stopping ? services::kInfo : services::kError, "task_ended")
      .Kv("job", job_id)
      .Kv("exit", exit.ToString());
  if (leaving_) {  // the goodbye tells the rest
    entry.ended = true;
    FlushLogs(job_id);
    return Publish();
  }
  if (entry.stopping) return Forget(job_id);  // the task's absence answers StopTask
  entry.state.set_exit_code(exit.signal != 0 ? -exit.signal : exit.code);
  if (entry.state.phase() != node::v1::TASK_PHASE_FAILED) {
    std::string why = absl::StrCat("the task ended with ", exit.ToString());
    std::string reason = "InternalError";
    if (exit.signal == SIGKILL && !killed_by_us) {
      // A kill by somebody costs the job only this process. A lack of memory would also kill the
      // next one.
      reason = "WorkerLost";
      const OomCount now = ReadOomCount();
      if (now.file == oom_count_.file && now.kills > oom_count_.kills) {
        reason = "HostOutOfMemory";
        absl::StrAppend(&why, ", and oom_kill in ", now.file, " went from ", oom_count_.kills,
                        " to ", now.kills, ": memory ran out");
      }
      oom_count_ = now;
    }
    FailTask(entry, reason, why);
  }
  entry.ended = true;
  FlushLogs(job_id);
  Publish();
}

void WorkerNode::OnLine(const std::string& job_id, const std::string& line) {
  Entry& entry = tasks_[job_id];
  Log(services::kDebug, "task_line").Kv("job", job_id).Kv("line", line);
  entry.logs->Add(line, strand_.Now(), absl::Now());
  if (entry.logs->line_count() + entry.logs->dropped() > 1) return;  // a flush is already scheduled
  strand_.PostAfter(kLogInterval, [this, job_id] { FlushLogs(job_id); });
}

void WorkerNode::FlushLogs(const std::string& job_id) {
  const auto it = tasks_.find(job_id);
  if (it == tasks_.end()) return;
  std::optional<node::v1::LogBatch> batch = it->second.logs->Take();
  if (!batch.has_value()) return;
  node::v1::ConnectRequest request;
  *request.mutable_logs() = *std::move(batch);
  callbacks_.on_reply(std::move(request));
}

}  // namespace capstan::gpu_worker
