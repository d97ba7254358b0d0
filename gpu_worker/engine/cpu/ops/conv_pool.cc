// Convolution, Relu and pooling in one kernel. The convolution's output is never stored, only the
// pooling's output and a bit for each place that a gradient goes to.
//
// Places that the pooling drops are not computed. Backward recomputes the gradient by the
// convolution's output wherever it is needed, a few rows at a time. That costs less than reading it
// from memory.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "gpu_worker/engine/cpu/blocked/kernel.h"
#include "gpu_worker/engine/cpu/blocked/winograd.h"
#include "training/ops/conv/conv.h"
#include "training/ops/pool/pool.h"
#include "training/ops/relu/relu.h"

namespace capstan::engine {
namespace {

using training::Conv;
using training::Graph;
using training::Window;

// Number of gradients by the convolution's output that are unpooled at a time for the weights, so
// that they stay in the nearest cache.
constexpr int64_t kUnpooledFloats = 6 << 10;
constexpr int64_t kWantedPieces = 8;
constexpr int64_t kMostGroup = 8;  // outputs whose weights one piece sums

bool Plain(const Window& window) {
  return window.pads == std::array<int64_t, 4>{} &&
         window.dilations == std::array<int64_t, 2>{1, 1};
}

struct ConvPoolShape {
  ConvPoolShape(const Graph& graph, int first)
      : bias(Conv::Read(graph.instance(first).attributes).bias),
        max(graph.def(first + 2).name == training::MaxPool::kName) {
    const training::OpInstance& conv = graph.instance(first);
    const Window window = training::ReadWindow(conv.attributes);
    kernel_rows = window.kernel_shape[0];
    kernel_columns = window.kernel_shape[1];
    channels = conv.x[0].shape[0];
    height = conv.x[0].shape[1];
    width = conv.x[0].shape[2];
    const training::Shape& y = graph.value_shape(graph.output_of(first + 2));
    outputs = y[0];
    rows = y[1];
    columns = y[2];
    for (int64_t r = 0; r < kernel_rows; ++r) {
      for (int64_t s = 0; s < kernel_columns; ++s) taps.push_back(r * x_row() + s * kSideBySide);
    }
  }
  int64_t x_row() const { return width * kSideBySide; }
  int64_t x_plane() const { return height * x_row(); }
  int64_t x_block() const { return channels * x_plane(); }
  int64_t windows() const { return rows * columns; }
  int64_t y_block() const { return outputs * windows() * kSideBySide; }
  int64_t mask_block() const { return outputs * windows() * kMaskBytes; }
  int64_t tap_count() const { return kernel_rows * kernel_columns; }

  const bool bias, max;
  int64_t kernel_rows = 0, kernel_columns = 0;
  int64_t channels = 0, height = 0, width = 0;
  int64_t outputs = 0, rows = 0, columns = 0;  // rows, columns: of windows
  std::vector<int64_t> taps;
};

class ConvPoolKernel {
 public:
  ConvPoolKernel(const Graph& graph, int first, const NodePlaces& places)
      : shape_(graph, first), places_(places) {
    const ConvPoolShape& s = shape_;
    // Sums that fit into registers: 5 x 5 or 8 x 3. The number of groups is even, for two threads.
    const int64_t at_once = s.kernel_columns == 3 ? 8 : s.kernel_columns == 5 ? 5 : 4;
    output_groups_ = std::min(2 * CeilDivide(s.outputs, 2 * at_once), s.outputs);
    const int64_t most = std::max<int64_t>(1, kernel_lines() / 2);
    line_runs_ = std::min(CeilDivide(kWantedPieces, output_groups_), most);
    const int64_t row_floats = WidestGroup() * 4 * s.columns * kSideBySide;
    rows_at_once_ = std::clamp<int64_t>(kUnpooledFloats / row_floats, 1, s.rows);
    unpooled_floats_ = rows_at_once_ * row_floats;
  }

