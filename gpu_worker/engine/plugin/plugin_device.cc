#include "gpu_worker/engine/plugin/plugin_device.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gpu_worker/engine/plugin/plugin_plan.h"
#include "gpu_worker/engine/plugin/sent_graph.h"

namespace capstan::engine {

absl::Status PluginStatus(int32_t code, const std::string& who, const capstan_error& error) {
  if (code == 0) return absl::OkStatus();
  auto status_code = static_cast<absl::StatusCode>(code);
  if (code < 0 || code > 16) status_code = absl::StatusCode::kInternal;
  const std::string text(error.text, std::find(error.text, error.text + sizeof error.text, '\0'));
  return absl::Status(status_code, absl::StrCat(who, ": ", text));
}

capstan_batch PluginBatch(const SampleBatch& batch, int64_t target_size) {
  capstan_batch flat = {};
  flat.images = batch.images;
  flat.labels = batch.labels;
  flat.targets = batch.targets;
  flat.target_size = target_size;
  flat.count = batch.count;
  flat.image_type = CAPSTAN_IMAGE_FLOAT32;
  if (batch.kept != nullptr) {
    flat.images = batch.kept;
    flat.image_type = CAPSTAN_IMAGE_KEPT;
  }
  flat.image_scale = 1;
  flat.ids = batch.ids;
  flat.seed = batch.seed;
  flat.epoch = batch.epoch;
  return flat;
}

namespace {

using training::FlatLayout;
using training::Graph;
using training::Parameter;

class DevicePlan : public PluginPlan {
 public:
  DevicePlan(const capstan_plugin_table& table, capstan_plan* plan, int index,
             const std::string& device, const Graph& graph, const FlatLayout& layout,
             int64_t max_batch)
      : table_(table),
        plan_(plan),
        index_(index),
        who_(absl::StrCat("device ", device)),
        max_batch_(max_batch),
        classes_(graph.num_classes()),
        target_size_(graph.target_size()),
        total_floats_(layout.total_floats()),
        graph_name_(graph.name()),
        draws_(Draws(graph)) {
    capstan_plan_info info = {};
    table_.plan_info(plan_, &info);
    info_.arena_bytes = info.arena_bytes;
    info_.weight_bytes = info.weight_bytes;
    info_.gradient_bytes = info.gradient_bytes;
    info_.block_samples = info.block_samples;
    info_.kernels = absl::StrSplit(info.kernels, '\n', absl::SkipEmpty());
    FindReadyPrefixes(graph, layout);
  }
  ~DevicePlan() override { table_.free_plan(plan_); }

  absl::Status LoadWeights(const float* weights) override {
    capstan_error error = {};
    const absl::Status status =
        PluginStatus(table_.load_weights(plan_, weights, &error), who_, error);
    weights_loaded_ = status.ok();
    return status;
  }

  absl::StatusOr<LaneResult> ComputeLane(const SampleBatch& batch, double loss_scale,
                                         float* gradient) override {
    const absl::Status checked = CheckBatch(batch, Use::kTraining);
    if (!checked.ok()) return checked;
    const capstan_batch flat = PluginBatch(batch, target_size_);
    capstan_result result = {};
    capstan_error error = {};
    const int32_t code = table_.compute_lane(plan_, &flat, loss_scale, gradient, &result, &error);
    return Result(code, batch.count, result, error);
  }

  absl::StatusOr<LaneResult> Evaluate(const SampleBatch& batch) override {
    const absl::Status checked = CheckBatch(batch, Use::kEvaluation);
    if (!checked.ok()) return checked;
    const capstan_batch flat = PluginBatch(batch, target_size_);
    capstan_result result = {};
    capstan_error error = {};
    const int32_t code = table_.evaluate(plan_, &flat, &result, &error);
    return Result(code, batch.count, result, error);
  }

