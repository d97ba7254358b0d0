// Devices and memory.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "services/sync/mutex.h"
#include "tests/support/fake_cuda/streams.h"

namespace capstan::fake_cuda {
namespace {

constexpr size_t kAlignBytes = 256;  // of cudaMalloc
constexpr size_t kHugePage = 2 << 20;

struct Allocation {
  Place place = Place::kDevice;
  int device = -1;
  size_t bytes = 0;
};

Mutex& AllocationsLock() {
  static Mutex& mu = *new Mutex;
  return mu;
}
// By their first byte. Guarded by AllocationsLock().
std::map<const char*, Allocation>& Allocations() {
  static auto& allocations = *new std::map<const char*, Allocation>;
  return allocations;
}
std::set<std::pair<int, int>>& Peers() {
  static auto& peers = *new std::set<std::pair<int, int>>;
  return peers;
}
thread_local int current_device = 0;

int DeviceCount() { return std::atoi(Setting("devices", "2").c_str()); }
size_t DeviceBytes() { return std::stoull(Setting("bytes", "1073741824")); }
bool IsDevice(int device) { return device >= 0 && device < std::min(DeviceCount(), kMostDevices); }

// By device. Guarded by AllocationsLock().
std::array<size_t, kMostDevices>& TakenBytes() {
  static std::array<size_t, kMostDevices> bytes = {};
  return bytes;
}

size_t FreeBytes(int device) {
  MutexLock lock(AllocationsLock());
  const size_t taken = TakenBytes()[static_cast<size_t>(device)], whole = DeviceBytes();
  return whole > taken ? whole - taken : 0;
}

// memset(memory, 0xff, bytes), hidden from sanitizers, which would take longer than the tests.
void FillUnseen(void* memory, size_t bytes) {
  asm volatile("rep stosb" : "+D"(memory), "+c"(bytes) : "a"(0xff) : "memory");
}

cudaError_t Allocate(Place place, int device, size_t bytes, void** pointer) {
  if (const cudaError_t error = StickyError(current_device); error != cudaSuccess) {
    return Fail(error, "");
  }
  if (ThreadCaptures()) {
    return Fail(cudaErrorStreamCaptureUnsupported, "memory is taken in a capture");
  }
  if (place == Place::kDevice && bytes > FreeBytes(device)) {
    return Fail(cudaErrorMemoryAllocation, "");
  }
  const size_t align = bytes >= kHugePage ? kHugePage : kAlignBytes;
  const size_t rounded = (std::max<size_t>(bytes, 1) + align - 1) / align * align;
  void* const memory = std::aligned_alloc(align, rounded);
  if (memory == nullptr) return Fail(cudaErrorMemoryAllocation, "");
  // Plans with their workspaces come and go. Touching them page by page would take longer than the
  // work.
  if (rounded >= kHugePage) madvise(memory, rounded / kHugePage * kHugePage, MADV_HUGEPAGE);
  FillUnseen(memory, rounded);  // NaNs: reading memory that nobody wrote shows
  MutexLock lock(AllocationsLock());
  Allocations()[static_cast<const char*>(memory)] = {place, device, bytes};
  if (place == Place::kDevice) TakenBytes()[static_cast<size_t>(device)] += bytes;
  *pointer = memory;
  return cudaSuccess;
}

cudaError_t Release(Place place, void* pointer) {
  if (ThreadCaptures()) {
    return Fail(cudaErrorStreamCaptureUnsupported, "memory is freed in a capture");
  }
  if (pointer == nullptr) return cudaSuccess;
  // As on a card, work in progress may still use it.
  WaitForAll();
  {
    MutexLock lock(AllocationsLock());
    const auto found = Allocations().find(static_cast<const char*>(pointer));
    if (found == Allocations().end() || found->second.place != place) {
      return Fail(cudaErrorInvalidValue, "memory is freed that was not taken so");
    }
    if (place == Place::kDevice) {
      TakenBytes()[static_cast<size_t>(found->second.device)] -= found->second.bytes;
    }
    Allocations().erase(found);
  }
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                 cudaStream_t stream) {
  const int device = DeviceOf(stream);
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (device < 0 || !(to_device || from_device)) {
    return Fail(cudaErrorInvalidValue, "a copy on no stream, or of no kind");
  }
  for (const auto& [pointer, on_device, what] :
       {std::make_tuple(static_cast<const void*>(to), to_device, "target of a copy"),
        std::make_tuple(from, from_device, "source of a copy")}) {
    const Memory memory = Find(pointer);
    if ((memory.place == Place::kDevice) != on_device) {
      return Fail(cudaErrorInvalidValue,
                  std::string("the ") + what + " is not where its kind says");
    }
    if (memory.place == Place::kHost) continue;
    if (memory.bytes < bytes) {
      return Fail(cudaErrorInvalidValue, std::string("the ") + what + " is too short");
    }
  }
  const bool pageable = Find(to).place == Place::kHost || Find(from).place == Place::kHost;
  if (!pageable) {
    return Enqueue(stream, [to, from, bytes] { std::memmove(to, from, bytes); });
  }
  if (ThreadCaptures()) {
    return Fail(cudaErrorStreamCaptureUnsupported, "memory that is not pinned in a capture");
  }
  if (to_device) {
    // The call returns once it has read the source.
    auto bytes_of_host = std::make_shared<std::vector<char>>(bytes);
    std::memcpy(bytes_of_host->data(), from, bytes);
    return Enqueue(stream, [to, bytes_of_host] {
      std::memcpy(to, bytes_of_host->data(), bytes_of_host->size());
    });
  }
  const cudaError_t error = Enqueue(stream, [to, from, bytes] { std::memcpy(to, from, bytes); });
  return error == cudaSuccess ? cudaStreamSynchronize(stream) : error;
}

}  // namespace

std::string Setting(const std::string& word, const std::string& otherwise) {
  const char* const text = std::getenv("CAPSTAN_FAKE_CUDA");
  std::istringstream words(text == nullptr ? "" : text);
  for (std::string found; words >> found;) {
    if (found.compare(0, word.size() + 1, word + "=") == 0) return found.substr(word.size() + 1);
  }
  return otherwise;
}

void Complain(const std::string& why) { std::fprintf(stderr, "fake CUDA: %s\n", why.c_str()); }

Memory Find(const void* pointer) {
  MutexLock lock(AllocationsLock());
  const char* const place = static_cast<const char*>(pointer);
  auto next = Allocations().upper_bound(place);
  if (next == Allocations().begin()) return {};
  const auto& [begin, allocation] = *--next;
  const auto offset = static_cast<size_t>(place - begin);
  if (offset >= allocation.bytes) return {};
  return {allocation.place, allocation.device, allocation.bytes - offset};
}

bool Reaches(int device, const void* pointer, size_t bytes, const std::string& what) {
  const Memory memory = Find(pointer);
  if (memory.place == Place::kHost) {
    Complain(what + " is memory that no device reaches");
    return false;
  }
  if (memory.bytes < bytes) {
    Complain(what + " has " + std::to_string(memory.bytes) + " bytes, want " +
             std::to_string(bytes));
    return false;
  }
  if (memory.place == Place::kPinned || memory.device == device) return true;
  MutexLock lock(AllocationsLock());
  if (Peers().count({device, memory.device}) > 0) return true;
  Complain(what + " lies on device " + std::to_string(memory.device) + ", which device " +
           std::to_string(device) + " does not reach");
  return false;
}

}  // namespace capstan::fake_cuda

