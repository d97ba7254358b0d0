// A device of a plug-in as a Device: the graph made flat, arguments checked, codes turned into
// Status.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_PLUGIN_DEVICE_H_
#define CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_PLUGIN_DEVICE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/engine/device/device.h"
#include "gpu_worker/engine/plugin/abi.h"
#include "gpu_worker/engine/plugin/loader.h"

namespace capstan::engine {

// NotFound: the plug-in has fewer devices. `name` is what the device calls itself ("cuda:0").
absl::StatusOr<std::unique_ptr<Device>> OpenPluginDevice(const LoadedPlugin& plugin,
                                                         const std::string& name, int index);

// The nodes of `graph` for the ABI. Names are borrowed from the graph.
// InvalidArgument: graph and layout disagree, or the graph is no chain.
absl::StatusOr<std::vector<capstan_op>> FlattenGraph(const training::Graph& graph,
                                                     const training::FlatLayout& layout);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_PLUGIN_DEVICE_H_
