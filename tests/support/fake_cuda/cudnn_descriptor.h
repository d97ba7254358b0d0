// The objects behind cuDNN's opaque pointers in the stand-in: the attributes that were set, by
// name, and the results of finalizing.
#ifndef CAPSTAN_TESTS_SUPPORT_FAKE_CUDA_CUDNN_DESCRIPTOR_H_
#define CAPSTAN_TESTS_SUPPORT_FAKE_CUDA_CUDNN_DESCRIPTOR_H_

#include <cudnn.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/fake_cuda/cudnn_conv.h"

struct cudnnContext {
  volatile uint64_t mark = 0;
  int device = -1;
  cudaStream_t stream = nullptr;
};

namespace capstan::fake_cuda::dnn {

// Marks each object that a caller holds, until it is destroyed.
inline constexpr uint64_t kAlive = 0x6361707374616e3f;

// Stores the reason for cudnnGetLastErrorString and prints it to stderr.
cudnnStatus_t Refuse(cudnnStatus_t status, const std::string& why);
// For refusals that a card also gives and that are no mistake of the caller. Does not print to
// stderr.
cudnnStatus_t RefuseQuietly(cudnnStatus_t status, const std::string& why);
// The reason of the calling thread's last refusal.
const std::string& LastWords();

// Attributes that the caller must set, that it may set, and that are made here and are read-only.
enum class Use { kNeeded, kOptional, kMade };

struct AttributeRule {
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  Use use = Use::kNeeded;
  int64_t most = 1;  // elements; at least one
  std::vector<cudnnBackendDescriptorType_t> children = {};
};
struct TypeRule {
  const char* text;
  std::vector<AttributeRule> attributes;
};
// The rules of every type that can be made.
const std::map<cudnnBackendDescriptorType_t, TypeRule>& TypeRules();

// The three convolutions differ only in the names of their attributes.
struct ConvNames {
  ConvDirection direction;
  cudnnBackendAttributeName_t conv, x, w, y, alpha, beta;
};
const std::map<cudnnBackendDescriptorType_t, ConvNames>& ConvOperations();

struct Engine {
  std::vector<cudnnBackendNumericalNote_t> notes;
  int64_t workspace_bytes = 0;
  bool builds = true;
  bool rounds_factors = false;
  bool drops_nan = false;
};

// A tensor of a plan, and the place for its pointer.
struct Slot {
  std::string name;
  int64_t uid = 0, alignment = 1;
  ConvTensor ConvWork::*tensor = nullptr;
};
struct ConvGraph {
  ConvWork work;  // without its pointers
  std::vector<Slot> slots;
  const ConvTensor ConvWork::*written = nullptr;
  int device = -1;  // of the handle; -1: there was no handle
};

struct Content;
using ContentPointer = std::shared_ptr<const Content>;
struct Value {
  int64_t count = 0;
  std::vector<char> bytes;
  std::vector<ContentPointer> children;
};
// Never changes after it is finalized, since it may outlive the descriptor as part of another.
struct Content {
  cudnnBackendDescriptorType_t type = CUDNN_BACKEND_TENSOR_DESCRIPTOR;
  bool finalized = false;
  std::map<cudnnBackendAttributeName_t, Value> values;
  // Made by finalizing, or for the caller.
  std::shared_ptr<const ConvGraph> graph;
  std::vector<Engine> engines;  // all for a heuristic, else one

  const char* text() const { return TypeRules().at(type).text; }
  template <typename T>
  std::vector<T> All(cudnnBackendAttributeName_t name) const {
    const auto it = values.find(name);
    if (it == values.end()) return {};
    std::vector<T> all(static_cast<size_t>(it->second.count));
    std::memcpy(all.data(), it->second.bytes.data(), it->second.bytes.size());
    return all;
  }
  template <typename T>
  T One(cudnnBackendAttributeName_t name, T otherwise = T()) const {
    const auto it = values.find(name);
    if (it != values.end()) {
      std::memcpy(&otherwise, it->second.bytes.data(), it->second.bytes.size());
    }
    return otherwise;
  }
  const Content* child(cudnnBackendAttributeName_t name) const {
    const auto it = values.find(name);
    return it == values.end() ? nullptr : it->second.children[0].get();
  }
};

struct Descriptor {
  volatile uint64_t mark = kAlive;
  std::shared_ptr<Content> content = std::make_shared<Content>();
};

// Null if `pointer` is not a descriptor.
Descriptor* Live(cudnnBackendDescriptor_t pointer);
bool IsLive(cudnnHandle_t handle);
// Requires a live handle of the current device, because cuDNN launches on the current device.
cudnnStatus_t CheckHandle(cudnnHandle_t handle, const std::string& call);
// "tensor: attribute 901".
std::string Text(const Content& content, cudnnBackendAttributeName_t name);

// These do the calls of the same names on a live descriptor. The caller of Finalize sets the flag.
cudnnStatus_t Set(Content& content, cudnnBackendAttributeName_t name,
                  cudnnBackendAttributeType_t type, int64_t count, const void* elements);
cudnnStatus_t Get(const Content& content, cudnnBackendAttributeName_t name,
                  cudnnBackendAttributeType_t type, int64_t requested, int64_t* count,
                  void* elements);
cudnnStatus_t Finalize(Content& content);

}  // namespace capstan::fake_cuda::dnn

#endif  // CAPSTAN_TESTS_SUPPORT_FAKE_CUDA_CUDNN_DESCRIPTOR_H_