// ---- the calls ----

namespace fake = capstan::fake_cuda;

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  fake::ReadWorld();
  *count = fake::DeviceCount();
  return *count > 0 ? cudaSuccess : fake::Fail(cudaErrorNoDevice, "");
}
cudaError_t cudaSetDevice(int device) {
  if (!fake::IsDevice(device)) return fake::Fail(cudaErrorInvalidDevice, "no such device");
  fake::current_device = device;
  return fake::StickyError(device);
}
cudaError_t cudaGetDevice(int* device) {
  *device = fake::current_device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!fake::IsDevice(device)) return fake::Fail(cudaErrorInvalidDevice, "no such device");
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "CUDA on the CPU");
  properties->major = 9;
  properties->totalGlobalMem = fake::DeviceBytes();
  properties->uuid.bytes[15] = static_cast<char>(device + 1);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!fake::IsDevice(device)) return fake::Fail(cudaErrorInvalidDevice, "no such device");
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = 1;
      return cudaSuccess;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate:
      *value = 1000000;  // kHz
      return cudaSuccess;
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = 64;
      return cudaSuccess;
    default:
      return fake::Fail(cudaErrorNotSupported, "an attribute of a device");
  }
}
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    default:
      return "cudaError";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "an illegal memory access was encountered"
                                          : "see the line of fake CUDA above";
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return fake::Allocate(fake::Place::kDevice, fake::current_device, bytes, pointer);
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return fake::Allocate(fake::Place::kPinned, -1, bytes, pointer);
}
cudaError_t cudaFree(void* pointer) { return fake::Release(fake::Place::kDevice, pointer); }
cudaError_t cudaFreeHost(void* pointer) { return fake::Release(fake::Place::kPinned, pointer); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* whole) {
  if (const cudaError_t error = fake::StickyError(fake::current_device); error != cudaSuccess) {
    return fake::Fail(error, "");
  }
  *free = fake::FreeBytes(fake::current_device);
  *whole = fake::DeviceBytes();
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return fake::Copy(to, from, bytes, kind, stream);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                size_t bytes, cudaStream_t stream) {
  if (fake::Find(to).device != to_device || fake::Find(from).device != from_device) {
    return fake::Fail(cudaErrorInvalidValue, "a peer copy of memory of other devices");
  }
  return fake::Copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}
cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream) {
  const int device = fake::DeviceOf(stream);
  if (device < 0 || !fake::Reaches(device, pointer, bytes, "what a memset fills")) {
    return fake::Fail(cudaErrorInvalidValue, "");
  }
  return fake::Enqueue(stream, [=] { std::memset(pointer, value, bytes); });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!fake::IsDevice(device) || !fake::IsDevice(peer)) {
    return fake::Fail(cudaErrorInvalidDevice, "no such device");
  }
  *can = device != peer && fake::Setting("peers", "") != "none" ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  int can = 0;
  const cudaError_t error = cudaDeviceCanAccessPeer(&can, fake::current_device, peer);
  if (error != cudaSuccess) return error;
  if (can == 0) return fake::Fail(cudaErrorPeerAccessUnsupported, "no access to that peer");
  capstan::MutexLock lock(fake::AllocationsLock());
  if (!fake::Peers().insert({fake::current_device, peer}).second) {
    return fake::Fail(cudaErrorPeerAccessAlreadyEnabled, "");
  }
  return cudaSuccess;
}
