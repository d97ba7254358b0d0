// Opens a device by name.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_DEVICE_OPEN_H_
#define CAPSTAN_GPU_WORKER_ENGINE_DEVICE_OPEN_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gpu_worker/engine/device/device.h"

namespace capstan::engine {

// "cpu", "cpu:<index>" or "cuda:<index>". Any number of CPU devices may be opened; they share only
// the cores. NotFound: there is no such device here. Unavailable: the plug-in or the driver is
// missing; the message says which. CAPSTAN_CPU_TARGET, if set and not empty, chooses the loops of
// CPU devices (cpu_device.h); InvalidArgument or FailedPrecondition: its value is unknown, or the
// processor lacks them. Thread-safe.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(absl::string_view name);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_DEVICE_OPEN_H_
