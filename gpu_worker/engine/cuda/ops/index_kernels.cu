#include <algorithm>

#include "gpu_worker/engine/cuda/element_launch.h"
#include "gpu_worker/engine/cuda/ops/index_kernels.h"
#include "training/ops/dropout/dropout_rule.h"
#include "training/ops/token_rule.h"
#include "training/random/philox_rule.h"

namespace capstan::engine::cuda {
namespace {

// One thread for each block of four elements.
template <typename T>
__global__ void DropoutKernel(DropoutWork work, const int64_t* ids, const uint32_t* key,
                              const uint32_t* epoch, const T* from, T* to) {
  const int32_t elements = work.channels * work.pixels, blocks = (elements + 3) / 4;
  ForElements(int64_t{work.samples} * blocks, [&](int64_t i) {
    const auto sample = static_cast<int32_t>(i / blocks);
    const auto block = static_cast<int32_t>(i % blocks);
    uint32_t words[4] = {};
    training::SetDropoutCounter(block, ids[sample], *epoch, work.node, words);
    training::PhiloxRounds(words, key[0], key[1]);
    for (int32_t k = 0; k < 4; ++k) {
      const int32_t element = 4 * block + k;
      if (element >= elements) break;
      const int32_t place = work.channels_last
                                ? element % work.pixels * work.channels + element / work.pixels
                                : element;
      const int32_t at = sample * elements + place;
      const bool kept = training::DropoutKeeps(words[k], work.threshold);
      const float value = kept ? float(from[at]) * work.factor : 0.0f;
      to[at] = T(work.add ? float(to[at]) + value : value);
    }
  });
}

template <typename Table, typename T>
__global__ void GatherKernel(GatherWork work, const Table* table, const float* indices, T* y) {
  ForElements(int64_t{work.samples} * work.indices * work.size, [&](int64_t i) {
    const auto at = static_cast<int32_t>(i / work.size);
    const auto row = static_cast<int32_t>(training::RowOfIndex(indices[at], work.rows));
    const int32_t first = work.one_table ? 0 : at / work.indices * work.rows;
    y[i] = T(row < 0 ? 0.0f : float(table[int64_t{first + row} * work.size + i % work.size]));
  });
}

// One block for each row of the table. It looks at kThreads indices at a time.
template <typename T>
__global__ void TableGradientKernel(GatherWork work, const float* indices, const T* dy,
                                    float* dtable) {
  __shared__ int32_t hits[kThreads];
  const int32_t all = work.samples * work.indices;
  const auto stride = static_cast<int32_t>(BlockCount());
  for (int32_t row = static_cast<int32_t>(BlockIndex()); row < work.rows; row += stride) {
    float* const to = dtable + int64_t{row} * work.size;
    EachThread([&](int thread) {
      for (int32_t i = thread; i < work.size; i += kThreads) to[i] = 0;
    });
    for (int32_t first = 0; first < all; first += kThreads) {
      EachThread([&](int thread) {
        hits[thread] =
            first + thread < all && training::RowOfIndex(indices[first + thread], work.rows) == row;
      });
      EachThread([&](int thread) {
        for (int32_t i = thread; i < work.size; i += kThreads) {
          for (int32_t k = 0; k < kThreads; ++k) {
            if (hits[k] != 0) to[i] += float(dy[int64_t{first + k} * work.size + i]);
          }
        }
      });
    }
  }
}

template <typename T>
__global__ void OwnTableGradientKernel(GatherWork work, const float* indices, const T* dy,
                                       T* dtable) {
  ForElements(int64_t{work.samples} * work.rows * work.size, [&](int64_t i) {
    const auto place = static_cast<int32_t>(i % work.size);
    const auto row = static_cast<int32_t>(i / work.size % work.rows);
    const auto sample = static_cast<int32_t>(i / work.size / work.rows);
    float sum = 0;
    for (int32_t k = sample * work.indices; k < (sample + 1) * work.indices; ++k) {
      if (training::RowOfIndex(indices[k], work.rows) == row) {
        sum += float(dy[int64_t{k} * work.size + place]);
      }
    }
    dtable[i] = T(work.add ? float(dtable[i]) + sum : sum);
  });
}

template <typename T>
__global__ void TriluKernel(TriluWork work, const T* from, T* to) {
  ForElements(work.elements, [&](int64_t i) {
    const auto column = static_cast<int32_t>(i % work.columns);
    const auto row = static_cast<int32_t>(i / work.columns % work.rows);
    const bool kept = work.upper ? column >= row + work.k : column <= row + work.k;
    const float value = kept ? float(from[i]) : 0.0f;
    to[i] = T(work.add ? float(to[i]) + value : value);
  });
}

template <typename T>
__global__ void SequenceLossKernel(SequenceWork work, const double* scale, const int32_t* labels,
                                   const float* tokens, const T* x, T* dx, double* row_loss,
                                   int32_t* row_correct) {
  ForElements(int64_t{work.samples} * work.positions, [&](int64_t i) {
    const bool last = i % work.positions == work.positions - 1;
    const auto label =
        static_cast<int32_t>(last ? training::ClassOfToken(labels[i / work.positions], work.classes)
                                  : training::ClassOfToken(tokens[i + 1], work.classes));
    const LossOfRow row =
        SoftmaxLossRow(x + i * work.classes, work.classes, label, *scale / work.positions,
                       dx == nullptr ? nullptr : dx + i * work.classes);
    row_loss[i] = row.loss / work.positions;
    row_correct[i] = last ? row.correct : 0;
  });
}

}  // namespace

cudaError_t LaunchDropout(cudaStream_t stream, Element e, const DropoutWork& work,
                          const int64_t* ids, const uint32_t* key, const uint32_t* epoch,
                          const void* from, void* to) {
  const int64_t blocks = int64_t{work.samples} * ((work.channels * work.pixels + 3) / 4);
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(DropoutKernel<T>, Blocks(blocks), stream, work, ids, key, epoch,
           static_cast<const T*>(from), static_cast<T*>(to));
  });
}

