// The optimizer on a card. Built with --fmad=false, so that products and sums are rounded
// separately, as on the host. Square roots and quotients are those of IEEE 754, nvcc's default.
#include <cfloat>
#include <cmath>

#include "gpu_worker/engine/cuda/half16.h"
#include "gpu_worker/engine/cuda/kernels.h"
#include "gpu_worker/engine/cuda/launch.h"

namespace capstan::engine::cuda {
namespace {

__global__ void CheckFiniteKernel(int64_t elements, const float* values, int32_t* flag) {
  ForElements(elements, [&](int64_t i) {
    // The comparison is also false for a NaN. All threads that store a value store the same one.
    if (!(fabsf(values[i]) <= FLT_MAX)) *flag = 1;
  });
}

struct CardRoot {
  CAPSTAN_HD float operator()(float x) const { return sqrtf(x); }
};

struct UpdateSegments {
  int64_t ends[kMostUpdateSegments];  // if all segments followed each other
  UpdateSegment segments[kMostUpdateSegments];
};
static_assert(sizeof(UpdateSegments) <= 4000, "a kernel is given 4 KiB at most");

__global__ void UpdateKernel(int64_t elements, const float* sum, float* weights, float* state,
                             int32_t states, const __grid_constant__ UpdateSegments all) {
  ForElements(elements, [&](int64_t i) {
    int s = 0;
    while (i >= all.ends[s]) ++s;
    const UpdateSegment& segment = all.segments[s];
    const int64_t at = i - (s == 0 ? 0 : all.ends[s - 1]);
    UpdateOne(segment, sum[segment.local + at], weights + segment.offset + at,
              state + (segment.local + at) * states, CardRoot());
  });
}

}  // namespace

cudaError_t LaunchCheckFinite(cudaStream_t stream, int64_t elements, const float* values,
                              int32_t* flag) {
  Launch(CheckFiniteKernel, Blocks(elements), stream, elements, values, flag);
  return cudaGetLastError();
}

cudaError_t LaunchUpdate(cudaStream_t stream, const UpdateVectors& vectors,
                         const UpdateSegment* segments, int count) {
  UpdateSegments all = {};
  int64_t elements = 0;
  for (int s = 0; s < count; ++s) {
    all.segments[s] = segments[s];
    all.ends[s] = elements += segments[s].size;
  }
  Launch(UpdateKernel, Blocks(elements), stream, elements, vectors.sum, vectors.weights,
         vectors.state, vectors.states, all);
  return cudaGetLastError();
}

}  // namespace capstan::engine::cuda
