// Convolution by Winograd's tiles where they pay (winograd.h), else with direct tiles: for each block a padded copy of the images, then sums in registers.
//
// The gradient by the input is a convolution too, of the gradient by the output with the kernel turned
// round. With a stride, places of the input fall into classes by their remainder: each class meets some of
// the kernel's places only, and is a convolution of stride 1 of its own.
#include "training/ops/conv/conv.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "gpu_worker/engine/cpu/blocked/kernel.h"
#include "gpu_worker/engine/cpu/blocked/winograd.h"

namespace capstan::engine {
namespace {

using training::Conv;

// Images of a block with margins: [channels][rows][columns][16].
struct Padded {
  int64_t rows = 0, columns = 0;
  int64_t top = 0, left = 0;
  int64_t plane() const { return rows * columns * kSideBySide; }
};

// Channels [first, first + count) of a block into `to`, zeros around. Rows and columns that do not fit are
// left out.
void CopyPadded(const Padded& padded, const float* from, int64_t height, int64_t width,
                int64_t count, float* to) {
  std::memset(to, 0, static_cast<size_t>(count * padded.plane()) * sizeof(float));
  const int64_t copied_rows = std::min(height, padded.rows - padded.top);
  const int64_t copied_columns = std::min(width, padded.columns - padded.left);
  if (copied_columns <= 0) return;
  for (int64_t c = 0; c < count; ++c) {
    for (int64_t h = 0; h < copied_rows; ++h) {
      std::memcpy(
          to + c * padded.plane() + ((h + padded.top) * padded.columns + padded.left) * kSideBySide,
          from + (c * height + h) * width * kSideBySide,
          static_cast<size_t>(copied_columns * kSideBySide) * sizeof(float));
    }
  }
}

int64_t FloorDivide(int64_t a, int64_t b) { return a >= 0 ? a / b : -CeilDivide(-a, b); }

// A class of places of the input: those whose padded row has remainder `row` by the stride, and the columns
// likewise.
struct StrideClass {
  int64_t row = 0, column = 0;
  std::vector<int64_t> taps;     // of the kernel: r * kernel width + s
  std::vector<int64_t> offsets;  // in the padded gradient, floats
  int64_t packed = 0;            // its weights, floats from the start of a group's tile
};

struct ConvShape {
  ConvShape(const training::Graph& graph, int node)
      : conv(Conv::Read(graph.instance(node).attributes)), window(conv.window) {
    const training::OpInstance& op = graph.instance(node);
    channels = op.x[0].shape[0];
    height = op.x[0].shape[1];
    width = op.x[0].shape[2];
    outputs = op.inferred.output.shape[0];
    out_rows = op.inferred.output.shape[1];
    out_columns = op.inferred.output.shape[2];
    in_group = channels / conv.group;
    out_group = outputs / conv.group;
    tap_count = window.kernel_shape[0] * window.kernel_shape[1];
    image.rows = (out_rows - 1) * window.strides[0] + Reach(0);
    image.columns = (out_columns - 1) * window.strides[1] + Reach(1);
    image.top = window.pads[0];
    image.left = window.pads[1];
    for (int64_t r = 0; r < window.kernel_shape[0]; ++r) {
      for (int64_t s = 0; s < window.kernel_shape[1]; ++s) {
        taps.push_back((r * window.dilations[0] * image.columns + s * window.dilations[1]) *
                       kSideBySide);
      }
    }
  }
  int64_t Reach(int axis) const {
    return window.dilations[axis] * (window.kernel_shape[axis] - 1) + 1;
  }
  // The last rows and columns may be cut off or run into zeros as they like.
  bool WinogradFits() const {
    return conv.group == 1 && window.kernel_shape == std::array<int64_t, 2>{3, 3} &&
           window.strides == std::array<int64_t, 2>{1, 1} &&
           window.dilations == std::array<int64_t, 2>{1, 1} && window.pads[0] <= 2 &&
           window.pads[1] <= 2;
  }
  int64_t out_tiles() const { return CeilDivide(out_group, kTileOutputs); }
  int64_t in_tiles() const { return CeilDivide(in_group, kTileOutputs); }
  int64_t x_block() const { return channels * height * width * kSideBySide; }
  int64_t y_block() const { return outputs * out_rows * out_columns * kSideBySide; }

