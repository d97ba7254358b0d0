// Add, Sub, Mul and Div, which broadcast within a sample, and Parameter.
//
// A Parameter with one reader among them has no step of its own: the reader takes each number from
// the weights, and sums up its gradient (ReadsParameterFromWeights). Every other Parameter is copied
// to all samples.
#include "training/ops/arithmetic/arithmetic.h"

#include <array>
#include <memory>
#include <utility>

#include "gpu_worker/engine/cpu/blocked/terms.h"
#include "training/ops/add/add.h"
#include "training/ops/broadcast.h"

namespace capstan::engine {
namespace {

BinaryOp BinaryOpOf(const std::string& name) {
  if (name == training::Sub::kName) return BinaryOp::kSub;
  if (name == training::Mul::kName) return BinaryOp::kMul;
  return name == training::Div::kName ? BinaryOp::kDiv : BinaryOp::kAdd;
}

// Tensors of its walk: the two inputs and the output.
class ArithmeticKernel {
 public:
  ArithmeticKernel(const training::Graph& graph, int node, const NodePlaces& places)
      : op_(BinaryOpOf(graph.def(node).name)),
        elements_{graph.value_elements(graph.nodes()[node].inputs[0]),
                  graph.value_elements(graph.nodes()[node].inputs[1]),
                  graph.value_elements(graph.output_of(node))},
        walk_(WalkOf(graph.instance(node), places)),
        places_(places) {}

  absl::Status Make(NodePhases& phases, const std::shared_ptr<ArithmeticKernel>& self) const {
    phases.kernel = "pointwise";
    const int64_t parts = walk_.Parts(kOutput);
    phases.forward.push_back(
        {0, PartsOfBlocks(parts), [self, parts](const BatchRun& run, int64_t piece, char*) {
           self->Forward(run, piece / parts, piece % parts, parts);
         }});
    if (!places_.backward) return absl::OkStatus();
    std::vector<Phase> last;
    for (const size_t input : {0, 1}) {
      if (places_.of_input(input) < 0) continue;
      absl::StatusOr<BlockSums> sums = BlockSums::Make(phases, places_, elements_[input]);
      if (!sums.ok()) return sums.status();
      phases.backward.push_back(
          TermSumsPhase(walk_, *places_.math, input, *sums, TermOfInput{self, input}));
      last.push_back(sums->Gradient(places_, 0, elements_[input], places_.of_input(input)));
    }
    // The gradient by the first input may take the place of dy.
    const bool over_dy = places_.dx[0].data == places_.dy;
    for (const size_t input : {over_dy ? 1 : 0, over_dy ? 0 : 1}) {
      const bool same = input == 0 && (op_ == BinaryOp::kAdd || op_ == BinaryOp::kSub);
      if (places_.dx[input].data == nullptr || (same && over_dy)) continue;
      const TermTarget target = {input,
                                 places_.dx[input].data,
                                 elements_[input],
                                 places_.dx[input].add,
                                 elements_[input] != elements_[kOutput],
                                 op_ == BinaryOp::kDiv};
      phases.backward.push_back(TermPhase(walk_, *places_.math, target, TermOfInput{self, input}));
    }
    for (Phase& phase : last) phases.backward.push_back(std::move(phase));
    return absl::OkStatus();
  }

 private:
  static constexpr size_t kOutput = 2;

  static RowWalk WalkOf(const training::OpInstance& op, const NodePlaces& places) {
    const training::Shape& y = op.inferred.output.shape;
    const auto scale = [&places](size_t input) {
      return places.of_input(input) < 0 ? kSideBySide : 1;
    };
    return {y,
            {training::BroadcastStrides(op.x[0].shape, y),
             training::BroadcastStrides(op.x[1].shape, y), training::StridesOf(y)},
            {scale(0), scale(1), kSideBySide}};
  }

  // One of the inputs from the places of a row on.
  StridedOperand Input(const BatchRun& run, size_t input, int64_t block,
                       const RowWalk::Places& at) const {
    const int64_t offset = places_.of_input(input);
    if (offset >= 0) return {run.weights + offset + at[input], walk_.step(input), true};
    return {places_.x[input] + block * elements_[input] * kSideBySide + at[input],
            walk_.step(input)};
  }

