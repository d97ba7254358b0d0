// The devices of a task that sum their lanes themselves (`device`, `dist_device_sync` on GPUs). A
// thread computes all lanes of a work in one call. It hands out the sums bucket by bucket, or
// leaves them on the devices, which then update their weights.
//
// Uses the plans of the task's DeviceRunners, which evaluate. The core keeps the two from running
// at the same time (TaskCoreOptions::lanes_together).
//
// Threads: call Compute and Update from one thread. Callbacks come from the runner's own thread.
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
#include "gpu_worker/task/lane_fold.h"
#include "gpu_worker/task/lane_reader.h"
#include "services/sync/mutex.h"
#include "training/fold/tree_fold.h"
#include "training/optim/apply.h"

namespace capstan::gpu_worker {

struct GroupOrder {
  int64_t work = 0;
  int64_t lineage = 0;
  int64_t step = 0;
  double loss_scale = 1;                           // as in LaneCommand
  std::vector<std::pair<int, int32_t>> lanes;      // device, lane
  std::shared_ptr<const FloatBuffer> weights;      // version `step`; null: as Update left them
  std::vector<training::LaneBlock> blocks;         // the largest that the lanes make
  std::vector<std::shared_ptr<FloatBuffer>> sums;  // outputs, one per block; empty if kept
  std::shared_ptr<LaneFold> fold;                  // takes the sums
  std::shared_ptr<const LaneSchedule> schedule;
  bool keep = false;  // the sum of the one block stays on the devices for Update
  std::shared_ptr<const FloatBuffer> state;  // of the optimizer, with `weights`; null: none
};

// Makes the next version from the kept sum.
struct GroupUpdate {
  int64_t lineage = 0;
  int64_t version = 0;
  bool apply = true;                        // false: the weights stay the same
  std::vector<training::UpdatePart> parts;  // of the step that is applied
  // Written if not null; then `done` is called from the runner's own thread.
  std::shared_ptr<FloatBuffer> weights, state;
  std::function<void()> done;
};

class GroupRunner {
 public:
  struct Callbacks {
    // `device_bytes`: memory that the group took on each device, in addition to the plans.
    std::function<void(const std::string& summary, const std::vector<int64_t>& device_bytes)>
        on_ready;
    // [0, ready_floats) of the sum of a block is final. The values rise.
    std::function<void(const GroupOrder&, size_t block, int64_t ready_floats)> on_prefix;
    // The sums are in the fold, or kept. There is one SealSums for each lane of the order. `finite`
    // is about the kept sum.
    std::function<void(const GroupOrder&, const std::vector<training::SealSums>&, bool finite,
                       const ComputeTimes&)>
        on_lanes;
    // No other callback follows.
    std::function<void(const absl::Status&)> on_failed;
  };
  struct Options {
    int device_count = 1;
    int read_ahead = 2;  // steps
    // Longest wait without progress of the devices; GroupOptions::timeout.
    absl::Duration timeout;
    // As in GroupOptions.
    int slots = 0;
    int state_floats = 0;
  };

  // Borrows the data set and the runners, which must be ready. Starts the thread.
  GroupRunner(Options options, std::shared_ptr<const Job> job, const data::Dataset& train,
              const std::vector<std::unique_ptr<DeviceRunner>>& runners, Callbacks callbacks);
  // Waits for the current order.
  ~GroupRunner();
  GroupRunner(const GroupRunner&) = delete;
  GroupRunner& operator=(const GroupRunner&) = delete;

  // One Compute at a time: give the next one after on_lanes. Both methods return at once, and
  // orders are carried out in sequence.
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
  // The samples of the i-th lane: places of images that its device keeps, or images.
  absl::StatusOr<engine::SampleBatch> Samples(const GroupOrder& order, size_t i);

  const Options options_;
  const std::shared_ptr<const Job> job_;
  const data::Dataset& train_;
  const Callbacks callbacks_;
  engine::Device* const device_;
  std::vector<engine::Plan*> plans_;
  std::vector<const std::vector<int32_t>*> kept_labels_;  // by plan: DeviceRunner::kept_labels

  // Only used by the thread.
  struct KeptLane {
    std::vector<int32_t> places, labels;
    std::vector<int64_t> ids;
  };
  LaneReader reader_;
  const int64_t image_bytes_;
  int64_t read_bytes_ = 0;            // since the last lanes were reported
  std::vector<KeptLane> kept_lanes_;  // of the current order
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
