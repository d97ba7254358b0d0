#include "tests/support/fake_cuda/cudnn_descriptor.h"

#include <algorithm>
#include <utility>

#include "tests/support/fake_cuda/fake_cuda.h"

namespace capstan::fake_cuda::dnn {
namespace {

thread_local std::string last_words;

AttributeRule Child(cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type,
                    Use use = Use::kNeeded) {
  return {name, CUDNN_TYPE_BACKEND_DESCRIPTOR, use, 1, {type}};
}

std::map<cudnnBackendDescriptorType_t, TypeRule> MakeTypeRules() {
  constexpr int64_t kMostPointers = 64, kMostOperations = 16, kMostCharacters = 1 << 20;
  const Use needed = Use::kNeeded, optional = Use::kOptional, made = Use::kMade;
  std::map<cudnnBackendDescriptorType_t, TypeRule> rules = {
      {CUDNN_BACKEND_TENSOR_DESCRIPTOR,
       {"tensor",
        {{CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE},
         {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, needed, CUDNN_DIM_MAX},
         {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, needed, CUDNN_DIM_MAX},
         {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64},
         {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64},
         {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, optional}}}},
      {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR,
       {"convolution",
        {{CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64},
         {CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE},
         {CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE},
         {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, needed, CUDNN_DIM_MAX},
         {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, needed, CUDNN_DIM_MAX},
         {CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, needed, CUDNN_DIM_MAX},
         {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, needed, CUDNN_DIM_MAX}}}},
      {CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
       {"pointwise",
        {{CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE},
         {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE},
         {CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, optional}}}},
      {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
       {"pointwise operation",
        {Child(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_BACKEND_POINTWISE_DESCRIPTOR),
         Child(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
         Child(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_BACKEND_TENSOR_DESCRIPTOR, optional),
         Child(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_BACKEND_TENSOR_DESCRIPTOR)}}},
      {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
       {"operation graph",
        {{CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, optional},
         {CUDNN_ATTR_OPERATIONGRAPH_OPS,
          CUDNN_TYPE_BACKEND_DESCRIPTOR,
          needed,
          kMostOperations,
          {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
           CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
           CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
           CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR}}}}},
      {CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR,
       {"device",
        {{CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, needed, kMostCharacters}}}},
      {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
       {"heuristic",
        {Child(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR),
         {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE},
         Child(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, optional),
         Child(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, made)}}},
      {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
       {"engine configuration",
        {Child(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, made)}}},
      {CUDNN_BACKEND_ENGINE_DESCRIPTOR,
       {"engine", {{CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, made}}}},
      {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
       {"execution plan",
        {{CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE},
         Child(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR),
         {CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, made}}}},
      {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
       {"variant pack",
        {{CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, needed, kMostPointers},
         {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, needed, kMostPointers},
         {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, optional}}}}};
  for (const auto& [type, names] : ConvOperations()) {
    rules[type] = {"convolution operation",
                   {Child(names.conv, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR),
                    Child(names.x, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
                    Child(names.w, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
                    Child(names.y, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
                    {names.alpha, CUDNN_TYPE_FLOAT},
                    {names.beta, CUDNN_TYPE_FLOAT}}};
  }
  return rules;
}
size_t BytesOf(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_CHAR:
    case CUDNN_TYPE_BOOLEAN:
      return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    default:
      return 4;  // float and the enumerations
  }
}

const AttributeRule* RuleOf(const Content& content, cudnnBackendAttributeName_t name) {
  for (const AttributeRule& rule : TypeRules().at(content.type).attributes) {
    if (rule.name == name) return &rule;
  }
  return nullptr;
}

// Puts one engine into each of the caller's descriptors.
cudnnStatus_t Fill(const Content& content, const AttributeRule& rule, int64_t count,
                   cudnnBackendDescriptor_t* descriptors) {
  for (int64_t i = 0; i < count; ++i) {
    const Descriptor* const to = Live(descriptors[i]);
    if (to == nullptr || to->content->type != rule.children[0]) {
      return Refuse(
          CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
          Text(content, rule.name) + ": the place for it is of another type or destroyed");
    }
    if (to->content->finalized) {
      return Refuse(CUDNN_STATUS_BAD_PARAM,
                    Text(content, rule.name) + ": the place for it is taken");
    }
    to->content->graph = content.graph;
    to->content->engines = {content.engines[static_cast<size_t>(i)]};
    to->content->finalized = true;
  }
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

cudnnStatus_t RefuseQuietly(cudnnStatus_t status, const std::string& why) {
  last_words = why;
  return status;
}
cudnnStatus_t Refuse(cudnnStatus_t status, const std::string& why) {
  Complain("cuDNN: " + why);
  return RefuseQuietly(status, why);
}

const std::string& LastWords() { return last_words; }

const std::map<cudnnBackendDescriptorType_t, ConvNames>& ConvOperations() {
  static const auto& operations = *new std::map<cudnnBackendDescriptorType_t, ConvNames>{
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
       {ConvDirection::kForward, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA}},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
       {ConvDirection::kDataGradient, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA}},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
       {ConvDirection::kFilterGradient, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}}};
  return operations;
}

const std::map<cudnnBackendDescriptorType_t, TypeRule>& TypeRules() {
  static const auto& rules = *new std::map<cudnnBackendDescriptorType_t, TypeRule>(MakeTypeRules());
  return rules;
}

Descriptor* Live(cudnnBackendDescriptor_t pointer) {
  auto* const descriptor = static_cast<Descriptor*>(pointer);
  return descriptor != nullptr && descriptor->mark == kAlive ? descriptor : nullptr;
}
bool IsLive(cudnnHandle_t handle) { return handle != nullptr && handle->mark == kAlive; }

cudnnStatus_t CheckHandle(cudnnHandle_t handle, const std::string& call) {
  if (handle == nullptr) {
    return Refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, call + ": no handle");
  }
  if (!IsLive(handle)) {
    return Refuse(CUDNN_STATUS_BAD_PARAM, call + ": a handle that is destroyed or was none");
  }
  int current = -1;
  if (cudaGetDevice(&current) != cudaSuccess || current != handle->device) {
    return Refuse(CUDNN_STATUS_BAD_PARAM, call + ": the handle is of device " +
                                              std::to_string(handle->device) + ", current is " +
                                              std::to_string(current));
  }
  return CUDNN_STATUS_SUCCESS;
}

std::string Text(const Content& content, cudnnBackendAttributeName_t name) {
  return std::string(content.text()) + ": attribute " + std::to_string(name);
}

cudnnStatus_t Set(Content& content, cudnnBackendAttributeName_t name,
                  cudnnBackendAttributeType_t type, int64_t count, const void* elements) {
  const std::string text = Text(content, name);
  const AttributeRule* const rule = RuleOf(content, name);
  if (content.finalized) {
    return Refuse(CUDNN_STATUS_BAD_PARAM, text + " is set after finalizing");
  }
  if (rule == nullptr || rule->use == Use::kMade) {
    return Refuse(CUDNN_STATUS_BAD_PARAM, text + " is none that can be set");
  }
  if (type != rule->type) {
    return Refuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
                  text + ": type " + std::to_string(type) + ", want " + std::to_string(rule->type));
  }
  if (elements == nullptr || count < 1 || count > rule->most) {
    return Refuse(CUDNN_STATUS_BAD_PARAM, text + ": " + std::to_string(count) +
                                              " elements, want 1 to " + std::to_string(rule->most));
  }
  Value value;
  value.count = count;
  const auto* const bytes = static_cast<const char*>(elements);
  value.bytes.assign(bytes, bytes + static_cast<size_t>(count) * BytesOf(type));
  for (int64_t i = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < count; ++i) {
    const Descriptor* const child = Live(static_cast<const cudnnBackendDescriptor_t*>(elements)[i]);
    if (child == nullptr) {
      return Refuse(CUDNN_STATUS_BAD_PARAM, text + " is no descriptor or a destroyed one");
    }
    if (std::count(rule->children.begin(), rule->children.end(), child->content->type) == 0) {
      return Refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
                    text + " is set to this: " + child->content->text());
    }
    if (!child->content->finalized) {
      return Refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, text + " is not finalized");
    }
    value.children.push_back(child->content);
  }
  content.values[name] = std::move(value);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t Get(const Content& content, cudnnBackendAttributeName_t name,
                  cudnnBackendAttributeType_t type, int64_t requested, int64_t* count,
                  void* elements) {
  const std::string text = Text(content, name);
  const AttributeRule* const rule = RuleOf(content, name);
  if (!content.finalized) {
    return Refuse(CUDNN_STATUS_NOT_INITIALIZED, text + " is read before finalizing");
  }
  if (rule == nullptr) return Refuse(CUDNN_STATUS_BAD_PARAM, text + " is none");
  if (rule->use != Use::kMade) {
    return Refuse(CUDNN_STATUS_NOT_SUPPORTED, text + " cannot be read here");
  }
  if (type != rule->type) {
    return Refuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
                  text + ": type " + std::to_string(type) + ", want " + std::to_string(rule->type));
  }
  if (count == nullptr || requested < 0 || (requested > 0 && elements == nullptr)) {
    return Refuse(CUDNN_STATUS_BAD_PARAM, text + ": no place for what is read");
  }
  int64_t available = 1;
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
    available = static_cast<int64_t>(content.engines.size());
  } else if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE) {
    available = static_cast<int64_t>(content.engines[0].notes.size());
  }
  // If none are requested, it returns how many there are.
  *count = requested == 0 ? available : std::min(requested, available);
  if (requested == 0 || available == 0) return CUDNN_STATUS_SUCCESS;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    return Fill(content, *rule, *count, static_cast<cudnnBackendDescriptor_t*>(elements));
  }
  const void* const from = name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE
                               ? static_cast<const void*>(content.engines[0].notes.data())
                               : &content.engines[0].workspace_bytes;
  std::memcpy(elements, from, static_cast<size_t>(*count) * BytesOf(type));
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace capstan::fake_cuda::dnn
