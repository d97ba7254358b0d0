// Constants that nodes read, parts of values, and arithmetic on shapes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "training/onnx/onnx_builder.h"
#include "training/ops/parameter/parameter.h"
#include "training/ops/trilu/trilu.h"

namespace capstan::training::onnx {
namespace {

namespace v1 = capstan::onnx::v1;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

OnnxModel ImportedParts(const OnnxBuilder& builder, const OnnxLimits& limits = {}) {
  const absl::StatusOr<OnnxModel> model = builder.Read(limits);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *model : OnnxModel();
}

// A Constant node with floats.
void FloatsNode(OnnxBuilder& builder, const std::string& name, const Shape& dims,
                const std::vector<float>& values) {
  v1::AttributeProto& value = OnnxBuilder::Set(builder.Node("Constant", {}, name), "value");
  value.set_type(v1::ATTRIBUTE_TYPE_TENSOR);
  value.mutable_t()->set_data_type(v1::DATA_TYPE_FLOAT);
  value.mutable_t()->mutable_dims()->Add(dims.begin(), dims.end());
  value.mutable_t()->mutable_float_data()->Add(values.begin(), values.end());
}

TEST(ReadPartsTest, WhatIsTrainedAndWhatIsNot) {
  OnnxBuilder builder({2});
  builder.Floats("norm.weight", {2}, {2, 3});
  builder.Floats("shift", {1, 2}, {10, 20});
  builder.Floats("scalar", {}, {0.1f});
  FloatsNode(builder, "ones", {2}, {1, 1});
  builder.Node("Mul", {"x", "norm.weight"}, "a", "m");
  builder.Node("Sub", {"shift", "a"}, "b", "s");
  builder.Node("Div", {"b", "scalar"}, "c", "d");
  builder.Node("Add", {"c", "ones"}, "y", "p");
  const OnnxModel model = ImportedParts(builder);
  EXPECT_EQ(NodesOf(model),
            "norm Parameter(), m Mul(0 1), shift Parameter(), s Sub(3 2), constantofshape1 "
            "ConstantOfShape(), "
            "d Div(4 5), constantofshape2 ConstantOfShape(), p Add(6 7)");
  EXPECT_EQ(WeightsOf(model), "norm.weight [2], shift.weight [2]");
  EXPECT_EQ(model.nodes[0].op.attributes.Text("init"), "ones");
  EXPECT_EQ(model.nodes[2].op.attributes.Text("init"), "zeros");
  EXPECT_EQ(model.nodes[4].op.attributes.Float("value"), 0.1);  // the decimal fraction
  const std::vector<float> y = Compute(model, {1, 2});
  EXPECT_NEAR(y[0], 81, 1e-4);
  EXPECT_NEAR(y[1], 141, 1e-4);
}

TEST(ReadPartsTest, ANumberOfOneAxisIsTrainedIfItIsAnInitializer) {
  OnnxBuilder builder({2});
  builder.Floats("gain", {1}, {3});
  builder.Node("Mul", {"x", "gain"}, "y", "m");
  EXPECT_EQ(WeightsOf(ImportedParts(builder)), "gain.weight [1]");
}

TEST(ReadPartsTest, NumbersOfANodeAreNotTrainedInSecret) {
  OnnxBuilder builder({2});
  FloatsNode(builder, "mean", {2}, {1, 2});
  builder.Node("Sub", {"x", "mean"}, "y", "s");
  EXPECT_EQ(builder.Error(),
            "node 's': constant 'mean' of shape [2] has different numbers and is no initializer: "
            "want an initializer, which is trained, or equal numbers, which are not");
  // A network that is not trained takes them.
  const absl::StatusOr<OnnxNetwork> network = ReadOnnxNetwork(builder.Bytes(), "n");
  ASSERT_TRUE(network.ok()) << network.status();
  ASSERT_EQ(network->weights.size(), 1u);
  EXPECT_THAT(network->weights[0].values, ElementsAre(1, 2));
}

TEST(ReadPartsTest, AConstantMayNotDifferByTheSample) {
  for (const Shape& dims : {Shape{2, 2}, Shape{1, 1, 2}}) {
    OnnxBuilder builder({2});
    builder.Count("c", dims);
    builder.Node("Mul", {"x", "c"}, "y", "m");
    EXPECT_THAT(builder.Error(),
                HasSubstr("want at most 2 dimensions, and 1 as the first of these: the batch"));
  }
}

TEST(ReadPartsTest, AConstantOfSeveralReadersIsOneParameter) {
  OnnxBuilder builder({2});
  builder.Floats("c", {2}, {2, 3});
  builder.Node("Mul", {"x", "c"}, "a", "m");
  builder.Node("Add", {"a", "c"}, "y", "p");
  const OnnxModel model = ImportedParts(builder);
  EXPECT_EQ(NodesOf(model), "c Parameter(), m Mul(0 1), p Add(2 1)");
  EXPECT_THAT(model.shared_weights, ElementsAre());
}

// As PyTorch writes nn.Linear of a sequence: a MatMul with a matrix [in, out] or a transposed one, and
// an Add. Names and layout become PyTorch's.
TEST(ReadPartsTest, AProductOfRowsIsALinear) {
  for (const bool transposed : {false, true}) {
    for (const int bias : {-1, 0, 1}) {  // the input of the Add that has it; -1: none
      OnnxBuilder builder({4});
      builder.Integers("rows", {-1, 2, 2});
      builder.Node("Reshape", {"x", "rows"}, "r", "rows");
      const std::string weight = transposed ? "fc.weight" : "onnx::MatMul_7";
      // [[1, 2, 3], [4, 5, 6]] as [in, out], or its transpose
      builder.Floats(
          weight, transposed ? Shape{3, 2} : Shape{2, 3},
          transposed ? std::vector<float>{1, 4, 2, 5, 3, 6} : std::vector<float>{1, 2, 3, 4, 5, 6});
      builder.Floats("fc.bias", {3}, {100, 200, 300});
      if (transposed) builder.Node("Transpose", {"fc.weight"}, "w");
      builder.Node("MatMul", {"r", transposed ? "w" : weight}, bias < 0 ? "y" : "p", "product");
      if (bias == 0) builder.Node("Add", {"fc.bias", "p"}, "y", "sum");
      if (bias == 1) builder.Node("Add", {"p", "fc.bias"}, "y", "sum");
      const OnnxModel model = ImportedParts(builder);
      const std::string name = transposed || bias >= 0 ? "fc" : "product";
      EXPECT_EQ(NodesOf(model), absl::StrCat("rows Reshape(0), ", name, " Linear(1)"));
      EXPECT_EQ(WeightsOf(model),
                absl::StrCat(name, ".weight [3, 2]", bias < 0 ? "" : ", fc.bias [3]"));
      if (bias < 0) {
        EXPECT_THAT(Compute(model, {1, 0, 1, 10}), ElementsAre(1, 2, 3, 41, 52, 63));
      } else {
        EXPECT_THAT(Compute(model, {1, 0, 1, 10}), ElementsAre(101, 202, 303, 141, 252, 363));
      }
    }
  }
}

// As Capstan writes a MatMul with a Parameter: name and layout are those of the file.
TEST(ReadPartsTest, AMatrixWithTheNameOfAWeightKeepsItsLayout) {
  OnnxBuilder builder({4});
  builder.Integers("rows", {-1, 2, 2});
  builder.Node("Reshape", {"x", "rows"}, "r", "rows");
  builder.Floats("fc.weight", {2, 3}, {1, 2, 3, 4, 5, 6});
  builder.Node("MatMul", {"r", "fc.weight"}, "y", "product");
  const OnnxModel model = ImportedParts(builder);
  EXPECT_EQ(NodesOf(model), "rows Reshape(0), fc Parameter(), product MatMul(1 2)");
  EXPECT_EQ(WeightsOf(model), "fc.weight [2, 3]");
  EXPECT_THAT(Compute(model, {1, 0, 1, 10}), ElementsAre(1, 2, 3, 41, 52, 63));
}

// Tied weights stay one Parameter: copies in two layers would be trained apart.
TEST(ReadPartsTest, AMatrixOfSeveralReadersStaysOne) {
  for (const bool behind : {false, true}) {  // both read what a node makes of the matrix
    OnnxBuilder builder({4});
    builder.Integers("rows", {-1, 2, 2});
    builder.Node("Reshape", {"x", "rows"}, "r", "rows");
    builder.Floats("w", {2, 2}, {1, 2, 3, 4});
    if (behind) builder.Node("Identity", {"w"}, "v");
    builder.Node("Transpose", {behind ? "v" : "w"}, "turned");
    if (behind) builder.Node("Transpose", {"v"}, "again");
    builder.Node("MatMul", {"r", "turned"}, "p", "first");
    builder.Node("MatMul", {"p", behind ? "again" : "w"}, "y", "second");
    const OnnxModel model = ImportedParts(builder);
    EXPECT_EQ(WeightsOf(model), "w.weight [2, 2]");
    EXPECT_EQ(model.nodes.back().op.name, "MatMul");
    EXPECT_EQ(Compute(model, {1, 0, 0, 10}), behind ? (std::vector<float>{7, 15, 100, 220})
                                                    : (std::vector<float>{10, 14, 140, 200}));
  }
  // The table of an embedding may be the matrix of the last layer.
  OnnxBuilder tied({2});
  tied.Floats("table", {3, 2}, {1, 2, 3, 4, 5, 6});
  tied.Node("Gather", {"table", "x"}, "rows", "look");
  tied.Node("Transpose", {"table"}, "turned");
  tied.Node("MatMul", {"rows", "turned"}, "y", "head");
  const OnnxModel model = ImportedParts(tied);
  EXPECT_EQ(WeightsOf(model), "table.weight [3, 2]");
  EXPECT_THAT(model.shared_weights, ElementsAre());
  EXPECT_THAT(Compute(model, {2, 0}), ElementsAre(17, 39, 61, 5, 11, 17));
  // A bias that two layers share, likewise.
  OnnxBuilder builder({4});
  builder.Integers("rows", {-1, 2, 2});
  builder.Node("Reshape", {"x", "rows"}, "r", "rows");
  builder.Floats("w1", {2, 2}, {1, 2, 3, 4});
  builder.Floats("w2", {2, 2}, {1, 2, 3, 4});
  builder.Floats("b", {2}, {5, 6});
  builder.Node("MatMul", {"r", "w1"}, "p1", "one");
  builder.Node("Add", {"p1", "b"}, "s1");
  builder.Node("MatMul", {"s1", "w2"}, "p2", "two");
  builder.Node("Add", {"p2", "b"}, "y");
  const OnnxModel biases = ImportedParts(builder);
  EXPECT_EQ(WeightsOf(biases), "one.weight [2, 2], b.weight [2], two.weight [2, 2]");
  EXPECT_THAT(Compute(biases, {1, 0, 0, 10}), ElementsAre(35, 50, 178, 260));
}

// A bias is trained, with a number for each column. These are not, or have one number for all.
TEST(ReadPartsTest, WhatIsNotTrainedByColumnIsNoBiasOfRows) {
  for (const bool trained : {false, true}) {
    OnnxBuilder builder({4});
    builder.Integers("rows", {-1, 2, 2});
    builder.Node("Reshape", {"x", "rows"}, "r", "rows");
    builder.Floats("w", {2, 2}, {1, 2, 3, 4});
    builder.Node("MatMul", {"r", "w"}, "p", "fc");
    if (trained) {
      builder.Floats("half", {1}, {0.5f});
    } else {
      v1::TensorProto& value =
          *builder.Node("Constant", {}, "half", "half").add_attribute()->mutable_t();
      builder.graph().mutable_node()->rbegin()->mutable_attribute(0)->set_name("value");
      builder.graph().mutable_node()->rbegin()->mutable_attribute(0)->set_type(
          v1::ATTRIBUTE_TYPE_TENSOR);
      value.set_data_type(v1::DATA_TYPE_FLOAT);
      value.add_dims(2);
      value.add_float_data(0.5f);
      value.add_float_data(0.5f);
    }
    builder.Node("Add", {"p", "half"}, "y");
    const OnnxModel model = ImportedParts(builder);
    EXPECT_EQ(WeightsOf(model), trained ? "fc.weight [2, 2], half.weight [1]" : "fc.weight [2, 2]");
    EXPECT_THAT(Compute(model, {1, 0, 0, 10}), ElementsAre(1.5f, 2.5f, 30.5f, 40.5f));
  }
}

// The product of these sizes does not fit into 64 bits.
TEST(ReadPartsTest, AMeanOfWholeNumbersOverAnAxisTwiceIsRefused) {
  OnnxBuilder builder({1 << 21});
  builder.graph().mutable_input(0)->mutable_type()->mutable_tensor_type()->set_elem_type(
      v1::DATA_TYPE_INT64);
  v1::NodeProto& mean = builder.Node("ReduceMean", {"x"}, "y", "mean");
  OnnxBuilder::SetInts(mean, "axes", {1, 1, 1, 1});
  EXPECT_THAT(builder.Error(), ::testing::HasSubstr("axis"));
}

TEST(ReadPartsTest, AMatrixTimesRowsIsAProduct) {
  OnnxBuilder first({4});
  first.Integers("rows", {-1, 2, 2});
  first.Node("Reshape", {"x", "rows"}, "r");
  first.Floats("w", {1, 2}, {1, 10});
  first.Node("MatMul", {"w", "r"}, "y");
  EXPECT_THAT(Compute(ImportedParts(first), {1, 2, 3, 4}), ElementsAre(31, 42));
  OnnxBuilder mixes({2});
  mixes.Count("w", {2, 2});
  mixes.Node("MatMul", {"w", "x"}, "y", "p");
  EXPECT_EQ(mixes.Error(), "node 'p': a constant times a value mixes the samples");
}

TEST(ReadPartsTest, AGemmAddsAValue) {
  OnnxBuilder builder({2});
  builder.Floats("w", {2, 2}, {1, 0, 0, 1});
  v1::NodeProto& gemm = builder.Node("Gemm", {"x", "w", "x"}, "y", "fc");
  OnnxBuilder::SetFloat(gemm, "alpha", 2);
  OnnxBuilder::SetFloat(gemm, "beta", 0.5f);
  EXPECT_THAT(Compute(ImportedParts(builder), {4, 6}), ElementsAre(10, 15));
}

TEST(ReadPartsTest, LayerNormalizationHasPyTorchsParameters) {
  for (const bool bias : {false, true}) {
    OnnxBuilder builder({4});
    builder.Floats("ln.weight", {4}, {2, 1, 1, 1});
    builder.Floats("ln.bias", {4}, {1, 0, 0, 10});
    v1::NodeProto& node = builder.Node("LayerNormalization", {"x", "ln.weight"}, "y", "n");
    if (bias) node.add_input("ln.bias");
    OnnxBuilder::SetFloat(node, "epsilon", 0.3125f);
    const OnnxModel model = ImportedParts(builder);
    EXPECT_EQ(WeightsOf(model), "ln.weight [4], ln.bias [4]");
    // As in LayerNormalizationTest.ByHand.
    const std::vector<float> y = Compute(model, {1, 2, 3, 4});
    EXPECT_NEAR(y[0], bias ? -1.4 : -2.4, 1e-5);
    EXPECT_NEAR(y[3], bias ? 11.2 : 1.2, 1e-5);
  }
  OnnxBuilder wrong({4});
  wrong.Count("w", {1});
  wrong.Node("LayerNormalization", {"x", "w"}, "y", "n");
  EXPECT_EQ(wrong.Error(), "node 'n': weight: shape [1], want [4]");
}

TEST(ReadPartsTest, SlicesAreAttributesOrInputs) {
  for (const int64_t set : {9, 13}) {
    OnnxBuilder builder({6});
    builder.SetOperatorSet(set);
    if (set == 9) {
      v1::NodeProto& node = builder.Node("Slice", {"x"}, "y", "part");
      OnnxBuilder::SetInts(node, "starts", {0, 1});
      OnnxBuilder::SetInts(node, "ends", {kEnd, -1});
    } else {
      builder.Integers("starts", {0, -2});
      builder.Integers("ends", {kEnd, -7});
      builder.Integers("axes", {0, -1});
      builder.Integers("steps", {1, -2});
      builder.Node("Slice", {"x", "starts", "ends", "axes", "steps"}, "y", "part");
    }
    const OnnxModel model = ImportedParts(builder);
    EXPECT_EQ(NodesOf(model), "part Slice(0)");
    EXPECT_EQ(Compute(model, {0, 1, 2, 3, 4, 5}),
              set == 9 ? (std::vector<float>{1, 2, 3, 4}) : (std::vector<float>{4, 2, 0}));
  }
}

std::string SliceError(const std::vector<int64_t>& starts, const std::vector<int64_t>& ends,
                       const std::vector<int64_t>& axes) {
  OnnxBuilder builder({6});
  builder.Integers("starts", starts);
  builder.Integers("ends", ends);
  builder.Integers("axes", axes);
  builder.Node("Slice", {"x", "starts", "ends", "axes"}, "y", "part");
  return builder.Error();
}

TEST(ReadPartsTest, SlicesThatAreRefused) {
  EXPECT_EQ(SliceError({1}, {kEnd}, {0}),
            "node 'part': a part of axis 0, the batch, whose samples cannot be told apart");
  EXPECT_EQ(SliceError({0}, {4}, {-2}),
            "node 'part': a part of axis 0, the batch, whose samples cannot be told apart");
  EXPECT_THAT(SliceError({3}, {3}, {1}), HasSubstr("want at least one index"));
  EXPECT_EQ(SliceError({0, 0}, {3}, {1}), "node 'part': 2 starts, 1 ends, 1 axes and 2 steps");
  EXPECT_THAT(SliceError({0}, {3}, {std::numeric_limits<int64_t>::min()}),
              HasSubstr("want -2 to 1"));
}

TEST(ReadPartsTest, ASplitIsSeveralSlices) {
  struct Case {
    int64_t set;
    bool sizes;
    std::vector<float> want;
  };
  // Of 0 to 4: the first part plus the last number of the last one.
  for (const Case& c :
       {Case{11, true, {0, 4}}, Case{13, true, {0, 4}}, Case{18, false, {0, 2, 4}}}) {
    OnnxBuilder builder({5});
    builder.SetOperatorSet(c.set);
    v1::NodeProto& node = builder.Node("Split", {"x"}, "first", "split");
    node.add_output("middle");
    node.add_output("last");
    OnnxBuilder::SetInt(node, "axis", 1);
    if (c.set == 11) OnnxBuilder::SetInts(node, "split", {1, 3, 1});
    if (c.set == 18) OnnxBuilder::SetInt(node, "num_outputs", 3);
    if (c.set == 13) {
      builder.Integers("sizes", {1, 3, 1});
      node.add_input("sizes");
    }
    v1::NodeProto& joined = builder.Node("Concat", {"first", "last"}, "y");
    OnnxBuilder::SetInt(joined, "axis", 1);
    const OnnxModel model = ImportedParts(builder);
    EXPECT_EQ(NodesOf(model), "split Slice(0), split_2 Slice(0), concat1 Concat(1 2)");
    EXPECT_EQ(Compute(model, {0, 1, 2, 3, 4}),
              c.set == 18 ? (std::vector<float>{0, 1, 4}) : (std::vector<float>{0, 4}));
  }
  OnnxBuilder wrong({5});
  v1::NodeProto& node = wrong.Node("Split", {"x"}, "y", "split");
  OnnxBuilder::SetInt(node, "axis", 1);
  wrong.Integers("sizes", {4});
  node.add_input("sizes");
  EXPECT_EQ(wrong.Error(),
            "node 'split': 1 parts of an axis of 5 for 1 outputs, want parts that fill the axis");
}

TEST(ReadPartsTest, PadsAreAttributesOrInputs) {
  for (const int64_t set : {9, 13, 18}) {
    OnnxBuilder builder({2});
    builder.SetOperatorSet(set);
    v1::NodeProto& node = builder.Node("Pad", {"x"}, "y", "pad");
    if (set == 9) {
      OnnxBuilder::SetInts(node, "pads", {0, 1, 0, 2});
      OnnxBuilder::SetFloat(node, "value", 7);
    } else {
      builder.Integers("pads",
                       set == 13 ? std::vector<int64_t>{0, 1, 0, 2} : std::vector<int64_t>{1, 2});
      builder.Floats("seven", {}, {7});
      node.add_input("pads");
      node.add_input("seven");
    }
    if (set == 18) {
      builder.Integers("axes", {-1});
      node.add_input("axes");
    }
    EXPECT_THAT(Compute(ImportedParts(builder), {1, 2}), ElementsAre(7, 1, 2, 7, 7)) << set;
  }
  OnnxBuilder reflect({2});
  reflect.Integers("pads", {0, 1, 0, 2});
  OnnxBuilder::SetText(reflect.Node("Pad", {"x", "pads"}, "y", "pad"), "mode", "reflect");
  EXPECT_EQ(reflect.Error(), "node 'pad': attribute 'mode' is reflect, want constant");
}

TEST(ReadPartsTest, AGatherOfOneIndexIsASlice) {
  OnnxBuilder builder({2, 2, 2});
  builder.Tensor("last", {}, v1::DATA_TYPE_INT64).add_int64_data(-1);
  OnnxBuilder::SetInt(builder.Node("Gather", {"x", "last"}, "y", "row"), "axis", 2);
  const OnnxModel model = ImportedParts(builder);
  EXPECT_EQ(model.output_shape, (Shape{2, 2}));
  EXPECT_THAT(Compute(model, {0, 1, 2, 3, 4, 5, 6, 7}), ElementsAre(2, 3, 6, 7));
}

// As PyTorch writes nn.Embedding: the input is of int64.
TEST(ReadPartsTest, RowsOfATableAreAGather) {
  OnnxBuilder builder({2}, {2, 3});
  auto& tokens = *builder.graph().mutable_input(0)->mutable_type()->mutable_tensor_type();
  tokens.set_elem_type(v1::DATA_TYPE_INT64);
  builder.Count("embed.weight", {5, 3});
  OnnxBuilder::SetInt(builder.Node("Cast", {"x"}, "whole", "same"), "to", v1::DATA_TYPE_INT64);
  builder.Node("Gather", {"embed.weight", "whole"}, "y", "look");
  const OnnxModel model = ImportedParts(builder);
  EXPECT_EQ(NodesOf(model), "embed Parameter(), look Gather(1 0)");
  EXPECT_EQ(WeightsOf(model), "embed.weight [5, 3]");
  EXPECT_THAT(Compute(model, {4, -4}), ElementsAre(13, 14, 15, 4, 5, 6));
  // An answer for each number of the input: the loss of a sequence.
  const absl::StatusOr<Graph> graph = WithLoss(model, "tokens");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->nodes().back().op.name, "SequenceCrossEntropyLoss");
  EXPECT_EQ(graph->num_classes(), 3);
  // One for all numbers of the input: the loss of a class.
  builder.graph().mutable_output(0)->mutable_type()->mutable_tensor_type()->clear_shape();
  builder.graph().mutable_node(1)->set_output(0, "rows");
  builder.Node("ReduceMean", {"rows"}, "y", "mean");
  OnnxBuilder::SetInts(*builder.graph().mutable_node(2), "axes", {1});
  OnnxBuilder::SetInt(*builder.graph().mutable_node(2), "keepdims", 0);
  const absl::StatusOr<Graph> classes = WithLoss(ImportedParts(builder), "class");
  ASSERT_TRUE(classes.ok()) << classes.status();
  EXPECT_EQ(classes->nodes().back().op.name, "SoftmaxCrossEntropyLoss");
}

// The loss of a sequence contains the softmax over the classes of each token.
TEST(ReadPartsTest, TheLastSoftmaxOfTokensIsLeftOut) {
  for (const char* const op : {"Softmax", "LogSoftmax"}) {
    for (const int64_t axis : {-1, 1}) {  // the classes, or the tokens
      OnnxBuilder builder({2}, {2, 3});
      builder.Count("table", {5, 3});
      builder.Node("Gather", {"table", "x"}, "rows", "look");
      builder.Node("Relu", {"rows"}, "logits", "relu");
      OnnxBuilder::SetInt(builder.Node(op, {"logits"}, "y", "soft"), "axis", axis);
      const OnnxModel model = ImportedParts(builder);
      const std::string nodes = "table Parameter(), look Gather(1 0), relu Relu(2)";
      EXPECT_EQ(NodesOf(model), axis == -1 ? nodes : absl::StrCat(nodes, ", soft ", op, "(3)"));
      EXPECT_EQ(model.final_activation, axis == -1 ? op : "");
      const absl::StatusOr<Graph> graph = WithLoss(model, "tokens");
      ASSERT_TRUE(graph.ok()) << graph.status();
      EXPECT_EQ(graph->nodes().back().op.name, "SequenceCrossEntropyLoss");
      // Without tokens it stays, since the loss is that of all numbers of the sample.
      OnnxBuilder plain({2, 1, 3});
      plain.Node("Relu", {"x"}, "logits", "relu");
      OnnxBuilder::SetInt(plain.Node(op, {"logits"}, "y", "soft"), "axis", axis);
      EXPECT_EQ(ImportedParts(plain).final_activation, "");
    }
  }
}

// By ONNX a quotient or a mean of whole numbers is one, too: what follows the point is cut off.
TEST(ReadPartsTest, WholeNumbersAreDividedAsSuch) {
  for (const bool whole : {false, true}) {
    OnnxBuilder builder({4});
    builder.graph().mutable_input(0)->mutable_type()->mutable_tensor_type()->set_elem_type(
        whole ? v1::DATA_TYPE_INT64 : v1::DATA_TYPE_FLOAT);
    v1::NodeProto& split = builder.Node("Split", {"x"}, "a", "split");
    split.add_output("b");
    OnnxBuilder::SetInt(split, "axis", 1);
    builder.Node("Div", {"a", "b"}, "y", "div");
    const std::vector<float> quotients = Compute(ImportedParts(builder), {7, -9, 2, 4});
    EXPECT_EQ(quotients, whole ? (std::vector<float>{3, -2}) : (std::vector<float>{3.5f, -2.25f}));
    builder.graph().mutable_node()->RemoveLast();
    v1::NodeProto& mean = builder.Node("ReduceMean", {"b"}, "y", "mean");
    OnnxBuilder::SetInts(mean, "axes", {1});
    EXPECT_THAT(Compute(ImportedParts(builder), {7, -9, -2, -5}),
                ElementsAre(whole ? -3.0f : -3.5f));
  }
}

TEST(ReadPartsTest, ACastSaysWhetherNumbersAreWhole) {
  for (const bool whole : {false, true}) {
    OnnxBuilder builder({2, 1, 2});
    builder.graph().mutable_input(0)->mutable_type()->mutable_tensor_type()->set_elem_type(
        whole ? v1::DATA_TYPE_FLOAT : v1::DATA_TYPE_INT32);
    OnnxBuilder::SetInt(builder.Node("Cast", {"x"}, "c", "cast"), "to",
                        whole ? v1::DATA_TYPE_INT64 : v1::DATA_TYPE_FLOAT);
    v1::NodeProto& mean = builder.Node("ReduceMean", {"c"}, "y", "mean");
    OnnxBuilder::SetInts(mean, "axes", {2, 3});  // the mean of a plane has an operator of its own
    OnnxBuilder::SetInt(mean, "keepdims", 0);
    EXPECT_EQ(Compute(ImportedParts(builder), {3, 4, -1, -4}),
              whole ? (std::vector<float>{3, -2}) : (std::vector<float>{3.5f, -2.5f}));
  }
}

TEST(ReadPartsTest, WhatIsNoTableIsRefused) {
  OnnxBuilder columns({2});
  columns.Count("table", {5, 2});
  OnnxBuilder::SetInt(columns.Node("Gather", {"table", "x"}, "y", "look"), "axis", 1);
  EXPECT_EQ(columns.Error(),
            "node 'look': looks up places of axis 1 of a constant of shape [5, 2], want rows: axis "
            "0");
  OnnxBuilder number({2});
  number.Tensor("table", {}, v1::DATA_TYPE_FLOAT).add_float_data(1);
  number.Node("Gather", {"table", "x"}, "y", "look");
  EXPECT_THAT(number.Error(), HasSubstr("of a constant of shape [], want rows"));
  OnnxBuilder other({2});
  other.graph().mutable_input(0)->mutable_type()->mutable_tensor_type()->set_elem_type(
      v1::DATA_TYPE_BOOL);
  other.Node("Relu", {"x"}, "y", "relu");
  EXPECT_THAT(other.Error(), HasSubstr("want a type of floating point, int32 or int64"));
}

TEST(ReadPartsTest, ATriangleIsAMask) {
  struct Mask {
    std::vector<float> numbers;
    Trilu want;
  };
  for (const Mask& mask :
       {Mask{{0, -9, -9, 0, 0, -9}, {true, 1}}, Mask{{2, 0, 0, 2, 2, 0}, {false, 0}},
        Mask{{3, 3, 3, 0, 3, 3}, {true, 0}}}) {
    OnnxBuilder builder({2, 2, 3});
    FloatsNode(builder, "mask", {2, 3}, mask.numbers);
    builder.Node("Add", {"x", "mask"}, "y", "masked");
    const OnnxModel model = ImportedParts(builder);
    EXPECT_EQ(WeightsOf(model), "");
    ASSERT_EQ(model.nodes.size(), 3u);
    EXPECT_EQ(model.nodes[1].op.attributes.Int("upper"), mask.want.upper);
    EXPECT_EQ(model.nodes[1].op.attributes.Int("k"), mask.want.k);
    std::vector<float> want = mask.numbers;
    want.insert(want.end(), mask.numbers.begin(), mask.numbers.end());
    EXPECT_EQ(Compute(model, std::vector<float>(12, 0)), want);
  }
  OnnxBuilder other({2, 2, 3});
  FloatsNode(other, "mask", {2, 3}, {0, -9, 0, 0, 0, -9});
  other.Node("Add", {"x", "mask"}, "y", "masked");
  EXPECT_THAT(other.Error(), HasSubstr("has different numbers and is no initializer"));
}

// x.view(x.size(0), -1), with and without nodes in between.
TEST(ReadPartsTest, ShapesAreComputed) {
  OnnxBuilder builder({2, 3, 4});
  builder.Node("Relu", {"x"}, "unread");
  builder.Node("Shape", {"unread"}, "shape");
  builder.Tensor("zero", {}, v1::DATA_TYPE_INT64).add_int64_data(0);
  builder.Tensor("one", {}, v1::DATA_TYPE_INT64).add_int64_data(1);
  builder.Integers("first", {0});
  builder.Integers("rest", {-1});
  builder.Node("Gather", {"shape", "zero"}, "size");
  builder.Node("Mul", {"size", "one"}, "same");
  OnnxBuilder::SetInt(builder.Node("Cast", {"same"}, "cast"), "to", v1::DATA_TYPE_INT64);
  builder.Node("Unsqueeze", {"cast", "first"}, "list");
  OnnxBuilder::SetInt(builder.Node("Concat", {"list", "rest"}, "target"), "axis", 0);
  builder.Node("Reshape", {"x", "target"}, "y", "view");
  const OnnxModel model = ImportedParts(builder);
  EXPECT_EQ(NodesOf(model), "view Flatten(0)");  // nothing reads the Relu
  EXPECT_EQ(model.output_shape, Shape{24});
}

TEST(ReadPartsTest, NumbersOfAShapeAreMultiplied) {
  OnnxBuilder builder({2, 3, 4});
  v1::NodeProto& shape = builder.Node("Shape", {"x"}, "rest");
  OnnxBuilder::SetInt(shape, "start", 1);
  builder.Integers("zero", {0});
  builder.Integers("one", {1});
  builder.Integers("two", {2});
  builder.Node("Slice", {"rest", "zero", "one"}, "c");
  builder.Node("Slice", {"rest", "one", "two"}, "h");
  builder.Node("Mul", {"c", "h"}, "ch");
  builder.Node("Add", {"ch", "zero"}, "sum");
  builder.Node("Sub", {"sum", "two"}, "four");
  builder.Node("Div", {"four", "two"}, "quotient");
  builder.Integers("minus", {-1});
  OnnxBuilder::SetInt(builder.Node("Concat", {"minus", "quotient", "ch", "two"}, "target"), "axis",
                      0);
  builder.Node("Reshape", {"x", "target"}, "y");
  EXPECT_EQ(ImportedParts(builder).output_shape, (Shape{2, 6, 2}));
}

TEST(ReadPartsTest, NumbersOfFloatsAreComputed) {
  OnnxBuilder builder({2});
  FloatsNode(builder, "four", {}, {4});
  FloatsNode(builder, "one", {}, {1});
  builder.Node("Div", {"one", "four"}, "quarter");
  builder.Node("Sqrt", {"quarter"}, "half");
  builder.Node("Mul", {"x", "half"}, "y");
  const OnnxModel model = ImportedParts(builder);
  EXPECT_EQ(NodesOf(model), "constantofshape1 ConstantOfShape(), mul1 Mul(0 1)");
  EXPECT_THAT(Compute(model, {3, 5}), ElementsAre(1.5f, 2.5f));
}

TEST(ReadPartsTest, ATokenIsRepeatedForEachSample) {
  OnnxBuilder builder({2});
  builder.Integers("rows", {-1, 1, 2});
  builder.Node("Reshape", {"x", "rows"}, "r");
  builder.Floats("token", {1, 1, 2}, {7, 8});
  builder.Node("Shape", {"x"}, "shape");
  builder.Integers("zero", {0});
  builder.Integers("one", {1});
  builder.Integers("minus", {-1});
  builder.Node("Slice", {"shape", "zero", "one"}, "batch");
  OnnxBuilder::SetInt(builder.Node("Concat", {"batch", "one", "two"}, "target"), "axis", 0);
  builder.Integers("two", {2});
  builder.Node("Expand", {"token", "target"}, "tokens", "expand");
  OnnxBuilder::SetInt(builder.Node("Concat", {"tokens", "r"}, "y", "cat"), "axis", 1);
  const OnnxModel model = ImportedParts(builder);
  EXPECT_EQ(WeightsOf(model), "token.weight [1, 2]");
  EXPECT_THAT(Compute(model, {1, 2}), ElementsAre(7, 8, 1, 2));
}

// As PyTorch writes token.expand(x.size(0), -1, -1): a -1 stands for what is there.
TEST(ReadPartsTest, AnExpandedShapeIsChosenByNumbers) {
  OnnxBuilder builder({2});
  builder.Integers("rows", {-1, 1, 2});
  builder.Node("Reshape", {"x", "rows"}, "r");
  builder.Floats("token", {1, 1, 2}, {7, 8});
  builder.Node("Shape", {"x"}, "shape");
  builder.Integers("zero", {0});
  builder.Integers("one", {1});
  builder.Integers("three", {3});
  builder.Integers("minus", {-1});
  builder.Node("Slice", {"shape", "zero", "one"}, "batch");
  OnnxBuilder::SetInt(builder.Node("Concat", {"batch", "minus", "minus"}, "wanted"), "axis", 0);
  v1::AttributeProto& value =
      OnnxBuilder::Set(builder.Node("ConstantOfShape", {"three"}, "ones"), "value");
  value.set_type(v1::ATTRIBUTE_TYPE_TENSOR);
  value.mutable_t()->set_data_type(v1::DATA_TYPE_INT64);
  value.mutable_t()->add_dims(1);
  value.mutable_t()->add_int64_data(1);
  builder.Node("Equal", {"wanted", "minus"}, "free", "equal");
  builder.Node("Where", {"free", "ones", "wanted"}, "target", "where");
  builder.Node("Expand", {"token", "target"}, "tokens", "expand");
  OnnxBuilder::SetInt(builder.Node("Concat", {"tokens", "r"}, "y", "cat"), "axis", 1);
  EXPECT_THAT(Compute(ImportedParts(builder), {1, 2}), ElementsAre(7, 8, 1, 2));

  // Whether the batch is 1 is not known.
  builder.graph().mutable_node(5)->set_input(1, "one");
  EXPECT_EQ(builder.Error(), "node 'equal': compares the size of the batch");
}

// Of Shape(x), whose first number is the batch, with an integer.
std::string BatchError(const char* op, int64_t number) {
  OnnxBuilder builder({4});
  builder.Integers("zero", {0});
  builder.Integers("one", {1});
  builder.Integers("n", {number});
  builder.Integers("rest", {-1});
  builder.Node("Shape", {"x"}, "shape");
  builder.Node("Slice", {"shape", "zero", "one"}, "batch");
  builder.Node(op, {"batch", "n"}, "computed", "it");
  OnnxBuilder::SetInt(builder.Node("Concat", {"computed", "rest"}, "target"), "axis", 0);
  builder.Node("Relu", {"x"}, "r");
  builder.Node("Reshape", {"r", "target"}, "y", "view");
  return builder.Error();
}

TEST(ReadPartsTest, TheSizeOfTheBatchIsNotComputedWith) {
  EXPECT_EQ(BatchError("Mul", 2), "node 'it': arithmetic with the size of the batch");
  EXPECT_EQ(BatchError("Add", 1), "node 'it': arithmetic with the size of the batch");
  EXPECT_EQ(BatchError("Div", 2), "node 'it': arithmetic with the size of the batch");
  EXPECT_EQ(BatchError("Sub", 0), "OK");
  OnnxBuilder behind({4});
  behind.Node("Shape", {"x"}, "shape");
  behind.Integers("one", {1});
  OnnxBuilder::SetInt(behind.Node("Concat", {"one", "shape"}, "target"), "axis", 0);
  behind.Node("Reshape", {"x", "target"}, "y", "view");
  EXPECT_EQ(behind.Error(), "node 'view': the size of the batch is not in front");
  OnnxBuilder fill({4});
  fill.Node("Shape", {"x"}, "shape");
  fill.Node("ConstantOfShape", {"shape"}, "zeros", "fill");
  fill.Node("Add", {"x", "zeros"}, "y");
  EXPECT_EQ(fill.Error(),
            "node 'fill': tensor 'shape': contains the size of the batch, want known numbers");
}

TEST(ReadPartsTest, ConstantsAreComputedWithinTheLimits) {
  const auto error = [](const char* op, const std::vector<int64_t>& a,
                        const std::vector<int64_t>& b, const OnnxLimits& limits = {}) {
    OnnxBuilder builder({4});
    builder.Integers("a", a);
    builder.Integers("b", b);
    builder.Node(op, {"a", "b"}, "shape", "it");
    builder.Node("Reshape", {"x", "shape"}, "y", "view");
    return builder.Error(limits);
  };
  EXPECT_EQ(error("Div", {1}, {0}), "node 'it': divides a constant by 0");
  EXPECT_EQ(error("Mul", {kEnd}, {2}),
            "node 'it': a number computed from constants exceeds 64 bits");
  EXPECT_EQ(error("Div", {-kEnd - 1}, {-1}),
            "node 'it': a number computed from constants exceeds 64 bits");
  EXPECT_EQ(error("Add", {1, 2}, {1, 2, 3}),
            "node 'it': constants of the shapes [2] and [3], which do not broadcast");
  EXPECT_EQ(error("Gather", {1, 2}, {2}), "node 'it': index 2 of an axis of 2");
  EXPECT_EQ(error("Gather", {1, 2}, {-3}), "node 'it': index -3 of an axis of 2");
  EXPECT_EQ(error("Sub", {1}, {-3}),
            "node 'view': shape [4] of samples [4], want the batch in front, as 1, 0 or -1, and "
            "samples that are not mixed");
  OnnxLimits limits;
  limits.max_folded_elements = 3;
  EXPECT_EQ(error("Add", {1, 2}, {1, 2}, limits),
            "node 'it': more than 3 elements up to here are computed from constants");
  // 2^10 x 2^10 x 2^10 numbers of two small constants.
  OnnxBuilder large({4});
  large.Count("a", {1024, 1, 1024});
  large.Count("b", {1024, 1});
  large.Node("Mul", {"a", "b"}, "c", "it");
  large.Node("Add", {"x", "c"}, "y");
  EXPECT_EQ(large.Error(),
            "node 'it': more than 1048576 elements up to here are computed from constants");
}

TEST(ReadPartsTest, ANetworkToRunHasAnyInputsAndOutputs) {
  OnnxBuilder builder({2, 3});
  builder.graph()
      .mutable_input(0)
      ->mutable_type()
      ->mutable_tensor_type()
      ->mutable_shape()
      ->mutable_dim(0)
      ->set_dim_value(4);
  *builder.graph().add_input() = OnnxBuilder::Value("z", {3});
  *builder.graph().add_output() = OnnxBuilder::Value("sum");
  *builder.graph().add_output() = OnnxBuilder::Value("x");
  builder.Integers("axes", {1});
  builder.Node("Unsqueeze", {"z", "axes"}, "z1");
  builder.Node("Add", {"x", "z1"}, "sum");
  OnnxBuilder::SetInt(builder.Node("Softmax", {"z"}, "y"), "axis", 1);
  const absl::StatusOr<OnnxNetwork> network = ReadOnnxNetwork(builder.Bytes(), "net");
  ASSERT_TRUE(network.ok()) << network.status();
  ASSERT_EQ(network->inputs.size(), 2u);
  EXPECT_EQ(network->inputs[0].name, "x");
  EXPECT_EQ(network->inputs[0].shape, (Shape{2, 3}));
  EXPECT_EQ(network->inputs[1].name, "z");
  ASSERT_EQ(network->outputs.size(), 3u);
  EXPECT_EQ(network->outputs[0].name, "y");
  EXPECT_EQ(network->outputs[0].shape, Shape{3});
  EXPECT_EQ(network->outputs[1].name, "sum");
  EXPECT_EQ(network->outputs[1].shape, (Shape{2, 3}));
  EXPECT_EQ(network->outputs[2].name, "x");
  EXPECT_EQ(network->graph.input_shape(), Shape{9});
  EXPECT_EQ(network->graph.num_classes(), 3 + 6 + 6 + 1);  // one of a parameter that is needed
  EXPECT_EQ(network->weights.size(), 1u);
  EXPECT_EQ(builder.Error(), "file: 3 outputs, want 1");

  *builder.graph().add_output() = OnnxBuilder::Value("axes");
  const absl::StatusOr<OnnxNetwork> without = ReadOnnxNetwork(builder.Bytes(), "net");
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(without->outputs.size(), 3u);
  EXPECT_THAT(without->left_out, ElementsAre("axes"));
  builder.graph().mutable_output(3)->set_name("sum");
  EXPECT_EQ(ReadOnnxNetwork(builder.Bytes(), "net").status().message(),
            "value 'sum': is an output twice");
  builder.graph().mutable_output()->RemoveLast();
  builder.graph()
      .mutable_input(1)
      ->mutable_type()
      ->mutable_tensor_type()
      ->mutable_shape()
      ->mutable_dim(0)
      ->set_dim_value(3);
  EXPECT_EQ(ReadOnnxNetwork(builder.Bytes(), "net").status().message(),
            "value 'z': the input has the shape [3, 3], want a batch of 4, as the input before it");
}

TEST(ReadPartsTest, OutputsThatANodeDoesNotMakeAreLeftOut) {
  OnnxBuilder builder({2});
  builder.Node("Dropout", {"x"}, "y", "drop").add_output("mask");
  *builder.graph().add_output() = OnnxBuilder::Value("mask");
  const absl::StatusOr<OnnxNetwork> network = ReadOnnxNetwork(builder.Bytes(), "n");
  ASSERT_TRUE(network.ok()) << network.status();
  EXPECT_EQ(network->outputs.size(), 1u);
  EXPECT_THAT(network->left_out, ElementsAre("mask"));
  builder.graph().mutable_output()->SwapElements(0, 1);
  builder.graph().mutable_output()->RemoveLast();
  EXPECT_EQ(ReadOnnxNetwork(builder.Bytes(), "n").status().message(),
            "value 'mask': is the output, but its node makes only the first of its outputs here");
}

TEST(ReadPartsTest, ANetworkToRunIsNotMeantForTraining) {
  OnnxBuilder dropout({2});
  dropout.Floats("ratio", {}, {0.5f});
  dropout.Tensor("training", {}, v1::DATA_TYPE_BOOL).add_int32_data(1);
  dropout.Node("Dropout", {"x", "ratio", "training"}, "y", "drop");
  EXPECT_TRUE(dropout.Read().ok());
  EXPECT_EQ(ReadOnnxNetwork(dropout.Bytes(), "n").status().message(),
            "node 'drop': input 2, training_mode, is true: the file is meant for training");
  dropout.graph().mutable_initializer(1)->set_int32_data(0, 0);
  EXPECT_TRUE(ReadOnnxNetwork(dropout.Bytes(), "n").ok());
}

}  // namespace
}  // namespace capstan::training::onnx
