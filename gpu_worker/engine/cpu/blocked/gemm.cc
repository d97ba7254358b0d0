// Dense layer: blocks stand where a convolution has its pixels, so a tile of weights serves several blocks.
#include "training/ops/gemm/gemm.h"

#include <algorithm>
#include <utility>

#include "gpu_worker/engine/cpu/blocked/kernel.h"

namespace capstan::engine {
namespace {

constexpr int64_t kNoTaps[] = {0};

class GemmKernel {
 public:
  GemmKernel(const training::Graph& graph, int node, const NodePlaces& places)
      : inputs_(graph.instance(node).x[0].shape[0]),
        outputs_(graph.instance(node).inferred.output.shape[0]),
        bias_(training::Gemm::Read(graph.instance(node).attributes).bias),
        places_(places) {
    for (int64_t t = 0; t < kMostTaps; ++t) neighbours_[t] = t * kSideBySide;
  }

  absl::Status Make(NodePhases& phases, const std::shared_ptr<GemmKernel>& self) {
    phases.kernel = "direct";
    const int64_t tiles = CeilDivide(outputs_, kTileOutputs);
    absl::StatusOr<float*> memory =
        KernelMemory(phases, tiles * (inputs_ + 1) * kTileOutputs, phases.weight_bytes);
    if (!memory.ok()) return memory.status();
    packed_ = *memory;
    packed_bias_ = packed_ + tiles * inputs_ * kTileOutputs;
    phases.load.push_back({0, FixedPieces(tiles), [self](const BatchRun& run, int64_t tile, char*) {
                             self->PackForward(run.weights, tile);
                           }});
    phases.forward.push_back(
        {0, FixedPieces(tiles),
         [self](const BatchRun& run, int64_t tile, char*) { self->Forward(run, tile); }});
    if (!places_.backward) return absl::OkStatus();
    phases.backward.push_back(
        {outputs_ * kMostTaps * kSideBySide * 4, FixedPieces(CeilDivide(inputs_, kMostTaps)),
         [self](const BatchRun& run, int64_t piece, char* scratch) {
           self->WeightGradient(run, piece, reinterpret_cast<float*>(scratch));
         }});
    if (bias_) {
      phases.backward.push_back({0, FixedPieces(1), [self](const BatchRun& run, int64_t, char*) {
                                   self->BiasGradient(run);
                                 }});
    }
    if (places_.dx[0].data == nullptr) return absl::OkStatus();
    const int64_t in_tiles = CeilDivide(inputs_, kTileOutputs);
    memory = KernelMemory(phases, in_tiles * outputs_ * kTileOutputs, phases.weight_bytes);
    if (!memory.ok()) return memory.status();
    packed_data_ = *memory;
    phases.load.push_back(
        {0, FixedPieces(in_tiles),
         [self](const BatchRun& run, int64_t tile, char*) { self->PackData(run.weights, tile); }});
    phases.backward.push_back(
        {0, FixedPieces(in_tiles),
         [self](const BatchRun& run, int64_t tile, char*) { self->DataGradient(run, tile); }});
    return absl::OkStatus();
  }

 private:
  const float* weight(const float* flat) const { return flat + places_.parameters[0]; }

  void PackForward(const float* flat, int64_t tile) const {
    float* const to = packed_ + tile * inputs_ * kTileOutputs;
    for (int64_t o = 0; o < kTileOutputs; ++o) {
      const int64_t output = tile * kTileOutputs + o;
      const bool real = output < outputs_;
      for (int64_t i = 0; i < inputs_; ++i) {
        to[i * kTileOutputs + o] = real ? weight(flat)[output * inputs_ + i] : 0;
      }
      packed_bias_[output] = real && bias_ ? flat[places_.parameters[1] + output] : 0;
    }
  }

