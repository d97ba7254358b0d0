// The samples of the lanes of some devices of a task. They are read ahead step by step, or at once
// for a lane that was gained inside a step.
//
// Threads: one at a time. Reading ahead has its own threads.
#ifndef CAPSTAN_GPU_WORKER_TASK_LANE_READER_H_
#define CAPSTAN_GPU_WORKER_TASK_LANE_READER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/data/batch_loader.h"
#include "gpu_worker/engine/device/device.h"
#include "gpu_worker/task/job.h"
#include "services/sync/mutex.h"

namespace capstan::gpu_worker {

// Makes each epoch's permutation once for all devices, and keeps two. Thread-safe.
class EpochPermutations {
 public:
  explicit EpochPermutations(std::shared_ptr<const Job> job) : job_(std::move(job)) {}
  std::shared_ptr<const training::EpochPermutation> Get(int64_t epoch) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const std::shared_ptr<const Job> job_;
  Mutex mu_;
  std::shared_ptr<const training::EpochPermutation> kept_[2] ABSL_GUARDED_BY(mu_);
};

// The lanes of each device at each step, according to one view. Immutable.
struct LaneSchedule {
  std::shared_ptr<const Job> job;
  std::shared_ptr<EpochPermutations> permutations;
  std::vector<int32_t> lane_owners;
  int32_t rank = 0;
  int device_count = 1;
  bool lanes_at_once = false;  // as in TaskCoreOptions

  std::vector<int32_t> LanesOf(int device, int64_t step) const;
  std::vector<int64_t> SamplesOf(int64_t step, int32_t lane) const;
};

// Whether `plan` gets the images of `set` as bytes.
bool InBytes(const data::Dataset& set, const engine::Plan& plan);
// Bytes that are read for an image: one for each number, or a float.
int64_t ImageBytes(const data::Dataset& set);
// `batch` with the samples of a lane from data::ReadLane, which it borrows.
engine::SampleBatch WithSamples(engine::SampleBatch batch, const data::Dataset& set,
                                const data::LaneBatch& lane, bool bytes);

class LaneReader {
 public:
  struct Options {
    int first_device = 0;  // of the task
    int device_count = 1;
    int read_ahead = 2;  // steps
    bool bytes = false;  // images as bytes; the data set must have them
  };

  // Borrows the data set. If `stopping` returns true, a wait for samples ends with Cancelled.
  LaneReader(Options options, std::shared_ptr<const Job> job, const data::Dataset& train,
             std::function<bool()> stopping);

  // The result is valid until the first Read of another step.
  absl::StatusOr<const data::LaneBatch*> Read(const std::shared_ptr<const LaneSchedule>& schedule,
                                              int64_t step, int32_t lane);
  // Number of steps that were read ahead.
  int queued() const { return loader_ == nullptr ? 0 : loader_->queued(); }

 private:
  std::vector<int32_t> LanesOf(const LaneSchedule& schedule, int64_t step) const;
  // Brings batch_ to the step if the step lies ahead.
  absl::Status FetchStep(const std::shared_ptr<const LaneSchedule>& schedule, int64_t step);

  const Options options_;
  const std::shared_ptr<const Job> job_;
  const data::Dataset& train_;
  const std::function<bool()> stopping_;
  std::unique_ptr<data::BatchLoader> loader_;
  std::shared_ptr<const LaneSchedule> loader_schedule_;
  int64_t loader_next_ = 0;               // the step that loader_->Next returns next
  std::optional<data::StepBatch> batch_;  // of the current step
  std::vector<int32_t> batch_lanes_;
  int64_t direct_step_ = -1;
  std::map<int32_t, data::LaneBatch> direct_;  // lanes of direct_step_ that were not read ahead
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_LANE_READER_H_
