#include "gpu_worker/task/group_runner.h"

#include <algorithm>
#include <new>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/failure.h"
#include "services/check/check.h"
#include "services/clock/clock.h"

namespace capstan::gpu_worker {

GroupRunner::GroupRunner(Options options, std::shared_ptr<const Job> job,
                         const data::Dataset& train,
                         const std::vector<std::unique_ptr<DeviceRunner>>& runners,
                         Callbacks callbacks)
    : options_(options),
      job_(std::move(job)),
      train_(train),
      callbacks_(std::move(callbacks)),
      device_(runners[0]->device()),
      reader_({/*first_device=*/0, options.device_count, options.read_ahead}, job_, train,
              [this] { return stopping(); }),
      image_bytes_(ImageBytes(train)) {
  for (const auto& runner : runners) {
    plans_.push_back(runner->plan());
    kept_labels_.push_back(runner->kept_labels());
  }
  thread_ = std::thread([this] { Run(); });
}

GroupRunner::~GroupRunner() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void GroupRunner::Compute(GroupOrder order) { Give(std::move(order)); }
void GroupRunner::Update(GroupUpdate update) { Give(std::move(update)); }

void GroupRunner::Give(Order order) {
  MutexLock lock(mu_);
  CAPSTAN_CHECK(orders_.size() < 2);  // an update, and the computation after it
  orders_.push_back(std::move(order));
  changed_.NotifyAll();
}

bool GroupRunner::stopping() {
  MutexLock lock(mu_);
  return stopping_;
}

void GroupRunner::Run() {
  absl::Status status;
  try {
    status = RunAll();
  } catch (const std::bad_alloc&) {
    status = data::HostOutOfMemory("devices together");
  }
  if (!status.ok()) callbacks_.on_failed(status);
}

absl::Status GroupRunner::RunAll() {
  engine::GroupOptions group;
  group.deterministic = job_->spec.spec().training().deterministic();
  group.timeout = options_.timeout;
  group.slots = options_.slots;
  group.state_floats = options_.state_floats;
  absl::StatusOr<std::unique_ptr<engine::PlanGroup>> made = device_->MakeGroup(plans_, group);
  if (!made.ok()) return made.status();
  group_ = *std::move(made);
  std::vector<int64_t> device_bytes;
  for (int d = 0; d < options_.device_count; ++d) device_bytes.push_back(group_->DeviceBytes(d));
  callbacks_.on_ready(group_->summary(), device_bytes);
  for (;;) {
    Order order;
    {
      MutexLock lock(mu_);
      while (orders_.empty() && !stopping_) changed_.Wait(mu_);
      if (stopping_) return absl::OkStatus();
      order = std::move(orders_.front());
      orders_.pop_front();
    }
    const absl::Status status = std::visit([this](const auto& o) { return Do(o); }, order);
    if (!status.ok()) return stopping() ? absl::OkStatus() : status;
  }
}

absl::StatusOr<engine::SampleBatch> GroupRunner::Samples(const GroupOrder& order, size_t i) {
  const auto& [device, number] = order.lanes[i];
  engine::SampleBatch lane = job_->BatchOf(order.step);
  if (kept_labels_[device] != nullptr) {
    KeptLane& kept = kept_lanes_[i];
    kept.places.clear();
    kept.labels.clear();
    kept.ids = order.schedule->SamplesOf(order.step, number);
    for (const int64_t sample : kept.ids) {
      kept.places.push_back(static_cast<int32_t>(sample));
      kept.labels.push_back((*kept_labels_[device])[sample]);
    }
    lane.kept = kept.places.data();
    lane.ids = kept.ids.data();
    lane.labels = kept.labels.data();
    lane.count = static_cast<int64_t>(kept.labels.size());
    return lane;
  }
  const absl::StatusOr<const data::LaneBatch*> batch =
      reader_.Read(order.schedule, order.step, number);
  if (!batch.ok()) return batch.status();
  read_bytes_ += static_cast<int64_t>((*batch)->indices.size()) * (image_bytes_ + 1);
  return WithSamples(lane, train_, **batch, /*bytes=*/false);
}

absl::StatusOr<std::vector<engine::GroupLane>> GroupRunner::Lanes(const GroupOrder& order) {
  std::vector<engine::GroupLane> lanes;
  kept_lanes_.resize(std::max(kept_lanes_.size(), order.lanes.size()));
  for (size_t i = 0; i < order.lanes.size(); ++i) {
    absl::StatusOr<engine::SampleBatch> batch = Samples(order, i);
    if (!batch.ok()) return batch.status();
    lanes.push_back({order.lanes[i].first, order.lanes[i].second, *batch});
  }
  return lanes;
}

absl::Status GroupRunner::LoadWeights(const GroupOrder& order) {
  if (order.lineage == loaded_lineage_ && order.step == loaded_version_) return absl::OkStatus();
  if (order.weights == nullptr) {
    return absl::InternalError(absl::StrCat("the devices have version ", loaded_version_,
                                            " of lineage ", loaded_lineage_, ", not ", order.step,
                                            " of ", order.lineage));
  }
  if (order.keep && options_.state_floats > 0 && order.state == nullptr) {
    return absl::InternalError(absl::StrCat("version ", order.step, " of lineage ", order.lineage,
                                            " without the optimizer's state"));
  }
  absl::Status status = group_->LoadState(order.weights->data(),
                                          order.state == nullptr ? nullptr : order.state->data());
  loaded_lineage_ = status.ok() ? order.lineage : -1;
  loaded_version_ = order.step;
  return status;
}

absl::Status GroupRunner::Do(const GroupOrder& order) {
  const std::string work = absl::StrCat("step ", order.step);
  const absl::Duration begin = MonotonicNow();
  absl::StatusOr<std::vector<engine::GroupLane>> lanes = Lanes(order);
  if (!lanes.ok()) return data::InFront(work, lanes.status());
  const absl::Duration read = MonotonicNow();
  absl::Status status = LoadWeights(order);
  if (!status.ok()) return data::InFront(work, status);
  // Rule R2: the true number of samples of the whole step.
  const double loss_scale =
      order.loss_scale / static_cast<double>(job_->samples.StepSampleCount(order.step));
  const training::LaneTree tree = job_->samples.StepTree(order.step);
  engine::KeptLanes computed;
  if (order.keep) {
    absl::StatusOr<engine::KeptLanes> kept = group_->ComputeKept(tree, *lanes, loss_scale);
    if (!kept.ok()) return data::InFront(work, kept.status());
    computed = *std::move(kept);
  } else {
    std::vector<float*> sums;
    for (const auto& sum : order.sums) sums.push_back(sum->data());
    absl::StatusOr<std::vector<engine::LaneResult>> results = group_->ComputeLanes(
        tree, *lanes, loss_scale, sums,
        [&](size_t block, int64_t ready) { callbacks_.on_prefix(order, block, ready); });
    if (!results.ok()) return data::InFront(work, results.status());
    computed.lanes = *std::move(results);
  }
  for (size_t i = 0; i < order.sums.size(); ++i) {
    status = order.fold->Add(order.blocks[i], order.sums[i]);
    if (!status.ok()) return status;
  }
  std::vector<training::SealSums> seals;
  for (const engine::LaneResult& result : computed.lanes) {
    seals.push_back({result.samples, result.loss_sum, result.correct});
  }
  ComputeTimes times{read - begin, MonotonicNow() - read, absl::ZeroDuration()};
  times.queued_batches = kept_labels_[0] != nullptr ? options_.read_ahead : reader_.queued();
  times.read_bytes = std::exchange(read_bytes_, 0);
  callbacks_.on_lanes(order, seals, computed.finite, times);
  return absl::OkStatus();
}

absl::Status GroupRunner::Do(const GroupUpdate& update) {
  const std::string work = absl::StrCat("version ", update.version);
  if (update.lineage != loaded_lineage_ || update.version != loaded_version_ + 1) {
    return absl::InternalError(absl::StrCat(work, ": the devices have ", loaded_version_,
                                            " of lineage ", loaded_lineage_));
  }
  absl::Status status;
  if (update.apply) status = group_->Update(update.parts);
  loaded_version_ = update.version;
  if (status.ok() && update.weights != nullptr) {
    status = group_->ReadState(update.weights->data(),
                               update.state == nullptr ? nullptr : update.state->data());
  }
  if (!status.ok()) return data::InFront(work, status);
  if (update.done) update.done();
  return absl::OkStatus();
}

}  // namespace capstan::gpu_worker
