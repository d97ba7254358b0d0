#include "gpu_worker/engine/cuda/cuda_operations.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gpu_worker/engine/cuda/cuda_status.h"
#include "gpu_worker/engine/cuda/kernels.h"
#include "gpu_worker/engine/cuda/ops/index_kernels.h"
#include "gpu_worker/engine/cuda/ops/walk_kernels.h"

namespace capstan::engine::cuda {
namespace {

const float* Floats(const void* pointer) { return static_cast<const float*>(pointer); }
float* Floats(void* pointer) { return static_cast<float*>(pointer); }
int32_t Narrow(int64_t value) { return static_cast<int32_t>(value); }

bool Missing(const absl::Status& status) { return status.code() == absl::StatusCode::kNotFound; }

}  // namespace

void WidenInPlace(Element element, int64_t count, float* values) {
  if (element == Element::kFloat) return;
  for (int64_t i = count - 1; i >= 0; --i) {
    uint16_t bits = 0;
    std::memcpy(&bits, reinterpret_cast<const char*>(values) + 2 * i, sizeof bits);
    values[i] =
        element == Element::kBf16 ? FloatOf(static_cast<uint32_t>(bits) << 16) : FloatOfFp16(bits);
  }
}

absl::StatusOr<std::unique_ptr<CudaOperations>> CudaOperations::Create(const CardProgram& program,
                                                                       const CudaContext& context,
                                                                       const Walk& walk,
                                                                       int64_t n) {
  auto ops = std::unique_ptr<CudaOperations>(new CudaOperations(program, context, n));
  for (int s = 0; s < static_cast<int>(program.stages.size()); ++s) {
    if (program.stages[s].kind == StageKind::kOperator) ops->MakeOperator(s);
    if (!program.stages[s].linear()) continue;
    const absl::Status status = ops->ChooseForward(s, walk);
    if (!status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("node ", program.stages[s].name, ": ", status.message()));
    }
  }
  return ops;
}

void CudaOperations::MakeOperator(int index) {
  const Stage& stage = program_.stages[index];
  operators_[index] = MakeOpKernel({*program_.graph,
                                    stage,
                                    n_,
                                    context_.element,
                                    context_.stream,
                                    {context_.lt, context_.workspace, context_.rules}});
  lines_.push_back(absl::StrCat(stage.name, ": ", operators_[index]->description()));
}

absl::Status CudaOperations::ChooseForward(int index, const Walk& walk) {
  return program_.stages[index].kind == StageKind::kConv ? ChooseConvForward(index, walk)
                                                         : ChooseDenseForward(index, walk);
}

// Fuses as much as keeps a NaN. Our kernels do the rest of bias and Relu, and the convolution
// itself if cuDNN has none.
absl::Status CudaOperations::ChooseConvForward(int index, const Walk& walk) {
  const Stage& stage = program_.stages[index];
  LinearKernels& kernels = kernels_[index];
  ConvProblem problem;
  problem.window = stage.window;
  problem.n = n_;
  problem.rules = context_.rules;
  struct Fused {
    bool bias, relu;
  };
  std::string how = "own kernel";
  for (const Fused fused : {Fused{true, true}, {true, false}, {false, false}}) {
    // A Relu without a bias cannot be tested for NaNs.
    if ((fused.bias && stage.bias < 0) || (fused.relu && !stage.relu)) continue;
    problem.bias = fused.bias;
    problem.relu = fused.relu;
    absl::StatusOr<std::unique_ptr<CudnnConv>> conv =
        MakeCudnnConv(context_.cudnn, problem, ConvWorkspaceBytes(stage.window, n_));
    if (!conv.ok() && !Missing(conv.status())) return conv.status();
    if (!conv.ok()) continue;
    kernels.conv_forward = *std::move(conv);
    kernels.own_bias = !fused.bias && stage.bias >= 0;
    kernels.own_relu = !fused.relu && stage.relu;
    if (fused.relu) {
      const absl::StatusOr<bool> keeps = ReluKeepsNan(index, walk);
      if (!keeps.ok()) return keeps.status();
      if (!*keeps) {
        kernels.conv_forward = nullptr;
        continue;
      }
    }
    how = absl::StrCat(kernels.conv_forward->description(), fused.bias ? ", fused bias" : "",
                       fused.relu ? ", fused relu" : "");
    break;
  }
  lines_.push_back(absl::StrCat(stage.name, " forward: ", how));
  return absl::OkStatus();
}

