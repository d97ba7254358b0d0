#include "gpu_worker/engine/cuda/cudnn_graph.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/engine/cuda/cuda_status.h"

namespace capstan::engine::cuda {
namespace {

static_assert(static_cast<int>(EngineNote::kTensorCore) == CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
static_assert(static_cast<int>(EngineNote::kDownConvertInputs) ==
              CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
static_assert(static_cast<int>(EngineNote::kReducedPrecisionReduction) ==
              CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION);
static_assert(static_cast<int>(EngineNote::kFft) == CUDNN_NUMERICAL_NOTE_FFT);
static_assert(static_cast<int>(EngineNote::kNondeterministic) ==
              CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
static_assert(static_cast<int>(EngineNote::kWinograd) == CUDNN_NUMERICAL_NOTE_WINOGRAD);
static_assert(static_cast<int>(EngineNote::kWinogradTile4x4) ==
              CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4);
static_assert(static_cast<int>(EngineNote::kWinogradTile6x6) ==
              CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6);
static_assert(static_cast<int>(EngineNote::kWinogradTile13x13) ==
              CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13);
static_assert(static_cast<int>(EngineNote::kStrictNanPropagation) ==
              CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP);

// The names of tensors in a graph. kX also stands for dx, and so on.
enum Uid : int64_t { kX = 1, kW = 2, kBias = 3, kY = 4, kConvOut = 5, kBiasOut = 6 };

constexpr int64_t kMaxCandidates = 64;

// A descriptor, and the first error of its calls.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    status_ =
        ToStatus("cudnnBackendCreateDescriptor", cudnnBackendCreateDescriptor(type, &descriptor_));
  }
  Descriptor(Descriptor&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, nullptr)), status_(std::move(other.status_)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(status_, other.status_);
    return *this;
  }
  ~Descriptor() {
    if (descriptor_ != nullptr) cudnnBackendDestroyDescriptor(descriptor_);
  }

  cudnnBackendDescriptor_t get() const { return descriptor_; }
  const absl::Status& status() const { return status_; }

  template <typename T>
  Descriptor& Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  const T* values, int64_t count) {
    if (!status_.ok()) return *this;
    status_ = ToStatus("cudnnBackendSetAttribute",
                       cudnnBackendSetAttribute(descriptor_, name, type, count, values));
    if (!status_.ok()) {
      status_ = absl::InternalError(
          absl::StrCat("attribute ", static_cast<int>(name), ": ", status_.message()));
    }
    return *this;
  }
  template <typename T>
  Descriptor& Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  const T& value) {
    return Set(name, type, &value, 1);
  }
  // Also takes over the other descriptor's error.
  Descriptor& Set(cudnnBackendAttributeName_t name, const Descriptor& other) {
    if (status_.ok()) status_ = other.status();
    const cudnnBackendDescriptor_t value = other.get();
    return Set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &value, 1);
  }
  Descriptor& Finalize() {
    if (status_.ok()) {
      status_ = ToStatus("cudnnBackendFinalize", cudnnBackendFinalize(descriptor_));
    }
    return *this;
  }

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
  absl::Status status_;
};

cudnnDataType_t ElementType(const KernelRules& rules) {
  return rules.precision == CAPSTAN_PRECISION_BF16   ? CUDNN_DATA_BFLOAT16
         : rules.precision == CAPSTAN_PRECISION_FP16 ? CUDNN_DATA_HALF
                                                     : CUDNN_DATA_FLOAT;
}

// Dimensions n, c, h, w in the memory order n, h, w, c; o, i, h, w of filters likewise. Virtual
// tensors are float32.
Descriptor MakeTensor(Uid uid, cudnnDataType_t element, int64_t n, int64_t c, int64_t h, int64_t w,
                      bool is_virtual) {
  const cudnnDataType_t type = is_virtual ? CUDNN_DATA_FLOAT : element;
  const std::array<int64_t, 4> dims = {n, c, h, w};
  const std::array<int64_t, 4> strides = {c * h * w, 1, c * w, c};
  const int64_t id = uid, alignment = 16;
  Descriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.Set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type)
      .Set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, dims.data(), 4)
      .Set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, strides.data(), 4)
      .Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id)
      .Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, alignment)
      .Set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual)
      .Finalize();
  return tensor;
}

