// The exported factory of libcapstan_cuda.so and its table.
#include <cudnn.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gpu_worker/engine/cuda/cuda_plan.h"
#include "gpu_worker/engine/cuda/cuda_status.h"
#include "gpu_worker/engine/cuda/cuda_streams.h"
#include "gpu_worker/engine/plugin/abi.h"
#include "services/sync/mutex.h"

// The ABI's plan.
struct capstan_plan {
  std::unique_ptr<capstan::engine::cuda::CudaPlan> plan;
};

// The ABI's group.
struct capstan_group {
  std::unique_ptr<capstan::engine::cuda::Group> group;
  std::string summary;
};

namespace capstan::engine::cuda {
namespace {

constexpr int kMaxDevices = 64;

int32_t Answer(const absl::Status& status, capstan_error* error) {
  if (status.ok()) return 0;
  const absl::string_view text = status.message();
  const size_t length = std::min(text.size(), sizeof error->text - 1);
  std::memcpy(error->text, text.data(), length);
  error->text[length] = 0;
  return static_cast<int32_t>(status.code());
}

// No exception crosses the border.
template <typename Call>
int32_t Guard(capstan_error* error, Call call) {
  try {
    return Answer(call(), error);
  } catch (const std::bad_alloc&) {
    return Answer(HostOutOfMemory("the host is out of memory"), error);
  } catch (const std::exception& e) {
    return Answer(absl::InternalError(e.what()), error);
  }
}

std::string Dotted(size_t version, size_t major, size_t minor) {
  return absl::StrCat(version / major, ".", version % major / minor, ".", version % minor);
}

const char* Libraries() {
  static const std::string* const text =
      new std::string(absl::StrCat("CUDA ", CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10,
                                   ", cuDNN ", Dotted(cudnnGetVersion(), 10000, 100), ", cuBLASLt ",
                                   Dotted(cublasLtGetVersion(), 10000, 100)));
  return text->c_str();
}

// A copy of `text` that lives as long as the plug-in is loaded; one copy for equal texts.
const char* Lasting(std::string text) {
  static Mutex& mu = *new Mutex;
  static auto& texts = *new std::set<std::string>;
  MutexLock lock(mu);
  return texts.insert(std::move(text)).first->c_str();
}

int32_t Probe(capstan_probe* probe, capstan_error* error) {
  return Guard(error, [probe]() -> absl::Status {
    // Every driver of a major version runs code that was built for that version.
    *probe = {0, 0, CUDART_VERSION / 1000 * 1000, Libraries()};
    int count = 0, driver = 0;
    CAPSTAN_CUDA_RETURN(cudaDriverGetVersion(&driver));
    probe->driver_version = driver;
    const cudaError_t found = cudaGetDeviceCount(&count);
    if (found == cudaErrorNoDevice) return absl::OkStatus();
    if (found != cudaSuccess) {
      return absl::UnavailableError(absl::StrCat(driver == 0 ? "no NVIDIA driver is loaded: " : "",
                                                 cudaGetErrorString(found), " (",
                                                 cudaGetErrorName(found), ")"));
    }
    probe->device_count = std::min(count, kMaxDevices);
    return absl::OkStatus();
  });
}

// As NVML and nvidia-smi print it: "GPU-" and groups of 4, 2, 2, 2 and 6 bytes in hexadecimal.
std::string UuidText(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (size_t i = 0; i < sizeof uuid.bytes; ++i) {
    const bool group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    absl::StrAppend(&text, group ? "-" : "",
                    absl::Hex(static_cast<uint8_t>(uuid.bytes[i]), absl::kZeroPad2));
  }
  return text;
}

int32_t DeviceInfo(int32_t device, capstan_device_info* info, capstan_error* error) {
  return Guard(error, [device, info]() -> absl::Status {
    int count = 0;
    CAPSTAN_CUDA_RETURN(cudaGetDeviceCount(&count));
    if (device < 0 || device >= std::min(count, kMaxDevices)) {
      return absl::NotFoundError(absl::StrCat("no GPU ", device, ", want 0 to ", count - 1));
    }
    // No cudaSetDevice and no cudaMemGetInfo here. They make a context, which takes memory of the
    // card, or the whole card if it serves one process at a time.
    cudaDeviceProp properties = {};
    CAPSTAN_CUDA_RETURN(cudaGetDeviceProperties(&properties, device));
    *info = {Lasting(absl::StrCat(properties.name, ", compute capability ", properties.major, ".",
                                  properties.minor)),
             static_cast<int64_t>(properties.totalGlobalMem), Lasting(UuidText(properties.uuid))};
    return absl::OkStatus();
  });
}

int32_t Compile(const capstan_compile_request* request, capstan_plan** plan, capstan_error* error) {
  return Guard(error, [request, plan]() -> absl::Status {
    absl::StatusOr<std::unique_ptr<CudaPlan>> made = CudaPlan::Create(*request);
    if (!made.ok()) return made.status();
    *plan = new capstan_plan{*std::move(made)};
    return absl::OkStatus();
  });
}

void PlanInfo(const capstan_plan* plan, capstan_plan_info* info) { plan->plan->Info(info); }

// Freeing waits for the card, which hangs. The object is left behind until the process ends. It
// stays referenced, so that leak checkers do not report it.
template <typename T>
void LeaveBehind(T* object) {
  static Mutex& mu = *new Mutex;
  static auto& left = *new std::vector<T*>;
  MutexLock lock(mu);
  left.push_back(object);
}

void FreePlan(capstan_plan* plan) {
  if (plan != nullptr && plan->plan->abandoned()) return LeaveBehind(plan);
  delete plan;
}

int32_t LoadWeights(capstan_plan* plan, const float* weights, capstan_error* error) {
  return Guard(error, [=] { return plan->plan->LoadWeights(weights); });
}

int32_t ComputeLane(capstan_plan* plan, const capstan_batch* batch, double loss_scale,
                    float* gradient, capstan_result* result, capstan_error* error) {
  return Guard(error, [=] {
    return plan->plan->Run(Pass::kTrain, *batch, loss_scale, gradient, nullptr, result);
  });
}

int32_t Evaluate(capstan_plan* plan, const capstan_batch* batch, capstan_result* result,
                 capstan_error* error) {
  return Guard(
      error, [=] { return plan->plan->Run(Pass::kEvaluate, *batch, 1, nullptr, nullptr, result); });
}

int32_t Predict(capstan_plan* plan, const capstan_batch* batch, float* logits,
                capstan_error* error) {
  return Guard(
      error, [=] { return plan->plan->Run(Pass::kPredict, *batch, 1, nullptr, logits, nullptr); });
}

int32_t MakeGroup(const capstan_group_request* request, capstan_group** group,
                  capstan_error* error) {
  return Guard(error, [request, group]() -> absl::Status {
    std::vector<GroupMember> members;
    std::vector<CudaPlan*> plans;
    for (int i = 0; i < request->plan_count; ++i) {
      CudaPlan* const plan = request->plans[i]->plan.get();
      members.push_back({plan->device(), plan->program().total_floats});
      plans.push_back(plan);
    }
    absl::Status status = CheckGroup(*request, members);
    if (!status.ok()) return status;
    std::string summary;
    absl::StatusOr<std::unique_ptr<GroupStreams>> streams = MakeCudaStreams(
        std::move(plans), {request->bucket_ends, request->bucket_ends + request->bucket_count},
        request->deterministic != 0, &summary);
    if (!streams.ok()) return streams.status();
    auto made = std::make_unique<Group>(*std::move(streams), *request);
    status = made->Reserve();
    if (!status.ok()) return status;
    *group = new capstan_group{std::move(made), summary};
    return absl::OkStatus();
  });
}

void GroupInfo(const capstan_group* group, capstan_group_info* info) {
  *info = {group->group->reduces(), group->summary.c_str(), group->group->device_bytes().data()};
}
void FreeGroup(capstan_group* group) {
  if (group != nullptr && group->group->broken()) return LeaveBehind(group);
  delete group;
}

int32_t GroupLoadWeights(capstan_group* group, const float* weights, const float* state,
                         capstan_error* error) {
  return Guard(error, [=] { return group->group->LoadWeights(weights, state); });
}

int32_t GroupCompute(capstan_group* group, const capstan_group_step* step, capstan_error* error) {
  return Guard(error, [=] { return group->group->Compute(*step); });
}

int32_t GroupUpdate(capstan_group* group, const capstan_update* update, capstan_error* error) {
  return Guard(error, [=] { return group->group->Update(*update); });
}

int32_t GroupReadWeights(capstan_group* group, float* weights, float* state, capstan_error* error) {
  return Guard(error, [=] { return group->group->ReadWeights(weights, state); });
}

int32_t KeepImages(capstan_plan* plan, const float* images, int64_t first, int64_t count,
                   int64_t whole, capstan_error* error) {
  return Guard(error, [=] { return plan->plan->KeepImages(images, first, count, whole); });
}

constexpr capstan_plugin_table kTable = {CAPSTAN_PLUGIN_ABI,
                                         sizeof(capstan_plugin_table),
                                         Probe,
                                         DeviceInfo,
                                         Compile,
                                         PlanInfo,
                                         FreePlan,
                                         LoadWeights,
                                         ComputeLane,
                                         Evaluate,
                                         Predict,
                                         MakeGroup,
                                         GroupInfo,
                                         FreeGroup,
                                         GroupLoadWeights,
                                         GroupCompute,
                                         GroupUpdate,
                                         GroupReadWeights,
                                         KeepImages};

}  // namespace
}  // namespace capstan::engine::cuda

extern "C" __attribute__((visibility("default"))) const capstan_plugin_table* capstan_plugin() {
  return &capstan::engine::cuda::kTable;
}
