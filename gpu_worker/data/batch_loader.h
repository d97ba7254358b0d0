// Reads the samples of the next steps while the present one computes.
//
// Reader threads take the steps in order, one each, at most `read_ahead` ahead of Next, which gives
// them in order whoever is done first. What a step needs is said by a callback, so that a change of
// lanes is a Restart: everything read ahead is dropped and reading goes on at once with the new
// lists. The samples of a step do not depend on the threads.
//
// Threads: Next, Recycle and Restart from one thread; Cancel and the counters from any.
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
  std::vector<uint8_t> bytes;    // these; what they stand for says Dataset::byte_values
  std::vector<int32_t> labels;   // [indices.size()]
};

// Reads the samples of lane.indices: as bytes, which the data set must have, or as floats. Errors
// are Dataset::Read's.
absl::Status ReadLane(const Dataset& dataset, int64_t epoch, bool bytes, LaneBatch& lane);

struct StepBatch {
  int64_t step = 0;
  std::vector<LaneBatch> lanes;  // as the callback listed them; an empty list gives an empty batch
};

// The dataset indices of each wanted lane in `step`. Called by reader threads alone, one call at
// a time, steps ascending between two Restarts.
using SampleLists = std::function<std::vector<std::vector<int64_t>>(int64_t step)>;

struct BatchLoaderOptions {
  int64_t first_step = 0;
  int64_t end_step = 0;         // one past the last step; nothing beyond is read
  int64_t steps_per_epoch = 0;  // step s is in epoch s / steps_per_epoch; 0: all are in epoch 0
  int threads = 1;              // readers, >= 1; more than read_ahead would have nothing to do
  bool bytes = false;           // images as bytes; the data set must have them
  int read_ahead = 2;  // steps, >= 1: this many batches are in memory besides the one in use
};

class BatchLoader {
 public:
  // Borrows `dataset`. Starts reading at once.
  BatchLoader(const Dataset& dataset, const BatchLoaderOptions& options, SampleLists lists);
  // Stops the readers, which finish the batches that they are in.
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // The batch of the next step, from `first_step` on. Waits for the readers.
  // OutOfRange: end_step is reached. DeadlineExceeded: not there after `timeout`; call again.
  // Cancelled. Else the error of Dataset::Read for this step, or HostOutOfMemory (failure.h), again
  // at each call until Restart.
  absl::StatusOr<StepBatch> Next(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

  // Gives a batch's memory back for later steps. Optional.
  void Recycle(StepBatch batch) ABSL_LOCKS_EXCLUDED(mu_);

  // Drops what was read ahead; Next gives `first_step` next, by `lists`. Returns without waiting,
  // so the old callback may still be in its last call: it must own, or outlive the loader with,
  // what it uses.
  void Restart(int64_t first_step, SampleLists lists) ABSL_LOCKS_EXCLUDED(mu_);

  // Makes Next return Cancelled, now and ever after.
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

  // Time that Next has waited for data: in its last successful call, and in all calls.
  absl::Duration last_wait() const ABSL_LOCKS_EXCLUDED(mu_);
  absl::Duration total_wait() const ABSL_LOCKS_EXCLUDED(mu_);
  // Batches that Next would give at once.
  int queued() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A step that a reader has taken.
  struct Taken {
    StepBatch batch;
    std::vector<std::vector<int64_t>> lanes;
    int64_t restarts = 0;
  };

  void Run() ABSL_LOCKS_EXCLUDED(order_mu_, mu_);
  // Waits for room. False: the readers are to stop.
  bool Take(Taken& taken) ABSL_LOCKS_EXCLUDED(order_mu_, mu_);
  absl::Status Fill(Taken& taken) const;
  // Next has an answer for the step that it gives next.
  bool IsDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Dataset& dataset_;
  const int64_t end_step_;
  const int64_t steps_per_epoch_;
  const int64_t read_ahead_;
  const bool bytes_;

  Mutex order_mu_;  // held from taking a step until its lists are there; before mu_
  mutable Mutex mu_;
  CondVar changed_;  // anything below
  SampleLists lists_ ABSL_GUARDED_BY(mu_);
  int64_t restarts_ ABSL_GUARDED_BY(mu_) = 0;  // a batch begun before the last one is dropped
  int64_t read_step_ ABSL_GUARDED_BY(mu_);     // what the next reader takes
  int64_t next_step_ ABSL_GUARDED_BY(mu_);     // what Next gives next
  std::map<int64_t, StepBatch> ready_ ABSL_GUARDED_BY(mu_);
  std::vector<StepBatch> spare_ ABSL_GUARDED_BY(mu_);
  absl::Status error_ ABSL_GUARDED_BY(mu_);  // of the first step that failed; none is taken then
  int64_t failed_step_ ABSL_GUARDED_BY(mu_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::Duration last_wait_ ABSL_GUARDED_BY(mu_);
  absl::Duration total_wait_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> readers_;  // last: they use all of the above
};

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_BATCH_LOADER_H_
