// Times every operation of a plan beside the best time that its card allows, to find the slow ones.
// With CAPSTAN_CUDA_PROFILE=FILE plans run kernel by kernel, without graphs, and append a table to
// FILE when they end. The first pass of each kind is not counted.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_PROFILE_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_PROFILE_H_

#include <cuda_runtime.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gpu_worker/engine/cuda/cost.h"
#include "gpu_worker/engine/cuda/program.h"
#include "gpu_worker/engine/cuda/rules.h"

namespace capstan::engine::cuda {

class Profile {
 public:
  // Null if the variable is not set. Borrows the program.
  static absl::StatusOr<std::unique_ptr<Profile>> FromEnvironment(const CardProgram& program,
                                                                  const KernelRules& rules,
                                                                  cudaStream_t stream, int device);
  // Writes the table.
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // Whether the following operations are counted.
  void Count(bool counted) { counted_ = counted; }
  Operations& Wrap(Operations& ops);

 private:
  Profile(const CardProgram& program, const KernelRules& rules, cudaStream_t stream,
          std::string file);
  absl::Status Build(int device, int32_t precision);
  double Measure(bool begin);

  const cudaStream_t stream_;
  const std::string file_;
  std::string title_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  bool counted_ = false;
  Roof roof_;
  TimedOperations timed_;
};

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_PROFILE_H_
