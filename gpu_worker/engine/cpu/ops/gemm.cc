// Dense layers over a whole lane: Gemm, and Linear, whose vectors are those of a Gemm with more
// blocks. A tile of weights serves several blocks.
#include "training/ops/gemm/gemm.h"

#include <algorithm>
#include <cstring>

#include "gpu_worker/engine/cpu/blocked/kernel.h"
#include "training/ops/relu/relu.h"

namespace capstan::engine {
namespace {

constexpr int64_t kBlocksAtOnce = 8;  // served by a tile of weights

class GemmKernel {
 public:
  // `relu`: the next node is a Relu, whose output is y.
  GemmKernel(const training::Graph& graph, int node, bool relu, const NodePlaces& places)
      : inputs_(graph.instance(node).x[0].shape.back()),
        outputs_(graph.instance(node).inferred.output.shape.back()),
        vectors_(training::Elements(graph.instance(node).x[0].shape) / inputs_),
        bias_(graph.instance(node).inferred.parameters.size() > 1),
        relu_(relu),
        places_(places) {}

  void Make(NodePhases& phases, const std::shared_ptr<GemmKernel>& self) const {
    phases.kernel = relu_ ? "direct, with Relu" : "direct";
    phases.forward.push_back(
        {0,
         [self](const BatchRun& run) {
           return self->Runs(run) * CeilDivide(self->outputs_, kTileOutputs);
         },
         [self](const BatchRun& run, int64_t piece, char*) { self->Forward(run, piece); }});
    if (!places_.backward) return;
    if (relu_) {
      phases.backward.push_back({0, [self](const BatchRun& run) { return self->Blocks(run); },
                                 [self](const BatchRun&, int64_t block, char*) {
                                   const int64_t size = self->outputs_ * kSideBySide;
                                   float* const dy = self->places_.dy + block * size;
                                   self->places_.math->relu_backward(
                                       size, self->places_.y + block * size, dy, dy, false);
                                 }});
    }
    // The gradients may be computed at the same time, because none reads another.
    const int64_t tiles = 1 + LaneTiles(places_.max_lanes);
    const int64_t floats =
        std::max(InputFloats() + tiles * kTileFloats, (3 + tiles) * BiasFloats());
    const int64_t weight_pieces = CeilDivide(inputs_, kDenseInputs);
    phases.backward.push_back(
        {floats * 4, FixedPieces(weight_pieces + bias_),
         [self, weight_pieces](const BatchRun& run, int64_t piece, char* scratch) {
           auto* const to = reinterpret_cast<float*>(scratch);
           if (piece == weight_pieces) return self->BiasGradient(run, to);
           self->WeightGradient(run, piece, to);
         }});
    if (places_.dx[0].data == nullptr) return;
    phases.backward.push_back({outputs_ * kTileOutputs * 4,
                               [self](const BatchRun& run) {
                                 return self->Runs(run) * CeilDivide(self->inputs_, kTileOutputs);
                               },
                               [self](const BatchRun& run, int64_t piece, char* scratch) {
                                 self->DataGradient(run, piece, reinterpret_cast<float*>(scratch));
                               },
                               /*joins=*/true});
  }

 private:
  const float* weights(const BatchRun& run) const { return run.weights + places_.parameters[0]; }

  static constexpr int64_t kTileFloats = kDenseOutputs * kDenseInputs;

  int64_t BiasFloats() const { return RoundUp(outputs_, kSideBySide); }
  // Of what TurnInputs writes.
  int64_t InputFloats() const { return places_.max_blocks * vectors_ * kSideBySide * kDenseInputs; }

  // Blocks of one vector of each of 16 samples.
  int64_t Blocks(const BatchRun& run) const { return run.blocks * vectors_; }

  // Runs of blocks are computed separately, so that the thread that wrote their inputs finds these
  // in its cache.
  int64_t Runs(const BatchRun& run) const { return CeilDivide(Blocks(run), kBlocksAtOnce); }

  // A run of blocks, and 8 of the outputs of y [blocks][outputs][16] from x [blocks][depth][16].
  struct Tile {
    DenseCall call;
    int64_t first = 0;  // first output
  };
  Tile TileOf(const BatchRun& run, int64_t depth, int64_t outputs, int64_t piece, const float* x,
              float* y) const {
    const int64_t tiles = CeilDivide(outputs, kTileOutputs);
    const int64_t index = piece / tiles, block = Blocks(run) * index / Runs(run);
    Tile tile;
    tile.first = piece % tiles * kTileOutputs;
    tile.call.depth = depth;
    tile.call.outputs = std::min(kTileOutputs, outputs - tile.first);
    tile.call.count = Blocks(run) * (index + 1) / Runs(run) - block;
    tile.call.x = x + block * depth * kSideBySide;
    tile.call.x_step = depth * kSideBySide;
    tile.call.y = y + (block * outputs + tile.first) * kSideBySide;
    tile.call.y_step = outputs * kSideBySide;
    return tile;
  }