  absl::Status Make(NodePhases& phases, const std::shared_ptr<ConvPoolKernel>& self) {
    phases.kernel = "direct, with pooling";
    phases.forward.push_back(
        {0,
         [self](const BatchRun& run) { return run.blocks * self->Runs(run, self->shape_.outputs); },
         [self](const BatchRun& run, int64_t piece, char*) { self->Forward(run, piece); }});
    if (!places_.backward) return absl::OkStatus();
    absl::StatusOr<std::shared_ptr<LaneHalves>> halves =
        LaneHalves::Make(phases, weight_pieces(), TileFloats());
    if (!halves.ok()) return halves.status();
    halves_ = *std::move(halves);
    const int64_t floats =
        unpooled_floats_ + SumFloats() + (1 + LaneTiles(places_.max_lanes)) * TileFloats();
    phases.backward.push_back(
        {floats * 4,
         [self](const BatchRun& run) { return LaneHalves::Count(run) * self->weight_pieces(); },
         [self](const BatchRun& run, int64_t piece, char* scratch) {
           self->WeightGradient(run, piece, reinterpret_cast<float*>(scratch));
         }});
    if (places_.dx[0].data == nullptr) return absl::OkStatus();
    phases.backward.push_back({4 * shape_.y_block() * 4,
                               [self](const BatchRun& run) {
                                 return run.blocks * self->Runs(run, self->shape_.channels);
                               },
                               [self](const BatchRun& run, int64_t piece, char* scratch) {
                                 self->DataGradient(run, piece, reinterpret_cast<float*>(scratch));
                               },
                               /*joins=*/true});
    return absl::OkStatus();
  }

 private:
  // Number of runs into which a block's channels are cut if there are few blocks.
  static int64_t Runs(const BatchRun& run, int64_t channels) {
    return std::min(CeilDivide(channels, 4), std::max<int64_t>(1, CeilDivide(8, run.blocks)));
  }
  uint8_t* Masks(int64_t block) const {
    return reinterpret_cast<uint8_t*>(places_.saved[0]) + block * shape_.mask_block();
  }

  void Forward(const BatchRun& run, int64_t piece) const {
    const ConvPoolShape& s = shape_;
    const int64_t runs = Runs(run, s.outputs);
    const int64_t block = piece / runs, first = s.outputs * (piece % runs) / runs;
    ConvPoolCall call;
    call.channels = s.channels;
    call.channel_stride = s.x_plane();
    call.taps = s.taps.data();
    call.tap_count = s.tap_count();
    call.x = places_.x[0] + block * s.x_block();
    call.x_row = s.x_row();
    call.weights = run.weights + places_.parameters[0] + first * s.channels * s.tap_count();
    call.bias = s.bias ? run.weights + places_.parameters[1] + first : nullptr;
    call.outputs = s.outputs * (piece % runs + 1) / runs - first;
    call.rows = s.rows;
    call.columns = s.columns;
    call.max = s.max;
    call.y = places_.y + block * s.y_block() + first * s.windows() * kSideBySide;
    call.masks = Masks(block) + first * s.windows() * kMaskBytes;
    places_.math->conv_pool(call);
  }

  // The gradient by the convolution's output for `rows` rows of windows, with all outputs one below
  // the other.
  UnpoolCall UnpoolRows(int64_t block, int64_t first_row, int64_t rows, float* to) const {
    const int64_t at = first_row * shape_.columns;
    UnpoolCall call;
    call.rows = rows;
    call.columns = shape_.columns;
    call.dy = places_.dy + block * shape_.y_block() + at * kSideBySide;
    call.masks = Masks(block) + at * kMaskBytes;
    call.scale = shape_.max ? 1.0f : 0.25f;
    call.to = to;
    return call;
  }

  void DataGradient(const BatchRun& run, int64_t piece, float* scratch) const {
    const ConvPoolShape& s = shape_;
    const int64_t runs = Runs(run, s.channels);
    const int64_t block = piece / runs, first = s.channels * (piece % runs) / runs;
    places_.math->unpool(UnpoolRows(block, 0, s.outputs * s.rows, scratch));
    SpreadCall call;
    call.outputs = s.outputs;
    call.rows = 2 * s.rows;
    call.columns = 2 * s.columns;
    call.dy = scratch;
    call.kernel_rows = s.kernel_rows;
    call.kernel_columns = s.kernel_columns;
    call.weights = run.weights + places_.parameters[0] + first * s.tap_count();
    call.weight_stride = s.channels * s.tap_count();
    call.channels = s.channels * (piece % runs + 1) / runs - first;
    call.dx = places_.dx[0].data + block * s.x_block() + first * s.x_plane();
    call.dx_plane = s.x_plane();
    call.dx_row = s.x_row();
    call.add = places_.dx[0].add;
    if (!call.add) ClearUnreached(call);
    places_.math->spread(call);
  }

