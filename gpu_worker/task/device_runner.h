// One device of a task. Its thread opens the device, compiles the plan and carries out commands one
// at a time. The samples are read ahead, or kept on the device if they fit.
//
// Threads: call Compute and Evaluate from one thread. Callbacks come from the runner's own thread
// and must hand work over.
#ifndef CAPSTAN_GPU_WORKER_TASK_DEVICE_RUNNER_H_
#define CAPSTAN_GPU_WORKER_TASK_DEVICE_RUNNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gpu_worker/engine/device/device.h"
#include "gpu_worker/task/job.h"
#include "gpu_worker/task/lane_fold.h"
#include "gpu_worker/task/lane_reader.h"
#include "gpu_worker/task/local_steps.h"
#include "services/sync/mutex.h"
#include "training/fold/tree_fold.h"
#include "training/lanes/lane_tree.h"

namespace capstan::gpu_worker {

struct LaneCommand {
  int64_t work = 0;
  int64_t lineage = 0;
  int64_t step = 0;
  std::vector<int32_t> lanes;  // with samples, ascending
  // Times 1 / (samples of the step); in an asynchronous job, 1 / (samples of the lane).
  double loss_scale = 1;
  std::shared_ptr<const FloatBuffer> weights;  // version `step`; in an asynchronous job, the newest
  int64_t weights_id = 0;                      // equal for equal weights of a lineage
  BufferPool* gradients = nullptr;             // must outlive the runner
  std::shared_ptr<LaneFold> fold;              // takes the gradients
  std::shared_ptr<const LaneSchedule> schedule;
};

struct BlockCommand {
  int64_t lineage = 0;
  int64_t version = 0;
  int64_t block = 0;
  std::shared_ptr<const FloatBuffer> weights;
  int64_t weights_id = 0;
};

// If lanes were computed together, the first one has the time of all.
struct ComputeTimes {
  absl::Duration data_wait;
  absl::Duration compute;
  absl::Duration reduce;
  double forward_share = -1;  // of `compute`; -1: unknown
  int queued_batches = 0;     // ready after the samples were taken
  int64_t read_bytes = 0;     // from the data set as stored: a byte per pixel and label
};

class DeviceRunner {
 public:
  struct Callbacks {
    // The device is open and the plan is compiled.
    std::function<void(const std::string& description, int64_t planned_bytes)> on_ready;
    std::function<void(int64_t work, int32_t lane, const training::SealSums&, const ComputeTimes&)>
        on_lane;
    std::function<void(const BlockCommand&, const training::SealSums&)> on_block;
    // No other callback follows.
    std::function<void(const absl::Status&)> on_failed;
  };
  struct Options {
    int index = 0;
    std::string device;  // "cpu", "cuda:0"
    int threads = 1;     // of a CPU device
    int read_ahead = 2;  // steps
    int64_t lanes_at_once = 1;
  };

  // Borrows the data sets. `test` is null if nothing is evaluated. Starts the thread.
  DeviceRunner(Options options, std::shared_ptr<const Job> job, const data::Dataset& train,
               const data::Dataset* test, Callbacks callbacks);
  // Waits for the current command.
  ~DeviceRunner();
  DeviceRunner(const DeviceRunner&) = delete;
  DeviceRunner& operator=(const DeviceRunner&) = delete;

  // One command at a time: give the next one after the callbacks of all lanes. Both return at once.
  void Compute(LaneCommand command) ABSL_LOCKS_EXCLUDED(mu_);
  void Evaluate(BlockCommand command) ABSL_LOCKS_EXCLUDED(mu_);

  // For a group, after on_ready: only used while no command is in flight.
  engine::Device* device() const { return device_.get(); }
  engine::Plan* plan() const { return plan_.get(); }
  // The labels of the training set if the plan keeps its images, else null.
  const std::vector<int32_t>* kept_labels() const { return kept_ ? &labels_ : nullptr; }

 private:
  using Command = std::variant<LaneCommand, BlockCommand>;

  void Give(Command command) ABSL_LOCKS_EXCLUDED(mu_);
  bool stopping() ABSL_LOCKS_EXCLUDED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status RunAll() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Do(LaneCommand& command);
  absl::Status Do(BlockCommand& command);
  // The blocks that are each computed in one pass.
  std::vector<training::LaneBlock> PassesOf(const LaneCommand& command) const;
  absl::Status ComputePass(LaneCommand& command, const training::LaneBlock& block, bool last);
  // Computes batches_ into results_ and what leaves the worker for them.
  absl::Status ComputeBatches(const LaneCommand& command, int32_t first_lane, FloatBuffer& out);
  absl::Status LoadWeights(int64_t lineage, int64_t id, const FloatBuffer& weights);
  // The samples of the lane: places of images that the device keeps, or images that were read ahead
  // or are read now.
  absl::StatusOr<engine::SampleBatch> Samples(const LaneCommand& command, int32_t lane,
                                              size_t place);
  // Copies a small training set into the memory of a device that has its own.
  absl::Status KeepImages();

  const Options options_;
  const std::shared_ptr<const Job> job_;
  const data::Dataset& train_;
  const data::Dataset* const test_;
  const Callbacks callbacks_;

  // Only used by the thread.
  std::unique_ptr<engine::Device> device_;
  std::unique_ptr<engine::Plan> plan_;
  std::unique_ptr<LaneReader> reader_;
  std::unique_ptr<LocalSteps> local_steps_;  // if lanes make steps of their own
  bool bytes_ = false;                       // the training set's images go to the plan as bytes
  data::LaneBatch block_;                    // samples of an evaluation block
  bool kept_ = false;                        // the device has all images; labels_ are by place
  std::vector<int32_t> labels_;
  struct KeptLane {
    std::vector<int32_t> places, labels;
    std::vector<int64_t> ids;
  };
  std::vector<KeptLane> kept_lanes_;          // by position in a pass
  std::vector<engine::SampleBatch> batches_;  // of a pass
  std::vector<engine::LaneResult> results_;
  int64_t read_bytes_ = 0;  // since the last lane was reported
  int64_t loaded_lineage_ = -1;
  int64_t loaded_id_ = -1;

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<Command> command_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_DEVICE_RUNNER_H_
