// One device of a task: a thread that opens it, compiles the plan and computes what it is told, one
// order at a time, with the samples read ahead, or kept on the device where they fit.
//
// Threads: Compute and Evaluate from one thread; callbacks come from the runner's own thread and
// hand work over.
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
#include "gpu_worker/task/lane_reader.h"
#include "gpu_worker/task/node_fold.h"
#include "services/sync/mutex.h"
#include "training/fold/tree_fold.h"
#include "training/lanes/lane_tree.h"

namespace capstan::gpu_worker {

struct LaneOrder {
  int64_t work = 0;
  int64_t lineage = 0;
  int64_t step = 0;
  std::vector<int32_t> lanes;                  // with samples, ascending
  double loss_scale = 1;                       // times 1 / (samples of the step)
  std::shared_ptr<const FloatBuffer> weights;  // version `step`
  BufferPool* gradients = nullptr;             // outlives the runner
  std::shared_ptr<NodeFold> fold;              // takes the gradients
  std::shared_ptr<const LaneSchedule> schedule;
};

struct BlockOrder {
  int64_t lineage = 0;
  int64_t version = 0;
  int64_t block = 0;
  std::shared_ptr<const FloatBuffer> weights;
};

// Of lanes that were computed together the first has what all of them took.
struct LaneTimes {
  absl::Duration data_wait;
  absl::Duration compute;
  absl::Duration reduce;
  double forward_share = -1;  // of `compute`; -1: not known
  int queued_batches = 0;     // ready once the samples had been taken
  int64_t read_bytes = 0;     // of the data set, as it has them: a byte for each pixel and label
};

class DeviceRunner {
 public:
  struct Callbacks {
    // The device is open and the plan stands.
    std::function<void(const std::string& description, int64_t planned_bytes)> on_ready;
    std::function<void(int64_t work, int32_t lane, const training::SealSums&, const LaneTimes&)>
        on_lane;
    std::function<void(const BlockOrder&, const training::SealSums&)> on_block;
    // Nothing follows.
    std::function<void(const absl::Status&)> on_failed;
  };
  struct Options {
    int index = 0;
    std::string device;  // "cpu", "cuda:0"
    int threads = 1;     // of a CPU device
    int read_ahead = 2;  // steps
    int64_t lanes_at_once = 1;
  };

  // Borrows the data sets; `test` is null where nothing is evaluated. Starts the thread.
  DeviceRunner(Options options, std::shared_ptr<const Job> job, const data::Dataset& train,
               const data::Dataset* test, Callbacks callbacks);
  // Waits for the order under way.
  ~DeviceRunner();
  DeviceRunner(const DeviceRunner&) = delete;
  DeviceRunner& operator=(const DeviceRunner&) = delete;

  // One order at a time: the next one after its callbacks, one for each lane. Both return at once.
  void Compute(LaneOrder order) ABSL_LOCKS_EXCLUDED(mu_);
  void Evaluate(BlockOrder order) ABSL_LOCKS_EXCLUDED(mu_);

  // After on_ready, for a group: used while no order is under way.
  engine::Device* device() const { return device_.get(); }
  engine::Plan* plan() const { return plan_.get(); }
  // The labels of the training set where the plan keeps its images, else null.
  const std::vector<int32_t>* kept_labels() const { return kept_ ? &labels_ : nullptr; }

 private:
  using Order = std::variant<LaneOrder, BlockOrder>;

  void Give(Order order) ABSL_LOCKS_EXCLUDED(mu_);
  bool stopping() ABSL_LOCKS_EXCLUDED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status RunAll() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Do(LaneOrder& order);
  absl::Status Do(BlockOrder& order);
  // The nodes that one pass each makes.
  std::vector<training::Node> PassesOf(const LaneOrder& order) const;
  absl::Status ComputePass(LaneOrder& order, const training::Node& node, bool last);
  absl::Status LoadWeights(int64_t lineage, int64_t version, const FloatBuffer& weights);
  // The samples of the lane: places of what the device keeps, or images that were read ahead or are
  // read now.
  absl::StatusOr<engine::SampleBatch> Samples(const LaneOrder& order, int32_t lane, size_t place);
  // Brings a small training set into the memory of a device that has its own.
  absl::Status KeepImages();

  const Options options_;
  const std::shared_ptr<const Job> job_;
  const data::Dataset& train_;
  const data::Dataset* const test_;
  const Callbacks callbacks_;

  // Of the thread alone.
  std::unique_ptr<engine::Device> device_;
  std::unique_ptr<engine::Plan> plan_;
  std::unique_ptr<LaneReader> reader_;
  bool bytes_ = false;     // the training set's images go to the plan as bytes
  data::LaneBatch block_;  // samples of an evaluation block
  bool kept_ = false;      // the device has all images; labels_ by place
  std::vector<int32_t> labels_;
  struct KeptLane {
    std::vector<int32_t> places, labels;
    std::vector<int64_t> ids;
  };
  std::vector<KeptLane> kept_lanes_;          // by place in a pass
  std::vector<engine::SampleBatch> batches_;  // of a pass
  std::vector<engine::LaneResult> results_;
  int64_t read_bytes_ = 0;  // since the last lane was reported
  int64_t loaded_lineage_ = -1;
  int64_t loaded_version_ = -1;

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<Order> order_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_DEVICE_RUNNER_H_