  void Forward(const BatchRun& run, int64_t block, int64_t part, int64_t parts) const {
    const StridedLoops& loops = StridedLoopsOf(*places_.math);
    const RowWalk walk = walk_.Part(kOutput, part, parts);
    // Quotients of missing samples need not be numbers.
    const int64_t there = op_ == BinaryOp::kDiv ? run.InBlock(block) : kSideBySide;
    walk.ForRows([&](const RowWalk::Places& at) {
      float* const y = places_.y + block * elements_[kOutput] * kSideBySide + at[kOutput];
      loops.binary({op_, walk.size(), Input(run, 0, block, at), Input(run, 1, block, at), y});
      if (there < kSideBySide) ZeroSamples(y, walk.size(), kSideBySide, there);
    });
  }

  // What the gradient by an input is the sum of, in the row at `at`.
  TermCall TermAt(const BatchRun& run, size_t input, int64_t block,
                  const RowWalk::Places& at) const {
    TermCall call;
    call.dy = {places_.dy + block * elements_[kOutput] * kSideBySide + at[kOutput],
               walk_.step(kOutput)};
    switch (op_) {
      case BinaryOp::kAdd:
        break;
      case BinaryOp::kSub:
        if (input == 1) call.term = Term::kNegated;
        break;
      case BinaryOp::kMul:
        call.term = Term::kTimes;
        call.a = Input(run, 1 - input, block, at);
        break;
      case BinaryOp::kDiv:
        call.term = input == 0 ? Term::kOver : Term::kOfDivisor;
        call.a = Input(run, 1, block, at);
        if (input == 1) call.b = Input(run, 0, block, at);
        break;
    }
    return call;
  }
  struct TermOfInput {
    std::shared_ptr<const ArithmeticKernel> kernel;
    size_t input;
    TermCall operator()(const BatchRun& run, int64_t block, const RowWalk::Places& at) const {
      return kernel->TermAt(run, input, block, at);
    }
  };

  const BinaryOp op_;
  const std::array<int64_t, 3> elements_;
  const RowWalk walk_;
  const NodePlaces places_;
};

}  // namespace

absl::StatusOr<NodePhases> MakeArithmeticPhases(const training::Graph& graph, int node,
                                                const NodePlaces& places) {
  NodePhases phases;
  const auto kernel = std::make_shared<ArithmeticKernel>(graph, node, places);
  const absl::Status status = kernel->Make(phases, kernel);
  if (!status.ok()) return status;
  return phases;
}

absl::StatusOr<NodePhases> MakeParameterPhases(const training::Graph& graph, int node,
                                               const NodePlaces& places) {
  const int64_t elements = graph.value_elements(graph.output_of(node));
  const int64_t offset = places.parameters[0];
  const RowWalk walk({elements}, {training::Strides{1}, {1}, {}}, {1, kSideBySide, 1});
  NodePhases phases;
  phases.kernel = "pointwise";
  TermTarget target;
  target.tensor = 1;
  target.data = places.y;
  target.elements = elements;
  phases.forward.push_back(
      TermPhase(walk, *places.math, target,
                [offset](const BatchRun& run, int64_t, const RowWalk::Places& at) {
                  TermCall call;
                  call.dy = {run.weights + offset + at[0], 1, true};
                  return call;
                }));
  if (!places.backward) return phases;
  const absl::StatusOr<BlockSums> sums = BlockSums::Make(phases, places, elements);
  if (!sums.ok()) return sums.status();
  phases.backward.push_back(TermSumsPhase(
      walk, *places.math, 0, *sums,
      [dy = places.dy, elements](const BatchRun&, int64_t block, const RowWalk::Places& at) {
        TermCall call;
        call.dy = {dy + block * elements * kSideBySide + at[1], kSideBySide};
        return call;
      }));
  phases.backward.push_back(sums->Gradient(places, 0, elements, offset));
  return phases;
}

}  // namespace capstan::engine