  // The padded gradient by the output, and the classes of the input's places.
  void PlanDataGradient() {
    for (int axis = 0; axis < 2; ++axis) {
      const int64_t size = axis == 0 ? height : width;
      const int64_t out = axis == 0 ? out_rows : out_columns;
      const int64_t before = CeilDivide(Reach(axis) - 1, window.strides[axis]);
      const int64_t last = FloorDivide(size - 1 + window.pads[axis], window.strides[axis]);
      const int64_t extent = before + std::max(out, last + 1);
      (axis == 0 ? gradient.rows : gradient.columns) = extent;
      (axis == 0 ? gradient.top : gradient.left) = before;
    }
    int64_t packed = 0;
    for (int64_t a = 0; a < window.strides[0]; ++a) {
      for (int64_t b = 0; b < window.strides[1]; ++b) {
        StrideClass of;
        of.row = a;
        of.column = b;
        of.packed = packed;
        for (int64_t r = 0; r < window.kernel_shape[0]; ++r) {
          for (int64_t s = 0; s < window.kernel_shape[1]; ++s) {
            const int64_t down = a - r * window.dilations[0], right = b - s * window.dilations[1];
            if (down % window.strides[0] != 0 || right % window.strides[1] != 0) continue;
            of.taps.push_back(r * window.kernel_shape[1] + s);
            of.offsets.push_back(
                (down / window.strides[0] * gradient.columns + right / window.strides[1]) *
                kSideBySide);
          }
        }
        packed += static_cast<int64_t>(of.taps.size()) * out_group * kTileOutputs;
        classes.push_back(std::move(of));
      }
    }
    data_tile = packed;
  }

  const Conv conv;
  const training::Window window;
  int64_t channels = 0, height = 0, width = 0, outputs = 0, out_rows = 0, out_columns = 0;
  int64_t in_group = 0, out_group = 0, tap_count = 0;
  Padded image;               // of the input
  std::vector<int64_t> taps;  // in it, floats
  Padded gradient;            // of the gradient by the output
  std::vector<StrideClass> classes;
  int64_t data_tile = 0;  // floats of the packed weights of 8 input channels
};

// Pieces of a pass over blocks: each block in `chunks` runs of tiles.
int64_t Chunks(int64_t blocks, int64_t tiles) {
  return std::min(tiles, std::max<int64_t>(1, CeilDivide(8, blocks)));
}

class ConvKernel {
 public:
  ConvKernel(const training::Graph& graph, int node, const NodePlaces& places)
      : shape_(graph, node), places_(places) {
    if (places_.backward && places_.dx[0].data != nullptr) shape_.PlanDataGradient();
  }

  absl::Status Make(NodePhases& phases, const std::shared_ptr<ConvKernel>& self) {
    const bool winograd = shape_.WinogradFits() && WinogradPays(WinogradForward());
    phases.kernel = winograd ? "winograd 4 x 4" : "direct";
    absl::Status status = winograd ? MakeWinogradForward(phases) : MakeDirectForward(phases, self);
    if (!status.ok() || !places_.backward) return status;
    if (winograd) {
      AddWinogradWeights({WinogradForward(), places_.x[0], places_.dy, places_.parameters[0]},
                         phases);
    } else {
      phases.backward.push_back({WeightScratchFloats() * 4, FixedPieces(WeightPieces()),
                                 [self](const BatchRun& run, int64_t piece, char* scratch) {
                                   self->WeightGradient(run, piece,
                                                        reinterpret_cast<float*>(scratch));
                                 }});
    }
    if (shape_.conv.bias) {
      phases.backward.push_back(
          {0, FixedPieces(shape_.outputs),
           [self](const BatchRun& run, int64_t piece, char*) { self->BiasGradient(run, piece); }});
    }
    if (places_.dx[0].data == nullptr) return absl::OkStatus();
    return winograd ? MakeWinogradData(phases) : MakeDirectData(phases, self);
  }

