// Our own kernels, as functions that launch them on a stream. The arithmetic of one element is that
// of index_math.h, which is tested on the CPU.
//
// Activations, their gradients and the kernels' copies of weights have the type `e`. Parameters of
// type float are always float32. Sums are cut into parts by constants and added in a fixed order,
// so the bits are equal from run to run and from card to card. Every function returns the result of
// its launch.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_KERNELS_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "gpu_worker/engine/cuda/index_math.h"
#include "gpu_worker/engine/cuda/update_segment.h"
#include "gpu_worker/engine/plugin/abi.h"

namespace capstan::engine::cuda {

enum class Element { kFloat, kBf16, kFp16 };

// x[i] = images[i], or images[i] * scale[0] + scale[1] for bytes; converted to NHWC if `nhwc`.
cudaError_t LaunchLoadImages(cudaStream_t stream, Element e, const void* images, bool bytes,
                             const float* scale, bool nhwc, int32_t n, int32_t channels,
                             int32_t pixels, void* x);

// Sample i of x is image places[i] of `kept`, which are float32 in their original order.
cudaError_t LaunchLoadKept(cudaStream_t stream, Element e, const float* kept, const int32_t* places,
                           bool nhwc, int32_t n, int32_t channels, int32_t pixels, void* x);

// [rows, channels, pixels] to [rows, pixels, channels], and back.
cudaError_t LaunchToChannelsLast(cudaStream_t stream, Element e, int32_t rows, int32_t channels,
                                 int32_t pixels, const void* from, void* to);
cudaError_t LaunchToCanonical(cudaStream_t stream, Element e, int32_t rows, int32_t channels,
                              int32_t pixels, const void* from, void* to);
// One kernel for all of them, because each is small.
inline constexpr int kMostWeightCopies = 32;
cudaError_t LaunchCopyWeights(cudaStream_t stream, Element e, const WeightCopy* copies, int count);
// As LaunchToCanonical.
cudaError_t LaunchGradientToFlat(cudaStream_t stream, Element e, int32_t rows, int32_t channels,
                                 int32_t pixels, const void* from, float* to);

cudaError_t LaunchPoolForward(cudaStream_t stream, Element e, const WindowGeometry& g, bool max,
                              bool relu, int32_t n, const void* x, void* y);
cudaError_t LaunchPoolBackward(cudaStream_t stream, Element e, const WindowGeometry& g, bool max,
                               bool relu, int32_t n, const void* x, const void* dy, void* dx);

cudaError_t LaunchRelu(cudaStream_t stream, Element e, int32_t elements, void* x);
cudaError_t LaunchReluMask(cudaStream_t stream, Element e, int32_t elements, const void* y,
                           void* dy);
// left[i] += right[i], with the bits of training::AddInto.
cudaError_t LaunchAdd(cudaStream_t stream, int64_t elements, const float* right, float* left);
// Sets *flag = 1 if a value is an infinity or a NaN; otherwise leaves it unchanged. The flag may
// lie in pinned host memory.
cudaError_t LaunchCheckFinite(cudaStream_t stream, int64_t elements, const float* values,
                              int32_t* flag);
// The vectors of a device for an update. `states` floats of state per weight.
struct UpdateVectors {
  const float* sum = nullptr;  // by UpdateSegment::local
  float* weights = nullptr;    // by UpdateSegment::offset
  float* state = nullptr;      // by UpdateSegment::local; null if there is none
  int32_t states = 0;
};
// Updates weights and state of `count` segments, kMostUpdateSegments at most, in place by one
// kernel, with the bits of training::ApplyVersion.
cudaError_t LaunchUpdate(cudaStream_t stream, const UpdateVectors& vectors,
                         const UpdateSegment* segments, int count);
// y[row, c] += bias[c], then Relu if `relu`. `bias` may be null.
cudaError_t LaunchBiasRelu(cudaStream_t stream, Element e, int32_t rows, int32_t columns,
                           const void* bias, bool relu, void* y);
// db[c] = sum over rows of dy[row, c]. `parts` is scratch of kSumParts * columns.
cudaError_t LaunchColumnSums(cudaStream_t stream, Element e, int32_t rows, int32_t columns,
                             const void* dy, float* parts, float* db);

cudaError_t LaunchLoss(cudaStream_t stream, Element e, int32_t n, int32_t classes, float smoothing,
                       const double* scale, const int32_t* labels, const void* x, void* dx,
                       double* row_loss, int32_t* row_correct);
// The mean squared error of n rows of `columns` outputs, and its gradient unless `dx` is null.
// row_correct gets zeros.
cudaError_t LaunchSquaredError(cudaStream_t stream, Element e, int32_t n, int32_t columns,
                               const double* scale, const float* targets, const void* x, void* dx,
                               double* row_loss, int32_t* row_correct);
cudaError_t LaunchSumRows(cudaStream_t stream, int32_t n, const double* row_loss,
                          const int32_t* row_correct, double* loss_sum, int64_t* correct);

// Keeps the stream busy for `cycles` cycles of the card's clock.
cudaError_t LaunchDelay(cudaStream_t stream, int64_t cycles);

// Convolutions without a library, for problems that no library carries out. Dense layers are
// convolutions of one pixel. dw is float32 unless `rounded`.
cudaError_t LaunchConvForward(cudaStream_t stream, Element e, const WindowGeometry& g, int32_t n,
                              const void* x, const void* weight, const void* bias, bool relu,
                              void* y);
cudaError_t LaunchConvDataGradient(cudaStream_t stream, Element e, const WindowGeometry& g,
                                   int32_t n, const void* dy, const void* weight, void* dx);
cudaError_t LaunchConvWeightGradient(cudaStream_t stream, Element e, const WindowGeometry& g,
                                     int32_t n, const void* x, const void* dy, bool rounded,
                                     void* dw);

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_KERNELS_H_