Descriptor MakePointwise(cudnnPointwiseMode_t mode, const Descriptor& x, const Descriptor* b,
                         const Descriptor& y) {
  Descriptor pointwise(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  pointwise.Set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode)
      .Set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  if (mode == CUDNN_POINTWISE_RELU_FWD) {
    // Deprecated, but the only way to request that max(NaN, 0) is NaN.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    pointwise.Set(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION,
                  CUDNN_PROPAGATE_NAN);
#pragma GCC diagnostic pop
  }
  pointwise.Finalize();
  Descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pointwise)
      .Set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  if (b != nullptr) operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
  operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y).Finalize();
  return operation;
}

Descriptor MakeConvOperation(const ConvProblem& problem, const Descriptor& x, const Descriptor& w,
                             const Descriptor& y) {
  const WindowGeometry& g = problem.window;
  const std::array<int64_t, 2> strides = {g.stride_h, g.stride_w};
  const std::array<int64_t, 2> dilations = {g.dilation_h, g.dilation_w};
  const std::array<int64_t, 2> before = {g.pad_top, g.pad_left};
  const std::array<int64_t, 2> behind = {g.pad_bottom, g.pad_right};
  const int64_t spatial = 2;
  const float one = 1, zero = 0;
  Descriptor conv(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  conv.Set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, spatial)
      .Set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
      .Set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION)
      .Set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, before.data(), 2)
      .Set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, behind.data(), 2)
      .Set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, dilations.data(), 2)
      .Set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, strides.data(), 2)
      .Finalize();
  // The attributes of the three operations, in the same order.
  struct Names {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t conv, x, w, y, alpha, beta;
  };
  static constexpr Names kNames[] = {
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}};
  const Names& names = kNames[static_cast<int>(problem.pass)];
  Descriptor operation(names.type);
  operation.Set(names.conv, conv)
      .Set(names.x, x)
      .Set(names.w, w)
      .Set(names.y, y)
      .Set(names.alpha, CUDNN_TYPE_FLOAT, one)
      .Set(names.beta, CUDNN_TYPE_FLOAT, zero)
      .Finalize();
  return operation;
}

Descriptor MakeOperationGraph(const CudnnTarget& target, const ConvProblem& problem) {
  const WindowGeometry& g = problem.window;
  const cudnnDataType_t type = ElementType(problem.rules);
  const auto output = [&](Uid uid, bool is_virtual) {
    return MakeTensor(uid, type, problem.n, g.out_c, g.out_h, g.out_w, is_virtual);
  };
  const Descriptor x = MakeTensor(kX, type, problem.n, g.in_c, g.in_h, g.in_w, false);
  // Fewer channels than images have mean groups.
  const Descriptor w =
      MakeTensor(kW, type, g.out_c, g.in_c / g.groups, g.kernel_h, g.kernel_w, false);
  const Descriptor y = output(kY, false);
  const Descriptor conv_out = output(kConvOut, true);
  const Descriptor bias_out = output(kBiasOut, true);
  const Descriptor bias = MakeTensor(kBias, type, 1, g.out_c, 1, 1, false);

  std::vector<Descriptor> operations;
  const bool fused = problem.bias || problem.relu;
  operations.push_back(MakeConvOperation(problem, x, w, fused ? conv_out : y));
  if (problem.bias) {
    operations.push_back(
        MakePointwise(CUDNN_POINTWISE_ADD, conv_out, &bias, problem.relu ? bias_out : y));
  }
  if (problem.relu) {
    operations.push_back(
        MakePointwise(CUDNN_POINTWISE_RELU_FWD, problem.bias ? bias_out : conv_out, nullptr, y));
  }
  std::vector<cudnnBackendDescriptor_t> raw;
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  for (const Descriptor& operation : operations) {
    if (!operation.status().ok()) {
      // Set() would query a descriptor that does not exist.
      Descriptor failed;
      failed.Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
      return failed;
    }
    raw.push_back(operation.get());
  }
  if (target.handle != nullptr) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    graph.Set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
#pragma GCC diagnostic pop
  }
  graph
      .Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, raw.data(),
           static_cast<int64_t>(raw.size()))
      .Finalize();
  return graph;
}

