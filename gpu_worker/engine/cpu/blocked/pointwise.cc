// Operators that work element by element, and views.
#include <algorithm>
#include <utility>

#include "gpu_worker/engine/cpu/blocked/kernel.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/gelu/gelu.h"
#include "training/random/philox.h"

namespace capstan::engine {
namespace {

constexpr int64_t kPieceFloats = int64_t{1} << 15;

// Cuts [blocks][elements][16] into runs of kPieceFloats.
class Runs {
 public:
  explicit Runs(int64_t elements) : block_(elements * kSideBySide) {}
  std::function<int64_t(const BatchRun&)> pieces() const {
    return [block = block_](const BatchRun& run) {
      return CeilDivide(run.blocks * block, kPieceFloats);
    };
  }
  // Calls visit(first, size) for the floats of a piece.
  template <typename Visit>
  void Visited(const BatchRun& run, int64_t piece, Visit visit) const {
    const int64_t first = piece * kPieceFloats;
    visit(first, std::min(kPieceFloats, run.blocks * block_ - first));
  }

 private:
  int64_t block_;
};

Runs RunsOf(const training::Graph& graph, int node) {
  return Runs(graph.value_elements(graph.output_of(node)));
}

// Dropout's factors. A piece is a run of elements of a block.
class DropoutMask {
 public:
  DropoutMask(const training::Graph& graph, int node, const BlockedMath& math)
      : math_(&math),
        elements_(graph.value_elements(graph.output_of(node))),
        index_(graph.instance(node).index),
        ratio_(training::Dropout::Read(graph.instance(node).attributes).ratio) {}

  std::function<int64_t(const BatchRun&)> pieces() const {
    return [each = Pieces()](const BatchRun& run) { return run.blocks * each; };
  }

  // y = (add ? y : 0) + x times the factors; in evaluation they are 1.
  void Apply(const BatchRun& run, int64_t piece, const float* x, float* y, bool add) const {
    const int64_t block = piece / Pieces();
    DropoutCall call;
    call.first = piece % Pieces() * kPieceElements;
    call.count = std::min(kPieceElements, elements_ - call.first);
    const int64_t at = (block * elements_ + call.first) * kSideBySide;
    if (!run.samples.training) {
      if (x != y) math_->copy(call.count * kSideBySide, x + at, y + at, add);
      return;
    }
    alignas(64) uint64_t second[kSideBySide] = {}, fourth[kSideBySide] = {};
    for (int64_t l = 0; l < run.InBlock(block); ++l) {
      const training::PhiloxCounter counter = training::DropoutCounter(
          /*block=*/0, run.samples.ids[block * kSideBySide + l], run.samples.epoch, index_);
      second[l] = counter[1];
      fourth[l] = counter[3];
    }
    const training::PhiloxKey key =
        training::MakePhiloxKey(run.samples.seed, training::Purpose::kDropout);
    call.second_words = second;
    call.third_word = run.samples.epoch;
    call.fourth_words = fourth;
    call.key[0] = key[0];
    call.key[1] = key[1];
    call.threshold = training::DropoutThreshold(ratio_);
    call.scale = static_cast<float>(1 / (1 - ratio_));
    call.x = x + at;
    call.y = y + at;
    call.add = add;
    math_->dropout(call);
  }

 private:
  static constexpr int64_t kPieceElements = kPieceFloats / kSideBySide;

  int64_t Pieces() const { return CeilDivide(elements_, kPieceElements); }