 private:
  WinogradConv WinogradForward() const {
    const ConvShape& s = shape_;
    return {s.channels,    s.height,         s.width,          s.outputs,          s.out_rows,
            s.out_columns, s.window.pads[0], s.window.pads[1], places_.max_blocks, places_.math};
  }

  absl::Status MakeWinogradForward(NodePhases& phases) const {
    WinogradPass pass;
    pass.conv = WinogradForward();
    pass.x = places_.x[0];
    pass.y = places_.y;
    pass.weights = places_.parameters[0];
    if (shape_.conv.bias) pass.bias = places_.parameters[1];
    return AddWinogradPass(pass, phases, phases.forward);
  }

  absl::Status MakeWinogradData(NodePhases& phases) const {
    const ConvShape& s = shape_;
    WinogradPass pass;
    pass.conv = {s.outputs,          s.out_rows,  s.out_columns,        s.channels,
                 s.height,           s.width,     2 - s.window.pads[0], 2 - s.window.pads[1],
                 places_.max_blocks, places_.math};
    pass.x = places_.dy;
    pass.y = places_.dx[0].data;
    pass.add = places_.dx[0].add;
    pass.weights = places_.parameters[0];
    pass.turned = true;
    return AddWinogradPass(pass, phases, phases.backward);
  }

  absl::Status MakeDirectForward(NodePhases& phases, const std::shared_ptr<ConvKernel>& self) {
    const ConvShape& s = shape_;
    const int64_t groups = s.conv.group;
    const int64_t forward_floats = groups * s.out_tiles() * s.in_group * s.tap_count * kTileOutputs;
    absl::StatusOr<float*> memory = KernelMemory(phases, forward_floats, phases.weight_bytes);
    if (!memory.ok()) return memory.status();
    packed_ = *memory;
    if (s.conv.bias) {
      memory = KernelMemory(phases, groups * s.out_tiles() * kTileOutputs, phases.weight_bytes);
      if (!memory.ok()) return memory.status();
      packed_bias_ = *memory;
    }
    phases.load.push_back(
        {0, FixedPieces(groups * s.out_tiles()), [self](const BatchRun& run, int64_t piece, char*) {
           self->PackForward(run.weights, piece);
         }});
    phases.forward.push_back({s.channels * s.image.plane() * 4,
                              [self](const BatchRun& run) {
                                return run.blocks *
                                       Chunks(run.blocks,
                                              self->shape_.conv.group * self->shape_.out_tiles());
                              },
                              [self](const BatchRun& run, int64_t piece, char* scratch) {
                                self->Forward(run, piece, reinterpret_cast<float*>(scratch));
                              }});
    return absl::OkStatus();
  }

  absl::Status MakeDirectData(NodePhases& phases, const std::shared_ptr<ConvKernel>& self) {
    const ConvShape& s = shape_;
    const int64_t groups = s.conv.group;
    const absl::StatusOr<float*> memory =
        KernelMemory(phases, groups * s.in_tiles() * s.data_tile, phases.weight_bytes);
    if (!memory.ok()) return memory.status();
    packed_data_ = *memory;
    phases.load.push_back(
        {0, FixedPieces(groups * s.in_tiles()), [self](const BatchRun& run, int64_t piece, char*) {
           self->PackData(run.weights, piece);
         }});
    phases.backward.push_back({s.outputs * s.gradient.plane() * 4,
                               [self](const BatchRun& run) {
                                 return run.blocks *
                                        Chunks(run.blocks,
                                               self->shape_.conv.group * self->shape_.in_tiles());
                               },
                               [self](const BatchRun& run, int64_t piece, char* scratch) {
                                 self->DataGradient(run, piece, reinterpret_cast<float*>(scratch));
                               }});
    return absl::OkStatus();
  }

