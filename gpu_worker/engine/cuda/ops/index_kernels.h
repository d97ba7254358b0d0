// Kernels that choose numbers by an index: Dropout, Gather, Trilu, and the loss of a sequence. They
// read the rules of training/ops, so that host and cards choose the same ones. Every function
// returns the result of its launch. Elements have the type `e`.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_INDEX_KERNELS_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_INDEX_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "gpu_worker/engine/cuda/kernels.h"

namespace capstan::engine::cuda {

// to (+)= factor * from where an element is kept, else 0. Elements count in the canonical order of
// [channels, pixels], also if they lie as [pixels, channels].
struct DropoutWork {
  int32_t samples = 0, channels = 1, pixels = 1;
  bool channels_last = false;
  int32_t node = 0;
  uint32_t threshold = 0;
  float factor = 1;
  bool add = false;
};
// `key` [2] and `epoch` are numbers of the batch's header.
cudaError_t LaunchDropout(cudaStream_t stream, Element e, const DropoutWork& work,
                          const int64_t* ids, const uint32_t* key, const uint32_t* epoch,
                          const void* from, void* to);

// Rows of `size` numbers from tables of `rows`, by `indices` for each of `samples`. `one_table`: a
// float32 table for all samples, else each sample has its own of the elements' type.
struct GatherWork {
  int32_t samples = 0, indices = 1, rows = 1, size = 1;
  bool one_table = false;
  bool add = false;  // to the gradient by a sample's own table
};
cudaError_t LaunchGather(cudaStream_t stream, Element e, const GatherWork& work, const void* table,
                         const float* indices, void* y);
// Adds rows in the order of the indices. The gradient by a table for all samples is stored.
cudaError_t LaunchGatherBackward(cudaStream_t stream, Element e, const GatherWork& work,
                                 const float* indices, const void* dy, void* dtable);

// to (+)= from in the triangle that is kept, else 0.
struct TriluWork {
  int32_t elements = 0, rows = 1, columns = 1, k = 0;
  bool upper = true;
  bool add = false;
};
cudaError_t LaunchTrilu(cudaStream_t stream, Element e, const TriluWork& work, const void* from,
                        void* to);

// Rows of logits: [samples, positions, classes]. The label of a row is the next token of its
// sample, or the sample's label behind the last one. row_loss is a share of the sample's loss.
// row_correct counts the last position.
struct SequenceWork {
  int32_t samples = 0, positions = 1, classes = 1;
};
cudaError_t LaunchSequenceLoss(cudaStream_t stream, Element e, const SequenceWork& work,
                               const double* scale, const int32_t* labels, const float* tokens,
                               const void* x, void* dx, double* row_loss, int32_t* row_correct);

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_INDEX_KERNELS_H_