  void PackData(const float* flat, int64_t tile) const {
    float* const to = packed_data_ + tile * outputs_ * kTileOutputs;
    for (int64_t o = 0; o < outputs_; ++o) {
      for (int64_t i = 0; i < kTileOutputs; ++i) {
        const int64_t input = tile * kTileOutputs + i;
        to[o * kTileOutputs + i] = input < inputs_ ? weight(flat)[o * inputs_ + input] : 0;
      }
    }
  }

  // y [blocks][outputs][16] from x [blocks][inputs][16], 8 outputs of all blocks.
  static ProductsCall Dense(int64_t inputs, int64_t outputs, int64_t tile, int64_t blocks,
                            const float* x, float* y) {
    ProductsCall call;
    call.channels = inputs;
    call.channel_stride = kSideBySide;
    call.taps = kNoTaps;
    call.tap_count = 1;
    call.x = x;
    call.x_step = inputs * kSideBySide;
    call.count = blocks;
    call.rows = std::min(kTileOutputs, outputs - tile * kTileOutputs);
    call.y = y + tile * kTileOutputs * kSideBySide;
    call.y_row = kSideBySide;
    call.y_step = outputs * kSideBySide;
    return call;
  }

  void Forward(const BatchRun& run, int64_t tile) const {
    ProductsCall call = Dense(inputs_, outputs_, tile, run.blocks, places_.x[0], places_.y);
    call.weights = packed_ + tile * inputs_ * kTileOutputs;
    call.bias = bias_ ? packed_bias_ + tile * kTileOutputs : nullptr;
    places_.math->products(call);
  }

  void DataGradient(const BatchRun& run, int64_t tile) const {
    ProductsCall call = Dense(outputs_, inputs_, tile, run.blocks, places_.dy, places_.dx[0].data);
    call.weights = packed_data_ + tile * outputs_ * kTileOutputs;
    call.add = places_.dx[0].add;
    places_.math->products(call);
  }

  void WeightGradient(const BatchRun& run, int64_t piece, float* sums) const {
    const int64_t first = piece * kMostTaps;
    WeightSumsCall call;
    call.rows = run.blocks;
    call.columns = 1;
    call.dy = places_.dy;
    call.dy_plane = kSideBySide;
    call.dy_row = outputs_ * kSideBySide;
    call.outputs = outputs_;
    call.x = places_.x[0] + first * kSideBySide;
    call.x_row = inputs_ * kSideBySide;
    call.taps = neighbours_;
    call.tap_count = std::min(kMostTaps, inputs_ - first);
    call.sums = sums;
    std::fill_n(sums, outputs_ * call.tap_count * kSideBySide, 0.0f);
    places_.math->weight_sums(call);
    for (int64_t o = 0; o < outputs_; ++o) {
      float* const to = run.gradient + places_.parameters[0] + o * inputs_ + first;
      for (int64_t t = 0; t < call.tap_count; ++t, sums += kSideBySide) to[t] = SumOfSamples(sums);
    }
  }

  void BiasGradient(const BatchRun& run) const {
    for (int64_t o = 0; o < outputs_; ++o) {
      double total = 0;
      for (int64_t block = 0; block < run.blocks; ++block) {
        total += SumOfSamples(places_.dy + (block * outputs_ + o) * kSideBySide);
      }
      run.gradient[places_.parameters[1] + o] = static_cast<float>(total);
    }
  }

  const int64_t inputs_, outputs_;
  const bool bias_;
  const NodePlaces places_;
  int64_t neighbours_[kMostTaps];
  float* packed_ = nullptr;
  float* packed_bias_ = nullptr;
  float* packed_data_ = nullptr;
};

}  // namespace

absl::StatusOr<NodePhases> MakeGemmPhases(const training::Graph& graph, int node,
                                          const NodePlaces& places) {
  NodePhases phases;
  const auto kernel = std::make_shared<GemmKernel>(graph, node, places);
  const absl::Status status = kernel->Make(phases, kernel);
  if (!status.ok()) return status;
  return phases;
}

}  // namespace capstan::engine