absl::Status CudaOperations::ChooseDenseForward(int index, const Walk& walk) {
  const Stage& stage = program_.stages[index];
  LinearKernels& kernels = kernels_[index];
  MatmulProblem problem;
  problem.m = n_ * stage.rows;
  problem.n = stage.window.out_c;
  problem.k = stage.window.in_c;
  problem.transpose_b = true;
  problem.rules = context_.rules;
  problem.bias = stage.bias >= 0;
  std::string how = "own kernel";
  for (const bool fuse_relu : {true, false}) {
    if (fuse_relu && (!stage.relu || stage.bias < 0)) continue;
    problem.relu = fuse_relu;
    absl::StatusOr<std::unique_ptr<LtMatmul>> lt =
        MakeLtMatmul(context_.lt, problem, kWorkspaceBytes);
    if (!lt.ok() && !Missing(lt.status())) return lt.status();
    if (!lt.ok()) continue;
    kernels.lt_forward = *std::move(lt);
    kernels.own_relu = stage.relu && !fuse_relu;
    if (fuse_relu) {
      const absl::StatusOr<bool> keeps = ReluKeepsNan(index, walk);
      if (!keeps.ok()) return keeps.status();
      if (!*keeps) {
        kernels.lt_forward = nullptr;
        continue;
      }
    }
    how = absl::StrCat("cuBLASLt", problem.bias ? ", fused bias" : "",
                       fuse_relu ? ", fused relu" : "");
    break;
  }
  lines_.push_back(absl::StrCat(stage.name, " forward: ", how));
  return absl::OkStatus();
}

// max(NaN, 0) is 0 in some libraries' kernels, but a plan must keep a NaN. Runs the stage once with
// a bias of NaNs (bytes of 0xff) on the present contents of its inputs. This happens once per
// kernel, never in a step.
absl::StatusOr<bool> CudaOperations::ReluKeepsNan(int index, const Walk& walk) {
  const Stage& stage = program_.stages[index];
  void* const bias = walk.parts();  // large enough for every bias
  CAPSTAN_CUDA_RETURN(cudaMemsetAsync(
      bias, 0xff, static_cast<size_t>(stage.weight_rows) * sizeof(float), context_.stream));
  const absl::Status status =
      RunForward(index, walk.value(stage.x), walk.weight_of(stage), bias, walk.value(stage.y));
  if (!status.ok()) return status;
  float y[1] = {};
  CAPSTAN_CUDA_RETURN(cudaMemcpyAsync(y, walk.value(stage.y),
                                      context_.element == Element::kFloat ? 4 : 2,
                                      cudaMemcpyDeviceToHost, context_.stream));
  CAPSTAN_CUDA_RETURN(cudaStreamSynchronize(context_.stream));
  WidenInPlace(context_.element, 1, y);
  return std::isnan(y[0]);
}

absl::Status CudaOperations::PrepareBackward() {
  if (backward_ready_) return absl::OkStatus();
  for (int s = 0; s < static_cast<int>(program_.stages.size()); ++s) {
    const Stage& stage = program_.stages[s];
    const WindowGeometry& g = stage.window;
    LinearKernels& kernels = kernels_[s];
    if (stage.kind == StageKind::kConv) {
      ConvProblem problem;
      problem.window = g;
      problem.n = n_;
      problem.rules = context_.rules;
      for (const bool data : {false, true}) {
        if (data && !stage.input_gradient) continue;
        problem.pass = data ? ConvPass::kDataGradient : ConvPass::kWeightGradient;
        absl::StatusOr<std::unique_ptr<CudnnConv>> conv = MakeCudnnConv(
            data ? context_.cudnn : context_.parameter_cudnn, problem, ConvWorkspaceBytes(g, n_));
        if (!conv.ok() && !Missing(conv.status())) return conv.status();
        lines_.push_back(absl::StrCat(stage.name, data ? " data gradient: " : " weight gradient: ",
                                      conv.ok() ? (*conv)->description() : "own kernel"));
        if (conv.ok()) (data ? kernels.conv_data : kernels.conv_weight) = *std::move(conv);
      }
    } else if (stage.kind == StageKind::kDense) {
      for (const bool data : {false, true}) {
        if (data && !stage.input_gradient) continue;
        MatmulProblem problem;
        problem.rules = context_.rules;
        problem.m = data ? n_ * stage.rows : g.out_c;
        problem.n = g.in_c;
        problem.k = data ? g.out_c : n_ * stage.rows;
        problem.transpose_a = !data;
        problem.float_result = !data;
        absl::StatusOr<std::unique_ptr<LtMatmul>> lt =
            MakeLtMatmul(context_.lt, problem, kWorkspaceBytes);
        if (!lt.ok() && !Missing(lt.status())) return lt.status();
        lines_.push_back(absl::StrCat(stage.name, data ? " data gradient: " : " weight gradient: ",
                                      lt.ok() ? "cuBLASLt" : "own kernel"));
        if (lt.ok()) (data ? kernels.lt_data : kernels.lt_weight) = *std::move(lt);
      }
    }
  }
  backward_ready_ = true;
  return absl::OkStatus();
}

