// Devices that compute the lanes of a task together, and what stays on them.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "gpu_worker/engine/collective/collective.h"
#include "gpu_worker/task/task.h"
#include "services/check/check.h"
#include "services/logging/log.h"
#include "training/optim/apply.h"

namespace capstan::gpu_worker {

namespace core = exchange::task;

using services::Log;

bool Task::Together() const {
  if (job_->compresses()) return false;       // lanes leave one by one
  if (job_->has_local_steps()) return false;  // a lane updates its own weights, on the host
  const std::string& type = job_->spec.spec().kvstore().type();
  if (type != "device" && type != "dist_device_sync") return false;
  // CPUs share the memory in which the host adds, so they gain nothing.
  return std::all_of(options_.devices.begin(), options_.devices.end(),
                     [](const std::string& name) { return absl::StartsWith(name, "cuda"); });
}

bool Task::DevicesKeep() const { return local_ != nullptr && job_->devices_update && Together(); }

void Task::StartGroup() {
  GroupRunner::Options options;
  options.device_count = static_cast<int>(runners_.size());
  options.read_ahead = job_->spec.spec().data().prefetch_batches();
  // Shorter than the limit after which the coordinator calls the whole job stalled.
  options.timeout = absl::Seconds(job_->spec.spec().limits().stall_timeout_seconds()) / 2;
  // The first step has all lanes that any step has except an epoch's last one.
  const std::vector<int32_t> owners(view_.lane_owners().begin(), view_.lane_owners().end());
  const absl::StatusOr<engine::FoldPlan> usual = engine::PlanFold(
      job_->samples.StepTree(0),
      core::PlanLanes(job_->samples, owners, rank_, options.device_count, /*step=*/0,
                      /*runs=*/false),
      /*reduce=*/false);
  if (usual.ok()) options.slots = usual->slots;
  if (DevicesKeep()) options.state_floats = job_->optimizer->state_floats_per_weight();
  GroupRunner::Callbacks callbacks;
  callbacks.on_ready = [this](const std::string& summary,
                              const std::vector<int64_t>& device_bytes) {
    Log(services::kInfo, "devices_together")
        .Kv("devices", summary)
        .Kv("bytes_per_device", absl::StrJoin(device_bytes, ","));
    Post([this, device_bytes] {
      for (size_t i = 0; i < device_bytes.size(); ++i) {
        counters_.planned_bytes[i] += device_bytes[i];
      }
      if (--devices_starting_ == 0 && !ended_) Ready();
    });
  };
  callbacks.on_prefix = [this](const GroupOrder& order, size_t block, int64_t ready_floats) {
    // The complete sum follows as FoldAndPush.
    if (ready_floats == order.sums[block]->size()) return;
    Post([this, work = order.work, lineage = order.lineage, step = order.step,
          sum = order.sums[block], block = order.blocks[block], ready_floats] {
      // Rule R8: only frames of the current complete version.
      if (ended_ || folds_.count(work) == 0 || weights_.lineage != lineage ||
          weights_.version != step) {
        return;
      }
      const StepPhase before = clock_->Enter(StepPhase::kPush, strand_.Now());
      exchange_->PushPrefix(step, block, sum, ready_floats);
      clock_->Enter(before, strand_.Now());
    });
  };
  callbacks.on_lanes = [this](const GroupOrder& order, const std::vector<training::SealSums>& sums,
                              bool finite, const ComputeTimes& times) {
    Post([this, work = order.work, lanes = order.lanes, sums, finite, times] {
      lanes_running_ -= static_cast<int>(lanes.size());
      kept_finite_ = finite;
      CountLane(0, times, 0);
      for (size_t i = 0; i < lanes.size(); ++i) {
        counters_.samples += sums[i].samples;
        Give(core::LaneComputed{lanes[i].first, work, lanes[i].second, sums[i]});
      }
    });
  };
  callbacks.on_failed = [this](const absl::Status& status) {
    Post([this, status] {
      Give(core::Failed{FailureReasonOf(status, /*on_gpu=*/true), std::string(status.message())});
    });
  };
  group_ = std::make_unique<GroupRunner>(options, job_, *train_, runners_, std::move(callbacks));
}

// Gives the group the commands that the core gave together.
void Task::GiveGroupOrder() {
  GroupOrder order;
  order.work = together_[0].work;
  order.lineage = together_[0].lineage;
  order.step = together_[0].step;
  order.loss_scale = weights_.loss_scale;
  order.weights = weights_.weights;
  order.fold = folds_.at(order.work);
  order.schedule = schedule_;
  std::vector<int32_t> lanes;
  for (const core::ComputeLane& lane : together_) {
    CAPSTAN_CHECK(lane.work == order.work);
    order.lanes.emplace_back(lane.device, lane.lane);
    lanes.push_back(lane.lane);
  }
  together_.clear();
  order.blocks = job_->samples.StepTree(order.step).LargestBlocks(lanes);
  order.keep = DevicesKeep();
  if (order.keep) {
    order.state = local_->optimizer_state();
  } else {
    for (size_t i = 0; i < order.blocks.size(); ++i) order.sums.push_back(gradients_->Lend());
  }
  lanes_running_ += static_cast<int>(lanes.size());
  group_->Compute(std::move(order));
}

void Task::GiveUpdate(LocalExchange::DeviceUpdate update) {
  GroupUpdate order;
  order.lineage = update.lineage;
  order.version = update.version;
  order.apply = update.apply;
  if (update.apply) {
    order.parts = training::UpdateParts(job_->layout, *job_->optimizer, update.step);
  }
  order.weights = std::move(update.weights);
  order.state = std::move(update.state);
  if (update.done) {
    order.done = [this, done = std::move(update.done)] { Post(done); };
  }
  group_->Update(std::move(order));
}

}  // namespace capstan::gpu_worker