Descriptor MakeDeviceProperties(const std::string& json) {
  Descriptor properties(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  properties
      .Set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, json.data(),
           static_cast<int64_t>(json.size()))
      .Finalize();
  return properties;
}

// Engine configurations, best first: those of the heuristic, then those that always work.
absl::StatusOr<std::vector<Descriptor>> EngineConfigs(const CudnnTarget& target,
                                                      const Descriptor& graph) {
  std::vector<Descriptor> configs;
  absl::Status last;
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    Descriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    heuristic.Set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
        .Set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
    Descriptor properties;
    if (target.handle == nullptr) {
      properties = MakeDeviceProperties(target.device_json);
      heuristic.Set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, properties);
    }
    heuristic.Finalize();
    if (!heuristic.status().ok()) {
      last = heuristic.status();
      continue;  // a mode may not support a graph
    }
    std::vector<Descriptor> found;
    std::vector<cudnnBackendDescriptor_t> raw;
    for (int64_t i = 0; i < kMaxCandidates; ++i) {
      found.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
      if (!found.back().status().ok()) return found.back().status();
      raw.push_back(found.back().get());
    }
    int64_t count = 0;
    last = ToStatus("cudnnBackendGetAttribute(ENGINEHEUR_RESULTS)",
                    cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                             CUDNN_TYPE_BACKEND_DESCRIPTOR, kMaxCandidates, &count,
                                             raw.data()));
    if (!last.ok()) continue;
    for (int64_t i = 0; i < count; ++i) configs.push_back(std::move(found[i]));
  }
  if (configs.empty() && !last.ok()) return last;
  return configs;
}

absl::StatusOr<EngineCandidate> Describe(const Descriptor& config, const KernelRules& rules) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  if (!engine.status().ok()) return engine.status();
  cudnnBackendDescriptor_t raw = engine.get();
  int64_t count = 0;
  CAPSTAN_CUDA_RETURN(cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                               CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw));
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes = {};
  CAPSTAN_CUDA_RETURN(cudnnBackendGetAttribute(
      engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
      static_cast<int64_t>(notes.size()), &count, notes.data()));
  EngineCandidate candidate;
  for (int64_t i = 0; i < count; ++i) {
    candidate.notes.push_back(static_cast<EngineNote>(notes[static_cast<size_t>(i)]));
  }
  candidate.allowed = EngineAllowed(candidate.notes, rules);
  return candidate;
}

// Only for a target without a card. With one, the plan of an engine says what it needs.
absl::Status DescribeNeeds(const Descriptor& config, EngineCandidate& candidate) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  if (!engine.status().ok()) return engine.status();
  cudnnBackendDescriptor_t raw = engine.get();
  int64_t count = 0;
  CAPSTAN_CUDA_RETURN(cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                               CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw));
  CAPSTAN_CUDA_RETURN(cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_GLOBAL_INDEX,
                                               CUDNN_TYPE_INT64, 1, &count, &candidate.engine));
  CAPSTAN_CUDA_RETURN(cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE,
                                               CUDNN_TYPE_INT64, 1, &count,
                                               &candidate.workspace_bytes));
  return absl::OkStatus();
}