absl::Status CudaOperations::TakeStatus() { return std::exchange(status_, absl::OkStatus()); }

std::string CudaOperations::Describe() const {
  return lines_.empty() ? "" : absl::StrJoin(lines_, "\n") + "\n";
}

void CudaOperations::LoadImages(int64_t n, const BatchHeader* header, const void* images,
                                int image_type, void* x) {
  if (!status_.ok()) return;
  const Element element = program_.tensors[0].wide ? Element::kFloat : context_.element;
  if (image_type == CAPSTAN_IMAGE_KEPT) {
    return Keep(
        ToStatus("LaunchLoadKept",
                 LaunchLoadKept(context_.stream, element, context_.kept,
                                static_cast<const int32_t*>(images), program_.input_nhwc, Narrow(n),
                                program_.image_channels, program_.image_pixels, x)));
  }
  const auto* const scale = reinterpret_cast<const float*>(reinterpret_cast<const char*>(header) +
                                                           offsetof(BatchHeader, image_scale));
  Keep(ToStatus("LaunchLoadImages",
                LaunchLoadImages(context_.stream, element, images,
                                 image_type == CAPSTAN_IMAGE_UINT8, scale, program_.input_nhwc,
                                 Narrow(n), program_.image_channels, program_.image_pixels, x)));
}

void CudaOperations::CopyWeights(const std::vector<WeightCopy>& copies) {
  for (size_t i = 0; status_.ok() && i < copies.size(); i += kMostWeightCopies) {
    const size_t count = std::min<size_t>(kMostWeightCopies, copies.size() - i);
    Keep(ToStatus("LaunchCopyWeights", LaunchCopyWeights(context_.stream, context_.element,
                                                         &copies[i], static_cast<int>(count))));
  }
}

void CudaOperations::GradientToFlat(const Stage& stage, const void* from, void* to) {
  if (!status_.ok()) return;
  const Element element = stage.rounded_gradient ? context_.element : Element::kFloat;
  Keep(
      ToStatus("LaunchGradientToFlat",
               LaunchGradientToFlat(context_.parameter_stream, element, stage.weight_rows,
                                    stage.weight_channels, stage.weight_pixels, from, Floats(to))));
}

void CudaOperations::ToChannelsLast(int64_t rows, int32_t channels, int32_t pixels,
                                    const void* from, void* to) {
  if (!status_.ok()) return;
  Keep(ToStatus("LaunchToChannelsLast",
                LaunchToChannelsLast(context_.stream, context_.element, Narrow(rows), channels,
                                     pixels, from, to)));
}

void CudaOperations::ToCanonical(int64_t rows, int32_t channels, int32_t pixels, const void* from,
                                 void* to) {
  if (!status_.ok()) return;
  Keep(ToStatus("LaunchToCanonical", LaunchToCanonical(context_.stream, context_.element,
                                                       Narrow(rows), channels, pixels, from, to)));
}

absl::Status CudaOperations::RunForward(int index, const void* x, const void* weight,
                                        const void* bias, void* y) {
  const Stage& stage = program_.stages[index];
  const LinearKernels& kernels = kernels_[index];
  absl::Status status;
  if (kernels.conv_forward != nullptr) {
    status = kernels.conv_forward->Run(x, weight, bias, y, context_.workspace);
  } else if (kernels.lt_forward != nullptr) {
    status = kernels.lt_forward->Run(context_.stream, x, weight, bias, y, context_.workspace);
  } else {
    return ToStatus("LaunchConvForward",
                    LaunchConvForward(context_.stream, context_.element, stage.window,
                                      Narrow(n_ * stage.rows), x, weight, bias, stage.relu, y));
  }
  if (!status.ok() || !(kernels.own_bias || kernels.own_relu)) return status;
  const int64_t rows = n_ * program_.tensors[stage.y].elements / stage.weight_rows;
  return ToStatus("LaunchBiasRelu",
                  LaunchBiasRelu(context_.stream, context_.element, Narrow(rows), stage.weight_rows,
                                 kernels.own_bias ? bias : nullptr, kernels.own_relu, y));
}

