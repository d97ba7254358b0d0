#include "gpu_worker/engine/cuda/nccl_library.h"

#include <dlfcn.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"

namespace capstan::engine::cuda {

absl::Status NcclLibrary::ToStatus(const char* call, ncclResult_t result) const {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, ": ", static_cast<int>(result), " ",
                                          get_error_string(result), " (", get_last_error(nullptr),
                                          ")"));
}

absl::StatusOr<const NcclLibrary*> LoadNccl(const char* file) {
  void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const error = dlerror();
    return absl::UnavailableError(
        absl::StrCat("NCCL sums between GPUs if training.deterministic is false, but it cannot "
                     "be opened: ",
                     error == nullptr ? file : error));
  }
  auto nccl = std::make_unique<NcclLibrary>();
  std::string missing;
  const auto find = [library, &missing](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) missing = name;
  };
  find("ncclGetVersion", nccl->get_version);
  find("ncclCommInitAll", nccl->comm_init_all);
  find("ncclCommDestroy", nccl->comm_destroy);
  find("ncclCommGetAsyncError", nccl->comm_get_async_error);
  find("ncclGetErrorString", nccl->get_error_string);
  find("ncclGetLastError", nccl->get_last_error);
  find("ncclGroupStart", nccl->group_start);
  find("ncclGroupEnd", nccl->group_end);
  find("ncclReduce", nccl->reduce);
  find("ncclReduceScatter", nccl->reduce_scatter);
  if (!missing.empty()) {
    return absl::UnavailableError(absl::StrCat(file, " has no ", missing, ": it is too old"));
  }
  return nccl.release();  // never freed, because the library stays loaded
}

}  // namespace capstan::engine::cuda