  // Places that the pooling drops have no gradient.
  void ClearUnreached(const SpreadCall& call) const {
    const ConvPoolShape& s = shape_;
    const int64_t rows = call.rows + s.kernel_rows - 1;
    const int64_t floats = (call.columns + s.kernel_columns - 1) * kSideBySide;
    for (int64_t c = 0; c < call.channels; ++c) {
      float* const plane = call.dx + c * s.x_plane();
      for (int64_t h = 0; h < rows && floats < s.x_row(); ++h) {
        std::fill_n(plane + h * s.x_row() + floats, s.x_row() - floats, 0.0f);
      }
      std::fill_n(plane + rows * s.x_row(), (s.height - rows) * s.x_row(), 0.0f);
    }
  }

  // A tile of the weight gradient has a group of outputs and a run of lines. A line is a row of a
  // channel's kernel.
  int64_t weight_pieces() const { return output_groups_ * line_runs_; }
  int64_t kernel_lines() const { return shape_.channels * shape_.kernel_rows; }
  int64_t WidestGroup() const { return CeilDivide(shape_.outputs, output_groups_); }
  int64_t MostSums() const {
    return CeilDivide(kernel_lines(), line_runs_) * WidestGroup() * shape_.kernel_columns;
  }
  int64_t SumFloats() const { return MostSums() * kSideBySide; }
  // The sums of a lane, with those of the bias first.
  int64_t TileFloats() const { return RoundUp(kMostGroup + MostSums(), kSideBySide); }

  struct WeightPiece {
    int64_t first = 0, outputs = 0;
    int64_t first_line = 0, lines = 0;
    bool bias = false;
  };

  void WeightGradient(const BatchRun& run, int64_t index, float* scratch) const {
    const ConvPoolShape& s = shape_;
    const int64_t half = index / weight_pieces(), tile = index % weight_pieces();
    const int64_t group = tile / line_runs_, line_run = tile % line_runs_;
    WeightPiece piece;
    piece.first = s.outputs * group / output_groups_;
    piece.outputs = s.outputs * (group + 1) / output_groups_ - piece.first;
    piece.first_line = kernel_lines() * line_run / line_runs_;
    piece.lines = kernel_lines() * (line_run + 1) / line_runs_ - piece.first_line;
    piece.bias = s.bias && line_run == 0;
    float* const sums = scratch + unpooled_floats_ + SumFloats();
    const float* const totals =
        halves_->Sum(run, *places_.math, half, tile, sums, sums + TileFloats(),
                     [&](const LaneBlocks& lane, float* to) { SumLane(lane, piece, scratch, to); });
    if (totals == nullptr) return;
    float* const gradient = run.gradient + places_.parameters[0];
    for (int64_t o = 0; o < piece.outputs; ++o) {
      float* const to = gradient + (piece.first + o) * s.channels * s.tap_count() +
                        piece.first_line * s.kernel_columns;
      for (int64_t l = 0; l < piece.lines; ++l) {
        std::copy_n(totals + kMostGroup + (l * piece.outputs + o) * s.kernel_columns,
                    s.kernel_columns, to + l * s.kernel_columns);
      }
    }
    if (!piece.bias) return;
    std::copy_n(totals, piece.outputs, run.gradient + places_.parameters[1] + piece.first);
  }