void CudaOperations::LinearForward(int stage, int64_t n, const void* x, const void* weight,
                                   const void* bias, void* y) {
  if (status_.ok()) Keep(RunForward(stage, x, weight, bias, y));
}

void CudaOperations::LinearWeightGradient(int stage, int64_t n, const void* x, const void* dy,
                                          void* dw) {
  if (!status_.ok()) return;
  const LinearKernels& kernels = kernels_[stage];
  if (kernels.conv_weight != nullptr) {
    Keep(kernels.conv_weight->Run(x, dw, nullptr, dy, context_.parameter_workspace));
  } else if (kernels.lt_weight != nullptr) {
    Keep(kernels.lt_weight->Run(context_.parameter_stream, dy, x, nullptr, dw,
                                context_.parameter_workspace));
  } else {
    Keep(ToStatus("LaunchConvWeightGradient",
                  LaunchConvWeightGradient(context_.parameter_stream, context_.element,
                                           program_.stages[stage].window,
                                           Narrow(n * program_.stages[stage].rows), x, dy,
                                           program_.stages[stage].rounded_gradient, dw)));
  }
}

void CudaOperations::LinearDataGradient(int stage, int64_t n, const void* dy, const void* weight,
                                        void* dx) {
  if (!status_.ok()) return;
  const LinearKernels& kernels = kernels_[stage];
  if (kernels.conv_data != nullptr) {
    Keep(kernels.conv_data->Run(dx, weight, nullptr, dy, context_.workspace));
  } else if (kernels.lt_data != nullptr) {
    Keep(kernels.lt_data->Run(context_.stream, dy, weight, nullptr, dx, context_.workspace));
  } else {
    Keep(ToStatus(
        "LaunchConvDataGradient",
        LaunchConvDataGradient(context_.stream, context_.element, program_.stages[stage].window,
                               Narrow(n * program_.stages[stage].rows), dy, weight, dx)));
  }
}

void CudaOperations::BiasGradient(int64_t rows, int32_t columns, const void* dy, void* parts,
                                  void* db) {
  if (!status_.ok()) return;
  Keep(ToStatus("LaunchColumnSums",
                LaunchColumnSums(context_.parameter_stream, context_.element, Narrow(rows), columns,
                                 dy, Floats(parts), Floats(db))));
}

void CudaOperations::PoolForward(const Stage& stage, int64_t n, const void* x, void* y) {
  if (!status_.ok()) return;
  Keep(ToStatus("LaunchPoolForward",
                LaunchPoolForward(context_.stream, context_.element, stage.window,
                                  stage.kind == StageKind::kMaxPool, stage.relu, Narrow(n), x, y)));
}

void CudaOperations::PoolBackward(const Stage& stage, int64_t n, const void* x, const void* dy,
                                  void* dx) {
  if (!status_.ok()) return;
  Keep(ToStatus(
      "LaunchPoolBackward",
      LaunchPoolBackward(context_.stream, context_.element, stage.window,
                         stage.kind == StageKind::kMaxPool, stage.relu, Narrow(n), x, dy, dx)));
}

void CudaOperations::ReluForward(int64_t elements, void* x) {
  if (!status_.ok()) return;
  Keep(ToStatus("LaunchRelu", LaunchRelu(context_.stream, context_.element, Narrow(elements), x)));
}

void CudaOperations::ReluBackward(int64_t elements, const void* y, void* dy) {
  if (!status_.ok()) return;
  Keep(ToStatus("LaunchReluMask",
                LaunchReluMask(context_.stream, context_.element, Narrow(elements), y, dy)));
}

absl::Status CudaOperations::OfNode(int stage, const absl::Status& status) const {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("node ", program_.stages[stage].name, ": ", status.message()));
}

void CudaOperations::OperatorForward(int stage, const OperatorCall& call) {
  if (!status_.ok()) return;
  Keep(OfNode(stage, operators_[stage]->Forward(call).status()));
}

void CudaOperations::OperatorBackward(int stage, const OperatorCall& call) {
  if (!status_.ok()) return;
  Keep(OfNode(stage, operators_[stage]->Backward(call).status()));
}

