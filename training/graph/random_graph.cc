#include "training/graph/random_graph.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/check/check.h"
#include "training/ops/activation/activation.h"
#include "training/ops/arithmetic/arithmetic.h"
#include "training/ops/concat/concat.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/mat_mul/mat_mul.h"
#include "training/ops/mean_squared_error/mean_squared_error.h"
#include "training/ops/op_cases.h"
#include "training/ops/reshape/reshape.h"
#include "training/ops/sequence_cross_entropy/sequence_cross_entropy.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::training {
namespace {

// SplitMix64 (Steele, Lea and Flood 2014). Draws whole numbers below n.
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}
  size_t operator()(size_t n) {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return static_cast<size_t>((z ^ (z >> 31)) % n);
  }

 private:
  uint64_t state_;
};

}  // namespace

Graph RandomGraph(uint64_t seed, const RandomGraphOptions& options) {
  Draws draw(seed);
  const Shape input = {3, 9, 8};
  std::vector<ValueType> values = {{input}};
  std::vector<bool> read = {false};
  std::vector<GraphNode> nodes;
  const auto add = [&](const Operator& op, std::vector<int> inputs, int64_t most_elements) {
    std::vector<ValueType> types;
    for (const int value : inputs) types.push_back(values[value]);
    const auto made = Instantiate(op, types);
    if (!made.ok() || Elements(made->inferred.output.shape) > most_elements) return;
    if (made->inferred.output.shape.size() > kMaxAxes) return;
    for (const int value : inputs) read[value] = true;
    values.push_back(made->inferred.output);
    read.push_back(false);
    nodes.push_back({absl::StrCat("n/", nodes.size(), ".", op.name), op, std::move(inputs)});
  };
  // Puts `bound` between a value and its reader, so that products and quotients of many nodes stay
  // finite.
  const auto tame = [&](const Operator& bound, int& value) {
    const size_t before = values.size();
    add(bound, {value}, options.most_elements);
    if (values.size() > before) value = static_cast<int>(before);
  };
  for (size_t tries = options.least_tries + draw(options.most_tries - options.least_tries + 1);
       tries > 0; --tries) {
    const OpCase& one = AllOpCases()[draw(AllOpCases().size())];
    const OpDef& def = *FindOp(one.op.name);
    if (one.hostile || def.loss) continue;
    std::vector<int> inputs;
    const int count = def.min_inputs + static_cast<int>(draw(std::clamp(def.max_inputs, 1, 3)));
    for (int i = 0; i < std::min(count, def.max_inputs); ++i) {
      inputs.push_back(
          static_cast<int>(values.size() - 1 - draw(std::min<size_t>(4, values.size()))));
    }
    if (one.op.name == Mul::kName || one.op.name == MatMul::kName) tame(Tanh(), inputs[1]);
    if (one.op.name == Div::kName) tame(Clip{0.5, 2}, inputs[1]);
    add(one.op, std::move(inputs), options.most_elements);
  }
  constexpr int64_t kAll = int64_t{1} << 40;
  std::vector<int> ends;
  const int count = static_cast<int>(values.size());
  for (int value = 0; value < count; ++value) {
    if (read[value]) continue;
    add(Flatten(), {value}, kAll);
    ends.push_back(static_cast<int>(values.size()) - 1);
  }
  add(Concat{1}, ends, kAll);
  const int joined = static_cast<int>(values.size()) - 1;
  if (seed % 4 == 3) {
    add(Gemm{12}, {joined}, kAll);
    add(Reshape{{4, 3}}, {joined + 1}, kAll);
    add(Gemm{4}, {joined}, kAll);
    add(SequenceCrossEntropyLoss(), {joined + 2, joined + 3}, kAll);
  } else {
    add(Gemm{7}, {joined}, kAll);
    const Operator loss =
        seed % 8 == 2 ? Operator(MeanSquaredErrorLoss()) : Operator(SoftmaxCrossEntropyLoss());
    add(loss, {joined + 1}, kAll);
  }
  absl::StatusOr<Graph> graph = Graph::Build("random", input, std::move(nodes));
  CAPSTAN_CHECK(graph.ok());
  return *std::move(graph);
}

}  // namespace capstan::training