  const BlockedMath* const math_;
  const int64_t elements_;
  const int index_;
  const double ratio_;
};

}  // namespace

absl::StatusOr<NodePhases> MakeReluPhases(const training::Graph& graph, int node,
                                          const NodePlaces& places) {
  const Runs runs = RunsOf(graph, node);
  NodePhases phases;
  phases.kernel = "pointwise";
  phases.forward.push_back(
      {0, runs.pieces(), [runs, places](const BatchRun& run, int64_t piece, char*) {
         runs.Visited(run, piece, [&](int64_t first, int64_t size) {
           places.math->relu(size, places.x[0] + first, places.y + first);
         });
       }});
  if (places.backward && places.dx[0].data != nullptr) {
    phases.backward.push_back(
        {0, runs.pieces(), [runs, places](const BatchRun& run, int64_t piece, char*) {
           runs.Visited(run, piece, [&](int64_t first, int64_t size) {
             places.math->relu_backward(size, places.y + first, places.dy + first,
                                        places.dx[0].data + first, places.dx[0].add);
           });
         }});
  }
  return phases;
}

absl::StatusOr<NodePhases> MakeGeluPhases(const training::Graph& graph, int node,
                                          const NodePlaces& places) {
  const Runs runs = RunsOf(graph, node);
  const bool tanh_form =
      training::Gelu::Read(graph.instance(node).attributes).approximate == "tanh";
  NodePhases phases;
  phases.kernel = "pointwise";
  phases.forward.push_back(
      {0, runs.pieces(), [runs, places, tanh_form](const BatchRun& run, int64_t piece, char*) {
         runs.Visited(run, piece, [&](int64_t first, int64_t size) {
           places.math->gelu(size, places.x[0] + first, tanh_form, places.y + first);
         });
       }});
  if (places.backward && places.dx[0].data != nullptr) {
    phases.backward.push_back(
        {0, runs.pieces(), [runs, places, tanh_form](const BatchRun& run, int64_t piece, char*) {
           runs.Visited(run, piece, [&](int64_t first, int64_t size) {
             places.math->gelu_backward(size, places.x[0] + first, places.dy + first, tanh_form,
                                        places.dx[0].data + first, places.dx[0].add);
           });
         }});
  }
  return phases;
}

absl::StatusOr<NodePhases> MakeDropoutPhases(const training::Graph& graph, int node,
                                             const NodePlaces& places) {
  const DropoutMask mask(graph, node, *places.math);
  NodePhases phases;
  phases.kernel = "pointwise";
  phases.forward.push_back(
      {0, mask.pieces(), [mask, places](const BatchRun& run, int64_t piece, char*) {
         mask.Apply(run, piece, places.x[0], places.y, /*add=*/false);
       }});
  if (places.backward && places.dx[0].data != nullptr) {
    phases.backward.push_back(
        {0, mask.pieces(), [mask, places](const BatchRun& run, int64_t piece, char*) {
           mask.Apply(run, piece, places.dy, places.dx[0].data, places.dx[0].add);
         }});
  }
  return phases;
}

absl::StatusOr<NodePhases> MakeSumPhases(const training::Graph& graph, int node,
                                         const NodePlaces& places) {
  const Runs runs = RunsOf(graph, node);
  NodePhases phases;
  phases.kernel = "pointwise";
  phases.forward.push_back(
      {0, runs.pieces(), [runs, places](const BatchRun& run, int64_t piece, char*) {
         runs.Visited(run, piece, [&](int64_t first, int64_t size) {
           float* const y = places.y + first;
           if (places.x[0] != places.y)
             places.math->copy(size, places.x[0] + first, y, /*add=*/false);
           for (size_t i = 1; i < places.x.size(); ++i) {
             places.math->copy(size, places.x[i] + first, y, /*add=*/true);
           }
         });
       }});
  if (!places.backward) return phases;
  phases.backward.push_back(
      {0, runs.pieces(), [runs, places](const BatchRun& run, int64_t piece, char*) {
         runs.Visited(run, piece, [&](int64_t first, int64_t size) {
           for (const NodePlaces::Gradient& dx : places.dx) {
             if (dx.data == nullptr || dx.data == places.dy) continue;
             places.math->copy(size, places.dy + first, dx.data + first, dx.add);
           }
         });
       }});
  return phases;
}

absl::StatusOr<NodePhases> MakeViewPhases(const training::Graph& graph, int node,
                                          const NodePlaces& places) {
  NodePhases phases;
  phases.kernel = "view";
  if (!places.backward || places.dx[0].data == nullptr || places.dx[0].data == places.dy) {
    return phases;
  }
  const Runs runs = RunsOf(graph, node);
  phases.backward.push_back(
      {0, runs.pieces(), [runs, places](const BatchRun& run, int64_t piece, char*) {
         runs.Visited(run, piece, [&](int64_t first, int64_t size) {
           places.math->copy(size, places.dy + first, places.dx[0].data + first, places.dx[0].add);
         });
       }});
  return phases;
}

}  // namespace capstan::engine