  const float* Weight(const float* flat, int64_t output, int64_t channel) const {
    return flat + places_.parameters[0] + (output * shape_.in_group + channel) * shape_.tap_count;
  }

  // [channel of the group][tap][8 outputs], zeros behind the last output of a group.
  void PackForward(const float* flat, int64_t piece) const {
    const ConvShape& s = shape_;
    const int64_t group = piece / s.out_tiles(), tile = piece % s.out_tiles();
    float* to = packed_ + piece * s.in_group * s.tap_count * kTileOutputs;
    for (int64_t c = 0; c < s.in_group; ++c) {
      for (int64_t t = 0; t < s.tap_count; ++t, to += kTileOutputs) {
        for (int64_t o = 0; o < kTileOutputs; ++o) {
          const int64_t output = tile * kTileOutputs + o;
          to[o] = output < s.out_group ? Weight(flat, group * s.out_group + output, c)[t] : 0;
        }
      }
    }
    if (!s.conv.bias) return;
    float* const bias = packed_bias_ + piece * kTileOutputs;
    for (int64_t o = 0; o < kTileOutputs; ++o) {
      const int64_t output = tile * kTileOutputs + o;
      bias[o] =
          output < s.out_group ? flat[places_.parameters[1] + group * s.out_group + output] : 0;
    }
  }

  // By class: [output of the group][tap of the class][8 channels].
  void PackData(const float* flat, int64_t piece) const {
    const ConvShape& s = shape_;
    const int64_t group = piece / s.in_tiles(), tile = piece % s.in_tiles();
    for (const StrideClass& of : s.classes) {
      float* to = packed_data_ + piece * s.data_tile + of.packed;
      for (int64_t o = 0; o < s.out_group; ++o) {
        for (const int64_t tap : of.taps) {
          for (int64_t c = 0; c < kTileOutputs; ++c) {
            const int64_t channel = tile * kTileOutputs + c;
            to[c] = channel < s.in_group ? Weight(flat, group * s.out_group + o, channel)[tap] : 0;
          }
          to += kTileOutputs;
        }
      }
    }
  }

  void Forward(const BatchRun& run, int64_t piece, float* scratch) const {
    const ConvShape& s = shape_;
    const int64_t tiles = s.conv.group * s.out_tiles();
    const int64_t chunks = Chunks(run.blocks, tiles);
    const int64_t block = piece / chunks, chunk = piece % chunks;
    CopyPadded(s.image, places_.x[0] + block * s.x_block(), s.height, s.width, s.channels, scratch);
    const int64_t plane = s.out_rows * s.out_columns * kSideBySide;
    for (int64_t at = tiles * chunk / chunks; at < tiles * (chunk + 1) / chunks; ++at) {
      const int64_t group = at / s.out_tiles(), tile = at % s.out_tiles();
      ProductsCall call;
      call.channels = s.in_group;
      call.channel_stride = s.image.plane();
      call.taps = s.taps.data();
      call.tap_count = s.tap_count;
      call.x_step = s.window.strides[1] * kSideBySide;
      call.count = s.out_columns;
      call.weights = packed_ + at * s.in_group * s.tap_count * kTileOutputs;
      call.bias = s.conv.bias ? packed_bias_ + at * kTileOutputs : nullptr;
      call.rows = std::min(kTileOutputs, s.out_group - tile * kTileOutputs);
      call.y_row = plane;
      call.y_step = kSideBySide;
      const float* const x = scratch + group * s.in_group * s.image.plane();
      float* const y =
          places_.y + block * s.y_block() + (group * s.out_group + tile * kTileOutputs) * plane;
      for (int64_t p = 0; p < s.out_rows; ++p) {
        call.x = x + p * s.window.strides[0] * s.image.columns * kSideBySide;
        call.y = y + p * s.out_columns * kSideBySide;
        places_.math->products(call);
      }
    }
  }

