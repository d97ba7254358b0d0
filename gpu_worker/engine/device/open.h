// Opening a device by name.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_DEVICE_OPEN_H_
#define CAPSTAN_GPU_WORKER_ENGINE_DEVICE_OPEN_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gpu_worker/engine/device/device.h"

namespace capstan::engine {

// "cpu", "cpu:<index>" (as many as the caller likes: they share the cores, nothing else) or
// "cuda:<index>". NotFound: no such device here. Unavailable: the plug-in or the driver is missing;
// the message says which, in words. CAPSTAN_CPU_TARGET, where it is set and not empty, chooses the loops of CPU devices
// (cpu_device.h); InvalidArgument or FailedPrecondition: it has no such word, or the processor lacks it. Thread-safe.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(absl::string_view name);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_DEVICE_OPEN_H_
