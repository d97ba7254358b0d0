#include <algorithm>

#include "gpu_worker/engine/cuda/element_launch.h"
#include "gpu_worker/engine/cuda/ops/walk_kernels.h"

namespace capstan::engine::cuda {
namespace {

// From this many summands on, a block adds up one sum. Fewer are added by one thread.
constexpr int32_t kBlockSummands = 256;

template <typename T>
CAPSTAN_HD void StoreOrAdd(bool add, float value, T* to) {
  *to = T(add ? float(*to) + value : value);
}

template <typename T>
__global__ void FillKernel(int64_t elements, float value, T* x) {
  ForElements(elements, [&](int64_t i) { x[i] = T(value); });
}

template <typename From, typename To>
__global__ void CopyKernel(const __grid_constant__ CopyWork work, const From* from, To* to) {
  ForElements(work.loop.elements, [&](int64_t i) {
    int32_t at[2] = {0, 0};
    AddPlaces(work.loop, static_cast<int32_t>(i), at);
    StoreOrAdd(work.add, work.factor * float(from[at[1]]), to + at[0]);
  });
}

template <typename T>
__global__ void BinaryKernel(const __grid_constant__ Loop<3> loop, Binary f, const T* a, const T* b,
                             T* y) {
  ForElements(loop.elements, [&](int64_t i) {
    int32_t at[3] = {0, 0, 0};
    AddPlaces(loop, static_cast<int32_t>(i), at);
    y[at[0]] = T(BinaryOf(f, a[at[1]], b[at[2]]));
  });
}

// The sum of the terms `first`, first + step, ... of output place `at`.
template <typename T>
CAPSTAN_HD float PartOfSum(const SumWork& work, const int32_t (&at)[4], int32_t first, int32_t step,
                           const T* p, const T* q, const T* r) {
  float sum = 0;
  for (int32_t k = first; k < work.inner.elements; k += step) {
    int32_t in[3] = {at[1], at[2], at[3]};
    AddPlaces(work.inner, k, in);
    sum += TermOf(work.term, p[in[0]], ReadsQ(work.term) ? float(q[in[1]]) : 0.0f,
                  work.term == SumTerm::kMinusPQOverRR ? float(r[in[2]]) : 1.0f);
  }
  return sum;
}

template <typename T, typename To>
__global__ void SumKernel(const __grid_constant__ SumWork work, const T* p, const T* q, const T* r,
                          To* to) {
  ForElements(work.outer.elements, [&](int64_t i) {
    int32_t at[4] = {0, 0, 0, 0};
    AddPlaces(work.outer, static_cast<int32_t>(i), at);
    StoreOrAdd(work.add, work.factor * PartOfSum(work, at, 0, 1, p, q, r), to + at[0]);
  });
}

// One block for each sum.
template <typename T, typename To>
__global__ void BlockSumKernel(const __grid_constant__ SumWork work, const T* p, const T* q,
                               const T* r, To* to) {
  __shared__ float sums[kThreads];
  const auto stride = static_cast<int32_t>(BlockCount());
  for (int32_t i = static_cast<int32_t>(BlockIndex()); i < work.outer.elements; i += stride) {
    EachThread([&](int thread) {
      int32_t at[4] = {0, 0, 0, 0};
      AddPlaces(work.outer, i, at);
      sums[thread] = PartOfSum(work, at, thread, kThreads, p, q, r);
    });
    for (int width = kThreads / 2; width > 0; width /= 2) {
      EachThread([&](int thread) {
        if (thread < width) sums[thread] += sums[thread + width];
      });
    }
    EachThread([&](int thread) {
      if (thread > 0) return;
      int32_t at[4] = {0, 0, 0, 0};
      AddPlaces(work.outer, i, at);
      StoreOrAdd(work.add, work.factor * sums[0], to + at[0]);
    });
  }
}

template <typename T>
__global__ void UnaryKernel(UnaryFunction f, int32_t elements, const T* x, T* y) {
  ForElements(elements, [&](int64_t i) { y[i] = T(ValueOf(f, x[i])); });
}

template <typename T>
__global__ void UnaryBackwardKernel(UnaryFunction f, bool add, int32_t elements, const T* from,
                                    const T* dy, T* dx) {
  ForElements(elements, [&](int64_t i) {
    // A masked gradient is 0, whatever it was.
    const float slope = f.f == Unary::kTruncate ? 0.0f : SlopeOf(f, from[i]);
    StoreOrAdd(add, slope == 0 ? 0.0f : slope * float(dy[i]), dx + i);
  });
}

}  // namespace

cudaError_t LaunchFill(cudaStream_t stream, Element e, int64_t elements, float value, void* x) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(FillKernel<T>, Blocks(elements), stream, elements, value, static_cast<T*>(x));
  });
}

cudaError_t LaunchCopy(cudaStream_t stream, Element e, const CopyWork& work, const void* from,
                       void* to) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const unsigned blocks = Blocks(work.loop.elements);
    T* const target = static_cast<T*>(to) + work.to_first;
    if (work.float_source) {
      Launch(CopyKernel<float, T>, blocks, stream, work,
             static_cast<const float*>(from) + work.from_first, target);
    } else {
      Launch(CopyKernel<T, T>, blocks, stream, work, static_cast<const T*>(from) + work.from_first,
             target);
    }
  });
}

cudaError_t LaunchBinary(cudaStream_t stream, Element e, Binary f, const Loop<3>& loop,
                         const void* a, const void* b, void* y) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(BinaryKernel<T>, Blocks(loop.elements), stream, loop, f, static_cast<const T*>(a),
           static_cast<const T*>(b), static_cast<T*>(y));
  });
}

cudaError_t LaunchSum(cudaStream_t stream, Element e, const SumWork& work, const void* p,
                      const void* q, const void* r, void* to) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto *const a = static_cast<const T*>(p), *const b = static_cast<const T*>(q),
                      *const c = static_cast<const T*>(r);
    const bool blocks = work.inner.elements >= kBlockSummands;
    const unsigned count = blocks ? static_cast<unsigned>(std::min(work.outer.elements, 65535))
                                  : Blocks(work.outer.elements);
    if (work.float_target) {
      Launch(blocks ? BlockSumKernel<T, float> : SumKernel<T, float>, count, stream, work, a, b, c,
             static_cast<float*>(to));
    } else {
      Launch(blocks ? BlockSumKernel<T, T> : SumKernel<T, T>, count, stream, work, a, b, c,
             static_cast<T*>(to));
    }
  });
}

cudaError_t LaunchUnary(cudaStream_t stream, Element e, const UnaryFunction& f, int32_t elements,
                        const void* x, void* y) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(UnaryKernel<T>, Blocks(elements), stream, f, elements, static_cast<const T*>(x),
           static_cast<T*>(y));
  });
}

cudaError_t LaunchUnaryBackward(cudaStream_t stream, Element e, const UnaryFunction& f, bool add,
                                int32_t elements, const void* from, const void* dy, void* dx) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(UnaryBackwardKernel<T>, Blocks(elements), stream, f, add, elements,
           static_cast<const T*>(from), static_cast<const T*>(dy), static_cast<T*>(dx));
  });
}

}  // namespace capstan::engine::cuda
