// Dense layer over a whole lane: a tile of weights serves several blocks.
#include "training/ops/gemm/gemm.h"

#include <algorithm>
#include <cstring>

#include "gpu_worker/engine/cpu/blocked/kernel.h"
#include "training/ops/relu/relu.h"

namespace capstan::engine {
namespace {

constexpr int64_t kInputsAtOnce = 16;  // of a piece of the weight gradient

class GemmKernel {
 public:
  // `relu`: the node behind it is a Relu, whose output y is.
  GemmKernel(const training::Graph& graph, int node, bool relu, const NodePlaces& places)
      : inputs_(graph.instance(node).x[0].shape[0]),
        outputs_(graph.instance(node).inferred.output.shape[0]),
        bias_(training::Gemm::Read(graph.instance(node).attributes).bias),
        relu_(relu),
        places_(places) {}

  void Make(NodePhases& phases, const std::shared_ptr<GemmKernel>& self) const {
    phases.kernel = relu_ ? "direct, with Relu" : "direct";
    phases.forward.push_back(
        {0, FixedPieces(CeilDivide(outputs_, kTileOutputs)),
         [self](const BatchRun& run, int64_t tile, char*) { self->Forward(run, tile); }});
    if (!places_.backward) return;
    if (relu_) {
      phases.backward.push_back({0, [](const BatchRun& run) { return run.blocks; },
                                 [self](const BatchRun&, int64_t block, char*) {
                                   const int64_t size = self->outputs_ * kSideBySide;
                                   float* const dy = self->places_.dy + block * size;
                                   self->places_.math->relu_backward(
                                       size, self->places_.y + block * size, dy, dy, false);
                                 }});
    }
    // One phase: none of the gradients reads another.
    const int64_t data_tiles =
        places_.dx[0].data == nullptr ? 0 : CeilDivide(inputs_, kTileOutputs);
    const int64_t scratch_bytes =
        outputs_ * std::max<int64_t>(sizeof(double) + sizeof(float), kTileOutputs * sizeof(float));
    phases.backward.push_back({scratch_bytes, FixedPieces(WeightPieces() + data_tiles + bias_),
                               [self](const BatchRun& run, int64_t piece, char* scratch) {
                                 self->Gradients(run, piece, scratch);
                               }});
  }

 private:
  const float* weights(const BatchRun& run) const { return run.weights + places_.parameters[0]; }

  int64_t WeightPieces() const { return CeilDivide(inputs_, kInputsAtOnce); }

  void Gradients(const BatchRun& run, int64_t piece, char* scratch) const {
    if (piece < WeightPieces()) return WeightGradient(run, piece);
    piece -= WeightPieces();
    if (!bias_) return DataGradient(run, piece, reinterpret_cast<float*>(scratch));
    if (piece == 0) return BiasGradient(run, scratch);
    DataGradient(run, piece - 1, reinterpret_cast<float*>(scratch));
  }

  // 8 of the outputs of y [blocks][outputs][16] from x [blocks][depth][16].
  static DenseCall Tile(const BatchRun& run, int64_t depth, int64_t outputs, int64_t tile,
                        const float* x, float* y) {
    const int64_t first = tile * kTileOutputs;
    DenseCall call;
    call.depth = depth;
    call.outputs = std::min(kTileOutputs, outputs - first);
    call.count = run.blocks;
    call.x = x;
    call.x_step = depth * kSideBySide;
    call.y = y + first * kSideBySide;
    call.y_step = outputs * kSideBySide;
    return call;
  }

  void Forward(const BatchRun& run, int64_t tile) const {
    const int64_t first = tile * kTileOutputs;
    DenseCall call = Tile(run, inputs_, outputs_, tile, places_.x[0], places_.y);
    call.weights = weights(run) + first * inputs_;
    call.w_output = inputs_;
    call.w_depth = 1;
    if (bias_) call.bias = run.weights + places_.parameters[1] + first;
    call.relu = relu_;
    places_.math->dense(call);
  }

  void DataGradient(const BatchRun& run, int64_t tile, float* scratch) const {
    DenseCall call = Tile(run, outputs_, inputs_, tile, places_.dy, places_.dx[0].data);
    // Columns of the weights lie far apart: they are brought together once for all blocks.
    const float* from = weights(run) + tile * kTileOutputs;
    for (int64_t o = 0; o < outputs_; ++o, from += inputs_) {
      float* const to = scratch + o * kTileOutputs;
      if (call.outputs == kTileOutputs) {
        std::memcpy(to, from, kTileOutputs * sizeof(float));
      } else {
        std::copy_n(from, call.outputs, to);
      }
    }
    call.weights = scratch;
    call.w_output = 1;
    call.w_depth = kTileOutputs;
    call.add = places_.dx[0].add;
    places_.math->dense(call);
  }

  void WeightGradient(const BatchRun& run, int64_t piece) const {
    const int64_t first = piece * kInputsAtOnce;
    DenseWeightsCall call;
    call.count = run.blocks;
    call.dy = places_.dy;
    call.dy_step = outputs_ * kSideBySide;
    call.outputs = outputs_;
    call.x = places_.x[0] + first * kSideBySide;
    call.x_step = inputs_ * kSideBySide;
    call.inputs = std::min(kInputsAtOnce, inputs_ - first);
    call.gradient = run.gradient + places_.parameters[0] + first;
    call.gradient_row = inputs_;
    places_.math->dense_weights(call);
  }

  // Sums of a block are float, those of a lane double.
  void BiasGradient(const BatchRun& run, char* scratch) const {
    auto* const totals = reinterpret_cast<double*>(scratch);
    auto* const sums = reinterpret_cast<float*>(totals + outputs_);
    std::fill_n(totals, outputs_, 0.0);
    for (int64_t block = 0; block < run.blocks; ++block) {
      places_.math->sum_samples(outputs_, places_.dy + block * outputs_ * kSideBySide, sums);
      for (int64_t o = 0; o < outputs_; ++o) totals[o] += sums[o];
    }
    float* const gradient = run.gradient + places_.parameters[1];
    for (int64_t o = 0; o < outputs_; ++o) gradient[o] = static_cast<float>(totals[o]);
  }

  const int64_t inputs_, outputs_;
  const bool bias_, relu_;
  const NodePlaces places_;
};

absl::StatusOr<NodePhases> MakeGemm(const training::Graph& graph, int node, bool relu,
                                    const NodePlaces& places) {
  NodePhases phases;
  const auto kernel = std::make_shared<GemmKernel>(graph, node, relu, places);
  kernel->Make(phases, kernel);
  return phases;
}

}  // namespace

absl::StatusOr<NodePhases> MakeGemmPhases(const training::Graph& graph, int node,
                                          const NodePlaces& places) {
  return MakeGemm(graph, node, /*relu=*/false, places);
}

FusionPattern GemmReluPattern() {
  return {{training::Gemm::kName, training::Relu::kName},
          [](const training::Graph&, int) { return true; },
          {.x = true, .y = true},
          [](const training::Graph&, int) { return std::vector<training::SavedTensor>(); }};
}

absl::StatusOr<NodePhases> MakeGemmReluPhases(const training::Graph& graph, int first,
                                              const NodePlaces& places) {
  return MakeGemm(graph, first, /*relu=*/true, places);
}

}  // namespace capstan::engine
