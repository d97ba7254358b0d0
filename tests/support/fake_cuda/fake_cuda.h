// A stand-in for CUDA on machines without a card. Threads of the CPU carry out the calls of the
// run-time library, cuDNN, cuBLASLt and NCCL that the CUDA plug-in makes.
//
// It is built against NVIDIA's own headers, so signatures, enumerations and attributes are the real
// ones. Everything behind them is ours, and as strict as NVIDIA's documents or stricter. A call
// that a card may refuse is refused here, with the reason on stderr.
//
//   - A device is a limited piece of host memory. New memory is full of NaNs.
//   - A stream is a thread. It begins each piece of work after a random delay. Only events, graphs
//     and synchronising calls order the work. So ThreadSanitizer reports a race that would be a
//     race on a card.
//   - A captured graph runs its nodes one after the other, in any order that its edges allow. A
//     race inside it shows as wrong bits. ThreadSanitizer sees it only if the same calls were made
//     without a capture first, as the plug-in does.
//
// It cannot show speed, the memory model inside a kernel, or where NVIDIA's libraries differ from
// their documents.
//
// CAPSTAN_FAKE_CUDA has words between spaces. It is read when a stream is made or a library is
// called:
//   devices=3        default 2
//   bytes=1000000    memory of each device, default 1 GiB
//   peers=none       no device reaches another's memory
//   seed=7           of the random delays; late=0: no delays
//   fault=1:50       the 50th piece of work of the newest stream of device 1 is an illegal access
//                    (700), and every later call fails. With another word, all devices are well
//                    again when the next stream is made.
//   hang=1:50        the same, but that piece of work never ends
//   cudnn=none, lt=none   these libraries have no kernel for anything
//   cudnn=fails:9    the ninth convolution that runs fails; cudnn=fails: every one
//   lt_relu=drops    cuBLASLt turns a NaN into 0
//   nccl=lost        from its second sum on, NCCL has lost a peer
#ifndef CAPSTAN_TESTS_SUPPORT_FAKE_CUDA_FAKE_CUDA_H_
#define CAPSTAN_TESTS_SUPPORT_FAKE_CUDA_FAKE_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace capstan::fake_cuda {

// The value of `word` in the environment, or `otherwise`.
std::string Setting(const std::string& word, const std::string& otherwise);

using Work = std::function<void()>;

// Appends `work` to the stream, or to the graph that the stream captures. It runs later on another
// thread. cudaErrorInvalidResourceHandle: no such stream.
cudaError_t Enqueue(cudaStream_t stream, Work work);
int DeviceOf(cudaStream_t stream);
// On a stream's thread: its world has ended, so hanging work may end, too.
bool IsLeftBehind();

enum class Place { kHost, kPinned, kDevice };
struct Memory {
  Place place = Place::kHost;  // kHost: memory unknown to CUDA
  int device = -1;             // kDevice
  size_t bytes = 0;            // from the pointer to the end of its allocation; 0 for kHost
};
Memory Find(const void* pointer);

// Whether work on a stream of `device` may read and write `bytes` bytes at `pointer`: memory of the
// device or of an enabled peer, or pinned memory. If not, prints to stderr which `what` is wrong.
bool Reaches(int device, const void* pointer, size_t bytes, const std::string& what);

// Stores the error for cudaGetLastError of the calling thread. Prints `why` to stderr unless it is
// empty.
cudaError_t Fail(cudaError_t error, const std::string& why);
// Prints to stderr why a call is refused.
void Complain(const std::string& why);

}  // namespace capstan::fake_cuda

#endif  // CAPSTAN_TESTS_SUPPORT_FAKE_CUDA_FAKE_CUDA_H_