  absl::Status Predict(const SampleBatch& batch, float* logits) override {
    const absl::Status checked = CheckBatch(batch, Use::kPrediction);
    if (!checked.ok()) return checked;
    capstan_batch flat = PluginBatch(batch, target_size_);
    flat.labels = nullptr;
    flat.targets = nullptr;
    capstan_error error = {};
    return PluginStatus(table_.predict(plan_, &flat, logits, &error), who_, error);
  }

  absl::Status KeepImages(const float* images, int64_t first, int64_t count,
                          int64_t whole) override {
    if (first != kept_ || count < 1 || first + count > whole || whole > kMaxKept ||
        (first > 0 && whole != want_kept_)) {
      return absl::InvalidArgumentError(absl::StrCat("images ", first, " to ", first + count,
                                                     " of ", whole, ", want them from ", kept_,
                                                     " on, of at most ", kMaxKept));
    }
    capstan_error error = {};
    const absl::Status status =
        PluginStatus(table_.keep_images(plan_, images, first, count, whole, &error), who_, error);
    if (!status.ok()) return status;
    kept_ = first + count;
    want_kept_ = whole;
    return absl::OkStatus();
  }

  const PlanInfo& info() const override { return info_; }

  const capstan_plugin_table& table() const override { return table_; }
  capstan_plan* handle() const override { return plan_; }
  int index() const override { return index_; }
  int64_t total_floats() const override { return total_floats_; }
  int64_t target_size() const override { return target_size_; }
  absl::Status CheckSamples(const SampleBatch& batch, Use use) const override {
    if (batch.count < 1 || batch.count > max_batch_) {
      return absl::InvalidArgumentError(
          absl::StrCat("batch.count: ", batch.count, ", want 1 to ", max_batch_));
    }
    if (batch.bytes != nullptr) {
      return absl::InvalidArgumentError("batch.bytes: the plan takes images of float32 alone");
    }
    if (batch.kept != nullptr) {
      if (kept_ == 0 || kept_ < want_kept_) {
        return absl::FailedPreconditionError("plan: batch.kept before all images are kept");
      }
      for (int64_t i = 0; i < batch.count; ++i) {
        if (batch.kept[i] < 0 || batch.kept[i] >= kept_) {
          return absl::InvalidArgumentError(
              absl::StrCat("place of sample ", i, ": ", batch.kept[i], ", want 0 to ", kept_ - 1));
        }
      }
    }
    if (use == Use::kPrediction) return absl::OkStatus();
    absl::Status status = CheckLabels(batch, classes_, target_size_);
    if (!status.ok()) return status;
    return use == Use::kTraining && draws_ ? CheckIds(batch, graph_name_) : absl::OkStatus();
  }

 private:
  static constexpr int64_t kMaxKept = int64_t{1} << 31;  // places are int32

  static bool Draws(const Graph& graph) {
    for (int i = 0; i < graph.node_count(); ++i) {
      if (graph.def(i).random) return true;
    }
    return false;
  }

  // The ABI runs the nodes backward from the last one.
  void FindReadyPrefixes(const Graph& graph, const FlatLayout& layout) {
    std::vector<int64_t> waiting;  // offsets of parameters, by forward order
    for (const Parameter& parameter : graph.parameters()) {
      waiting.push_back(layout.Find(parameter.name)->offset);
    }
    for (int i = static_cast<int>(graph.nodes().size()) - 1; i >= 0; --i) {
      const std::vector<int>& of_node = graph.parameters_of(i);
      if (!of_node.empty()) waiting.resize(of_node[0]);
      int64_t ready = layout.total_floats();
      for (const int64_t offset : waiting) ready = std::min(ready, offset);
      info_.backward.push_back({graph.nodes()[i].name, ready});
    }
  }

  absl::Status CheckBatch(const SampleBatch& batch, Use use) const {
    if (!weights_loaded_) {
      return absl::FailedPreconditionError("plan: no weights, want LoadWeights first");
    }
    return CheckSamples(batch, use);
  }

