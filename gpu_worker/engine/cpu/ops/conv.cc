// Convolution: by Winograd's tiles if they pay off (winograd.h), else by direct products
// (direct.h).
#include "training/ops/conv/conv.h"

#include <array>
#include <memory>

#include "gpu_worker/engine/cpu/blocked/direct.h"
#include "gpu_worker/engine/cpu/blocked/kernel.h"
#include "gpu_worker/engine/cpu/blocked/winograd.h"

namespace capstan::engine {
namespace {

DirectConv DirectConvOf(const training::OpInstance& op) {
  const training::Conv conv = training::Conv::Read(op.attributes);
  DirectConv direct;
  direct.window = conv.window;
  direct.groups = conv.group;
  direct.channels = op.x[0].shape[0] / conv.group;
  direct.outputs = op.inferred.output.shape[0] / conv.group;
  direct.height = op.x[0].shape[1];
  direct.width = op.x[0].shape[2];
  direct.rows = op.inferred.output.shape[1];
  direct.columns = op.inferred.output.shape[2];
  return direct;
}

// The last rows and columns may be cut off or may overlap the padding.
bool WinogradFits(const DirectConv& conv) {
  const training::Window& window = conv.window;
  return conv.groups == 1 && window.kernel_shape == std::array<int64_t, 2>{3, 3} &&
         window.strides == std::array<int64_t, 2>{1, 1} &&
         window.dilations == std::array<int64_t, 2>{1, 1} && window.pads[0] <= 2 &&
         window.pads[1] <= 2;
}

class ConvKernel {
 public:
  ConvKernel(const training::OpInstance& op, const NodePlaces& places)
      : conv_(DirectConvOf(op)), bias_(training::Conv::Read(op.attributes).bias), places_(places) {}

  absl::Status Make(NodePhases& phases) const {
    const bool winograd = WinogradFits(conv_) && WinogradPays(WinogradForward());
    phases.kernel = winograd ? "winograd 4 x 4" : "direct";
    const absl::Status status =
        winograd ? MakeWinogradForward(phases) : AddDirectForward(conv_, places_, bias_, phases);
    if (!status.ok() || !places_.backward) return status;
    phases.one_lane = true;
    if (winograd) {
      AddWinogradWeights({WinogradForward(), places_.x[0], places_.dy, places_.parameters[0]},
                         phases);
    } else {
      AddDirectWeights(conv_, places_, phases);
    }
    if (bias_) {
      phases.backward.push_back(
          {0, FixedPieces(conv_.groups * conv_.outputs),
           [conv = conv_, places = places_](const BatchRun& run, int64_t output, char*) {
             BiasGradient(conv, places, run, output);
           }});
    }
    if (places_.dx[0].data == nullptr) return absl::OkStatus();
    return winograd ? MakeWinogradData(phases) : AddDirectData(conv_, places_, phases);
  }

 private:
  WinogradConv WinogradForward() const {
    const DirectConv& c = conv_;
    return {c.channels, c.height,         c.width,          c.outputs,          c.rows,
            c.columns,  c.window.pads[0], c.window.pads[1], places_.max_blocks, places_.math};
  }

  absl::Status MakeWinogradForward(NodePhases& phases) const {
    WinogradPass pass;
    pass.conv = WinogradForward();
    pass.x = places_.x[0];
    pass.y = places_.y;
    pass.weights = places_.parameters[0];
    if (bias_) pass.bias = places_.parameters[1];
    return AddWinogradPass(pass, phases, phases.forward);
  }

  absl::Status MakeWinogradData(NodePhases& phases) const {
    const DirectConv& c = conv_;
    WinogradPass pass;
    pass.conv = {c.outputs,
                 c.rows,
                 c.columns,
                 c.channels,
                 c.height,
                 c.width,
                 2 - c.window.pads[0],
                 2 - c.window.pads[1],
                 places_.max_blocks,
                 places_.math};
    pass.x = places_.dy;
    pass.y = places_.dx[0].data;
    pass.add = places_.dx[0].add;
    pass.weights = places_.parameters[0];
    pass.turned = true;
    return AddWinogradPass(pass, phases, phases.backward);
  }

  static void BiasGradient(const DirectConv& conv, const NodePlaces& places, const BatchRun& run,
                           int64_t output) {
    alignas(64) float sums[kSideBySide];
    double total = 0;
    for (int64_t block = 0; block < run.blocks; ++block) {
      places.math->sum(conv.y_plane(), places.dy + block * conv.y_block() + output * conv.y_plane(),
                       sums);
      total += SumOfSamples(sums);
    }
    run.gradient[places.parameters[1] + output] = static_cast<float>(total);
  }

  const DirectConv conv_;
  const bool bias_;
  const NodePlaces& places_;
};

}  // namespace

absl::StatusOr<NodePhases> MakeConvPhases(const training::Graph& graph, int node,
                                          const NodePlaces& places) {
  NodePhases phases;
  const absl::Status status = ConvKernel(graph.instance(node), places).Make(phases);
  if (!status.ok()) return status;
  return phases;
}

}  // namespace capstan::engine
