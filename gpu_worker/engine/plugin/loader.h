// Finds and opens the CUDA plug-in. Every failure is one sentence that says what is missing and
// what helps.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_LOADER_H_
#define CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_LOADER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gpu_worker/engine/plugin/abi.h"

namespace capstan::engine {

struct LoaderOptions {
  // Tried first, because without a driver nothing of the plug-in's gigabyte needs to be read.
  // Empty: not tried.
  std::string driver_library = "libcuda.so.1";
  // The first existing one is opened.
  std::vector<std::string> candidates;
};

// CAPSTAN_CUDA_PLUGIN if it is set; else libcapstan_cuda.so beside the running binary, then in
// ../lib from there.
LoaderOptions DefaultLoaderOptions();

// Whether one of DefaultLoaderOptions' candidates exists, i.e. this host is meant to have GPUs.
bool PluginInstalled();

// A plug-in that has devices. It stays loaded until the process ends, because CUDA cannot be
// unloaded.
struct LoadedPlugin {
  std::string path;
  const capstan_plugin_table* table = nullptr;
  int device_count = 0;
  std::string libraries;  // for logs
};

// Unavailable: no driver, no plug-in, a missing library of the plug-in, a driver that is too old,
// another ABI number, or no GPU. Thread-safe.
absl::StatusOr<LoadedPlugin> LoadPlugin(const LoaderOptions& options);

// The sentence for dlopen's error message about `path`. Exposed for tests, because not every
// failure can be produced.
std::string ExplainDlError(absl::string_view path, absl::string_view error);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_LOADER_H_
