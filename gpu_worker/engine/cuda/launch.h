// How a kernel of ours is written and launched, so that one source serves nvcc and a C++ compiler:
// kernels.cu runs on a card, and on the CPU where a test compiles it without nvcc.
//
// A kernel is a __global__ function that names no thread itself. It says what each element needs
// (ForElements), or what each thread of a block does between two barriers (EachThread); variables
// that live longer than that are __shared__ or the same in all threads. On the CPU a kernel is
// called once for each block.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_LAUNCH_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#ifndef __CUDACC__
#include <chrono>
#include <functional>
#include <initializer_list>
#include <type_traits>
#endif

namespace capstan::engine::cuda {

inline constexpr int kThreads = 256;  // of a block

// Blocks for a kernel of ForElements: at least one, or there is no launch; at most as many as fill
// every card of these years, the rest is its loop's.
inline unsigned Blocks(int64_t elements) {
  return static_cast<unsigned>(std::clamp<int64_t>((elements + kThreads - 1) / kThreads, 1, 2048));
}

#ifdef __CUDACC__

__device__ __forceinline__ unsigned BlockIndex() { return blockIdx.x; }
__device__ __forceinline__ unsigned BlockCount() { return gridDim.x; }

// body(i) for every i below `elements`, once over the whole grid. 64 bits: i + the grid may pass
// 2^31.
template <typename Body>
__device__ __forceinline__ void ForElements(int64_t elements, Body body) {
#pragma unroll 1  // a count of rounds would be a division of 64 bits; most threads have one round
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements;
       i += int64_t{gridDim.x} * kThreads) {
    body(i);
  }
}

// body(thread) in every thread of the block, then a barrier. All threads of a block come here.
template <typename Body>
__device__ __forceinline__ void EachThread(Body body) {
  body(static_cast<int>(threadIdx.x));
  __syncthreads();
}

// The error is that of the next cudaGetLastError.
template <typename... Parameters, typename... Arguments>
void Launch(void (*kernel)(Parameters...), unsigned blocks, cudaStream_t stream,
            Arguments... arguments) {
  kernel<<<blocks, kThreads, 0, stream>>>(arguments...);
}

#else

// Of the block that this thread of the CPU runs.
struct HostBlock {
  unsigned index = 0, count = 0;
};
inline thread_local HostBlock host_block;
inline unsigned BlockIndex() { return host_block.index; }
inline unsigned BlockCount() { return host_block.count; }

template <typename Body>
void ForElements(int64_t elements, Body body) {
  for (int thread = 0; thread < kThreads; ++thread) {
    for (int64_t i = int64_t{BlockIndex()} * kThreads + thread; i < elements;
         i += int64_t{BlockCount()} * kThreads) {
      body(i);
    }
  }
}

template <typename Body>
void EachThread(Body body) {
  for (int thread = 0; thread < kThreads; ++thread) body(thread);
}

// What nvcc has and kernels of ours use.
inline float __fadd_rn(float a, float b) { return a + b; }
inline int64_t clock64() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// Whoever compiles kernels without nvcc defines it: calls run_block(0) to run_block(blocks - 1) on
// the stream; `pointers` are what the kernel was given. As with <<<>>> the next cudaGetLastError
// has the error.
void LaunchOnHost(cudaStream_t stream, unsigned blocks,
                  std::initializer_list<const volatile void*> pointers,
                  std::function<void(unsigned block)> run_block);

template <typename T>
const volatile void* PointerOf(T value) {
  if constexpr (std::is_pointer_v<T>) {
    return value;
  } else {
    return nullptr;
  }
}

template <typename... Parameters, typename... Arguments>
void Launch(void (*kernel)(Parameters...), unsigned blocks, cudaStream_t stream,
            Arguments... arguments) {
  LaunchOnHost(stream, blocks, {PointerOf(arguments)...}, [=](unsigned block) {
    host_block = {block, blocks};
    kernel(arguments...);
  });
}

#endif

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_LAUNCH_H_