  // To [kMostGroup] of the bias, followed by [lines][outputs][kernel_columns].
  void SumLane(const LaneBlocks& lane, const WeightPiece& piece, float* scratch, float* to) const {
    const ConvPoolShape& s = shape_;
    float* const sums = scratch + unpooled_floats_;
    const int64_t line_sums = piece.outputs * s.kernel_columns;
    std::array<double, kMostGroup> bias = {};
    for (int64_t block = lane.first; block < lane.first + lane.count; ++block) {
      alignas(64) std::array<float, kMostGroup* kSideBySide> bias_sums = {};
      for (int64_t row = 0; row < s.rows; row += rows_at_once_) {
        const int64_t rows = std::min(rows_at_once_, s.rows - row);
        WeightSumsCall call;
        call.rows = 2 * rows;
        call.columns = 2 * s.columns;
        call.dy = scratch;
        call.dy_row = call.columns * kSideBySide;
        call.dy_plane = call.rows * call.dy_row;
        call.outputs = piece.outputs;
        call.x_row = s.x_row();
        call.x_step = kSideBySide;
        call.taps = s.taps.data();  // of its first row
        call.tap_count = s.kernel_columns;
        call.add = block > lane.first || row > 0;
        for (int64_t o = 0; o < piece.outputs; ++o) {
          UnpoolCall unpool = UnpoolRows(block, (piece.first + o) * s.rows + row, rows,
                                         scratch + o * call.dy_plane);
          if (piece.bias) unpool.sums = bias_sums.data() + o * kSideBySide;
          places_.math->unpool(unpool);
        }
        const float* const x = places_.x[0] + block * s.x_block() + 2 * row * s.x_row();
        for (int64_t l = 0; l < piece.lines; ++l) {
          const int64_t c = (piece.first_line + l) / s.kernel_rows;
          const int64_t r = (piece.first_line + l) % s.kernel_rows;
          call.x = x + c * s.x_plane() + r * s.x_row();
          call.sums = sums + l * line_sums * kSideBySide;
          places_.math->weight_sums(call);
        }
      }
      for (int64_t o = 0; o < piece.outputs; ++o) {
        bias[o] += SumOfSamples(bias_sums.data() + o * kSideBySide);
      }
    }
    for (int64_t o = 0; o < kMostGroup; ++o) to[o] = static_cast<float>(bias[o]);
    places_.math->sum_samples(piece.lines * line_sums, sums, to + kMostGroup);
  }

  ConvPoolShape shape_;
  const NodePlaces places_;
  int64_t output_groups_ = 0, line_runs_ = 0;
  int64_t rows_at_once_ = 0, unpooled_floats_ = 0;
  std::shared_ptr<LaneHalves> halves_;
};

bool ConvPoolFits(const Graph& graph, int first) {
  const Conv conv = Conv::Read(graph.instance(first).attributes);
  const Window& window = conv.window;
  const Window pool = training::ReadWindow(graph.instance(first + 2).attributes);
  const int64_t taps = window.kernel_shape[1];
  const std::array<int64_t, 2> one = {1, 1}, two = {2, 2};
  if (conv.group != 1 || window.strides != one || !Plain(window) || !Plain(pool) ||
      pool.kernel_shape != two || pool.strides != two || taps > kMostTaps) {
    return false;
  }
  const bool data_gradient = graph.needs_gradient(graph.nodes()[first].inputs[0]);
  if (data_gradient && taps != 3 && taps != 5) return false;
  // In this case Winograd saves more multiplications than this kernel saves memory accesses.
  const training::Shape& x = graph.instance(first).x[0].shape;
  const training::Shape& y = graph.instance(first).inferred.output.shape;
  const bool winograd = window.kernel_shape == std::array<int64_t, 2>{3, 3} &&
                        WinogradPays({x[0], x[1], x[2], y[0], y[1], y[2]});
  return !winograd;
}

std::vector<training::SavedTensor> ConvPoolMasks(const Graph& graph, int first) {
  const int64_t windows = graph.value_elements(graph.output_of(first + 2));
  const int64_t float_bytes = kSideBySide * static_cast<int64_t>(sizeof(float));
  return {{{CeilDivide(windows * kMaskBytes, float_bytes)}}};
}

}  // namespace

FusionPattern ConvPoolPattern(const char* pool) {
  return {{Conv::kName, training::Relu::kName, pool}, ConvPoolFits, {.x = true}, ConvPoolMasks};
}

absl::StatusOr<NodePhases> MakeConvPoolPhases(const Graph& graph, int first,
                                              const NodePlaces& places) {
  NodePhases phases;
  const auto kernel = std::make_shared<ConvPoolKernel>(graph, first, places);
  const absl::Status status = kernel->Make(phases, kernel);
  if (!status.ok()) return status;
  return phases;
}

}  // namespace capstan::engine
