// Measures training steps of a network on a device of this host, without any service.
#ifndef CAPSTAN_CLIENT_BENCH_STEP_BENCH_H_
#define CAPSTAN_CLIENT_BENCH_STEP_BENCH_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/bench/step_report.h"
#include "gpu_worker/engine/device/device.h"
#include "training/graph/graph.h"
#include "training/optim/optimizer.h"

namespace capstan::client {

inline constexpr int kMostStepBatch = 65536;                      // samples
inline constexpr int64_t kMostStepImageBytes = int64_t{1} << 32;  // of all samples

struct StepBench {
  int64_t batch = 1;                         // samples, one lane; 1 to kMostStepBatch
  int threads = 1;                           // 1 to 1024
  absl::Duration length = absl::Seconds(3);  // for which steps are measured; at least five steps
  std::string optimizer_name;                // for the report
};

// What kernels over the nodes [first, last] compute and move at least, for `samples` samples. The
// values between these nodes stay inside. `first` -1: the batch's way into the device's layout.
//
// Operations are those of Graph::training_flops. Bytes are of float32. Forward reads the inputs and
// the weights and writes the output. Backward reads the gradient of the output and writes those of
// the inputs that need one; with weights it also writes their gradient, and reads the inputs, and
// the weights if an input needs a gradient. The loss is one pass: it reads logits and writes their
// gradient.
struct KernelWork {
  double flops = 0;
  double bytes = 0;
};
KernelWork ForwardWork(const training::Graph& graph, int first, int last, int64_t samples);
KernelWork BackwardWork(const training::Graph& graph, int first, int last, int64_t samples);

// The value in the middle, or the mean of the two in the middle. `values` must not be empty.
double Median(std::vector<double> values);

// Trains on random images, with labels of all classes, from initial weights; nothing is kept. Each
// step loads the weights, computes the gradient and updates the weights, on one thread as a task
// does. Every step computes the same. Steps before the measured ones warm up.
//
// InvalidArgument: the batch has more samples or bytes than the limits above. ResourceExhausted: no
// memory. Unimplemented, by name: the device does not time its kernels. Other errors are those of
// Compile and MeasureLimits.
absl::StatusOr<StepReport> MeasureStep(engine::Device& device, const training::Graph& graph,
                                       const training::Optimizer& optimizer,
                                       const StepBench& options);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_BENCH_STEP_BENCH_H_
