// Task: the training of one job on one host. Carries out what WorkerCore decides: devices compute,
// the exchange carries, files are written, states are reported.
//
// One strand (the caller's) for all decisions, one thread per device, one for files. Runs in a
// child process of the worker service; knows nothing of sockets or processes.
#ifndef CAPSTAN_GPU_WORKER_TASK_TASK_H_
#define CAPSTAN_GPU_WORKER_TASK_TASK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "capstan/node/v1/node.pb.h"
#include "gpu_worker/core/worker_core.h"
#include "gpu_worker/task/counters.h"
#include "gpu_worker/task/device_runner.h"
#include "gpu_worker/task/file_reports.h"
#include "gpu_worker/task/group_runner.h"
#include "gpu_worker/task/job.h"
#include "gpu_worker/task/local_exchange.h"
#include "gpu_worker/task/node_fold.h"
#include "gpu_worker/task/phase_clock.h"
#include "param_store/client/exchange.h"
#include "param_store/client/strand.h"
#include "param_store/files/job_files.h"
#include "param_store/files/step_log.h"
#include "services/endpoint/endpoint.h"

namespace capstan::gpu_worker {

struct TaskOptions {
  std::vector<std::string> devices;           // names, one per device of the task
  int cpu_threads = 0;                        // of all CPU devices together; 0: as many as cores
  services::Security security;                // of connections to shards
  std::vector<std::string> data_roots;        // see data::DatasetOptions
  std::vector<std::string> checkpoint_roots;  // of all files that it writes or goes on from
  std::string coordinator;  // where files go over gRPC; empty: storage_path is shared
};

class Task {
 public:
  struct Callbacks {
    std::function<void(const node::v1::TaskState&)> on_state;
    std::function<void(const TaskCounters&)> on_counters;  // every second, and at the end
    std::function<void(bool failed)> on_exit;              // last; the owner ends the strand
  };

  // Borrows the strand. All methods on it, or after it has stopped.
  Task(TaskOptions options, param_store::client::Strand& strand, Callbacks callbacks);
  // Waits for the orders and files under way.
  ~Task();
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // Once. Opens the data (which blocks), starts the devices, takes up the view. A failure is
  // reported as a state with its reason.
  void Start(const node::v1::StartTask& start);
  void ChangeView(const common::v1::View& view);
  // For the files of the job; empty: the one at hand stays.
  void SetFilesKey(const std::string& key);
  void GiveOrders(const node::v1::GiveOrders& orders);
  void FilesTaken(const node::v1::FilesTaken& taken);
  // Whether the service reaches the coordinator. Taken to be so until told otherwise.
  void SetCoordinatorUp(bool up);
  void Stop();

 private:
  struct StepTimes {  // by device, of the step at hand
    absl::Duration data_wait;
    absl::Duration reduce;
    absl::Duration compute;
    absl::Duration forward;  // of `compute`
    bool split = true;       // `forward` is known
    int64_t queued_batches = 0;
  };
  void CountLane(int device, const LaneTimes& times, int64_t samples);

  absl::Status CheckRoots(const node::v1::StartTask& start) const;
  bool MayReadWeights() const;
  // Where its files lie, and finds out which way they go.
  absl::Status MakeFiles(const node::v1::StartTask& start);
  absl::Status SetUp(const node::v1::StartTask& start);
  // Whether the devices sum their lanes by themselves.
  bool Together() const;
  // Whether sums and weights stay there: no shard wants to see them, and devices have the job's rule.
  bool DevicesKeep() const;
  void StartGroup();
  void GiveGroupOrder();
  void GiveLaneOrders();
  // How many lanes a device computes in one pass.
  int64_t LanesAtOnce() const;
  void GiveUpdate(LocalExchange::DeviceUpdate update);
  // The view is taken up when every plan stands: no version waits for a compiler.
  void Ready();
  absl::Status MakeExchange(const node::v1::StartTask& start);
  void SaveShardFile(LocalExchange::Snapshot snapshot);
  void CheckOrphaned();
  void Give(const core::Event& event);
  void DoAll(const core::Effects& effects);
  void Do(const core::OpenLineage& e);
  void Do(const core::UseView& e);
  void Do(const core::ComputeLane& e);
  void Do(const core::FoldAndPush& e);
  void Do(const core::DropWork& e);
  void Do(const core::SendSeal& e);
  void Do(const core::EvaluateBlock& e);
  void Do(const core::SendEvaluationPart& e);
  void Do(const core::WriteWeights& e);
  void Do(const core::ReportState& e);
  void Do(const core::Exit& e);
  void OnWeights(const param_store::client::CompleteWeights& weights);
  // Writes off the strand, and again where the version is owed.
  void WriteFile(int64_t lineage, int64_t step, std::function<absl::Status()> write);
  void UseSchedule();
  void SetTimer();
  void EnterPhase();
  void CountStep(const param_store::client::CompleteWeights& next);
  void SendState();
  void SendCounters();
  // Posts to the strand, from any thread, what runs only while this task lives.
  void Post(std::function<void()> function);

  const TaskOptions options_;
  param_store::client::Strand& strand_;
  const Callbacks callbacks_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

  int32_t rank_ = 0;
  std::shared_ptr<const Job> job_;
  std::shared_ptr<param_store::JobFiles> job_files_;
  std::unique_ptr<data::Dataset> train_;
  std::unique_ptr<data::Dataset> test_;
  std::unique_ptr<core::WorkerCore> core_;
  std::unique_ptr<BufferPool> gradients_;
  std::map<int64_t, std::shared_ptr<NodeFold>> folds_;  // by work
  common::v1::View view_;
  std::shared_ptr<EpochOrders> orders_;
  std::shared_ptr<const LaneSchedule> schedule_;
  param_store::client::CompleteWeights weights_;  // the newest complete version
  std::unique_ptr<param_store::client::Exchange> exchange_;
  LocalExchange* local_ = nullptr;  // exchange_, where the task is its own store
  int devices_starting_ = 0;
  int lanes_running_ = 0;
  int64_t lanes_at_once_ = 1;
  int blocks_running_ = 0;
  bool in_effects_ = false;
  std::vector<core::Event> pending_;  // events that effects brought about
  bool ended_ = false;
  absl::Duration timer_at_ = absl::InfiniteDuration();

  bool coordinator_up_ = true;
  absl::Duration reached_at_ = absl::ZeroDuration();  // coordinator or a shard, the last time

  node::v1::TaskState state_;
  FileReports reports_;
  absl::Duration report_at_ = absl::ZeroDuration();
  absl::Duration counters_at_ = absl::ZeroDuration();  // its own: states are also sent between
  std::optional<PhaseClock> clock_;
  int64_t steps_ = 0;
  absl::Duration step_began_ = absl::ZeroDuration();
  absl::Duration barrier_at_step_ = absl::ZeroDuration();
  absl::Duration compute_at_step_ = absl::ZeroDuration();
  double pushed_at_step_ = 0;
  std::vector<StepTimes> step_times_;
  TaskCounters counters_;

  param_store::client::StrandLoop files_;
  std::unique_ptr<param_store::StepLog> step_log_;  // where the task is its own store
  std::thread files_thread_;
  std::vector<std::unique_ptr<DeviceRunner>> runners_;  // after all that their callbacks use
  std::vector<core::ComputeLane> together_;  // ordered in the step at hand, not given yet
  bool kept_finite_ = true;                  // the sum that the devices kept last
  std::unique_ptr<GroupRunner> group_;       // where Together(); last: it uses the runners
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_TASK_H_
