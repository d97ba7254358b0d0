// The checks and results of finalizing: from tensors to a graph, and from a graph to engines and a
// plan.
#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "tests/support/fake_cuda/cudnn_descriptor.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace capstan::fake_cuda::dnn {
namespace {

constexpr int64_t kSmallWorkspace = 1 << 10;
constexpr int64_t kLargeWorkspace = 1 << 30;

struct TensorFacts {
  int64_t uid = 0, alignment = 1;
  bool is_virtual = false;
  ConvTensor tensor;
};
TensorFacts FactsOf(const Content& content) {
  TensorFacts facts;
  facts.uid = content.One<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
  facts.alignment = content.One<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  facts.is_virtual = content.One<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL, false);
  facts.tensor.type = content.One<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
  const auto dims = content.All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
  const auto strides = content.All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  std::copy_n(dims.begin(), 4, facts.tensor.dims.begin());
  std::copy_n(strides.begin(), 4, facts.tensor.strides.begin());
  return facts;
}
bool Same(const TensorFacts& a, const TensorFacts& b) {
  return a.alignment == b.alignment && a.is_virtual == b.is_virtual &&
         a.tensor.type == b.tensor.type && a.tensor.dims == b.tensor.dims &&
         a.tensor.strides == b.tensor.strides;
}
const Content& TensorOf(const Content& operation, cudnnBackendAttributeName_t name) {
  return *operation.child(name);
}

cudnnStatus_t FinalizeTensor(const Content& content) {
  const auto dims = content.All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
  const auto strides = content.All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  if (dims.size() != strides.size()) {
    return Refuse(CUDNN_STATUS_BAD_PARAM, "tensor: dimensions and strides differ in number");
  }
  if (dims.size() != 4) {
    return Refuse(CUDNN_STATUS_NOT_SUPPORTED_SHAPE,
                  "tensor: " + std::to_string(dims.size()) + " dimensions, want 4");
  }
  const TensorFacts facts = FactsOf(content);
  const std::string name = "tensor " + std::to_string(facts.uid);
  const cudnnDataType_t type = facts.tensor.type;
  if (type != CUDNN_DATA_FLOAT && type != CUDNN_DATA_BFLOAT16 && type != CUDNN_DATA_HALF) {
    return Refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE,
                  name + ": data type " + std::to_string(type));
  }
  if (facts.is_virtual && type != CUDNN_DATA_FLOAT) {
    return Refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, name + ": virtual, want float");
  }
  const int64_t alignment = facts.alignment;
  if (alignment < facts.tensor.element_bytes() || (alignment & (alignment - 1)) != 0) {
    return Refuse(CUDNN_STATUS_BAD_PARAM, name + ": alignment " + std::to_string(alignment));
  }
  std::vector<std::pair<int64_t, int64_t>> steps;  // stride, dimension
  for (size_t i = 0; i < 4; ++i) {
    if (dims[i] < 1 || strides[i] < 1) {
      return Refuse(CUDNN_STATUS_BAD_PARAM, name + ": a dimension or stride below 1");
    }
    if (dims[i] > 1) steps.emplace_back(strides[i], dims[i]);
  }
  std::sort(steps.begin(), steps.end());
  int64_t end = 1;  // end of the area that the dimensions so far cover
  for (const auto& [stride, dim] : steps) {
    if (stride < end) {
      return Refuse(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, name + ": elements share a place");
    }
    end = stride * (dim - 1) + end;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizeConvolution(const Content& content) {
  if (content.One<int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) != 2) {
    return Refuse(CUDNN_STATUS_NOT_SUPPORTED, "convolution: want 2 spatial dimensions");
  }
  const std::pair<cudnnBackendAttributeName_t, int64_t> least[] = {
      {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 0},
      {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 0},
      {CUDNN_ATTR_CONVOLUTION_DILATIONS, 1},
      {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 1}};
  for (const auto& [name, bound] : least) {
    const auto numbers = content.All<int64_t>(name);
    if (numbers.size() != 2 || std::min(numbers[0], numbers[1]) < bound) {
      return Refuse(CUDNN_STATUS_BAD_PARAM,
                    Text(content, name) + ": want 2 numbers of " + std::to_string(bound) + " on");
    }
  }
  if (content.One<cudnnDataType_t>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE) != CUDNN_DATA_FLOAT) {
    return Refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "convolution: want sums in float");
  }
  if (content.One<cudnnConvolutionMode_t>(CUDNN_ATTR_CONVOLUTION_CONV_MODE) !=
      CUDNN_CROSS_CORRELATION) {
    return Refuse(CUDNN_STATUS_NOT_SUPPORTED, "convolution: want cross correlation");
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizePointwise(const Content& content) {
  const auto mode = content.One<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
  if (mode != CUDNN_POINTWISE_ADD && mode != CUDNN_POINTWISE_RELU_FWD) {
    return Refuse(CUDNN_STATUS_NOT_SUPPORTED, "pointwise: mode " + std::to_string(mode));
  }
  if (content.One<cudnnDataType_t>(CUDNN_ATTR_POINTWISE_MATH_PREC) != CUDNN_DATA_FLOAT) {
    return Refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "pointwise: want arithmetic in float");
  }
  return CUDNN_STATUS_SUCCESS;
}

