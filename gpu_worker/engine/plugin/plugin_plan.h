// What a group of plug-in plans needs from each plan. Only for this folder.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_PLUGIN_PLAN_H_
#define CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_PLUGIN_PLAN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/engine/device/group.h"
#include "gpu_worker/engine/plugin/abi.h"

namespace capstan::engine {

class PluginPlan : public Plan {
 public:
  enum class Use { kTraining, kEvaluation, kPrediction };

  virtual const capstan_plugin_table& table() const = 0;
  virtual capstan_plan* handle() const = 0;
  virtual int index() const = 0;  // index of its device
  virtual int64_t total_floats() const = 0;
  virtual int64_t target_size() const = 0;  // Graph::target_size
  // InvalidArgument: the count; a label, except for a prediction; an id, in training of a graph
  // that draws.
  virtual absl::Status CheckSamples(const SampleBatch& batch, Use use) const = 0;
};

// The Status for a code and text of the ABI, with `who` in front of the text. Aborted: as in
// device.h.
absl::Status PluginStatus(int32_t code, const std::string& who, const capstan_error& error);
capstan_batch PluginBatch(const SampleBatch& batch, int64_t target_size);

absl::StatusOr<std::unique_ptr<PlanGroup>> MakePluginGroup(const capstan_plugin_table& table,
                                                           const std::vector<Plan*>& plans,
                                                           const GroupOptions& options);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_PLUGIN_PLAN_H_
