#include "training/graph/case_graphs.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "training/ops/activation/activation.h"
#include "training/ops/add/add.h"
#include "training/ops/arithmetic/arithmetic.h"
#include "training/ops/cast/cast.h"
#include "training/ops/concat/concat.h"
#include "training/ops/constant_of_shape/constant_of_shape.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gather/gather.h"
#include "training/ops/gelu/gelu.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/global_max_pool/global_max_pool.h"
#include "training/ops/layer_normalization/layer_normalization.h"
#include "training/ops/mat_mul/mat_mul.h"
#include "training/ops/pad/pad.h"
#include "training/ops/parameter/parameter.h"
#include "training/ops/reduce/reduce.h"
#include "training/ops/reshape/reshape.h"
#include "training/ops/slice/slice.h"
#include "training/ops/softmax/softmax.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"
#include "training/ops/transpose/transpose.h"
#include "training/ops/trilu/trilu.h"

namespace capstan::training {
namespace {

class CaseNodes {
 public:
  int Add(const std::string& name, Operator op, std::vector<int> inputs) {
    nodes_.push_back({absl::StrCat(name, nodes_.size()), std::move(op), std::move(inputs)});
    return static_cast<int>(nodes_.size());
  }
  int AddParameter(Shape shape, const std::string& init = "initializer") {
    return Add("parameter", ParameterNode{std::move(shape), init}, {});
  }
  // x times a matrix, plus a bias.
  int AddLinear(int x, int64_t inputs, int64_t outputs) {
    x = Add("product", MatMul(), {x, AddParameter({inputs, outputs})});
    return Add("bias", training::Add(), {x, AddParameter({outputs})});
  }
  absl::StatusOr<Graph> Finish(const std::string& name, Shape input, int x, int64_t classes) {
    x = Add("flatten", Flatten(), {x});
    x = Add("head", Gemm{classes}, {x});
    Add("loss", SoftmaxCrossEntropyLoss(), {x});
    return Graph::Build(name, std::move(input), std::move(nodes_));
  }

