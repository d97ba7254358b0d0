// Task: the training of one job on one host. Carries out the decisions of TaskCore: devices
// compute, the exchange transfers, files are written, states are reported.
//
// Uses one strand (the caller's) for all decisions, one thread per device, and one for files. Runs
// in a child process of the worker service; knows nothing of sockets or processes.
#ifndef CAPSTAN_GPU_WORKER_TASK_TASK_H_
#define CAPSTAN_GPU_WORKER_TASK_TASK_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "capstan/node/v1/node.pb.h"
#include "exchange/exchange.h"
#include "exchange/task/task_core.h"
#include "gpu_worker/task/counters.h"
#include "gpu_worker/task/device_runner.h"
#include "gpu_worker/task/file_reports.h"
#include "gpu_worker/task/group_runner.h"
#include "gpu_worker/task/job.h"
#include "gpu_worker/task/lane_encoder.h"
#include "gpu_worker/task/lane_fold.h"
#include "gpu_worker/task/local_exchange.h"
#include "gpu_worker/task/phase_clock.h"
#include "param_store/files/job_files.h"
#include "param_store/files/step_log.h"
#include "services/endpoint/endpoint.h"
#include "services/strand/strand.h"

namespace capstan::gpu_worker {

struct TaskOptions {
  std::vector<std::string> devices;           // names, one per device of the task
  int cpu_threads = 0;                        // for all CPU devices together; 0: as many as cores
  services::Security security;                // for connections to shards
  std::vector<std::string> data_roots;        // see data::DatasetOptions
  std::vector<std::string> checkpoint_roots;  // for all files that it writes or continues from
  std::string coordinator;  // where files go over gRPC; empty: storage_path is shared
};

class Task {
 public:
  struct Callbacks {
    std::function<void(const node::v1::TaskState&)> on_state;
    std::function<void(const TaskCounters&)> on_counters;  // every second, and at the end
    std::function<void(bool failed)> on_exit;              // last; the owner ends the strand
  };

  // Borrows the strand. Call all methods on the strand, or after it has stopped.
  Task(TaskOptions options, services::Strand& strand, Callbacks callbacks);
  // Waits for orders and files in flight.
  ~Task();
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // Call it once. Opens the data (which blocks), starts the devices and takes up the view. A
  // failure is reported as a state with its reason.
  void Start(const node::v1::StartTask& start);
  // `base_manifest`: as in node.v1.ViewChange.
  void ChangeView(const common::v1::View& view, const std::string& base_manifest = "");
  // The key for the files of the job. An empty key leaves the current one.
  void SetFilesKey(const std::string& key);
  void GiveOrders(const node::v1::GiveOrders& orders);
  void FilesTaken(const node::v1::FilesTaken& taken);
  // Whether the service reaches the coordinator. Assumed true until the first call.
  void SetCoordinatorUp(bool up);
  void Stop();

 private:
  struct StepTimes {  // by device, for the current step
    absl::Duration data_wait;
    absl::Duration reduce;
    absl::Duration compute;
    absl::Duration forward;  // of `compute`
    bool split = true;       // `forward` is known
    int64_t queued_batches = 0;
  };
  void CountLane(int device, const ComputeTimes& times, int64_t samples);

