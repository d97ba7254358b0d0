#include "gpu_worker/data/batch_loader.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/failure.h"
#include "services/check/check.h"
#include "services/clock/clock.h"

namespace capstan::data {

absl::Status ReadLane(const Dataset& dataset, int64_t epoch, bool bytes, LaneBatch& lane) {
  const size_t size = lane.indices.size() * dataset.info().image_size();
  lane.labels.resize(lane.indices.size());
  lane.targets.resize(lane.indices.size() * dataset.info().target_size);
  if (!lane.targets.empty()) {
    absl::Status status = dataset.ReadTargets(lane.indices, lane.targets.data());
    if (!status.ok()) return status;
  }
  if (bytes) {
    lane.bytes.resize(size);
    return dataset.ReadBytes(lane.indices, epoch, lane.bytes.data(), lane.labels.data());
  }
  lane.images.resize(size);
  return dataset.Read(lane.indices, epoch, lane.images.data(), lane.labels.data());
}

BatchLoader::BatchLoader(const Dataset& dataset, const BatchLoaderOptions& options,
                         SampleLists lists)
    : dataset_(dataset),
      end_step_(options.end_step),
      steps_per_epoch_(options.steps_per_epoch),
      read_ahead_(options.read_ahead),
      bytes_(options.bytes),
      lists_(std::move(lists)),
      read_step_(options.first_step),
      next_step_(options.first_step) {
  CAPSTAN_CHECK(options.read_ahead >= 1 && options.threads >= 1);
  const int threads = std::min(options.threads, options.read_ahead);
  for (int i = 0; i < threads; ++i) readers_.emplace_back([this] { Run(); });
}

BatchLoader::~BatchLoader() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& reader : readers_) reader.join();
}

bool BatchLoader::IsDue() const {
  return ready_.count(next_step_) > 0 || (!error_.ok() && failed_step_ == next_step_);
}

absl::StatusOr<StepBatch> BatchLoader::Next(absl::Duration timeout) {
  const absl::Duration start = MonotonicNow();
  MutexLock lock(mu_);
  while (next_step_ < end_step_ && !IsDue()) {
    const absl::Duration left = timeout - (MonotonicNow() - start);
    if (left <= absl::ZeroDuration()) break;
    changed_.WaitWithTimeout(mu_, left);
  }
  if (next_step_ >= end_step_) {
    return absl::OutOfRangeError(absl::StrCat("step ", next_step_, " is not before ", end_step_));
  }
  if (!IsDue()) {
    return absl::DeadlineExceededError(absl::StrCat("samples of step ", next_step_,
                                                    " not read after ",
                                                    absl::FormatDuration(MonotonicNow() - start)));
  }
  const auto found = ready_.find(next_step_);
  if (found == ready_.end()) return error_;
  StepBatch batch = std::move(found->second);
  ready_.erase(found);
  ++next_step_;
  changed_.NotifyAll();
  return batch;
}

void BatchLoader::Recycle(StepBatch batch) {
  MutexLock lock(mu_);
  // One batch is in use and one is being filled. More would only take memory.
  if (spare_.size() < static_cast<size_t>(read_ahead_) + 1) spare_.push_back(std::move(batch));
}

void BatchLoader::Restart(int64_t first_step, SampleLists lists) {
  MutexLock lock(mu_);
  for (auto& [step, batch] : ready_) {
    if (spare_.size() < static_cast<size_t>(read_ahead_) + 1) spare_.push_back(std::move(batch));
  }
  ready_.clear();
  ++restarts_;
  lists_ = std::move(lists);
  read_step_ = first_step;
  next_step_ = first_step;
  error_ = absl::OkStatus();
  changed_.NotifyAll();
}

int BatchLoader::queued() const {
  MutexLock lock(mu_);
  int64_t step = next_step_;
  while (ready_.count(step) > 0) ++step;
  return static_cast<int>(step - next_step_);
}

bool BatchLoader::Take(Taken& taken) {
  MutexLock order(order_mu_);
  SampleLists lists;
  {
    MutexLock lock(mu_);
    while (!stopping_ &&
           (read_step_ >= next_step_ + read_ahead_ || read_step_ >= end_step_ || !error_.ok())) {
      changed_.Wait(mu_);
    }
    if (stopping_) return false;
    if (!spare_.empty()) {
      taken.batch = std::move(spare_.back());
      spare_.pop_back();
    }
    taken.batch.step = read_step_++;
    taken.restarts = restarts_;
    lists = lists_;
  }
  taken.lanes = lists(taken.batch.step);
  return true;
}

absl::Status BatchLoader::Fill(Taken& taken) const {
  StepBatch& batch = taken.batch;
  const int64_t epoch = steps_per_epoch_ > 0 ? batch.step / steps_per_epoch_ : 0;
  batch.lanes.resize(taken.lanes.size());
  for (size_t i = 0; i < taken.lanes.size(); ++i) {
    LaneBatch& lane = batch.lanes[i];
    lane.indices = std::move(taken.lanes[i]);
    absl::Status status = ReadLane(dataset_, epoch, bytes_, lane);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void BatchLoader::Run() {
  for (;;) {
    Taken taken;
    absl::Status status;
    try {
      if (!Take(taken)) return;
      status = Fill(taken);
    } catch (const std::bad_alloc&) {
      status = HostOutOfMemory("reading ahead");
    }

    MutexLock lock(mu_);
    if (taken.restarts != restarts_) continue;  // read by outdated lists
    const int64_t step = taken.batch.step;
    if (status.ok()) {
      ready_.emplace(step, std::move(taken.batch));
    } else if (error_.ok() || step < failed_step_) {
      error_ = std::move(status);
      failed_step_ = step;
    }
    changed_.NotifyAll();
  }
}

}  // namespace capstan::data