  void Forward(const BatchRun& run, int64_t piece) const {
    auto [call, first] = TileOf(run, inputs_, outputs_, piece, places_.x[0], places_.y);
    call.weights = weights(run) + first * inputs_;
    call.w_output = inputs_;
    call.w_depth = 1;
    if (bias_) call.bias = run.weights + places_.parameters[1] + first;
    call.relu = relu_;
    places_.math->dense(call);
  }

  void DataGradient(const BatchRun& run, int64_t piece, float* scratch) const {
    auto [call, first] = TileOf(run, outputs_, inputs_, piece, places_.dy, places_.dx[0].data);
    // Columns of the weights lie far apart, so they are copied together once for all blocks.
    const float* from = weights(run) + first;
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

  // To [sample][kDenseInputs], with the samples of a block one after the other and zeros after the
  // last input.
  void TurnInputs(const BatchRun& run, int64_t first, int64_t inputs, float* to) const {
    alignas(64) float rows[kSideBySide * kSideBySide] = {};
    for (int64_t block = 0; block < Blocks(run); ++block) {
      for (int64_t i = 0; i < inputs; i += kSideBySide) {
        const float* from = places_.x[0] + (block * inputs_ + first + i) * kSideBySide;
        if (inputs - i < kSideBySide) {
          std::copy_n(from, (inputs - i) * kSideBySide, rows);
          from = rows;
        }
        places_.math->transpose(from, kSideBySide, to + block * kSideBySide * kDenseInputs + i,
                                kDenseInputs);
      }
    }
  }

  // Computes all outputs of a run of inputs, some outputs at a time. Their sums stay in registers,
  // and those of the lanes in the nearest cache.
  void WeightGradient(const BatchRun& run, int64_t piece, float* scratch) const {
    const int64_t first = piece * kDenseInputs;
    const int64_t inputs = std::min(kDenseInputs, inputs_ - first);
    float* const sums = scratch + InputFloats();
    TurnInputs(run, first, inputs, scratch);
    const int64_t tiles = CeilDivide(outputs_, kDenseOutputs);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t output = outputs_ * tile / tiles;
      DenseWeightsCall call;
      call.dy_step = outputs_ * kSideBySide;
      call.outputs = outputs_ * (tile + 1) / tiles - output;
      call.inputs = RoundUp(inputs, kSideBySide);
      SumOverLanes(run, *places_.math, call.outputs * kDenseInputs, sums, sums + kTileFloats,
                   [&](const LaneBlocks& lane, float* to) {
                     // Several vectors have missing samples between them, with zeros in dy.
                     call.samples =
                         vectors_ == 1 ? lane.samples : lane.count * vectors_ * kSideBySide;
                     const int64_t first_block = lane.first * vectors_;
                     call.dy = places_.dy + (first_block * outputs_ + output) * kSideBySide;
                     call.x = scratch + first_block * kSideBySide * kDenseInputs;
                     call.to = to;
                     places_.math->dense_weights(call);
                   });
      float* const gradient = run.gradient + places_.parameters[0] + output * inputs_ + first;
      for (int64_t o = 0; o < call.outputs; ++o) {
        std::copy_n(sums + o * kDenseInputs, inputs, gradient + o * inputs_);
      }
    }
  }

  // Sums of a block are float, those of a lane double.
  void BiasGradient(const BatchRun& run, float* scratch) const {
    auto* const totals = reinterpret_cast<double*>(scratch);
    float* const block_sums = scratch + 2 * BiasFloats();
    float* const sums = block_sums + BiasFloats();
    SumOverLanes(run, *places_.math, BiasFloats(), sums, sums + BiasFloats(),
                 [&](const LaneBlocks& lane, float* to) {
                   std::fill_n(totals, outputs_, 0.0);
                   const int64_t begin = lane.first * vectors_;
                   for (int64_t block = begin; block < begin + lane.count * vectors_; ++block) {
                     places_.math->sum_samples(
                         outputs_, places_.dy + block * outputs_ * kSideBySide, block_sums);
                     for (int64_t o = 0; o < outputs_; ++o) totals[o] += block_sums[o];
                   }
                   for (int64_t o = 0; o < outputs_; ++o) to[o] = static_cast<float>(totals[o]);
                 });
    std::copy_n(sums, outputs_, run.gradient + places_.parameters[1]);
  }

  const int64_t inputs_, outputs_;
  const int64_t vectors_;  // of a sample
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

absl::StatusOr<NodePhases> MakeLinearPhases(const training::Graph& graph, int node,
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
