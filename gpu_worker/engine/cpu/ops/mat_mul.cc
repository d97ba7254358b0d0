// MatMul. If the second factor is a Parameter of one matrix that nobody else reads, the kernel is
// that of a dense layer over all rows of a block, and takes the weights from the flat vector.
// Otherwise each sample multiplies its own matrices.
//
// The three products of two values (forward, and the gradients by both) are the same loop with
// other strides. A tile of columns of the second matrix is copied, so that it lies together in the
// nearest cache while all rows are computed.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/engine/cpu/ops/mat_mul.cc"
#include "training/ops/mat_mul/mat_mul.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "gpu_worker/engine/cpu/blocked/instruction_sets.h"
#include "gpu_worker/engine/cpu/blocked/kernel.h"
#include "hwy/foreach_target.h"  // NOLINT(build/include): must come before highway.h
#include "hwy/highway.h"
#include "training/ops/broadcast.h"

// Once, even though this file is included several times.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_OPS_MAT_MUL_LOOPS_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_OPS_MAT_MUL_LOOPS_
namespace capstan::engine {

// A matrix of vectors of 16 samples. Steps are in floats.
struct MatrixView {
  const float* at = nullptr;
  int64_t row = 0, column = 0;
  MatrixView turned() const { return {at, column, row}; }
};

// y[i][j] = (add ? y[i][j] : 0) + sum over k of [0, depth) of a[i][k] * b[k][j]; y is row-major.
struct MatrixProduct {
  int64_t rows = 0, columns = 0, depth = 0;
  MatrixView a, b;
  float* y = nullptr;
  int64_t y_row = 0;
  bool add = false;
  float* copied = nullptr;  // [kCopiedDepth][kCopiedColumns][16]
};
inline constexpr int64_t kCopiedDepth = 64, kCopiedColumns = 6;

}  // namespace capstan::engine
#endif