void CudaOperations::AddInto(int64_t elements, const void* from, void* to) {
  if (!status_.ok()) return;
  CopyWork work;
  work.loop = MakeLoop<2>(0, {elements}, {Strided{0, {1}}, Strided{0, {1}}});
  work.add = true;
  Keep(ToStatus("LaunchCopy", LaunchCopy(context_.stream, context_.element, work, from, to)));
}

void CudaOperations::Clear(int64_t elements, void* x) {
  if (!status_.ok()) return;
  Keep(ToStatus("LaunchFill", LaunchFill(context_.stream, context_.element, elements, 0, x)));
}

void CudaOperations::Loss(const Stage& stage, int64_t n, int32_t classes, const BatchHeader* header,
                          const void* targets, const float* tokens, const void* x, void* dx,
                          double* row_loss, int32_t* row_correct) {
  if (!status_.ok()) return;
  static_assert(offsetof(BatchHeader, loss_scale) == 0, "read on the card as the first double");
  const auto* const scale = reinterpret_cast<const double*>(header);
  if (stage.squared_error) {
    return Keep(ToStatus(
        "LaunchSquaredError",
        LaunchSquaredError(context_.stream, context_.element, Narrow(n), classes, scale,
                           static_cast<const float*>(targets), x, dx, row_loss, row_correct)));
  }
  const auto* const labels = static_cast<const int32_t*>(targets);
  if (tokens != nullptr) {
    const SequenceWork work = {Narrow(n), stage.rows, classes};
    return Keep(ToStatus("LaunchSequenceLoss",
                         LaunchSequenceLoss(context_.stream, context_.element, work, scale, labels,
                                            tokens, x, dx, row_loss, row_correct)));
  }
  Keep(ToStatus("LaunchLoss",
                LaunchLoss(context_.stream, context_.element, Narrow(n), classes,
                           stage.label_smoothing, scale, labels, x, dx, row_loss, row_correct)));
}

void CudaOperations::SumRows(int64_t n, const double* row_loss, const int32_t* row_correct,
                             capstan_result* sums) {
  if (!status_.ok()) return;
  // Pinned memory: the host only computes its address here and never reads it.
  auto* const loss_sum = reinterpret_cast<double*>(sums);
  static_assert(offsetof(capstan_result, correct) == sizeof(double));
  Keep(
      ToStatus("LaunchSumRows", LaunchSumRows(context_.stream, Narrow(n), row_loss, row_correct,
                                              loss_sum, reinterpret_cast<int64_t*>(loss_sum + 1))));
}

// These become edges in a captured graph; otherwise they are events.
void CudaOperations::BeginParameters() {
  if (!status_.ok() || context_.parameter_stream == context_.stream) return;
  const auto fork = [this]() -> absl::Status {
    if (lags_ >= kParameterLag) {
      // The inputs of that stage may be overwritten from here on.
      const cudaEvent_t done = context_.parameters_done[static_cast<size_t>(lags_ % kParameterLag)];
      CAPSTAN_CUDA_RETURN(cudaStreamWaitEvent(context_.stream, done, 0));
    }
    CAPSTAN_CUDA_RETURN(cudaEventRecord(context_.fork, context_.stream));
    CAPSTAN_CUDA_RETURN(cudaStreamWaitEvent(context_.parameter_stream, context_.fork, 0));
    return absl::OkStatus();
  };
  Keep(fork());
}

void CudaOperations::EndParameters() {
  if (!status_.ok() || context_.parameter_stream == context_.stream) return;
  const cudaEvent_t done = context_.parameters_done[static_cast<size_t>(lags_ % kParameterLag)];
  ++lags_;
  Keep(ToStatus("cudaEventRecord", cudaEventRecord(done, context_.parameter_stream)));
}

absl::Status CudaOperations::Join() {
  if (lags_ == 0) return absl::OkStatus();
  lags_ = 0;
  CAPSTAN_CUDA_RETURN(cudaEventRecord(context_.join, context_.parameter_stream));
  CAPSTAN_CUDA_RETURN(cudaStreamWaitEvent(context_.stream, context_.join, 0));
  return absl::OkStatus();
}

void CudaOperations::StageDone(int stage) {
  if (status_.ok() && on_stage_done_) Keep(on_stage_done_(stage));
}

void CudaOperations::BackwardDone() {
  if (status_.ok()) Keep(Join());
  lags_ = 0;  // even after a failure, because the plan is then broken
}

}  // namespace capstan::engine::cuda
