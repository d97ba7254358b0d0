// cuDNN's graph API as far as the plug-in's convolutions need it: one forward convolution with a
// bias and a Relu after it, or one of its gradients.
//
// A descriptor holds the attributes that were set, by name, and finalizing checks them. Codes are
// those of cuDNN 9.19 if it also refuses. Some things are refused only here, since no document says
// what they do: a child of another type or not finalized, a virtual tensor that nobody writes or
// reads, one id in two places, a heuristic without a device, results into a descriptor that cannot
// take them, and pointers that the stream's device does not reach or that overlap.
//
// CAPSTAN_FAKE_CUDA: with cudnn=none there is no engine; with cudnn=fails every execution fails;
// with cudnn=fails:9 the ninth fails.
//
// There is no lock: descriptors and handles belong to one thread at a time, and a lock would order
// threads that ThreadSanitizer should watch.
#include <cudnn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/cudnn_conv.h"
#include "tests/support/fake_cuda/cudnn_descriptor.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace capstan::fake_cuda::dnn {
namespace {

// More than any known library requires.
constexpr int64_t kWorkspaceAlign = 256;

constexpr std::pair<cudnnStatus_t, const char*> kNames[] = {
    {CUDNN_STATUS_SUCCESS, "CUDNN_STATUS_SUCCESS"},
    {CUDNN_STATUS_NOT_INITIALIZED, "CUDNN_STATUS_NOT_INITIALIZED"},
    {CUDNN_STATUS_BAD_PARAM, "CUDNN_STATUS_BAD_PARAM"},
    {CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "CUDNN_STATUS_BAD_PARAM_NULL_POINTER"},
    {CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER"},
    {CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED"},
    {CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH, "CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH"},
    {CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH"},
    {CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES"},
    {CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE"},
    {CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE"},
    {CUDNN_STATUS_NOT_SUPPORTED, "CUDNN_STATUS_NOT_SUPPORTED"},
    {CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN"},
    {CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "CUDNN_STATUS_NOT_SUPPORTED_SHAPE"},
    {CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE"},
    {CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "CUDNN_STATUS_NOT_SUPPORTED_LAYOUT"},
    {CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT,
     "CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT"},
    {CUDNN_STATUS_EXECUTION_FAILED, "CUDNN_STATUS_EXECUTION_FAILED"},
    {CUDNN_STATUS_EXECUTION_FAILED_CUDART, "CUDNN_STATUS_EXECUTION_FAILED_CUDART"}};

cudnnStatus_t NoDescriptor(cudnnBackendDescriptor_t pointer, const std::string& call) {
  return pointer == nullptr ? Refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, call + ": no descriptor")
                            : Refuse(CUDNN_STATUS_BAD_PARAM,
                                     call + ": a descriptor that is destroyed or was none");
}

bool IsAligned(const void* pointer, int64_t alignment) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(alignment) == 0;
}

struct Range {
  std::string name;
  const char* begin;
  int64_t bytes;
};

// Puts the pointers of the pack into their places in the plan.
cudnnStatus_t Bind(const ConvGraph& graph, const Content& pack, ConvWork& work) {
  const auto uids = pack.All<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  if (uids.size() > graph.slots.size()) {
    return Refuse(CUDNN_STATUS_BAD_PARAM, "variant pack: ids that the plan does not have");
  }
  std::vector<Range> read, written;
  for (const Slot& slot : graph.slots) {
    const std::string name = slot.name + " (id " + std::to_string(slot.uid) + ")";
    const auto it = std::find(uids.begin(), uids.end(), slot.uid);
    if (it == uids.end()) return Refuse(CUDNN_STATUS_BAD_PARAM, "variant pack: no " + name);
    void* const data = pointers[static_cast<size_t>(it - uids.begin())];
    if (data == nullptr) {
      return Refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "variant pack: " + name + " is null");
    }
    if (!IsAligned(data, slot.alignment)) {
      return Refuse(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER,
                    "variant pack: " + name + " is not aligned to " +
                        std::to_string(slot.alignment) + " bytes");
    }
    ConvTensor& tensor = work.*slot.tensor;
    tensor.data = data;
    if (!Reaches(graph.device, data, static_cast<size_t>(tensor.bytes()), "cuDNN's " + name)) {
      return RefuseQuietly(CUDNN_STATUS_BAD_PARAM, "variant pack: " + name + " is out of reach");
    }
    (slot.tensor == graph.written ? written : read)
        .push_back({name, static_cast<const char*>(data), tensor.bytes()});
  }
  if (work.workspace_bytes > 0) {
    work.workspace = pack.One<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    if (work.workspace == nullptr) {
      return Refuse(
          CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
          "variant pack: no workspace, want " + std::to_string(work.workspace_bytes) + " bytes");
    }
    if (!IsAligned(work.workspace, kWorkspaceAlign)) {
      return Refuse(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER,
                    "variant pack: the workspace is not aligned to 256 bytes");
    }
    if (!Reaches(graph.device, work.workspace, static_cast<size_t>(work.workspace_bytes),
                 "cuDNN's workspace")) {
      return RefuseQuietly(CUDNN_STATUS_BAD_PARAM, "variant pack: workspace out of reach");
    }
    written.push_back(
        {"workspace", static_cast<const char*>(work.workspace), work.workspace_bytes});
  }
  for (size_t i = 0; i < written.size(); ++i) {
    const Range& a = written[i];
    std::vector<Range> others = read;
    others.insert(others.end(), written.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                  written.end());
    for (const Range& b : others) {
      if (a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes) {
        return Refuse(CUDNN_STATUS_BAD_PARAM,
                      "variant pack: " + a.name + " and " + b.name + " overlap");
      }
    }
  }
  return CUDNN_STATUS_SUCCESS;
}

// "fails": always. "fails:9": the ninth time since the word changed.
bool WantsFailure() {
  thread_local std::string known;
  thread_local int count = 0;
  const std::string word = Setting("cudnn", "");
  if (word != known) known = word, count = 0;
  return word == "fails" || word == "fails:" + std::to_string(++count);
}

cudnnStatus_t Execute(cudnnHandle_t handle, const Content& plan, const Content& pack) {
  if (const cudnnStatus_t status = CheckHandle(handle, "execute"); status != CUDNN_STATUS_SUCCESS) {
    return status;
  }
  if (plan.type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR ||
      pack.type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) {
    return Refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "execute: want a plan and a pack");
  }
  if (!plan.finalized || !pack.finalized) {
    return Refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "execute: plan or pack is not finalized");
  }
  if (plan.graph->device != handle->device) {
    return Refuse(CUDNN_STATUS_BAD_PARAM, "execute: the plan is of another device");
  }
  if (handle->stream == nullptr) {
    return Refuse(CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH, "execute: the handle has no stream");
  }
  const Engine& engine = plan.engines[0];
  ConvWork work = plan.graph->work;
  work.workspace_bytes = engine.workspace_bytes;
  work.rounds_factors = engine.rounds_factors;
  work.relu_keeps_nan = work.relu_keeps_nan && !engine.drops_nan;
  work.moves_last_bits = std::count(engine.notes.begin(), engine.notes.end(),
                                    CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) != 0;
  const cudnnStatus_t status = Bind(*plan.graph, pack, work);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  if (WantsFailure()) {
    return RefuseQuietly(CUDNN_STATUS_EXECUTION_FAILED, "execute: the environment wants a failure");
  }
  // No shared pointer, because its counter would be an edge from the stream to the host.
  if (Enqueue(handle->stream, [work] { RunConv(work); }) != cudaSuccess) {
    return Refuse(CUDNN_STATUS_EXECUTION_FAILED_CUDART, "execute: the stream takes no work");
  }
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace
}  // namespace capstan::fake_cuda::dnn

// ---- the calls ----

namespace dnn = capstan::fake_cuda::dnn;

// NVIDIA's header sets no visibility.
#pragma GCC visibility push(default)
extern "C" {

size_t cudnnGetVersion() { return CUDNN_VERSION; }

const char* cudnnGetErrorString(cudnnStatus_t status) {
  for (const auto& [code, name] : dnn::kNames) {
    if (code == status) return name;
  }
  return "an error that the stand-in does not give";
}

void cudnnGetLastErrorString(char* message, size_t max_size) {
  if (message != nullptr && max_size > 0) {
    std::snprintf(message, max_size, "%s", dnn::LastWords().c_str());
  }
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  if (handle == nullptr) {
    return dnn::Refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "create: no place for a handle");
  }
  auto context = std::make_unique<cudnnContext>();
  if (cudaGetDevice(&context->device) != cudaSuccess) {
    return dnn::Refuse(CUDNN_STATUS_NOT_INITIALIZED, "create: no device is current");
  }
  context->mark = dnn::kAlive;
  *handle = context.release();
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  if (!dnn::IsLive(handle)) {
    return dnn::Refuse(CUDNN_STATUS_BAD_PARAM, "destroy: a handle that is destroyed or was none");
  }
  handle->mark = 0;
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  const cudnnStatus_t status = dnn::CheckHandle(handle, "set stream");
  if (status != CUDNN_STATUS_SUCCESS) return status;
  if (stream == nullptr || capstan::fake_cuda::DeviceOf(stream) != handle->device) {
    return dnn::Refuse(CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH,
                       "set stream: none, or one of another device than the handle");
  }
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  if (descriptor == nullptr) {
    return dnn::Refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "create: no place for a descriptor");
  }
  if (dnn::TypeRules().count(type) == 0) {
    return dnn::Refuse(CUDNN_STATUS_NOT_SUPPORTED,
                       "create: a descriptor of type " + std::to_string(type));
  }
  auto made = std::make_unique<dnn::Descriptor>();
  made->content->type = type;
  *descriptor = made.release();
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t pointer) {
  dnn::Descriptor* const descriptor = dnn::Live(pointer);
  if (descriptor == nullptr) return dnn::NoDescriptor(pointer, "destroy");
  descriptor->mark = 0;
  delete descriptor;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t pointer,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* elements) {
  const dnn::Descriptor* const descriptor = dnn::Live(pointer);
  if (descriptor == nullptr) return dnn::NoDescriptor(pointer, "set attribute");
  return dnn::Set(*descriptor->content, name, type, count, elements);
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const pointer,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested,
                                       int64_t* count, void* elements) {
  const dnn::Descriptor* const descriptor = dnn::Live(pointer);
  if (descriptor == nullptr) return dnn::NoDescriptor(pointer, "get attribute");
  return dnn::Get(*descriptor->content, name, type, requested, count, elements);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t pointer) {
  const dnn::Descriptor* const descriptor = dnn::Live(pointer);
  if (descriptor == nullptr) return dnn::NoDescriptor(pointer, "finalize");
  const cudnnStatus_t status = dnn::Finalize(*descriptor->content);
  if (status == CUDNN_STATUS_SUCCESS) descriptor->content->finalized = true;
  return status;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan_pointer,
                                  cudnnBackendDescriptor_t pack_pointer) {
  const dnn::Descriptor* const plan = dnn::Live(plan_pointer);
  if (plan == nullptr) return dnn::NoDescriptor(plan_pointer, "execute");
  const dnn::Descriptor* const pack = dnn::Live(pack_pointer);
  if (pack == nullptr) return dnn::NoDescriptor(pack_pointer, "execute");
  return dnn::Execute(handle, *plan->content, *pack->content);
}

}  // extern "C"
#pragma GCC visibility pop