cudaError_t LaunchGather(cudaStream_t stream, Element e, const GatherWork& work, const void* table,
                         const float* indices, void* y) {
  const unsigned blocks = Blocks(int64_t{work.samples} * work.indices * work.size);
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (work.one_table) {
      Launch(GatherKernel<float, T>, blocks, stream, work, static_cast<const float*>(table),
             indices, static_cast<T*>(y));
    } else {
      Launch(GatherKernel<T, T>, blocks, stream, work, static_cast<const T*>(table), indices,
             static_cast<T*>(y));
    }
  });
}

cudaError_t LaunchGatherBackward(cudaStream_t stream, Element e, const GatherWork& work,
                                 const float* indices, const void* dy, void* dtable) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto* const from = static_cast<const T*>(dy);
    if (work.one_table) {
      Launch(TableGradientKernel<T>, static_cast<unsigned>(std::min(work.rows, 65535)), stream,
             work, indices, from, static_cast<float*>(dtable));
    } else {
      Launch(OwnTableGradientKernel<T>, Blocks(int64_t{work.samples} * work.rows * work.size),
             stream, work, indices, from, static_cast<T*>(dtable));
    }
  });
}

cudaError_t LaunchTrilu(cudaStream_t stream, Element e, const TriluWork& work, const void* from,
                        void* to) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(TriluKernel<T>, Blocks(work.elements), stream, work, static_cast<const T*>(from),
           static_cast<T*>(to));
  });
}

cudaError_t LaunchSequenceLoss(cudaStream_t stream, Element e, const SequenceWork& work,
                               const double* scale, const int32_t* labels, const float* tokens,
                               const void* x, void* dx, double* row_loss, int32_t* row_correct) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(SequenceLossKernel<T>, Blocks(int64_t{work.samples} * work.positions), stream, work,
           scale, labels, tokens, static_cast<const T*>(x), static_cast<T*>(dx), row_loss,
           row_correct);
  });
}

}  // namespace capstan::engine::cuda
