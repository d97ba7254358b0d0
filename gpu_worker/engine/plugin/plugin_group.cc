// PlanGroup over the C ABI. Plans the buckets and the order of additions.
#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/engine/collective/collective.h"
#include "gpu_worker/engine/plugin/plugin_plan.h"

namespace capstan::engine {
namespace {

static_assert(static_cast<int>(FoldKind::kTake) == CAPSTAN_FOLD_TAKE &&
                  static_cast<int>(FoldKind::kAddLane) == CAPSTAN_FOLD_ADD_LANE &&
                  static_cast<int>(FoldKind::kAddSlot) == CAPSTAN_FOLD_ADD_SLOT &&
                  static_cast<int>(FoldKind::kReduce) == CAPSTAN_FOLD_REDUCE &&
                  static_cast<int>(FoldKind::kReduceAdd) == CAPSTAN_FOLD_REDUCE_ADD &&
                  static_cast<int>(FoldKind::kEmit) == CAPSTAN_FOLD_EMIT,
              "the kinds cross as numbers");

constexpr char kWho[] = "devices together";

class PluginGroup : public PlanGroup {
 public:
  PluginGroup(const capstan_plugin_table& table, std::vector<PluginPlan*> plans)
      : table_(table), plans_(std::move(plans)) {}
  ~PluginGroup() override { table_.free_group(group_); }

  absl::Status Make(const GroupOptions& options) {
    std::vector<int64_t> ready;
    for (const BackwardStage& stage : plans_[0]->info().backward) {
      ready.push_back(stage.ready_floats);
    }
    bucket_ends_ = PlanBuckets(ready, plans_[0]->total_floats(), options.buckets);
    std::vector<capstan_plan*> handles;
    std::vector<int32_t> devices;
    for (const PluginPlan* plan : plans_) {
      handles.push_back(plan->handle());
      devices.push_back(plan->index());
    }
    capstan_group_request request = {};
    request.plans = handles.data();
    request.devices = devices.data();
    request.plan_count = static_cast<int32_t>(plans_.size());
    request.deterministic = options.deterministic ? 1 : 0;
    request.bucket_ends = bucket_ends_.data();
    request.bucket_count = static_cast<int32_t>(bucket_ends_.size());
    request.timeout_seconds = absl::ToDoubleSeconds(options.timeout);
    request.slot_count = options.slots;
    request.state_floats = options.state_floats;
    capstan_error error = {};
    const absl::Status status =
        PluginStatus(table_.make_group(&request, &group_, &error), kWho, error);
    if (!status.ok()) return status;
    capstan_group_info info = {};
    table_.group_info(group_, &info);
    reduces_ = info.reduces != 0;
    summary_ = absl::StrCat(info.summary, ", ", bucket_ends_.size(), " buckets");
    return absl::OkStatus();
  }

  absl::Status LoadWeights(const float* weights) override { return LoadState(weights, nullptr); }

  absl::Status LoadState(const float* weights, const float* state) override {
    capstan_error error = {};
    const absl::Status status =
        PluginStatus(table_.group_load_weights(group_, weights, state, &error), kWho, error);
    weights_loaded_ = status.ok();
    return status;
  }

  absl::StatusOr<std::vector<LaneResult>> ComputeLanes(const training::LaneTree& tree,
                                                       const std::vector<GroupLane>& lanes,
                                                       double loss_scale,
                                                       const std::vector<float*>& sums,
                                                       const OnReady& on_ready) override {
    Ready ready{bucket_ends_, on_ready};
    capstan_group_step step = {};
    step.blocks = sums.data();
    step.context = &ready;
    step.ready = [](void* context, int32_t block, int32_t bucket) {
      const Ready& to = *static_cast<const Ready*>(context);
      if (to.on_ready) to.on_ready(static_cast<size_t>(block), to.ends[bucket]);
    };
    return Compute(tree, lanes, loss_scale, sums.size(), step);
  }

  absl::StatusOr<KeptLanes> ComputeKept(const training::LaneTree& tree,
                                        const std::vector<GroupLane>& lanes,
                                        double loss_scale) override {
    int32_t finite = 0;
    capstan_group_step step = {};
    step.finite = &finite;
    absl::StatusOr<std::vector<LaneResult>> results = Compute(tree, lanes, loss_scale, 1, step);
    if (!results.ok()) return results.status();
    return KeptLanes{*std::move(results), finite != 0};
  }

  absl::Status Update(absl::Span<const training::UpdatePart> parts) override {
    std::vector<capstan_update_part> sent;
    for (const training::UpdatePart& part : parts) {
      capstan_update_part& to = sent.emplace_back();
      to = {part.size,
            part.scale,
            part.clip,
            static_cast<int32_t>(part.rule.form),
            part.rule.decay ? 1 : 0,
            {}};
      std::copy(std::begin(part.rule.numbers), std::end(part.rule.numbers), to.numbers);
    }
    const capstan_update update = {sent.data(), static_cast<int32_t>(sent.size())};
    capstan_error error = {};
    return PluginStatus(table_.group_update(group_, &update, &error), kWho, error);
  }

