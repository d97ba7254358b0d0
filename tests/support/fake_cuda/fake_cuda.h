// A stand-in for CUDA on machines without a card: the calls of the run-time library, cuDNN,
// cuBLASLt and NCCL that the CUDA plug-in makes, carried out by threads of the CPU.
//
// Built against NVIDIA's own headers, so that signatures, enumerations and attributes are the real
// ones; everything behind them is ours and as strict as NVIDIA's documents, or stricter: a call
// that a card may refuse is refused here, with a line on stderr that says why.
//
//   - A device is a piece of host memory of a limited size, new memory is full of NaNs.
//   - A stream is a thread. It begins each piece of work at a moment of its own choice, late at
//     random, and nothing but events, graphs and the synchronising calls orders it: ThreadSanitizer
//     sees as a race what would be one on a card.
//   - A captured graph runs its nodes in any order that their edges allow, one after the other: a
//     race within it shows as wrong bits, and to ThreadSanitizer only where the same calls were
//     made without a capture first, as the plug-in does.
//
// What it cannot show: speed, the memory model within a kernel, and what NVIDIA's libraries do
// otherwise than they say.
//
// CAPSTAN_FAKE_CUDA, words between spaces, read when a stream is made or a library is asked:
//   devices=3        default 2
//   bytes=1000000    memory of each, default 1 GiB
//   peers=none       no device reaches another's memory
//   seed=7           of the delays; late=0: none
//   fault=1:50       the 50th piece of work of the stream of device 1 that was made last is an
//                    illegal access (700), from then on every call fails; another word, when the
//                    next stream is made: all is well again
//   hang=1:50        the same, but it never ends
//   cudnn=none, lt=none   these libraries have no kernel for anything
//   cudnn=fails:9    the ninth convolution that runs fails; fails: every one
//   lt_relu=drops    cuBLASLt makes 0 of a NaN
//   nccl=lost        from its second sum on NCCL has lost a peer
#ifndef CAPSTAN_TESTS_SUPPORT_FAKE_CUDA_FAKE_CUDA_H_
#define CAPSTAN_TESTS_SUPPORT_FAKE_CUDA_FAKE_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace capstan::fake_cuda {

// What the environment says of `word`, or `otherwise`.
std::string Setting(const std::string& word, const std::string& otherwise);

using Work = std::function<void()>;

// Appends `work` to the stream, or to the graph that the stream captures; it runs later, on another
// thread. cudaErrorInvalidResourceHandle: no such stream.
cudaError_t Enqueue(cudaStream_t stream, Work work);
int DeviceOf(cudaStream_t stream);
// On a stream's thread: its world has ended, and what hangs may end, too.
bool IsLeftBehind();

enum class Place { kHost, kPinned, kDevice };
struct Memory {
  Place place = Place::kHost;  // kHost: memory that CUDA knows nothing of
  int device = -1;             // kDevice
  size_t bytes = 0;            // from the pointer to the end of its allocation; 0 of kHost
};
Memory Find(const void* pointer);

// Whether work on a stream of `device` may read and write `bytes` from `pointer`: memory of the
// device or of an enabled peer, or pinned. Else says on stderr which `what` is wrong.
bool Reaches(int device, const void* pointer, size_t bytes, const std::string& what);

// Remembered for cudaGetLastError, which is of the calling thread; with a line on stderr where
// `why` is said.
cudaError_t Fail(cudaError_t error, const std::string& why);
// Says on stderr why a call is refused.
void Complain(const std::string& why);

}  // namespace capstan::fake_cuda

#endif  // CAPSTAN_TESTS_SUPPORT_FAKE_CUDA_FAKE_CUDA_H_
