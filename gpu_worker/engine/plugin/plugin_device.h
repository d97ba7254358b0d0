// A device of a plug-in as a Device: flattens the graph, checks arguments and turns codes into
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

// NotFound: the plug-in has fewer devices. `name` is the device's name ("cuda:0").
absl::StatusOr<std::unique_ptr<Device>> OpenPluginDevice(const LoadedPlugin& plugin,
                                                         const std::string& name, int index);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_PLUGIN_DEVICE_H_