  absl::Status ReadState(float* weights, float* state) override {
    if (!weights_loaded_) return NoWeights();
    capstan_error error = {};
    return PluginStatus(table_.group_read_weights(group_, weights, state, &error), kWho, error);
  }

  int64_t DeviceBytes(int plan) const override {
    capstan_group_info info = {};
    table_.group_info(group_, &info);
    return info.device_bytes[plan];
  }

  const std::string& summary() const override { return summary_; }

 private:
  struct Ready {
    const std::vector<int64_t>& ends;
    const OnReady& on_ready;
  };

  static absl::Status NoWeights() {
    return absl::FailedPreconditionError("group: no weights, want LoadWeights first");
  }

  // Fills in lanes and plan of `step`, whose sums are those of `block_count` blocks.
  absl::StatusOr<std::vector<LaneResult>> Compute(const training::LaneTree& tree,
                                                  const std::vector<GroupLane>& lanes,
                                                  double loss_scale, size_t block_count,
                                                  capstan_group_step& step) {
    if (!weights_loaded_) return NoWeights();
    std::vector<std::vector<int32_t>> dealt(plans_.size());
    std::vector<size_t> place;  // of each lane in the flat [round][plan]
    for (const GroupLane& lane : lanes) {
      if (lane.plan < 0 || lane.plan >= static_cast<int>(plans_.size())) {
        return absl::InvalidArgumentError(absl::StrCat("lane ", lane.lane, ": plan ", lane.plan,
                                                       ", want one of ", plans_.size()));
      }
      const absl::Status status =
          plans_[lane.plan]->CheckSamples(lane.batch, PluginPlan::Use::kTraining);
      if (!status.ok()) return status;
      place.push_back(dealt[lane.plan].size() * plans_.size() + lane.plan);
      dealt[lane.plan].push_back(lane.lane);
    }
    const absl::StatusOr<FoldPlan> plan = PlanFold(tree, dealt, reduces_);
    if (!plan.ok()) return plan.status();
    if (lanes.empty() || plan->blocks.size() != block_count) {
      return absl::InvalidArgumentError(absl::StrCat("group: ", block_count, " sums for the ",
                                                     plan->blocks.size(), " blocks of ",
                                                     lanes.size(), " lanes"));
    }
    std::vector<capstan_batch> batches(plan->rounds.size() * plans_.size());
    std::vector<capstan_result> results(batches.size());
    const int64_t target_size = plans_[0]->target_size();
    for (size_t i = 0; i < lanes.size(); ++i) {
      batches[place[i]] = PluginBatch(lanes[i].batch, target_size);
    }
    std::vector<capstan_fold_op> ops;
    for (const FoldOp& op : plan->ops) {
      ops.push_back(
          {static_cast<int32_t>(op.kind), op.round, op.slot, op.device, op.from, op.block});
    }
    step.lanes = batches.data();
    step.round_count = static_cast<int32_t>(plan->rounds.size());
    step.ops = ops.data();
    step.op_count = static_cast<int32_t>(ops.size());
    step.slot_count = plan->slots;
    step.block_count = static_cast<int32_t>(block_count);
    step.loss_scale = loss_scale;
    step.results = results.data();
    capstan_error error = {};
    const absl::Status status =
        PluginStatus(table_.group_compute(group_, &step, &error), kWho, error);
    if (!status.ok()) return status;
    std::vector<LaneResult> answer;
    for (size_t i = 0; i < lanes.size(); ++i) {
      const capstan_result& result = results[place[i]];
      answer.push_back({lanes[i].batch.count, result.loss_sum, result.correct});
    }
    return answer;
  }

  const capstan_plugin_table& table_;
  const std::vector<PluginPlan*> plans_;
  std::vector<int64_t> bucket_ends_;
  capstan_group* group_ = nullptr;
  bool reduces_ = false;
  bool weights_loaded_ = false;
  std::string summary_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PlanGroup>> MakePluginGroup(const capstan_plugin_table& table,
                                                           const std::vector<Plan*>& plans,
                                                           const GroupOptions& options) {
  std::vector<PluginPlan*> own;
  for (Plan* const plan : plans) {
    auto* const of_plugin = dynamic_cast<PluginPlan*>(plan);
    if (of_plugin == nullptr || &of_plugin->table() != &table) {
      return absl::InvalidArgumentError(
          absl::StrCat("group: plan ", own.size(), " is of another kind of device"));
    }
    if (std::find(own.begin(), own.end(), of_plugin) != own.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("group: plan ", own.size(), " is there twice"));
    }
    own.push_back(of_plugin);
  }
  if (own.empty()) return absl::InvalidArgumentError("group: no plan");
  auto group = std::make_unique<PluginGroup>(table, std::move(own));
  if (absl::Status status = group->Make(options); !status.ok()) return status;
  return std::unique_ptr<PlanGroup>(std::move(group));
}

}  // namespace capstan::engine
