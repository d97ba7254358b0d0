// How our kernels are written and launched, so that one source serves nvcc and a C++ compiler.
// kernels.cu runs on a card, and on the CPU if a test compiles it without nvcc.
//
// A kernel is a __global__ function that does not name threads itself. It gives the work of each
// element (ForElements), or of each thread of a block between two barriers (EachThread). Variables
// that live longer are __shared__ or the same in all threads. On the CPU a kernel is called once
// per block.
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

inline constexpr int kThreads = 256;  // per block

// Blocks for a kernel of ForElements: at least one, because a launch needs one, and at most as many
// as fill every current card. The kernel's loop handles the rest.
inline unsigned Blocks(int64_t elements) {
  return static_cast<unsigned>(std::clamp<int64_t>((elements + kThreads - 1) / kThreads, 1, 2048));
}

#ifdef __CUDACC__

__device__ __forceinline__ unsigned BlockIndex() { return blockIdx.x; }
__device__ __forceinline__ unsigned BlockCount() { return gridDim.x; }

// Calls body(i) for every i below `elements`, once over the whole grid. 64 bits, because i + the
// grid may exceed 2^31.
template <typename Body>
__device__ __forceinline__ void ForElements(int64_t elements, Body body) {
#pragma unroll 1  // a count of rounds would be a division of 64 bits; most threads have one round
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements;
       i += int64_t{gridDim.x} * kThreads) {
    body(i);
  }
}

// Calls body(thread) in every thread of the block, followed by a barrier. All threads of the block
// must call this.
template <typename Body>
__device__ __forceinline__ void EachThread(Body body) {
  body(static_cast<int>(threadIdx.x));
  __syncthreads();
}

// The next cudaGetLastError returns the error.
template <typename... Parameters, typename... Arguments>
void Launch(void (*kernel)(Parameters...), unsigned blocks, cudaStream_t stream,
            Arguments... arguments) {
  kernel<<<blocks, kThreads, 0, stream>>>(arguments...);
}

#else

// The block that this CPU thread runs.
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

// Functions of nvcc that our kernels use.
inline float __fadd_rn(float a, float b) { return a + b; }
inline int64_t clock64() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// Code that compiles kernels without nvcc must define it. It calls run_block(0) to run_block(blocks
// - 1) on the stream. `pointers` are the kernel's pointer arguments. As with <<<>>>, the next
// cudaGetLastError returns the error.
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
