// MeanSquaredErrorLoss on samples that lie side by side.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_SQUARED_ERROR_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_SQUARED_ERROR_H_

#include <cstdint>

namespace capstan::engine {

// A block of samples.
struct SquaredErrorCall {
  int64_t outputs = 0;
  int64_t there = 0;               // samples of the block, 1 to 16
  const float* outcome = nullptr;  // [outputs, 16]: what the network gives
  const float* targets = nullptr;  // [there, outputs]
  double scale = 1;                // of the gradient
  float* gradient = nullptr;       // like outcome, 0 behind the last sample; null: not wanted
};

// Returns the sum of the samples' losses. All arithmetic is in double, sample by sample and each in
// the order of its outputs, without fused multiply-adds. So the bits depend neither on the
// instruction set nor on the other samples.
double SquaredErrors(const SquaredErrorCall& call);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_SQUARED_ERROR_H_