  absl::Status CheckRoots(const node::v1::StartTask& start) const;
  bool MayReadWeights() const;
  // Decides where the job's files lie and how they are transferred.
  absl::Status MakeFiles(const node::v1::StartTask& start);
  absl::Status SetUp(const node::v1::StartTask& start);
  // Whether the devices sum their lanes themselves.
  bool Together() const;
  // Whether sums and weights stay on the devices: no shard needs them, and devices support the
  // job's rule.
  bool DevicesKeep() const;
  void StartGroup();
  void GiveGroupOrder();
  void GiveLaneCommands();
  // How many lanes a device computes in one pass.
  int64_t LanesAtOnce() const;
  void GiveUpdate(LocalExchange::DeviceUpdate update);
  // Takes up the view once every plan is compiled, so that no version waits for a compiler.
  void Ready();
  absl::Status MakeExchange(const node::v1::StartTask& start);
  void SaveShardFile(LocalExchange::Snapshot snapshot);
  void CheckOrphaned();
  void Give(const exchange::task::Event& event);
  void DoAll(const exchange::task::Effects& effects);
  void Do(const exchange::task::OpenLineage& e);
  void Do(const exchange::task::UseView& e);
  void Do(const exchange::task::ComputeLane& e);
  void Do(const exchange::task::FoldAndPush& e);
  void Do(const exchange::task::DropWork& e);
  void Do(const exchange::task::SendSeal& e);
  void Do(const exchange::task::AskForWeights& e);
  void Do(const exchange::task::EvaluateBlock& e);
  void Do(const exchange::task::SendEvaluationPart& e);
  void Do(const exchange::task::WriteWeights& e);
  void Do(const exchange::task::ReadResiduals& e);
  void Do(const exchange::task::WriteResiduals& e);
  void Do(const exchange::task::ReportState& e);
  void Do(const exchange::task::Exit& e);
  void OnWeights(const exchange::CompleteWeights& weights);
  void KeepOwnResiduals();
  // Whether the roots of this host allow the task to read this checkpoint.
  absl::Status CheckBase(const std::string& manifest) const;
  // For people, of residuals that would be lost with this task.
  void MeasureResiduals();
  LaneStep LaneStepOf(const exchange::task::FoldAndPush& e) const;
  // What is pushed for a lane's gradient. Null: in an asynchronous job, what shards would make of it
  // is not finite. May change the gradient.
  std::shared_ptr<FloatBuffer> Encoded(const exchange::task::FoldAndPush& e,
                                       std::shared_ptr<FloatBuffer> gradient);
  // A name for the weights at hand that no other weights of the lineage have.
  int64_t WeightsId() const;
  // Writes off the strand. Tries again if the version must be written.
  void WriteFile(int64_t lineage, int64_t step, std::function<absl::Status()> write);
  void UseSchedule();
  void SetTimer();
  void EnterPhase();
  void CountStep(const exchange::CompleteWeights& next);
  void SendState();
  void SendCounters();
  // Posts a function to the strand, from any thread. It runs only if this task still exists.
  void Post(std::function<void()> function);

  const TaskOptions options_;
  services::Strand& strand_;
  const Callbacks callbacks_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

  int32_t rank_ = 0;
  std::shared_ptr<const Job> job_;
  std::shared_ptr<param_store::JobFiles> job_files_;
  std::unique_ptr<data::Dataset> train_;
  std::unique_ptr<data::Dataset> test_;
  std::unique_ptr<exchange::task::TaskCore> core_;
  std::unique_ptr<BufferPool> gradients_;
  std::map<int64_t, std::shared_ptr<LaneFold>> folds_;  // by work
  std::optional<LaneEncoder> encoder_;                  // if the job compresses gradients
  common::v1::View view_;
  struct ResidualWrite {
    bool last = false;  // of its lineage
    std::shared_ptr<std::atomic<bool>> dropped;
  };
  std::map<std::pair<int64_t, int64_t>, ResidualWrite> residual_writes_;  // by lineage and version
  bool has_files_key_ = false;                                            // of the coordinator's
  std::string base_manifest_;  // of the view's lineage, if the task keeps residuals
  std::shared_ptr<EpochPermutations> permutations_;
  std::shared_ptr<const LaneSchedule> schedule_;
  exchange::CompleteWeights weights_;  // the newest complete version
  std::unique_ptr<exchange::Exchange> exchange_;
  LocalExchange* local_ = nullptr;  // exchange_, if the task stores its own weights
  int devices_starting_ = 0;
  int lanes_running_ = 0;
  int64_t lanes_at_once_ = 1;
  int blocks_running_ = 0;
  bool in_effects_ = false;
  std::vector<exchange::task::Event> pending_;  // events caused by effects
  bool ended_ = false;
  absl::Duration timer_at_ = absl::InfiniteDuration();

  bool coordinator_up_ = true;
  absl::Duration reached_at_ = absl::ZeroDuration();  // last contact with coordinator or shard

  node::v1::TaskState state_;
  FileReports reports_;
  absl::Duration report_at_ = absl::ZeroDuration();
  absl::Duration counters_at_ = absl::ZeroDuration();  // separate: states are also sent between
  std::optional<PhaseClock> clock_;
  int64_t steps_ = 0;
  absl::Duration step_began_ = absl::ZeroDuration();
  absl::Duration barrier_at_step_ = absl::ZeroDuration();
  absl::Duration compute_at_step_ = absl::ZeroDuration();
  double pushed_at_step_ = 0;
  std::vector<StepTimes> step_times_;
  TaskCounters counters_;

  services::StrandLoop files_;
  std::unique_ptr<param_store::StepLog> step_log_;  // if the task stores its own weights
  std::thread files_thread_;
  std::vector<std::unique_ptr<DeviceRunner>> runners_;  // after everything that their callbacks use
  std::vector<exchange::task::ComputeLane> together_;  // ordered in the current step, not given yet
  bool kept_finite_ = true;                            // about the sum that the devices kept last
  std::unique_ptr<GroupRunner> group_;                 // if Together(); last: it uses the runners
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_TASK_H_