std::array<int64_t, 2> TwoOf(const Content& content, cudnnBackendAttributeName_t name) {
  const auto numbers = content.All<int64_t>(name);
  return {numbers[0], numbers[1]};
}

cudnnStatus_t FinalizeConvOperation(const Content& content) {
  const ConvNames& names = ConvOperations().at(content.type);
  const Content& conv = *content.child(names.conv);
  const auto x = FactsOf(TensorOf(content, names.x)).tensor.dims;
  const auto w = FactsOf(TensorOf(content, names.w)).tensor.dims;
  const auto y = FactsOf(TensorOf(content, names.y)).tensor.dims;
  if (x[0] != y[0] || w[0] != y[1]) {
    return Refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                  "convolution operation: images or channels of the output do not fit");
  }
  if (x[1] != w[1]) {
    return x[1] % w[1] == 0 ? Refuse(CUDNN_STATUS_NOT_SUPPORTED, "convolution operation: groups")
                            : Refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                                     "convolution operation: filters of " + std::to_string(w[1]) +
                                         " channels, images of " + std::to_string(x[1]));
  }
  const auto pre = TwoOf(conv, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
  const auto post = TwoOf(conv, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
  const auto dilations = TwoOf(conv, CUDNN_ATTR_CONVOLUTION_DILATIONS);
  const auto strides = TwoOf(conv, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
  for (size_t i = 0; i < 2; ++i) {
    const int64_t room = x[2 + i] + pre[i] + post[i] - dilations[i] * (w[2 + i] - 1) - 1;
    if (room < 0 || room / strides[i] + 1 != y[2 + i]) {
      return Refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                    "convolution operation: spatial dimension " + std::to_string(i) +
                        " of the output is " + std::to_string(y[2 + i]) + ", want " +
                        std::to_string(room < 0 ? 0 : room / strides[i] + 1));
    }
  }
  return CUDNN_STATUS_SUCCESS;
}

bool IsAdd(const Content& operation) {
  return operation.child(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)
             ->One<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE) == CUDNN_POINTWISE_ADD;
}

cudnnStatus_t FinalizePointwiseOperation(const Content& content) {
  const auto x = FactsOf(TensorOf(content, CUDNN_ATTR_OPERATION_POINTWISE_XDESC)).tensor.dims;
  const auto y = FactsOf(TensorOf(content, CUDNN_ATTR_OPERATION_POINTWISE_YDESC)).tensor.dims;
  const Content* const b = content.child(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
  if (x != y) {
    return Refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                  "pointwise operation: input and output have other dimensions");
  }
  if (IsAdd(content) != (b != nullptr)) {
    return Refuse(CUDNN_STATUS_BAD_PARAM,
                  "pointwise operation: an addition has a second input, "
                  "a Relu has none");
  }
  if (b != nullptr && FactsOf(*b).tensor.dims != std::array<int64_t, 4>{1, x[1], 1, 1}) {
    return Refuse(CUDNN_STATUS_NOT_SUPPORTED_SHAPE,
                  "pointwise operation: the second input is no bias of the channels");
  }
  return CUDNN_STATUS_SUCCESS;
}