HWY_BEFORE_NAMESPACE();
namespace capstan::engine {
namespace HWY_NAMESPACE {
namespace {

#include "gpu_worker/engine/cpu/blocked/vectors-inl.h"

// Register use: 4 x 6 sums if there are 32 registers, else 4 x 3.
constexpr int kRowsAtOnce = 4, kColumnsAtOnce = kParts == 1 ? kCopiedColumns : 3;

// kRows x kColumns sums over one part of the 16 samples. b: [depth][kColumns][16].
template <int kRows, int kColumns>
HWY_INLINE void ProductTile(const MatrixProduct& call, int64_t depth, const float* a,
                            const float* b, float* y, bool add) {
  V sums[kRows][kColumns];
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kColumns; ++j) {
      sums[i][j] = add ? hn::Load(d, y + i * call.y_row + j * 16) : hn::Zero(d);
    }
  }
  for (int64_t k = 0; k < depth; ++k, a += call.a.column, b += kColumns * 16) {
    V of_b[kColumns];
    for (int j = 0; j < kColumns; ++j) of_b[j] = hn::Load(d, b + j * 16);
    for (int i = 0; i < kRows; ++i) {
      const V of_a = hn::Load(d, a + i * call.a.row);
      for (int j = 0; j < kColumns; ++j) sums[i][j] = Fma(of_a, of_b[j], sums[i][j]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kColumns; ++j) hn::Store(sums[i][j], d, y + i * call.y_row + j * 16);
  }
}

template <int kColumns>
void ProductColumns(const MatrixProduct& call, int64_t first) {
  for (int64_t k = 0; k < call.depth; k += kCopiedDepth) {
    const int64_t depth = std::min(kCopiedDepth, call.depth - k);
    const float* const b = call.b.at + first * call.b.column + k * call.b.row;
    for (int64_t i = 0; i < depth; ++i) {
      for (int j = 0; j < kColumns; ++j) {
        for (int part = 0; part < kParts; ++part) {
          hn::Store(hn::Load(d, b + i * call.b.row + j * call.b.column + part * kLanes), d,
                    call.copied + (i * kColumns + j) * 16 + part * kLanes);
        }
      }
    }
    const bool add = call.add || k > 0;
    for (int part = 0; part < kParts; ++part) {
      const float* const a = call.a.at + k * call.a.column + part * kLanes;
      const float* const copied = call.copied + part * kLanes;
      float* const y = call.y + first * 16 + part * kLanes;
      int64_t i = 0;
      for (; i + kRowsAtOnce <= call.rows; i += kRowsAtOnce) {
        ProductTile<kRowsAtOnce, kColumns>(call, depth, a + i * call.a.row, copied,
                                           y + i * call.y_row, add);
      }
      for (; i < call.rows; ++i) {
        ProductTile<1, kColumns>(call, depth, a + i * call.a.row, copied, y + i * call.y_row, add);
      }
    }
  }
}

// `columns` is 1 to kMost.
template <int kMost>
void ProductOf(const MatrixProduct& call, int64_t first, int64_t columns) {
  if (columns == kMost) return ProductColumns<kMost>(call, first);
  if constexpr (kMost > 1) ProductOf<kMost - 1>(call, first, columns);
}

}  // namespace

void RunMatrixProduct(const MatrixProduct& call) {
  const int64_t tiles = (call.columns + kColumnsAtOnce - 1) / kColumnsAtOnce;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t first = call.columns * tile / tiles;
    ProductOf<kColumnsAtOnce>(call, first, call.columns * (tile + 1) / tiles - first);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace capstan::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::engine {
namespace {

struct MatrixSizes {
  explicit MatrixSizes(const training::OpInstance& op)
      : m(op.inferred.output.shape.end()[-2]),
        n(op.inferred.output.shape.back()),
        k(op.x[0].shape.back()) {}
  int64_t m, n, k;
};

// Products of two values.
class ProductKernel {
 public:
  ProductKernel(const training::OpInstance& op, const NodePlaces& places)
      : sizes_(op), loop_(CAPSTAN_FORM_OF(RunMatrixProduct, *places.math)), places_(places) {
    const auto front_of = [](const training::Shape& shape) {
      return training::Shape(shape.begin(), shape.end() - 2);
    };
    const training::Shape front = front_of(op.inferred.output.shape);
    std::array<training::Strides, 2> strides;
    for (size_t k = 0; k < 2; ++k) {
      const training::Shape own = front_of(op.x[k].shape);
      strides[k] = training::BroadcastStrides(own, front);
      readers_[k].resize(static_cast<size_t>(training::Elements(own)));
    }
    training::ForPlaces<2>(front, strides, {0, 0}, [&](const std::array<int64_t, 2>& at) {
      for (size_t k = 0; k < 2; ++k) {
        readers_[k][static_cast<size_t>(at[k])].push_back(static_cast<int64_t>(factors_.size()));
      }
      factors_.push_back(at);
    });
  }

  void Make(NodePhases& phases, const std::shared_ptr<ProductKernel>& self) const {
    phases.kernel = "by sample";
    const auto count = static_cast<int64_t>(factors_.size());
    phases.forward.push_back(PhaseOf(self, count, sizes_.n, &ProductKernel::Forward));
    if (!places_.backward) return;
    if (places_.dx[0].data != nullptr) {
      phases.backward.push_back(PhaseOf(self, static_cast<int64_t>(readers_[0].size()), sizes_.k,
                                        &ProductKernel::FirstGradient));
    }
    if (places_.dx[1].data != nullptr) {
      phases.backward.push_back(PhaseOf(self, static_cast<int64_t>(readers_[1].size()), sizes_.n,
                                        &ProductKernel::SecondGradient));
      phases.backward.back().joins =
          places_.dx[0].data != nullptr && places_.dx[0].data != places_.dx[1].data;
    }
  }

 private:
  // A matrix of a block that a phase writes, and some of its columns.
  struct Piece {
    int64_t block = 0, matrix = 0;
    int64_t first = 0, columns = 0;
    float* copied = nullptr;
  };

  static Phase PhaseOf(const std::shared_ptr<ProductKernel>& self, int64_t matrices,
                       int64_t columns, void (ProductKernel::*run)(const Piece& piece) const) {
    // Large matrices are cut.
    constexpr int64_t kMostProducts = int64_t{1} << 18, kFewestColumns = 4 * kCopiedColumns;
    const MatrixSizes& sizes = self->sizes_;
    const double products =
        static_cast<double>(sizes.m) * static_cast<double>(sizes.n) * static_cast<double>(sizes.k);
    const double wanted = products / kMostProducts + 1;
    const int64_t most = CeilDivide(columns, kFewestColumns);
    const int64_t cuts = wanted < static_cast<double>(most) ? static_cast<int64_t>(wanted) : most;
    return {kCopiedDepth * kCopiedColumns * kSideBySide * 4,
            [matrices, cuts](const BatchRun& of) { return of.blocks * matrices * cuts; },
            [self, matrices, columns, cuts, run](const BatchRun&, int64_t index, char* scratch) {
              Piece piece;
              piece.block = index / cuts / matrices;
              piece.matrix = index / cuts % matrices;
              piece.first = columns * (index % cuts) / cuts;
              piece.columns = columns * (index % cuts + 1) / cuts - piece.first;
              piece.copied = reinterpret_cast<float*>(scratch);
              (*self.*run)(piece);
            }};
  }

  // Matrix number `matrix` of a block of an input, of the output, or of their gradients.
  template <typename Data>
  Data* MatrixOf(Data* data, size_t matrices, int64_t size, int64_t block, int64_t matrix) const {
    return data + (block * static_cast<int64_t>(matrices) + matrix) * size * kSideBySide;
  }
  MatrixView First(int64_t block, int64_t product) const {
    return {MatrixOf(places_.x[0], readers_[0].size(), sizes_.m * sizes_.k, block,
                     factors_[static_cast<size_t>(product)][0]),
            sizes_.k * kSideBySide, kSideBySide};
  }
  MatrixView Second(int64_t block, int64_t product) const {
    return {MatrixOf(places_.x[1], readers_[1].size(), sizes_.k * sizes_.n, block,
                     factors_[static_cast<size_t>(product)][1]),
            sizes_.n * kSideBySide, kSideBySide};
  }
  MatrixView OutputGradient(int64_t block, int64_t product) const {
    return {MatrixOf(places_.dy, factors_.size(), sizes_.m * sizes_.n, block, product),
            sizes_.n * kSideBySide, kSideBySide};
  }

  void Forward(const Piece& piece) const {
    MatrixProduct call;
    call.rows = sizes_.m;
    call.depth = sizes_.k;
    call.a = First(piece.block, piece.matrix);
    call.b = Second(piece.block, piece.matrix);
    call.y = MatrixOf(places_.y, factors_.size(), sizes_.m * sizes_.n, piece.block, piece.matrix);
    call.y_row = sizes_.n * kSideBySide;
    Run(piece, call);
  }

  // da = the sum of dy b^T over the products that read a
  void FirstGradient(const Piece& piece) const {
    MatrixProduct call;
    call.rows = sizes_.m;
    call.depth = sizes_.n;
    call.y = MatrixOf(places_.dx[0].data, readers_[0].size(), sizes_.m * sizes_.k, piece.block,
                      piece.matrix);
    call.y_row = sizes_.k * kSideBySide;
    call.add = places_.dx[0].add;
    for (const int64_t product : readers_[0][static_cast<size_t>(piece.matrix)]) {
      call.a = OutputGradient(piece.block, product);
      call.b = Second(piece.block, product).turned();
      Run(piece, call);
      call.add = true;
    }
  }

  // db = the sum of a^T dy over the products that read b
  void SecondGradient(const Piece& piece) const {
    MatrixProduct call;
    call.rows = sizes_.k;
    call.depth = sizes_.m;
    call.y = MatrixOf(places_.dx[1].data, readers_[1].size(), sizes_.k * sizes_.n, piece.block,
                      piece.matrix);
    call.y_row = sizes_.n * kSideBySide;
    call.add = places_.dx[1].add;
    for (const int64_t product : readers_[1][static_cast<size_t>(piece.matrix)]) {
      call.a = First(piece.block, product).turned();
      call.b = OutputGradient(piece.block, product);
      Run(piece, call);
      call.add = true;
    }
  }

  void Run(const Piece& piece, MatrixProduct call) const {
    call.columns = piece.columns;
    call.b.at += piece.first * call.b.column;
    call.y += piece.first * kSideBySide;
    call.copied = piece.copied;
    loop_(call);
  }

  const MatrixSizes sizes_;
  void (*const loop_)(const MatrixProduct& call);
  const NodePlaces places_;
  std::vector<std::array<int64_t, 2>> factors_;               // by product: the matrices of a and b
  std::array<std::vector<std::vector<int64_t>>, 2> readers_;  // by input and matrix: products
};

// Products of the rows of a value and the matrix of a Parameter.
class RowsKernel {
 public:
  RowsKernel(const training::OpInstance& op, const NodePlaces& places)
      : inputs_(op.x[0].shape.back()),
        outputs_(op.inferred.output.shape.back()),
        rows_(training::Elements(op.x[0].shape) / inputs_),
        offset_(places.of_input(1)),
        places_(places) {}

  void Make(NodePhases& phases, const std::shared_ptr<RowsKernel>& self) const {
    phases.kernel = "direct";
    phases.forward.push_back(
        {outputs_ > Together(inputs_, outputs_) ? inputs_ * Together(inputs_, outputs_) * 4 : 0,
         [self](const BatchRun& run) {
           return self->Runs(run) *
                  CeilDivide(self->outputs_, Together(self->inputs_, self->outputs_));
         },
         [self](const BatchRun& run, int64_t piece, char* scratch) {
           self->Forward(run, piece, reinterpret_cast<float*>(scratch));
         }});
    if (!places_.backward) return;
    const int64_t tiles = 1 + LaneTiles(places_.max_lanes);
    const int64_t tile = CeilDivide(inputs_, InputCuts()) * kMostWidth;
    phases.backward.push_back({(kBandRows * kSideBySide * kMostWidth + tiles * tile) * 4,
                               FixedPieces(InputCuts() * WidthCuts()),
                               [self](const BatchRun& run, int64_t piece, char* scratch) {
                                 self->WeightGradient(run, piece,
                                                      reinterpret_cast<float*>(scratch));
                               }});
    if (places_.dx[0].data == nullptr) return;
    phases.backward.push_back(
        {0,
         [self](const BatchRun& run) {
           return self->Runs(run) *
                  CeilDivide(self->inputs_, Together(self->outputs_, self->inputs_));
         },
         [self](const BatchRun& run, int64_t piece, char*) { self->DataGradient(run, piece); },
         /*joins=*/true});
  }

 private:
  static constexpr int64_t kRunRows = 48;            // rows of a piece
  static constexpr int64_t kWeightFloats = 8 << 10;  // of a piece: 32 KiB
  static constexpr int64_t kBandRows = 16;           // whose gradients are transposed together
  static constexpr int64_t kMostWidth = 64;          // outputs of a tile of the weight gradient
  static constexpr int64_t kInputsOfTile = 64;       // about

  // How many of `outputs` a piece computes, each with `depth` weights.
  static int64_t Together(int64_t depth, int64_t outputs) {
    return std::min(outputs, std::max<int64_t>(kTileOutputs, kWeightFloats / depth / kTileOutputs *
                                                                 kTileOutputs));
  }
  int64_t Runs(const BatchRun& run) const { return CeilDivide(run.blocks * rows_, kRunRows); }
  int64_t InputCuts() const { return std::max<int64_t>(1, inputs_ / kInputsOfTile); }
  int64_t WidthCuts() const { return CeilDivide(outputs_, kMostWidth); }

  // Some rows, and some outputs of y [rows][outputs][16] from x [rows][depth][16].
  struct Tile {
    DenseCall call;
    int64_t first = 0;  // first output
  };
  Tile TileOf(const BatchRun& run, int64_t depth, int64_t outputs, int64_t piece, const float* x,
              float* y) const {
    const int64_t together = Together(depth, outputs), cuts = CeilDivide(outputs, together);
    const int64_t index = piece / cuts, row = run.blocks * rows_ * index / Runs(run);
    Tile tile;
    tile.first = piece % cuts * together;
    tile.call.depth = depth;
    tile.call.outputs = std::min(together, outputs - tile.first);
    tile.call.count = run.blocks * rows_ * (index + 1) / Runs(run) - row;
    tile.call.x = x + row * depth * kSideBySide;
    tile.call.x_step = depth * kSideBySide;
    tile.call.y = y + (row * outputs + tile.first) * kSideBySide;
    tile.call.y_step = outputs * kSideBySide;
    return tile;
  }

  void Forward(const BatchRun& run, int64_t piece, float* scratch) const {
    auto [call, first] = TileOf(run, inputs_, outputs_, piece, places_.x[0], places_.y);
    call.weights = run.weights + offset_;
    call.w_output = 1;
    call.w_depth = outputs_;
    if (call.outputs < outputs_) {
      // Parts of the matrix's rows lie far apart, so they are copied together.
      for (int64_t i = 0; i < inputs_; ++i) {
        std::copy_n(call.weights + i * outputs_ + first, call.outputs, scratch + i * call.outputs);
      }
      call.weights = scratch;
      call.w_depth = call.outputs;
    }
    places_.math->dense(call);
  }

  void DataGradient(const BatchRun& run, int64_t piece) const {
    auto [call, first] = TileOf(run, outputs_, inputs_, piece, places_.dy, places_.dx[0].data);
    call.weights = run.weights + offset_ + first * outputs_;
    call.w_output = outputs_;
    call.w_depth = 1;
    call.add = places_.dx[0].add;
    places_.math->dense(call);
  }

  // To [row][sample][width], with zeros after the last output.
  void TurnGradient(int64_t row, int64_t rows, int64_t first, int64_t width, float* to) const {
    alignas(64) float last[kSideBySide * kSideBySide];
    for (int64_t i = 0; i < rows; ++i, to += kSideBySide * width) {
      const float* const dy = places_.dy + ((row + i) * outputs_ + first) * kSideBySide;
      for (int64_t o = 0; o < width; o += kSideBySide) {
        const int64_t there = std::min(kSideBySide, outputs_ - first - o);
        const float* from = dy + o * kSideBySide;
        if (there < kSideBySide) {
          std::fill(last + there * kSideBySide, last + kSideBySide * kSideBySide, 0.0f);
          std::copy_n(from, there * kSideBySide, last);
          from = last;
        }
        places_.math->transpose(from, kSideBySide, to + o, width);
      }
    }
  }

  // A tile of inputs and outputs. Each band of rows is summed by itself, sample by sample.
  void WeightGradient(const BatchRun& run, int64_t piece, float* scratch) const {
    const int64_t input_cut = piece / WidthCuts(), width_cut = piece % WidthCuts();
    const int64_t input = inputs_ * input_cut / InputCuts();
    const int64_t vectors = CeilDivide(outputs_, kSideBySide);
    const int64_t first = vectors * width_cut / WidthCuts() * kSideBySide;
    OuterSumsCall call;
    call.rows = 1;
    call.vectors = vectors * (width_cut + 1) / WidthCuts() - first / kSideBySide;
    call.x_plane = kSideBySide;
    call.x_step = inputs_ * kSideBySide;
    call.count = inputs_ * (input_cut + 1) / InputCuts() - input;
    call.dy = scratch;
    const int64_t width = call.vectors * kSideBySide, floats = call.count * width;
    float* const sums = scratch + kBandRows * kSideBySide * kMostWidth;
    SumOverLanes(run, *places_.math, floats, sums, sums + floats,
                 [&](const LaneBlocks& lane, float* to) {
                   std::fill_n(to, floats, 0.0f);
                   call.sums = to;
                   const int64_t last = (lane.first + lane.count) * rows_;
                   for (int64_t row = lane.first * rows_; row < last; row += kBandRows) {
                     call.columns = std::min(kBandRows, last - row);
                     TurnGradient(row, call.columns, first, width, scratch);
                     call.x = places_.x[0] + (row * inputs_ + input) * kSideBySide;
                     places_.math->outer_sums(call);
                   }
                 });
    const int64_t there = std::min(width, outputs_ - first);
    float* const gradient = run.gradient + offset_ + input * outputs_ + first;
    for (int64_t i = 0; i < call.count; ++i) {
      std::copy_n(sums + i * width, there, gradient + i * outputs_);
    }
  }

  const int64_t inputs_, outputs_;
  const int64_t rows_;    // of a block
  const int64_t offset_;  // of the weights
  const NodePlaces places_;
};

template <typename Kernel>
NodePhases PhasesOf(const training::OpInstance& op, const NodePlaces& places) {
  NodePhases phases;
  const auto kernel = std::make_shared<Kernel>(op, places);
  kernel->Make(phases, kernel);
  return phases;
}

}  // namespace

absl::StatusOr<NodePhases> MakeMatMulPhases(const training::Graph& graph, int node,
                                            const NodePlaces& places) {
  if (places.of_input(1) >= 0) return PhasesOf<RowsKernel>(graph.instance(node), places);
  return PhasesOf<ProductKernel>(graph.instance(node), places);
}

}  // namespace capstan::engine
#endif  // HWY_ONCE
