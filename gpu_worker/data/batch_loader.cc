#include "gpu_worker/data/batch_loader.h"

#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/failure.h"
#include "services/check/check.h"
#include "services/clock/clock.h"

namespace capstan::data {

BatchLoader::BatchLoader(const Dataset& dataset, const BatchLoaderOptions& options,
                         SampleLists lists)
    : dataset_(dataset),
      end_step_(options.end_step),
      read_ahead_(static_cast<size_t>(options.read_ahead)),
      lists_(std::move(lists)),
      read_step_(options.first_step),
      next_step_(options.first_step) {
  CAPSTAN_CHECK(options.read_ahead >= 1);
  reader_ = std::thread([this] { Run(); });
}

BatchLoader::~BatchLoader() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  reader_.join();
}

absl::StatusOr<StepBatch> BatchLoader::Next(absl::Duration timeout) {
  const absl::Duration start = MonotonicNow();
  MutexLock lock(mu_);
  while (!cancelled_ && next_step_ < end_step_ && ready_.empty() && error_.ok()) {
    const absl::Duration left = timeout - (MonotonicNow() - start);
    if (left <= absl::ZeroDuration()) break;
    changed_.WaitWithTimeout(mu_, left);
  }
  const absl::Duration waited = MonotonicNow() - start;
  total_wait_ += waited;
  if (cancelled_) return absl::CancelledError("the batch loader was cancelled");
  if (next_step_ >= end_step_) {
    return absl::OutOfRangeError(absl::StrCat("step ", next_step_, " is not before ", end_step_));
  }
  if (ready_.empty()) {
    if (!error_.ok()) return error_;
    return absl::DeadlineExceededError(absl::StrCat(
        "samples of step ", next_step_, " not read after ", absl::FormatDuration(waited)));
  }
  StepBatch batch = std::move(ready_.front());
  ready_.pop_front();
  CAPSTAN_CHECK(batch.step == next_step_);
  ++next_step_;
  last_wait_ = waited;
  changed_.NotifyAll();
  return batch;
}

void BatchLoader::Recycle(StepBatch batch) {
  MutexLock lock(mu_);
  // One in use and one being filled: more would only hold memory.
  if (spare_.size() < read_ahead_ + 1) spare_.push_back(std::move(batch));
}

void BatchLoader::Restart(int64_t first_step, SampleLists lists) {
  MutexLock lock(mu_);
  while (!ready_.empty()) {
    if (spare_.size() < read_ahead_ + 1) spare_.push_back(std::move(ready_.front()));
    ready_.pop_front();
  }
  ++restarts_;
  lists_ = std::move(lists);
  read_step_ = first_step;
  next_step_ = first_step;
  error_ = absl::OkStatus();
  changed_.NotifyAll();
}

void BatchLoader::Cancel() {
  MutexLock lock(mu_);
  cancelled_ = true;
  changed_.NotifyAll();
}

absl::Duration BatchLoader::last_wait() const {
  MutexLock lock(mu_);
  return last_wait_;
}

absl::Duration BatchLoader::total_wait() const {
  MutexLock lock(mu_);
  return total_wait_;
}

int BatchLoader::queued() const {
  MutexLock lock(mu_);
  return static_cast<int>(ready_.size());
}

absl::Status BatchLoader::Fill(const SampleLists& lists, StepBatch& batch) const {
  std::vector<std::vector<int64_t>> lanes = lists(batch.step);
  const int64_t image_size = dataset_.info().image_size();
  batch.lanes.resize(lanes.size());
  for (size_t i = 0; i < lanes.size(); ++i) {
    LaneBatch& lane = batch.lanes[i];
    lane.indices = std::move(lanes[i]);
    lane.images.resize(lane.indices.size() * image_size);
    lane.labels.resize(lane.indices.size());
    absl::Status status = dataset_.Read(lane.indices, lane.images.data(), lane.labels.data());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void BatchLoader::Run() {
  for (;;) {
    StepBatch batch;
    SampleLists lists;
    int64_t restarts = 0;
    {
      MutexLock lock(mu_);
      while (!stopping_ &&
             (ready_.size() >= read_ahead_ || read_step_ >= end_step_ || !error_.ok())) {
        changed_.Wait(mu_);
      }
      if (stopping_) return;
      if (!spare_.empty()) {
        batch = std::move(spare_.back());
        spare_.pop_back();
      }
      batch.step = read_step_;
      lists = lists_;
      restarts = restarts_;
    }
    absl::Status status;
    try {
      status = Fill(lists, batch);
    } catch (const std::bad_alloc&) {
      status = HostOutOfMemory("reading ahead");
    }

    MutexLock lock(mu_);
    if (restarts != restarts_) continue;  // read by lists that are out of date
    if (status.ok()) {
      ready_.push_back(std::move(batch));
      ++read_step_;
    } else {
      error_ = std::move(status);
    }
    changed_.NotifyAll();
  }
}

}  // namespace capstan::data
