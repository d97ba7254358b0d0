// What a device of a group updates alike. For the host's code and for kernels; C++17, because nvcc
// reads it too.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_UPDATE_SEGMENT_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_UPDATE_SEGMENT_H_

#include <cstdint>

#include "training/optim/rule_numbers.h"

namespace capstan::engine::cuda {

// A run of floats of the device's slices (Slice in group.h).
struct UpdateSegment {
  int64_t offset = 0;  // of the flat vector
  int64_t local = 0;   // in the device's slots
  int64_t size = 0;
  float scale = 1, clip = 0;  // GradientOf in rule_numbers.h
  training::RuleNumbers rule;
};

// Of one kernel, which gets them as an argument.
inline constexpr int kMostUpdateSegments = 32;

// Updates one weight. `sum`, `weight` and `state` are those of the weight.
template <class Root>
constexpr void UpdateOne(const UpdateSegment& segment, float sum, float* weight, float* state,
                         Root root) {
  *weight = training::UpdateByNumbers(
      segment.rule, *weight, training::GradientOf(sum, segment.scale, segment.clip), state, root);
}

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_UPDATE_SEGMENT_H_