  void DataGradient(const BatchRun& run, int64_t piece, float* scratch) const {
    const ConvShape& s = shape_;
    const int64_t tiles = s.conv.group * s.in_tiles();
    const int64_t chunks = Chunks(run.blocks, tiles);
    const int64_t block = piece / chunks, chunk = piece % chunks;
    CopyPadded(s.gradient, places_.dy + block * s.y_block(), s.out_rows, s.out_columns, s.outputs,
               scratch);
    const int64_t plane = s.height * s.width * kSideBySide;
    for (int64_t at = tiles * chunk / chunks; at < tiles * (chunk + 1) / chunks; ++at) {
      const int64_t group = at / s.in_tiles(), tile = at % s.in_tiles();
      ProductsCall call;
      call.channels = s.out_group;
      call.channel_stride = s.gradient.plane();
      call.x_step = kSideBySide;
      call.rows = std::min(kTileOutputs, s.in_group - tile * kTileOutputs);
      call.y_row = plane;
      call.y_step = s.window.strides[1] * kSideBySide;
      call.add = places_.dx[0].add;
      const float* const dy = scratch + group * s.out_group * s.gradient.plane();
      float* const dx = places_.dx[0].data + block * s.x_block() +
                        (group * s.in_group + tile * kTileOutputs) * plane;
      for (const StrideClass& of : s.classes) {
        call.taps = of.offsets.data();
        call.tap_count = static_cast<int64_t>(of.taps.size());
        call.weights = packed_data_ + at * s.data_tile + of.packed;
        RunClass(of, dy, dx, call);
      }
    }
  }

  // The places of one class: rows a + stride * i of the padded input that lie inside it.
  void RunClass(const StrideClass& of, const float* dy, float* dx, ProductsCall& call) const {
    const ConvShape& s = shape_;
    const int64_t down = s.window.strides[0], right = s.window.strides[1];
    const int64_t first_row = std::max<int64_t>(0, CeilDivide(s.window.pads[0] - of.row, down));
    const int64_t first_column =
        std::max<int64_t>(0, CeilDivide(s.window.pads[1] - of.column, right));
    const int64_t w = of.column + right * first_column - s.window.pads[1];
    if (w >= s.width) return;
    call.count = CeilDivide(s.width - w, right);
    for (int64_t i = first_row;; ++i) {
      const int64_t h = of.row + down * i - s.window.pads[0];
      if (h >= s.height) break;
      call.x = dy + ((i + s.gradient.top) * s.gradient.columns + first_column + s.gradient.left) *
                        kSideBySide;
      call.y = dx + (h * s.width + w) * kSideBySide;
      places_.math->products(call);
    }
  }

  // A piece of the weight gradient: some channels of a group, with some of its outputs.
  int64_t ChannelsAtOnce() const {
    return shape_.in_group >= 32 ? 4 : shape_.in_group >= 8 ? 2 : 1;
  }
  int64_t ChannelRuns() const { return CeilDivide(shape_.in_group, ChannelsAtOnce()); }
  int64_t OutputRuns() const {
    const int64_t wanted = CeilDivide(8, shape_.conv.group * ChannelRuns());
    return std::min(wanted, CeilDivide(shape_.out_group, kTileOutputs));
  }
  int64_t WeightPieces() const { return shape_.conv.group * ChannelRuns() * OutputRuns(); }
  int64_t OutputsAtOnce() const { return CeilDivide(shape_.out_group, OutputRuns()); }
  int64_t WeightScratchFloats() const {
    return ChannelsAtOnce() *
           (shape_.image.plane() + OutputsAtOnce() * shape_.tap_count * kSideBySide);
  }

