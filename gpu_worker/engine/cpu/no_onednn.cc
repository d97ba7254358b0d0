// Stands in for onednn_linear.cc in builds without oneDNN, e.g. under ThreadSanitizer, which would
// report the OpenMP runtime that oneDNN brings.
#include "gpu_worker/engine/cpu/linear.h"
#include "gpu_worker/engine/cpu/vendor_threads.h"

namespace capstan::engine {

int SetVendorThreads(int threads) { return 1; }

absl::StatusOr<std::unique_ptr<LinearKernel>> MakeOnednnLinear(const LinearGeometry& geometry,
                                                               int64_t batch) {
  return std::unique_ptr<LinearKernel>();
}

std::string LinearLibrary() { return "plain loops"; }

}  // namespace capstan::engine