 private:
  std::vector<GraphNode> nodes_;
};

// x [tokens, width] to [tokens, width].
int AddAttention(CaseNodes& nodes, int x, const AttentionOptions& of) {
  const int64_t width = of.heads * of.head_width;
  x = nodes.AddLinear(x, width, 3 * width);
  x = nodes.Add("split", Reshape{{of.tokens, 3, of.heads, of.head_width}}, {x});
  x = nodes.Add("heads", Transpose{{2, 3, 1, 4}}, {x});
  int parts[3];
  for (int64_t i = 0; i < 3; ++i) {
    const int part = nodes.Add("slice", SliceNode{{i}, {i + 1}, {1}, {}}, {x});
    parts[i] = nodes.Add("part", Reshape{{of.heads, of.tokens, of.head_width}}, {part});
  }
  const int keys = nodes.Add("turn", Transpose{{1, 3, 2}}, {parts[1]});
  int scores = nodes.Add("scores", MatMul(), {parts[0], keys});
  scores = nodes.Add("scale", Mul(), {scores, nodes.AddParameter({1}, "ones")});
  scores = nodes.Add("mask", training::Add(),
                     {scores, nodes.AddParameter({of.tokens, of.tokens}, "zeros")});
  scores = nodes.Add("softmax", Softmax(), {scores});
  x = nodes.Add("values", MatMul(), {scores, parts[2]});
  x = nodes.Add("back", Transpose{{2, 1, 3}}, {x});
  x = nodes.Add("join", Reshape{{of.tokens, width}}, {x});
  return nodes.AddLinear(x, width, width);
}

}  // namespace

absl::StatusOr<Graph> AttentionGraph(const AttentionOptions& options) {
  CaseNodes nodes;
  const int64_t width = options.heads * options.head_width;
  const auto normalized = [&nodes](int x) {
    return nodes.Add("normalize", LayerNormalization(), {x});
  };
  int x = nodes.Add("rows", Reshape{{options.tokens, options.inputs}}, {0});
  x = nodes.Add("embed", MatMul(), {x, nodes.AddParameter({options.inputs, width})});
  x = nodes.Add("place", training::Add(), {x, nodes.AddParameter({options.tokens, width})});
  for (int64_t layer = 0; layer < options.layers; ++layer) {
    const int attended = AddAttention(nodes, normalized(x), options);
    x = nodes.Add("residual", training::Add(), {x, attended});
    int wide = nodes.AddLinear(normalized(x), width, 4 * width);
    wide = nodes.Add("gelu", Gelu{"tanh"}, {wide});
    x = nodes.Add("residual", training::Add(), {x, nodes.AddLinear(wide, 4 * width, width)});
  }
  x = nodes.Add("mean", ReduceMean{{1}, false}, {normalized(x)});
  return nodes.Finish("attention", {options.tokens * options.inputs}, x, options.classes);
}

absl::StatusOr<Graph> ArithmeticGraph() {
  CaseNodes nodes;
  const Shape image = {3, 4, 6};
  const auto dense = [&nodes](const Shape& shape) {
    const int x = nodes.Add("in", Gemm{Elements(shape)}, {0});
    return nodes.Add("image", Reshape{shape}, {x});
  };
  // Between 0.2 and 0.8, so that quotients stay small.
  const auto divisor = [&nodes](int x) {
    return nodes.Add("sigmoid", Sigmoid(), {nodes.Add("tanh", Tanh(), {x})});
  };
  const int row = dense({1, 6}), channels = dense({3, 1, 1});
  const int shared = nodes.AddParameter({4, 6});
  int x = dense(image), other = dense(image);
  x = nodes.Add("mul", Mul(), {nodes.AddParameter({3, 1, 1}), x});
  x = nodes.Add("sub", Sub(), {nodes.AddParameter({6}), x});
  x = nodes.Add("add", training::Add(), {x, shared});
  x = nodes.Add("leaky", LeakyRelu{0.3}, {x});
  other = nodes.Add("times", Mul(), {other, shared});
  other = nodes.Add("less", Sub(), {other, nodes.AddParameter({3, 1, 6})});
  other = nodes.Add("clip", Clip{-0.4, 0.6}, {other});
  other = nodes.Add("divide", Div(), {other, divisor(channels)});
  other = nodes.Add("over", Div(), {nodes.AddParameter({4, 1}), divisor(other)});
  x = nodes.Add("by_row", Mul(), {row, x});
  x = nodes.Add("both", Sub(), {x, other});
  const int padded = nodes.Add("pad", Pad{{0, -1, 2, 1, 0, 1}, 0.25}, {x});
  const int turned = nodes.Add("turn", Transpose{{3, 1, 2}}, {padded});
  const int sliced = nodes.Add("slice", SliceNode{{-1, 0}, {-100, 3}, {1, 3}, {-2, 2}}, {turned});
  const std::vector<int> ends = {nodes.Add("log", LogSoftmax{2}, {sliced}),
                                 nodes.Add("sum", ReduceSum{{1, 3}, true}, {turned}),
                                 nodes.Add("mean", ReduceMean{{2}, false}, {turned}),
                                 nodes.Add("largest", GlobalMaxPool(), {turned})};
  std::vector<int> flat;
  flat.reserve(ends.size());
  for (const int end : ends) flat.push_back(nodes.Add("flat", Flatten(), {end}));
  return nodes.Finish("arithmetic", {7}, nodes.Add("concat", Concat{1}, flat), 10);
}

absl::StatusOr<Graph> EmbeddingGraph() {
  constexpr int64_t kTokens = 12, kWidth = 19;  // a register of 16 and a part of one
  CaseNodes nodes;
  const int six = nodes.Add("six", ConstantOfShape{{1}, 6}, {});
  const int numbers = nodes.Add("numbers", Mul(), {0, six});
  const int tokens = nodes.Add("tokens", Cast{"int64"}, {numbers});
  const int drawn = nodes.Add("drawn", Gemm{5}, {0});  // indices that have a gradient, of zeros
  const auto gather = [&nodes](int table, int indices) {
    return nodes.Add("gather", Gather(), {table, indices});
  };
  const int shared = nodes.AddParameter({9, kWidth});
  int x = gather(nodes.AddParameter({7, kWidth}), tokens);
  x = nodes.Add("add", training::Add(), {x, gather(shared, numbers)});
  x = nodes.Add("add", training::Add(), {x, gather(shared, tokens)});
  const int hidden = nodes.Add("hidden", ConstantOfShape{{kTokens, kWidth}, 0.5}, {});
  x = nodes.Add("masked", training::Add(), {x, nodes.Add("mask", Trilu{true, 1}, {hidden})});
  x = nodes.Add("float", Cast(), {nodes.Add("gelu", Gelu(), {x})});
  const int lower = nodes.Add("lower", Trilu{false, 2}, {x});
  const int whole = nodes.Add("whole", Cast{"int32"}, {x});  // no gradient goes through it
  x = nodes.Add("sum", training::Add(), {lower, nodes.Add("both", training::Add(), {x, whole})});
  const int rows = gather(x, tokens), few = gather(x, drawn);
  x = nodes.Add("concat", Concat{1}, {rows, few, x});
  x = nodes.Add("mean", ReduceMean{{1}, false}, {x});
  return nodes.Finish("embedding", {kTokens}, nodes.Add("ends", Concat{1}, {x, drawn}), 10);
}

}  // namespace capstan::training