  void WeightGradient(const BatchRun& run, int64_t piece, float* scratch) const {
    const ConvShape& s = shape_;
    const int64_t output_run = piece % OutputRuns();
    const int64_t channel_run = piece / OutputRuns() % ChannelRuns();
    const int64_t group = piece / OutputRuns() / ChannelRuns();
    const int64_t first_output = output_run * OutputsAtOnce();
    const int64_t outputs = std::min(OutputsAtOnce(), s.out_group - first_output);
    const int64_t first = channel_run * ChannelsAtOnce();
    const int64_t channels = std::min(ChannelsAtOnce(), s.in_group - first);
    if (outputs < 1) return;
    float* const sums = scratch + ChannelsAtOnce() * s.image.plane();
    std::fill_n(sums, channels * outputs * s.tap_count * kSideBySide, 0.0f);
    const int64_t out_plane = s.out_rows * s.out_columns * kSideBySide;
    for (int64_t block = 0; block < run.blocks; ++block) {
      CopyPadded(s.image,
                 places_.x[0] + block * s.x_block() +
                     (group * s.in_group + first) * s.height * s.width * kSideBySide,
                 s.height, s.width, channels, scratch);
      WeightSumsCall call;
      call.rows = s.out_rows;
      call.columns = s.out_columns;
      call.dy = places_.dy + block * s.y_block() + (group * s.out_group + first_output) * out_plane;
      call.dy_plane = out_plane;
      call.dy_row = s.out_columns * kSideBySide;
      call.outputs = outputs;
      call.x_row = s.window.strides[0] * s.image.columns * kSideBySide;
      call.x_step = s.window.strides[1] * kSideBySide;
      float* at = sums;
      for (int64_t c = 0; c < channels; ++c) {
        call.x = scratch + c * s.image.plane();
        for (int64_t t = 0; t < s.tap_count; t += kMostTaps) {
          call.taps = s.taps.data() + t;
          call.tap_count = std::min(kMostTaps, s.tap_count - t);
          call.sums = at;
          at += outputs * call.tap_count * kSideBySide;
          places_.math->weight_sums(call);
        }
      }
    }
    float* at = sums;
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t t = 0; t < s.tap_count; t += kMostTaps) {
        const int64_t taps = std::min(kMostTaps, s.tap_count - t);
        for (int64_t o = 0; o < outputs; ++o) {
          float* const to =
              run.gradient + places_.parameters[0] +
              ((group * s.out_group + first_output + o) * s.in_group + first + c) * s.tap_count + t;
          for (int64_t k = 0; k < taps; ++k, at += kSideBySide) to[k] = SumOfSamples(at);
        }
      }
    }
  }

  void BiasGradient(const BatchRun& run, int64_t output) const {
    const int64_t plane = shape_.out_rows * shape_.out_columns * kSideBySide;
    alignas(64) float sums[kSideBySide];
    double total = 0;
    for (int64_t block = 0; block < run.blocks; ++block) {
      places_.math->sum(plane, places_.dy + block * shape_.y_block() + output * plane, sums);
      total += SumOfSamples(sums);
    }
    run.gradient[places_.parameters[1] + output] = static_cast<float>(total);
  }

  ConvShape shape_;
  const NodePlaces places_;
  float* packed_ = nullptr;
  float* packed_bias_ = nullptr;
  float* packed_data_ = nullptr;
};

}  // namespace

absl::StatusOr<NodePhases> MakeConvPhases(const training::Graph& graph, int node,
                                          const NodePlaces& places) {
  NodePhases phases;
  const auto kernel = std::make_shared<ConvKernel>(graph, node, places);
  const absl::Status status = kernel->Make(phases, kernel);
  if (!status.ok()) return status;
  return phases;
}

}  // namespace capstan::engine
