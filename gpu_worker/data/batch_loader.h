// Reads the samples of the next steps while the current one computes.
//
// Reader threads take the steps in order, one each, at most `read_ahead` ahead of Next. Next
// returns them in order, whichever reader finishes first. A callback lists the samples of a step,
// so a change of lanes is a Restart: batches read ahead are dropped, and reading continues at once
// with the new lists. The samples of a step do not depend on the threads.
//
// Threads: call Next, Recycle and Restart from one thread, queued from any.
#ifndef CAPSTAN_GPU_WORKER_DATA_BATCH_LOADER_H_
#define CAPSTAN_GPU_WORKER_DATA_BATCH_LOADER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gpu_worker/data/dataset.h"
#include "services/sync/mutex.h"

namespace capstan::data {

// The samples of one lane in one step.
struct LaneBatch {
  std::vector<int64_t> indices;  // in the data set
  std::vector<float> images;     // [indices.size(), channels, height, width], or
  std::vector<uint8_t> bytes;    // these; Dataset::byte_values says what they stand for
  std::vector<int32_t> labels;   // [indices.size()]
  std::vector<float> targets;    // [indices.size(), DatasetInfo::target_size]
};

// Reads the samples of lane.indices, as floats or as bytes, which the data set must support.
// Returns the errors of Dataset::Read and ReadTargets.
absl::Status ReadLane(const Dataset& dataset, int64_t epoch, bool bytes, LaneBatch& lane);

struct StepBatch {
  int64_t step = 0;
  std::vector<LaneBatch> lanes;  // in the callback's order; an empty list gives an empty batch
};

// The dataset indices of each wanted lane in `step`. Only reader threads call it, one call at a
// time, with ascending steps between two Restarts.
using SampleLists = std::function<std::vector<std::vector<int64_t>>(int64_t step)>;

struct BatchLoaderOptions {
  int64_t first_step = 0;
  int64_t end_step = 0;         // one past the last step
  int64_t steps_per_epoch = 0;  // step s is in epoch s / steps_per_epoch; 0: always epoch 0
  int threads = 1;              // readers, >= 1; readers beyond read_ahead would be idle
  bool bytes = false;           // images as bytes; the data set must have them
  int read_ahead = 2;  // steps, >= 1; this many batches are in memory besides the current one
};

class BatchLoader {
 public:
  // Borrows `dataset`. Starts reading at once.
  BatchLoader(const Dataset& dataset, const BatchLoaderOptions& options, SampleLists lists);
  // Stops the readers, which first finish their current batches.
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // The batch of the next step, beginning with `first_step`. Waits for the readers. OutOfRange:
  // end_step is reached. DeadlineExceeded: not ready after `timeout`; call again. Otherwise the
  // error of Dataset::Read for this step, or HostOutOfMemory (failure.h); every call returns it
  // until Restart.
  absl::StatusOr<StepBatch> Next(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns a batch's memory for later steps. Optional.
  void Recycle(StepBatch batch) ABSL_LOCKS_EXCLUDED(mu_);

  // Drops the batches read ahead. Next then returns `first_step` by `lists`. Does not wait, so the
  // old callback may still be in its last call. It must own what it uses, or what it uses must
  // outlive the loader.
  void Restart(int64_t first_step, SampleLists lists) ABSL_LOCKS_EXCLUDED(mu_);

  // Number of batches that Next would return at once.
  int queued() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A step that a reader has taken.
  struct Taken {
    StepBatch batch;
    std::vector<std::vector<int64_t>> lanes;
    int64_t restarts = 0;
  };

  void Run() ABSL_LOCKS_EXCLUDED(order_mu_, mu_);
  // Waits for room. False: the readers must stop.
  bool Take(Taken& taken) ABSL_LOCKS_EXCLUDED(order_mu_, mu_);
  absl::Status Fill(Taken& taken) const;
  // Whether Next has an answer for its next step.
  bool IsDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Dataset& dataset_;
  const int64_t end_step_;
  const int64_t steps_per_epoch_;
  const int64_t read_ahead_;
  const bool bytes_;

  Mutex order_mu_;  // held while a step is taken, until its lists are there; before mu_
  mutable Mutex mu_;
  CondVar changed_;  // any field below
  SampleLists lists_ ABSL_GUARDED_BY(mu_);
  int64_t restarts_ ABSL_GUARDED_BY(mu_) = 0;  // a batch begun before the last restart is dropped
  int64_t read_step_ ABSL_GUARDED_BY(mu_);     // the step that the next reader takes
  int64_t next_step_ ABSL_GUARDED_BY(mu_);     // the step that Next returns next
  std::map<int64_t, StepBatch> ready_ ABSL_GUARDED_BY(mu_);
  std::vector<StepBatch> spare_ ABSL_GUARDED_BY(mu_);
  absl::Status error_ ABSL_GUARDED_BY(mu_);  // of the first failed step; no more are taken
  int64_t failed_step_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> readers_;  // last: they use all fields above
};

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_BATCH_LOADER_H_