class CudnnConvImpl : public CudnnConv {
 public:
  CudnnConvImpl(cudnnHandle_t handle, Descriptor graph, Descriptor config, Descriptor plan,
                bool bias, std::string description)
      : handle_(handle),
        graph_(std::move(graph)),
        config_(std::move(config)),
        plan_(std::move(plan)),
        bias_(bias),
        description_(std::move(description)) {}

  absl::Status Run(const void* x, const void* w, const void* bias, const void* y,
                   void* workspace) override {
    std::vector<int64_t> uids = {kX, kW, kY};
    std::vector<const void*> pointers = {x, w, y};
    if (bias_) uids.push_back(kBias), pointers.push_back(bias);
    const auto count = static_cast<int64_t>(uids.size());
    Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.Set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, uids.data(), count)
        .Set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pointers.data(), count)
        .Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace)
        .Finalize();
    if (!pack.status().ok()) return pack.status();
    return ToStatus("cudnnBackendExecute", cudnnBackendExecute(handle_, plan_.get(), pack.get()));
  }

  const std::string& description() const override { return description_; }

 private:
  const cudnnHandle_t handle_;
  const Descriptor graph_, config_, plan_;
  const bool bias_;
  const std::string description_;
};

}  // namespace

absl::StatusOr<std::vector<EngineCandidate>> ConvCandidates(const CudnnTarget& target,
                                                            const ConvProblem& problem) {
  const Descriptor graph = MakeOperationGraph(target, problem);
  if (!graph.status().ok()) return graph.status();
  const absl::StatusOr<std::vector<Descriptor>> configs = EngineConfigs(target, graph);
  if (!configs.ok()) return configs.status();
  std::vector<EngineCandidate> candidates;
  for (const Descriptor& config : *configs) {
    absl::StatusOr<EngineCandidate> candidate = Describe(config, problem.rules);
    if (!candidate.ok()) return candidate.status();
    if (target.handle == nullptr) {
      const absl::Status needs = DescribeNeeds(config, *candidate);
      if (!needs.ok()) return needs;
    }
    candidates.push_back(*std::move(candidate));
  }
  return candidates;
}

absl::StatusOr<std::unique_ptr<CudnnConv>> MakeCudnnConv(cudnnHandle_t handle,
                                                         const ConvProblem& problem,
                                                         int64_t workspace_bytes) {
  const CudnnTarget target = {handle, ""};
  Descriptor graph = MakeOperationGraph(target, problem);
  if (!graph.status().ok()) return absl::NotFoundError(graph.status().message());
  absl::StatusOr<std::vector<Descriptor>> configs = EngineConfigs(target, graph);
  if (!configs.ok()) return absl::NotFoundError(configs.status().message());
  std::string why = "cuDNN has no engine that the rules allow";
  for (size_t i = 0; i < configs->size(); ++i) {
    Descriptor& config = (*configs)[i];
    const absl::StatusOr<EngineCandidate> candidate = Describe(config, problem.rules);
    if (!candidate.ok() || !candidate->allowed) continue;
    Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    plan.Set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle);
#pragma GCC diagnostic pop
    plan.Set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config).Finalize();
    if (!plan.status().ok()) {
      why = std::string(plan.status().message());
      continue;
    }
    int64_t needed = 0, count = 0;
    CAPSTAN_CUDA_RETURN(cudnnBackendGetAttribute(plan.get(),
                                                 CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                 CUDNN_TYPE_INT64, 1, &count, &needed));
    if (needed > workspace_bytes) {
      why = absl::StrCat("an engine needs a workspace of ", needed, " bytes, want ",
                         workspace_bytes, " at most");
      continue;
    }
    std::string description = absl::StrCat("cuDNN candidate ", i, " of ", configs->size());
    return std::unique_ptr<CudnnConv>(
        std::make_unique<CudnnConvImpl>(handle, std::move(graph), std::move(config),
                                        std::move(plan), problem.bias, std::move(description)));
  }
  return absl::NotFoundError(why);
}

}  // namespace capstan::engine::cuda