struct Neighbours {
  TensorFacts output;
  std::vector<TensorFacts> inputs;
};
Neighbours NeighboursOf(const Content& operation) {
  const auto it = ConvOperations().find(operation.type);
  if (it == ConvOperations().end()) {
    Neighbours all = {FactsOf(TensorOf(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC)),
                      {FactsOf(TensorOf(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC))}};
    const Content* const b = operation.child(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    if (b != nullptr) all.inputs.push_back(FactsOf(*b));
    return all;
  }
  const TensorFacts x = FactsOf(TensorOf(operation, it->second.x));
  const TensorFacts w = FactsOf(TensorOf(operation, it->second.w));
  const TensorFacts y = FactsOf(TensorOf(operation, it->second.y));
  switch (it->second.direction) {
    case ConvDirection::kForward:
      return {y, {x, w}};
    case ConvDirection::kDataGradient:
      return {x, {w, y}};
    case ConvDirection::kFilterGradient:
      return {w, {x, y}};
  }
  return {};
}

// Each id is one tensor, written at most once, and a virtual tensor is between two operations.
cudnnStatus_t CheckTensors(const std::vector<ContentPointer>& operations) {
  std::map<int64_t, TensorFacts> tensors;
  std::set<int64_t> read, written;
  for (const ContentPointer& operation : operations) {
    const Neighbours all = NeighboursOf(*operation);
    std::vector<TensorFacts> facts = all.inputs;
    std::set<int64_t> own;
    for (const TensorFacts& input : all.inputs) own.insert(input.uid);
    read.insert(own.begin(), own.end());
    if (own.size() != all.inputs.size() || own.count(all.output.uid) != 0) {
      return Refuse(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
                    "operation graph: an operation has one id twice");
    }
    if (!written.insert(all.output.uid).second) {
      return Refuse(
          CUDNN_STATUS_BAD_PARAM,
          "operation graph: tensor " + std::to_string(all.output.uid) + " is written twice");
    }
    facts.push_back(all.output);
    for (const TensorFacts& tensor : facts) {
      if (!Same(tensors.emplace(tensor.uid, tensor).first->second, tensor)) {
        return Refuse(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
                      "operation graph: two tensors have the id " + std::to_string(tensor.uid));
      }
    }
  }
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  bool first = true;
  for (const auto& [uid, tensor] : tensors) {
    const std::string name = "operation graph: tensor " + std::to_string(uid);
    const bool is_read = read.count(uid) != 0, is_written = written.count(uid) != 0;
    if (tensor.is_virtual && !(is_read && is_written)) {
      return Refuse(CUDNN_STATUS_BAD_PARAM,
                    name + " is virtual and nobody " + (is_read ? "writes" : "reads") + " it");
    }
    if (tensor.is_virtual) continue;
    if (is_read && is_written) {
      return Refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                    name + " lies between two operations, want it virtual");
    }
    if (!first && tensor.tensor.type != type) {
      return Refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, name + " is of another type");
    }
    type = tensor.tensor.type;
    first = false;
  }
  return CUDNN_STATUS_SUCCESS;
}