  absl::StatusOr<LaneResult> Result(int32_t code, int64_t count, const capstan_result& result,
                                    const capstan_error& error) const {
    const absl::Status status = PluginStatus(code, who_, error);
    if (!status.ok()) return status;
    LaneResult lane;
    lane.samples = count;
    lane.loss_sum = result.loss_sum;
    lane.correct = result.correct;
    return lane;
  }

  const capstan_plugin_table& table_;
  capstan_plan* const plan_;
  const int index_;
  const std::string who_;
  const int64_t max_batch_;
  const int64_t classes_;
  const int64_t target_size_;
  const int64_t total_floats_;
  const std::string graph_name_;
  const bool draws_;  // draws random numbers in training
  PlanInfo info_;
  bool weights_loaded_ = false;
  int64_t kept_ = 0, want_kept_ = 0;  // images kept so far; images to be kept
};

class PluginDevice : public Device {
 public:
  PluginDevice(const LoadedPlugin& plugin, std::string name, int index, std::string description,
               std::string uuid)
      : table_(*plugin.table),
        name_(std::move(name)),
        index_(index),
        description_(std::move(description)),
        uuid_(std::move(uuid)) {}

  const std::string& name() const override { return name_; }
  const std::string& description() const override { return description_; }
  std::string uuid() const override { return uuid_; }

  absl::StatusOr<std::unique_ptr<Plan>> Compile(const Graph& graph, const FlatLayout& layout,
                                                const PlanOptions& options) override {
    if (options.max_batch < 1 || options.max_batch > int64_t{1} << 30) {
      return absl::InvalidArgumentError(
          absl::StrCat("max_batch: ", options.max_batch, ", want 1 to ", int64_t{1} << 30));
    }
    if (options.threads < 1 || options.threads > 1024) {
      return absl::InvalidArgumentError(
          absl::StrCat("threads: ", options.threads, ", want 1 to 1024"));
    }
    if (options.time_kernels) {
      return absl::UnimplementedError(
          absl::StrCat("device ", name_, ": time_kernels: only CPU devices time their kernels"));
    }
    const absl::StatusOr<SentGraph> sent = SentGraph::Of(graph, layout);
    if (!sent.ok()) return sent.status();
    capstan_compile_request request = {};
    sent->Describe(request);
    request.device = index_;
    request.precision = static_cast<int32_t>(options.precision);
    request.deterministic = options.deterministic ? 1 : 0;
    request.max_batch = options.max_batch;
    capstan_plan* plan = nullptr;
    capstan_error error = {};
    const absl::Status status = PluginStatus(table_.compile(&request, &plan, &error),
                                             absl::StrCat("device ", name_), error);
    if (!status.ok()) return status;
    return std::unique_ptr<Plan>(std::make_unique<DevicePlan>(table_, plan, index_, name_, graph,
                                                              layout, options.max_batch));
  }

  absl::StatusOr<std::unique_ptr<PlanGroup>> MakeGroup(const std::vector<Plan*>& plans,
                                                       const GroupOptions& options) override {
    return MakePluginGroup(table_, plans, options);
  }

 private:
  const capstan_plugin_table& table_;
  const std::string name_;
  const int index_;
  const std::string description_;
  const std::string uuid_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenPluginDevice(const LoadedPlugin& plugin,
                                                         const std::string& name, int index) {
  if (index < 0 || index >= plugin.device_count) {
    return absl::NotFoundError(
        absl::StrCat("device ", name, ": no such GPU here, want 0 to ", plugin.device_count - 1));
  }
  capstan_device_info info = {};
  capstan_error error = {};
  const absl::Status status = PluginStatus(plugin.table->device_info(index, &info, &error),
                                           absl::StrCat("device ", name), error);
  if (!status.ok()) return status;
  return std::unique_ptr<Device>(std::make_unique<PluginDevice>(
      plugin, name, index,
      absl::StrCat(info.name, ", ", info.memory_bytes >> 20, " MiB, ", plugin.libraries),
      info.uuid));
}

}  // namespace capstan::engine
