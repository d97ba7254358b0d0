// Errors of the CUDA libraries as Status, with call, code, text and device. Cheap if nothing
// failed.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_CUDA_STATUS_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_CUDA_STATUS_H_

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace capstan::engine::cuda {

// abi.h calls this ABORTED.
inline absl::Status HostOutOfMemory(absl::string_view text) { return absl::AbortedError(text); }

// Internal: the card or a library failed; ResourceExhausted: it had no memory.
inline absl::Status DeviceError(bool out_of_memory, int device, absl::string_view text) {
  const std::string whole = absl::StrCat(text, " on GPU ", device);
  return out_of_memory ? absl::ResourceExhaustedError(whole) : absl::InternalError(whole);
}

inline int CurrentDevice() {
  int device = -1;
  cudaGetDevice(&device);
  return device;
}

inline std::string ErrorText(const char* call, cudaError_t error) {
  return absl::StrCat(call, ": ", static_cast<int>(error), " ", cudaGetErrorName(error), " (",
                      cudaGetErrorString(error), ")");
}

inline absl::Status ToStatus(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  return DeviceError(error == cudaErrorMemoryAllocation, CurrentDevice(), ErrorText(call, error));
}

inline absl::Status ToStatus(const char* call, cudnnStatus_t status) {
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  char last[512] = "";
  cudnnGetLastErrorString(last, sizeof last);
  return DeviceError(status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED,
                     CurrentDevice(),
                     absl::StrCat(call, ": ", static_cast<int>(status), " ",
                                  cudnnGetErrorString(status), " ", last));
}

inline absl::Status ToStatus(const char* call, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return DeviceError(
      status == CUBLAS_STATUS_ALLOC_FAILED, CurrentDevice(),
      absl::StrCat(call, ": ", static_cast<int>(status), " ", cublasLtGetStatusName(status), " (",
                   cublasLtGetStatusString(status), ")"));
}

inline absl::Status ToStatus(const char* /*call*/, absl::Status status) { return status; }

// cudaSetDevice. The error names the requested device.
inline absl::Status UseDevice(int device) {
  const cudaError_t error = cudaSetDevice(device);
  if (error == cudaSuccess) return absl::OkStatus();
  return DeviceError(false, device, ErrorText("cudaSetDevice", error));
}

}  // namespace capstan::engine::cuda

// Returns from the function if a call of CUDA, cuDNN or cuBLASLt failed; the message contains the
// call's text. Without this macro half of all lines would be this check.
#define CAPSTAN_CUDA_RETURN(call)                                                         \
  do {                                                                                    \
    const absl::Status capstan_status = ::capstan::engine::cuda::ToStatus(#call, (call)); \
    if (!capstan_status.ok()) return capstan_status;                                      \
  } while (false)

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_CUDA_STATUS_H_
