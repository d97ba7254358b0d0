// The devices of a task that sum their lanes by themselves (`device`, `dist_device_sync` on GPUs): a
// thread that computes all lanes of a work in one call and hands out the sums bucket by bucket, or
// leaves them on the devices, which then update their weights.
//
// Works on the plans of the task's DeviceRunners, which evaluate; the core keeps the two apart
// (WorkerOptions::lanes_together).
//
// Threads: Compute and Update from one thread; callbacks come from the runner's own thread.
#ifndef CAPSTAN_GPU_WORKER_TASK_GROUP_RUNNER_H_
#define CAPSTAN_GPU_WORKER_TASK_GROUP_RUNNER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gpu_worker/engine/device/group.h"
#include "gpu_worker/task/device_runner.h"
#include "gpu_worker/task/job.h"
#include "gpu_worker/task/lane_reader.h"
#include "gpu_worker/task/node_fold.h"
#include "services/sync/mutex.h"
#include "training/fold/tree_fold.h"

namespace capstan::gpu_worker {

struct GroupOrder {
  int64_t work = 0;
  int64_t lineage = 0;
  int64_t step = 0;
  double loss_scale = 1;                           // as LaneOrder's
  std::vector<std::pair<int, int32_t>> lanes;      // device, lane
  std::shared_ptr<const FloatBuffer> weights;      // version `step`; null: as Update left them
  std::vector<training::Node> nodes;               // the largest that the lanes make
  std::vector<std::shared_ptr<FloatBuffer>> sums;  // one per node, to be written; none where kept
  std::shared_ptr<NodeFold> fold;                  // takes the sums
  std::shared_ptr<const LaneSchedule> schedule;
  bool keep = false;  // the sum, of one node, stays on the devices, for Update
  std::shared_ptr<const FloatBuffer> state;  // the optimizer's, goes with `weights`; null: none
};

// The next version, from the sum that was kept.
struct GroupUpdate {
  int64_t lineage = 0;
  int64_t version = 0;
  bool apply = true;  // false: the same weights
  engine::SgdStep step;
  // To be written where not null, then `done`, from the runner's own thread.
  std::shared_ptr<FloatBuffer> weights, state;
  std::function<void()> done;
};

class GroupRunner {
 public:
  struct Callbacks {
    // `device_bytes`: what it took on each device, beside the plans.
    std::function<void(const std::string& summary, const std::vector<int64_t>& device_bytes)>
        on_ready;
    // [0, ready_floats) of the sum of a node is final; rising.
    std::function<void(const GroupOrder&, size_t node, int64_t ready_floats)> on_prefix;
    // The sums are in the fold, or kept. One of each lane of the order; `finite` is the kept sum's.
    std::function<void(const GroupOrder&, const std::vector<training::SealSums>&, bool finite,
                       const LaneTimes&)>
        on_lanes;
    // Nothing follows.
    std::function<void(const absl::Status&)> on_failed;
  };
  struct Options {
    int device_count = 1;
    int read_ahead = 2;  // steps
    // Without progress of the devices; GroupOptions::timeout.
    absl::Duration timeout;
    // As GroupOptions.
    int slots = 0;
    bool optimizer_state = false;
  };

  // Borrows the data set and the runners, which are ready. Starts the thread.
  GroupRunner(Options options, std::shared_ptr<const Job> job, const data::Dataset& train,
              const std::vector<std::unique_ptr<DeviceRunner>>& runners, Callbacks callbacks);
  // Waits for the order under way.
  ~GroupRunner();
  GroupRunner(const GroupRunner&) = delete;
  GroupRunner& operator=(const GroupRunner&) = delete;

  // One order at a time: the next one after its on_lanes. All return at once; what is given is done
  // in its order.
  void Compute(GroupOrder order) ABSL_LOCKS_EXCLUDED(mu_);
  void Update(GroupUpdate update) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Order = std::variant<GroupOrder, GroupUpdate>;

  void Give(Order order) ABSL_LOCKS_EXCLUDED(mu_);
  bool stopping() ABSL_LOCKS_EXCLUDED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status RunAll();
  absl::Status Do(const GroupOrder& order);
  absl::Status Do(const GroupUpdate& update);
  absl::StatusOr<std::vector<engine::GroupLane>> Lanes(const GroupOrder& order);
  absl::Status LoadWeights(const GroupOrder& order);
  // The samples of the i-th lane: places of what its device keeps, or images.
  absl::StatusOr<engine::SampleBatch> Samples(const GroupOrder& order, size_t i);

  const Options options_;
  const std::shared_ptr<const Job> job_;
  const data::Dataset& train_;
  const Callbacks callbacks_;
  engine::Device* const device_;
  std::vector<engine::Plan*> plans_;
  std::vector<const std::vector<int32_t>*> kept_labels_;  // by plan: DeviceRunner::kept_labels

  // Of the thread alone.
  struct KeptLane {
    std::vector<int32_t> places, labels;
    std::vector<int64_t> ids;
  };
  LaneReader reader_;
  const int64_t image_size_;
  int64_t read_bytes_ = 0;            // since the last lanes were reported
  std::vector<KeptLane> kept_lanes_;  // of the order at hand
  std::unique_ptr<engine::PlanGroup> group_;
  int64_t loaded_lineage_ = -1;
  int64_t loaded_version_ = -1;

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Order> orders_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_GROUP_RUNNER_H_