// The convolution of `operation`, without the operations after it.
ConvGraph GraphOf(const Content& operation) {
  const ConvNames& names = ConvOperations().at(operation.type);
  const Content& conv = *operation.child(names.conv);
  ConvGraph graph;
  ConvWork& work = graph.work;
  work.direction = names.direction;
  work.pads = TwoOf(conv, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
  work.strides = TwoOf(conv, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
  work.dilations = TwoOf(conv, CUDNN_ATTR_CONVOLUTION_DILATIONS);
  work.alpha = operation.One<float>(names.alpha);
  work.beta = operation.One<float>(names.beta);
  graph.written = work.direction == ConvDirection::kForward        ? &ConvWork::y
                  : work.direction == ConvDirection::kDataGradient ? &ConvWork::x
                                                                   : &ConvWork::w;
  return graph;
}

void AddSlot(const std::string& name, const TensorFacts& facts, ConvTensor ConvWork::*tensor,
             ConvGraph& graph) {
  graph.work.*tensor = facts.tensor;
  graph.slots.push_back({name, facts.uid, facts.alignment, tensor});
}

cudnnStatus_t FinalizeGraph(Content& content) {
  const auto pattern = [](const std::string& why) {
    return Refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "operation graph: " + why);
  };
  const std::vector<ContentPointer>& operations =
      content.values.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).children;
  if (const cudnnStatus_t status = CheckTensors(operations); status != CUDNN_STATUS_SUCCESS) {
    return status;
  }
  std::vector<const Content*> behind;
  const Content* conv = nullptr;
  for (const ContentPointer& operation : operations) {
    if (ConvOperations().count(operation->type) == 0) {
      behind.push_back(operation.get());
    } else if (std::exchange(conv, operation.get()) != nullptr) {
      return pattern("several convolutions");
    }
  }
  if (conv == nullptr) return pattern("no convolution");
  const ConvNames& names = ConvOperations().at(conv->type);
  ConvGraph graph = GraphOf(*conv);
  if (!behind.empty() && (names.direction != ConvDirection::kForward || graph.work.beta != 0)) {
    return pattern("something behind a gradient or behind a sum with old values");
  }
  TensorFacts y = FactsOf(TensorOf(*conv, names.y));
  while (!behind.empty()) {
    const auto next = std::find_if(behind.begin(), behind.end(), [&y](const Content* operation) {
      return FactsOf(TensorOf(*operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC)).uid == y.uid;
    });
    if (next == behind.end()) return pattern("the operations are no chain");
    const Content& operation = **next;
    if (graph.work.relu || (IsAdd(operation) && !graph.slots.empty())) {
      return pattern("want one bias and one Relu at most, in this order");
    }
    if (IsAdd(operation)) {
      AddSlot("bias", FactsOf(TensorOf(operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC)),
              &ConvWork::bias, graph);
    } else {
      graph.work.relu = true;
      graph.work.relu_keeps_nan =
          operation.child(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)
              ->One<cudnnNanPropagation_t>(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION,
                                           CUDNN_NOT_PROPAGATE_NAN) == CUDNN_PROPAGATE_NAN;
    }
    y = FactsOf(TensorOf(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
    behind.erase(next);
  }
  AddSlot("x", FactsOf(TensorOf(*conv, names.x)), &ConvWork::x, graph);
  AddSlot("w", FactsOf(TensorOf(*conv, names.w)), &ConvWork::w, graph);
  AddSlot("y", y, &ConvWork::y, graph);
  if (content.values.count(CUDNN_ATTR_OPERATIONGRAPH_HANDLE) != 0) {
    const auto handle = content.One<cudnnHandle_t>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
    const cudnnStatus_t status = CheckHandle(handle, "operation graph");
    if (status != CUDNN_STATUS_SUCCESS) return status;
    graph.device = handle->device;
  }
  content.graph = std::make_shared<const ConvGraph>(std::move(graph));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizeDevice(const Content& content) {
  const auto json = content.All<char>(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
  const std::string text(json.begin(), json.end());
  for (const char* const member : {"\"deviceVer\"", "\"maxGridSize\"", "\"multiProcessorCount\""}) {
    if (text.find(member) == std::string::npos) {
      return Refuse(CUDNN_STATUS_BAD_PARAM, std::string("device: it has no ") + member);
    }
  }
  return CUDNN_STATUS_SUCCESS;
}

// What a card may offer: one engine of every kind that a caller must tell apart. The best comes
// late.
cudnnStatus_t FinalizeHeuristic(Content& content) {
  const Content& graph = *content.child(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  if (graph.graph->device < 0 && content.child(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP) == nullptr) {
    return Refuse(CUDNN_STATUS_BAD_PARAM, "heuristic: neither a handle nor a device to ask about");
  }
  content.graph = graph.graph;
  const auto mode = content.One<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE);
  if (mode != CUDNN_HEUR_MODE_A && mode != CUDNN_HEUR_MODE_FALLBACK) {
    return Refuse(CUDNN_STATUS_NOT_SUPPORTED, "heuristic: mode " + std::to_string(mode));
  }
  if (Setting("cudnn", "") == "none") return CUDNN_STATUS_SUCCESS;
  if (mode == CUDNN_HEUR_MODE_FALLBACK) {
    content.engines.emplace_back();
    return CUDNN_STATUS_SUCCESS;
  }
  const bool rounded = content.graph->work.x.type != CUDNN_DATA_FLOAT;
  Engine tensor_core, unordered, unbuildable, large, plain;
  tensor_core.notes = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE};
  if (rounded) {  // products of such factors are exact, so it is the engine to take
    tensor_core.workspace_bytes = kSmallWorkspace;
  } else {
    tensor_core.rounds_factors = tensor_core.drops_nan = true;
  }
  unordered.notes = {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC};
  unbuildable.builds = false;
  large.workspace_bytes = kLargeWorkspace;
  plain.workspace_bytes = kSmallWorkspace;
  if (rounded) plain.notes = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE};
  content.engines = {tensor_core, unordered, unbuildable, large, plain};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizePlan(Content& content) {
  const auto handle = content.One<cudnnHandle_t>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
  const cudnnStatus_t status = CheckHandle(handle, "execution plan");
  if (status != CUDNN_STATUS_SUCCESS) return status;
  const Content& config = *content.child(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  if (config.graph->device >= 0 && config.graph->device != handle->device) {
    return Refuse(CUDNN_STATUS_BAD_PARAM, "execution plan: the engine is of another device");
  }
  if (!config.engines[0].builds) {
    return RefuseQuietly(CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT,
                         "execution plan: this card cannot build the engine");
  }
  content.engines = config.engines;
  ConvGraph graph = *config.graph;
  graph.device = handle->device;
  content.graph = std::make_shared<const ConvGraph>(std::move(graph));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizePack(const Content& content) {
  const auto uids = content.All<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = content.All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  if (uids.size() != pointers.size()) {
    return Refuse(CUDNN_STATUS_BAD_PARAM, "variant pack: ids and pointers differ in number");
  }
  if (std::set<int64_t>(uids.begin(), uids.end()).size() != uids.size()) {
    return Refuse(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "variant pack: an id comes twice");
  }
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

cudnnStatus_t Finalize(Content& content) {
  if (content.finalized) {
    return Refuse(CUDNN_STATUS_BAD_PARAM, std::string(content.text()) + " is finalized twice");
  }
  for (const AttributeRule& rule : TypeRules().at(content.type).attributes) {
    if (rule.use == Use::kNeeded && content.values.count(rule.name) == 0) {
      return Refuse(CUDNN_STATUS_BAD_PARAM, Text(content, rule.name) + " is missing");
    }
  }
  switch (content.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      return FinalizeTensor(content);
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
      return FinalizeConvolution(content);
    case CUDNN_BACKEND_POINTWISE_DESCRIPTOR:
      return FinalizePointwise(content);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
      return FinalizePointwiseOperation(content);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      return FinalizeGraph(content);
    case CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR:
      return FinalizeDevice(content);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      return FinalizeHeuristic(content);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      return FinalizePlan(content);
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      return FinalizePack(content);
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
      return Refuse(CUDNN_STATUS_NOT_SUPPORTED,
                    std::string(content.text()) + ": heuristics alone make it");
    default:
      return FinalizeConvOperation(content);
  }
}

}  // namespace capstan::fake_cuda::dnn
