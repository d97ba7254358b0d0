// What each operator becomes, with numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "training/onnx/onnx_builder.h"
#include "training/ops/batch_normalization/batch_normalization.h"
#include "training/ops/dropout/dropout.h"

namespace capstan::training::onnx {
namespace {

namespace v1 = capstan::onnx::v1;
using testing::ElementsAre;
using testing::HasSubstr;

using Numbers = std::vector<float>;
using Integers64 = std::vector<int64_t>;

OnnxModel Imported(const OnnxBuilder& builder, const OnnxLimits& limits = {}) {
  const absl::StatusOr<OnnxModel> model = builder.Read(limits);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *model : OnnxModel();
}

// A model "x" [1, 2, 2] -> Relu "r" -> the node that the test adds -> "y".
struct AfterRelu : OnnxBuilder {
  explicit AfterRelu(const Shape& input = {1, 2, 2}) : OnnxBuilder(input) {
    Node("Relu", {"x"}, "r");
  }
};

TEST(ReadOnnxTest, AConvolutionKeepsPyTorchsNames) {
  OnnxBuilder builder({1, 2, 2}, {2, 1, 1});
  builder.Count("features.0.weight", {2, 1, 2, 2});
  builder.Floats("features.0.bias", {2}, {0.5f, -0.5f});
  OnnxBuilder::SetInts(
      builder.Node("Conv", {"x", "features.0.weight", "features.0.bias"}, "y", "/features/Conv"),
      "strides", {1, 1});
  const OnnxModel model = Imported(builder);
  EXPECT_EQ(NodesOf(model), "features.0 Conv(0)");
  EXPECT_EQ(WeightsOf(model), "features.0.weight [2, 1, 2, 2], features.0.bias [2]");
  EXPECT_EQ(model.input_name, "x");
  EXPECT_EQ(model.output_name, "y");
  EXPECT_EQ(model.input_shape, (Shape{1, 2, 2}));
  EXPECT_EQ(model.output_shape, (Shape{2, 1, 1}));
  EXPECT_EQ(model.final_activation, "");
  EXPECT_THAT(model.shared_weights, ElementsAre());
  // 1 * 1 + 2 * 2 + 3 * 3 + 4 * 4 + 0.5 and 5 + 12 + 21 + 32 - 0.5
  EXPECT_THAT(Compute(model, {1, 2, 3, 4}), ElementsAre(30.5f, 69.5f));
}

TEST(ReadOnnxTest, AConvolutionTakesItsWindowFromTheAttributes) {
  OnnxBuilder builder({2, 5, 5});
  builder.Count("w", {4, 1, 3, 3});
  v1::NodeProto& node = builder.Node("Conv", {"x", "w"}, "y", "c");
  OnnxBuilder::SetInts(node, "kernel_shape", {3, 3});
  OnnxBuilder::SetInts(node, "pads", {1, 0, 2, 1});
  OnnxBuilder::SetInts(node, "strides", {2, 1});
  OnnxBuilder::SetInts(node, "dilations", {1, 2});
  OnnxBuilder::SetInt(node, "group", 2);
  const OnnxModel model = Imported(builder);
  ASSERT_EQ(model.nodes.size(), 1u);
  const Attributes& attributes = model.nodes[0].op.attributes;
  EXPECT_EQ(attributes.Ints("pads"), (Integers64{1, 0, 2, 1}));
  EXPECT_EQ(attributes.Ints("strides"), (Integers64{2, 1}));
  EXPECT_EQ(attributes.Ints("dilations"), (Integers64{1, 2}));
  EXPECT_EQ(attributes.Int("group"), 2);
  EXPECT_EQ(attributes.Int("bias"), 0);
  EXPECT_EQ(model.output_shape, (Shape{4, 3, 2}));
}

TEST(ReadOnnxTest, AutoPadIsResolved) {
  OnnxBuilder builder({1, 4, 4});
  builder.Count("w", {1, 1, 2, 2});
  OnnxBuilder::SetText(builder.Node("Conv", {"x", "w"}, "y"), "auto_pad", "SAME_UPPER");
  const OnnxModel model = Imported(builder);
  EXPECT_EQ(NodesOf(model), "conv1 Conv(0)");
  EXPECT_EQ(model.nodes[0].op.attributes.Ints("pads"), (Integers64{0, 0, 1, 1}));
  EXPECT_EQ(model.output_shape, (Shape{1, 4, 4}));
}

TEST(ReadOnnxTest, GemmsWeightIsOutTimesIn) {
  for (const bool transposed : {false, true}) {
    OnnxBuilder builder({2});
    // [in, out] = [[1, 2, 3], [4, 5, 6]], or its transpose
    builder.Floats("w", transposed ? Shape{3, 2} : Shape{2, 3},
                   transposed ? Numbers{1, 4, 2, 5, 3, 6} : Numbers{1, 2, 3, 4, 5, 6});
    builder.Floats("b", {1, 3}, {1, 1, 2});
    v1::NodeProto& node = builder.Node("Gemm", {"x", "w", "b"}, "y", "fc");
    OnnxBuilder::SetInt(node, "transB", transposed);
    OnnxBuilder::SetFloat(node, "alpha", 2);
    OnnxBuilder::SetFloat(node, "beta", 0.5f);
    const OnnxModel model = Imported(builder);
    EXPECT_EQ(NodesOf(model), "fc Gemm(0)");
    EXPECT_EQ(WeightsOf(model), "fc.weight [3, 2], fc.bias [3]");
    EXPECT_THAT(model.weights[0].values, ElementsAre(2, 8, 4, 10, 6, 12));
    EXPECT_THAT(model.weights[1].values, ElementsAre(0.5f, 0.5f, 1));
    EXPECT_THAT(Compute(model, {1, 10}), ElementsAre(82.5f, 104.5f, 127));
  }
}

TEST(ReadOnnxTest, AMatMulAndAnAddBecomeAGemm) {
  OnnxBuilder builder({2});
  builder.Count("onnx::MatMul_7", {2, 3});
  builder.Floats("head.bias", {3}, {10, 20, 30});
  builder.Node("MatMul", {"x", "onnx::MatMul_7"}, "product", "/other/MatMul");
  builder.Node("Add", {"head.bias", "product"}, "y", "/head/Add");
  const OnnxModel model = Imported(builder);
  EXPECT_EQ(NodesOf(model), "head Gemm(0)");
  EXPECT_EQ(WeightsOf(model), "head.weight [3, 2], head.bias [3]");
  EXPECT_THAT(Compute(model, {1, 2}), ElementsAre(19, 32, 45));
}

TEST(ReadOnnxTest, AnAddedConstantBecomesTheBias) {
  for (const Shape& dims : {Shape{2, 1, 1}, Shape{1, 2, 1, 1}, Shape{1}, Shape{}}) {
    OnnxBuilder builder({1, 1, 1});
    builder.Floats("w", {2, 1, 1, 1}, {1, 2});
    builder.Floats("first", {2}, {100, 200});
    builder.Count("second", dims, 5);
    builder.Node("Conv", {"x", "w", "first"}, "c", "conv");
    builder.Node("Add", {"c", "second"}, "y");
    const OnnxModel model = Imported(builder);
    EXPECT_EQ(NodesOf(model), "conv Conv(0)");
    const float of_second = Elements(dims) == 2 ? 6 : 5;
    EXPECT_THAT(Compute(model, {3}), ElementsAre(108, 206 + of_second));
  }
}

TEST(ReadOnnxTest, AnAddOfOperatorSet6NamesTheAxisOfItsConstant) {
  OnnxBuilder builder({1, 1, 1});
  builder.SetOperatorSet(6);
  builder.Floats("w", {2, 1, 1, 1}, {1, 2});
  builder.Floats("b", {2}, {100, 200});
  builder.Node("Conv", {"x", "w"}, "c");
  v1::NodeProto& add = builder.Node("Add", {"c", "b"}, "y");
  OnnxBuilder::SetInt(add, "broadcast", 1);
  OnnxBuilder::SetInt(add, "axis", 1);
  EXPECT_THAT(Compute(Imported(builder), {3}), ElementsAre(103, 206));
}

TEST(ReadOnnxTest, AConstantIsABiasOnlyRightAfterAProduct) {
  AfterRelu after_relu;
  after_relu.Floats("b", {1, 1, 1}, {1});
  after_relu.Node("Add", {"r", "b"}, "y", "shift");
  EXPECT_EQ(NodesOf(Imported(after_relu)), "relu1 Relu(0), b Parameter(), shift Add(1 2)");

  // Another node reads the product, once by its name and once by that of an Identity.
  for (const bool identity : {false, true}) {
    OnnxBuilder builder({1, 1, 1});
    builder.Floats("w", {1, 1, 1, 1}, {1});
    builder.Floats("b", {1}, {1});
    builder.Node("Conv", {"x", "w"}, "c");
    if (identity) builder.Node("Identity", {"c"}, "i");
    builder.Node("Add", {identity ? "i" : "c", "b"}, "a");
    builder.Node("Sum", {"a", "c"}, "y");
    EXPECT_EQ(NodesOf(Imported(builder)),
              "conv1 Conv(0), b Parameter(), add1 Add(1 2), sum1 Sum(3 1)");
  }
  OnnxBuilder width({1, 2, 2});
  width.Count("w", {2, 1, 1, 1});
  width.Count("b", {2});  // broadcasts along the width
  width.Node("Conv", {"x", "w"}, "c");
  width.Node("Add", {"c", "b"}, "y");
  EXPECT_THAT(Compute(Imported(width), {1, 2, 3, 4}), ElementsAre(2, 4, 4, 6, 3, 6, 7, 10));
}

// A number of the network, which a bias would train.
TEST(ReadOnnxTest, ANumberIsNoNewBias) {
  OnnxBuilder builder({2});
  builder.Count("w", {2, 1});
  builder.Floats("half", {}, {0.5f});
  builder.Node("MatMul", {"x", "w"}, "p", "fc");
  builder.Node("Add", {"p", "half"}, "y");
  const OnnxModel model = Imported(builder);
  EXPECT_EQ(NodesOf(model), "fc Gemm(0), constantofshape1 ConstantOfShape(), add1 Add(1 2)");
  EXPECT_EQ(WeightsOf(model), "fc.weight [1, 2]");
  EXPECT_THAT(Compute(model, {1, 1}), ElementsAre(3.5f));
}

TEST(ReadOnnxTest, BatchNormalizationHasPyTorchsParameters) {
  OnnxBuilder builder({2, 1, 1});
  builder.Floats("bn1.weight", {2}, {2, 3});
  builder.Floats("bn1.bias", {2}, {1, -1});
  builder.Floats("mean", {2}, {1, 2});
  builder.Floats("var", {2}, {4, 9});
  v1::NodeProto& node =
      builder.Node("BatchNormalization", {"x", "bn1.weight", "bn1.bias", "mean", "var"}, "y", "n");
  OnnxBuilder::SetFloat(node, "epsilon", 1e-7f);
  OnnxBuilder::SetFloat(node, "momentum", 0.75f);
  const OnnxModel model = Imported(builder);
  EXPECT_EQ(NodesOf(model), "bn1 BatchNormalization(0)");
  EXPECT_EQ(WeightsOf(model),
            "bn1.weight [2], bn1.bias [2], bn1.running_mean [2], bn1.running_var [2]");
  const BatchNormalization op = BatchNormalization::Read(model.nodes[0].op.attributes);
  EXPECT_EQ(op.epsilon, 1e-7);
  EXPECT_EQ(op.momentum, 0.25);
  const Numbers y = Compute(model, {3, 5});
  EXPECT_NEAR(y[0], 3, 1e-5);  // 2 * (3 - 1) / 2 + 1
  EXPECT_NEAR(y[1], 2, 1e-5);  // 3 * (5 - 2) / 3 - 1
}

TEST(ReadOnnxTest, BatchNormalizationHasONNXsDefaults) {
  OnnxBuilder builder({1, 1, 1});
  for (const char* const name : {"s", "b", "m", "v"}) builder.Count(name, {1});
  builder.Node("BatchNormalization", {"x", "s", "b", "m", "v"}, "y");
  const OnnxModel model = Imported(builder);
  EXPECT_EQ(NodesOf(model), "batchnormalization1 BatchNormalization(0)");
  const BatchNormalization op = BatchNormalization::Read(model.nodes[0].op.attributes);
  EXPECT_EQ(op.epsilon, 1e-5);
  EXPECT_EQ(op.momentum, 0.1);
}

TEST(ReadOnnxTest, DropoutsRatioIsAnAttributeOrAnInput) {
  AfterRelu old;
  old.SetOperatorSet(11);
  OnnxBuilder::SetFloat(old.Node("Dropout", {"r"}, "y", "drop"), "ratio", 0.3f);
  AfterRelu recent;
  recent.Floats("ratio", {}, {0.3f});
  recent.Node("Dropout", {"r", "ratio"}, "y", "drop").add_output("mask");
  AfterRelu without;
  without.Node("Dropout", {"r"}, "y", "drop");
  for (const AfterRelu* const builder : {&old, &recent, &without}) {
    const OnnxModel model = Imported(*builder);
    EXPECT_EQ(NodesOf(model), "relu1 Relu(0), drop Dropout(1)");
    EXPECT_EQ(Dropout::Read(model.nodes[1].op.attributes).ratio, builder == &without ? 0.5 : 0.3);
  }
}

TEST(ReadOnnxTest, AFlattenOrAReshapeToOneAxisIsAFlatten) {
  std::vector<OnnxBuilder> builders;
  for (const int64_t axis : {1, -3}) {
    builders.push_back(AfterRelu());
    OnnxBuilder::SetInt(builders.back().Node("Flatten", {"r"}, "y", "f"), "axis", axis);
  }
  for (const Integers64& shape : {Integers64{1, 4}, {-1, 4}, {0, 4}, {0, -1}, {1, -1}}) {
    builders.push_back(AfterRelu());
    builders.back().Integers("s", shape);
    builders.back().Node("Reshape", {"r", "s"}, "y", "f");
    if (shape != Integers64{1, -1}) continue;
    EXPECT_THAT(builders.back().Error(),
                HasSubstr("1 puts all samples of a larger batch into one"));
    auto& batch = *builders.back().graph().mutable_input(0)->mutable_type()->mutable_tensor_type();
    batch.mutable_shape()->mutable_dim(0)->set_dim_value(1);
  }
  for (const OnnxBuilder& builder : builders) {
    const OnnxModel model = Imported(builder);
    EXPECT_EQ(NodesOf(model), "relu1 Relu(0), f Flatten(1)");
    EXPECT_EQ(model.output_shape, Shape{4});
  }
}

TEST(ReadOnnxTest, OtherShapesAreReshapes) {
  AfterRelu reshape({2, 3, 4});
  reshape.Integers("s", {-1, 6, 0, 1, 1, 1});
  reshape.Node("Reshape", {"r", "s"}, "y", "f");
  EXPECT_THAT(reshape.Error(), HasSubstr("node 'f': attribute shape: [6, 0, 1, 1, 1]"));

  AfterRelu fits({2, 3, 4});
  fits.Integers("s", {-1, 8, 3});
  fits.Node("Reshape", {"r", "s"}, "y", "f");
  EXPECT_EQ(Imported(fits).output_shape, (Shape{8, 3}));

  AfterRelu squeeze({5, 1, 1});
  squeeze.Integers("axes", {2, -1});
  squeeze.Node("Squeeze", {"r", "axes"}, "y", "s");
  EXPECT_EQ(NodesOf(Imported(squeeze)), "relu1 Relu(0), s Flatten(1)");

  AfterRelu unsqueeze({5});
  unsqueeze.SetOperatorSet(11);
  OnnxBuilder::SetInts(unsqueeze.Node("Unsqueeze", {"r"}, "y", "u"), "axes", {-1, 2});
  const OnnxModel model = Imported(unsqueeze);
  EXPECT_EQ(NodesOf(model), "relu1 Relu(0), u Reshape(1)");
  EXPECT_EQ(model.output_shape, (Shape{5, 1, 1}));
}

TEST(ReadOnnxTest, PoolsAndConcatenation) {
  OnnxBuilder builder({1, 4, 4});
  v1::NodeProto& max = builder.Node("MaxPool", {"x"}, "m", "max");
  max.add_output("");  // its indices, not wanted
  OnnxBuilder::SetInts(max, "kernel_shape", {2, 2});
  OnnxBuilder::SetInts(max, "strides", {2, 2});
  v1::NodeProto& average = builder.Node("AveragePool", {"x"}, "a", "average");
  OnnxBuilder::SetInts(average, "kernel_shape", {2, 2});
  OnnxBuilder::SetInts(average, "strides", {2, 2});
  OnnxBuilder::SetInts(average, "pads", {0, 0, 0, 0});
  OnnxBuilder::SetInt(average, "count_include_pad", 1);
  OnnxBuilder::SetInt(builder.Node("Concat", {"m", "a"}, "c", "cat"), "axis", -3);
  builder.Node("GlobalAveragePool", {"c"}, "y", "mean");
  const OnnxModel model = Imported(builder);
  EXPECT_EQ(NodesOf(model),
            "max MaxPool(0), average AveragePool(0), cat Concat(1 2), mean GlobalAveragePool(3)");
  EXPECT_EQ(model.nodes[1].op.attributes.Int("count_include_pad"), 1);
  Numbers x;
  for (int i = 0; i < 16; ++i) x.push_back(static_cast<float>(i));
  EXPECT_THAT(Compute(model, x), ElementsAre(10, 7.5f));
}

TEST(ReadOnnxTest, CeilModeIsPadding) {
  // Of 6 numbers, windows of 2 at strides of 4 cover 0, 1 and 4, 5: nothing is rounded. Of 5, the
  // last window covers 4 alone. With 4 in the padding only, there is no such window.
  struct Case {
    int64_t size, pad_end, pad_want, outputs;
  };
  for (const Case& c : {Case{6, 0, 0, 2}, Case{5, 0, 1, 2}, Case{4, 0, 0, 1}, Case{4, 1, 1, 1}}) {
    OnnxBuilder builder({1, 1, c.size});
    v1::NodeProto& node = builder.Node("MaxPool", {"x"}, "y");
    OnnxBuilder::SetInts(node, "kernel_shape", {1, 2});
    OnnxBuilder::SetInts(node, "strides", {1, 4});
    OnnxBuilder::SetInts(node, "pads", {0, 0, 0, c.pad_end});
    OnnxBuilder::SetInt(node, "ceil_mode", 1);
    const OnnxModel model = Imported(builder);
    EXPECT_EQ(model.nodes[0].op.attributes.Ints("pads")[3], c.pad_want) << c.size;
    EXPECT_EQ(model.output_shape, (Shape{1, 1, c.outputs})) << c.size;
  }
}

TEST(ReadOnnxTest, OtherReductions) {
  struct Case {
    const char* op;
    int64_t operator_set;
    bool input;
    std::vector<int64_t> axes;
    Numbers want;
  };
  for (const Case& c :
       {Case{"ReduceMean", 17, false, {-1}, {1.5f, 3.5f}},
        Case{"ReduceMean", 18, true, {1}, {2, 3}}, Case{"ReduceSum", 11, false, {1, 2}, {10}},
        Case{"ReduceSum", 13, true, {-2}, {4, 6}}}) {
    OnnxBuilder builder({1, 4});
    builder.graph().mutable_input(0)->CopyFrom(OnnxBuilder::Value("x", {4}));
    builder.SetOperatorSet(c.operator_set);
    builder.Integers("square", {-1, 2, 2});
    builder.Node("Reshape", {"x", "square"}, "s");
    v1::NodeProto& node = builder.Node(c.op, {"s"}, "y", "it");
    if (c.input) {
      builder.Integers("axes", c.axes);
      node.add_input("axes");
    } else {
      OnnxBuilder::SetInts(node, "axes", c.axes);
    }
    EXPECT_EQ(Compute(Imported(builder), {1, 2, 3, 4}), c.want) << c.op;
  }
  // No axes are all, unless an attribute says that they are none.
  AfterRelu none({3});
  none.SetOperatorSet(13);
  v1::NodeProto& node = none.Node("ReduceSum", {"r"}, "y", "sum");
  EXPECT_EQ(none.Error(), "node 'sum': reduces all axes, and so the batch");
  OnnxBuilder::SetInt(node, "noop_with_empty_axes", 1);
  EXPECT_EQ(NodesOf(Imported(none)), "relu1 Relu(0)");
}

TEST(ReadOnnxTest, AMeanOverHeightAndWidthIsAGlobalPool) {
  AfterRelu builder({3, 2, 2});
  v1::NodeProto& node = builder.Node("ReduceMean", {"r"}, "y", "mean");
  OnnxBuilder::SetInts(node, "axes", {-1, 2});
  OnnxBuilder::SetInt(node, "keepdims", 0);
  const OnnxModel model = Imported(builder);
  EXPECT_EQ(NodesOf(model), "relu1 Relu(0), mean GlobalAveragePool(1), mean_2 Flatten(2)");
  EXPECT_EQ(model.output_shape, Shape{3});
}

TEST(ReadOnnxTest, ResidualSumsMayReadValuesTwice) {
  AfterRelu builder({2, 2, 2});
  OnnxBuilder::SetText(builder.Node("Gelu", {"r"}, "g"), "approximate", "tanh");
  builder.SetOperatorSet(20);
  builder.Node("Add", {"g", "r"}, "a");
  builder.Node("Sum", {"a", "r", "x"}, "y");
  const OnnxModel model = Imported(builder);
  EXPECT_EQ(NodesOf(model), "relu1 Relu(0), gelu1 Gelu(1), add1 Add(2 1), sum1 Sum(3 1 0)");
  EXPECT_EQ(model.nodes[1].op.attributes.Text("approximate"), "tanh");
}

TEST(ReadOnnxTest, ConstantsFold) {
  OnnxBuilder builder({2});
  // [1, 2, 3] of [1, 3, 2] becomes [2, 3]; the transpose of that is the matrix of a Gemm.
  builder.Integers("dims", {3, -1});
  v1::NodeProto& constant = builder.Node("Constant", {}, "raw");
  v1::AttributeProto& value = OnnxBuilder::Set(constant, "value");
  value.set_type(v1::ATTRIBUTE_TYPE_TENSOR);
  value.mutable_t()->set_data_type(v1::DATA_TYPE_FLOAT);
  for (const int64_t dim : {1, 6, 1}) value.mutable_t()->add_dims(dim);
  for (int i = 1; i <= 6; ++i) value.mutable_t()->add_float_data(static_cast<float>(i));
  builder.Integers("first", {0});
  builder.Node("Squeeze", {"raw", "first"}, "squeezed");
  builder.Node("Reshape", {"squeezed", "dims"}, "matrix");
  builder.Node("Identity", {"matrix"}, "same");
  builder.Node("Transpose", {"same"}, "transposed");
  v1::NodeProto& shape = builder.Node("Constant", {}, "shape");
  OnnxBuilder::SetInts(shape, "value_ints", {3});
  v1::NodeProto& fill = builder.Node("ConstantOfShape", {"shape"}, "sevens");
  v1::AttributeProto& seven = OnnxBuilder::Set(fill, "value");
  seven.set_type(v1::ATTRIBUTE_TYPE_TENSOR);
  seven.mutable_t()->set_data_type(v1::DATA_TYPE_FLOAT);
  seven.mutable_t()->add_dims(1);
  seven.mutable_t()->add_float_data(7);
  builder.Node("Gemm", {"x", "transposed", "sevens"}, "y", "fc");
  const OnnxModel model = Imported(builder);
  EXPECT_EQ(NodesOf(model), "fc Gemm(0)");
  EXPECT_THAT(model.weights[0].values, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(Compute(model, {1, 10}), ElementsAre(28, 50, 72));
}

TEST(ReadOnnxTest, ConstantOfShapeIsZeroWithoutAValue) {
  OnnxBuilder builder({2});
  builder.Integers("dims", {2, 3});
  builder.Node("ConstantOfShape", {"dims"}, "w");
  builder.Node("MatMul", {"x", "w"}, "y");
  const OnnxModel model = Imported(builder);
  EXPECT_EQ(WeightsOf(model), "gemm1.weight [3, 2]");
  EXPECT_THAT(model.weights[0].values, testing::Each(0));
}

TEST(ReadOnnxTest, EveryFormatOfNumbersIsRead) {
  const Numbers want = {1.5f, -2, 0.25f, 65504};
  const auto check = [&](int32_t type, auto fill) {
    OnnxBuilder builder({4});
    fill(builder.Tensor("w", {4, 1}, type));
    builder.Node("MatMul", {"x", "w"}, "y");
    const OnnxModel model = Imported(builder);
    ASSERT_EQ(model.weights.size(), 1u);
    EXPECT_THAT(model.weights[0].values, testing::ElementsAreArray(want)) << type;
  };
  const auto raw = [](v1::TensorProto& tensor, auto bits, int bytes) {
    for (const uint64_t number : bits) {
      for (int i = 0; i < bytes; ++i) {
        tensor.mutable_raw_data()->push_back(static_cast<char>(number >> (8 * i) & 0xFF));
      }
    }
  };
  const std::vector<uint64_t> float16 = {0x3E00, 0xC000, 0x3400, 0x7BFF};
  check(v1::DATA_TYPE_FLOAT, [&](v1::TensorProto& tensor) {
    raw(tensor, std::vector<uint64_t>{0x3FC00000, 0xC0000000, 0x3E800000, 0x477FE000}, 4);
  });
  check(v1::DATA_TYPE_DOUBLE, [&](v1::TensorProto& tensor) {
    raw(tensor,
        std::vector<uint64_t>{0x3FF8000000000000, 0xC000000000000000, 0x3FD0000000000000,
                              0x40EFFC0000000000},
        8);
  });
  check(v1::DATA_TYPE_DOUBLE, [&](v1::TensorProto& tensor) {
    for (const float number : want) tensor.add_double_data(number);
  });
  check(v1::DATA_TYPE_FLOAT16, [&](v1::TensorProto& tensor) { raw(tensor, float16, 2); });
  check(v1::DATA_TYPE_FLOAT16, [&](v1::TensorProto& tensor) {
    for (const uint64_t bits : float16) tensor.add_int32_data(static_cast<int32_t>(bits));
  });
  // bfloat16 has no 65504
  OnnxBuilder builder({2});
  raw(builder.Tensor("w", {2, 1}, v1::DATA_TYPE_BFLOAT16), std::vector<uint64_t>{0x3FC0, 0xC000},
      2);
  builder.Node("MatMul", {"x", "w"}, "y");
  EXPECT_THAT(Imported(builder).weights[0].values, ElementsAre(1.5f, -2));
}

TEST(ReadOnnxTest, TheLastSoftmaxIsLeftOut) {
  struct Case {
    const char* op;
    int64_t operator_set, axis;
    Shape shape;
  };
  for (const Case& c : {Case{"Softmax", 17, -1, {4}}, Case{"LogSoftmax", 13, 1, {4}},
                        Case{"Softmax", 9, 1, {4, 1, 1}}, Case{"Softmax", 17, 1, {4, 1, 1}},
                        Case{"Softmax", 9, 1, {2, 2, 1}}}) {
    AfterRelu builder(c.shape);
    builder.SetOperatorSet(c.operator_set);
    OnnxBuilder::SetInt(builder.Node(c.op, {"r"}, "y"), "axis", c.axis);
    const OnnxModel model = Imported(builder);
    EXPECT_EQ(NodesOf(model), "relu1 Relu(0)");
    EXPECT_EQ(model.final_activation, c.op);
    EXPECT_EQ(model.output_name, "y");
    EXPECT_EQ(model.output_shape, c.shape);
  }
}

// The mean squared error compares the file's output itself.
TEST(ReadOnnxTest, TheLastSoftmaxStaysForNumbersAsTargets) {
  for (const bool viewed : {false, true}) {
    AfterRelu builder(viewed ? Shape{4, 1, 1} : Shape{4});
    builder.SetOperatorSet(9);
    builder.Node("Softmax", {"r"}, viewed ? "s" : "y");
    if (viewed) builder.Node("Flatten", {"s"}, "y");
    const auto model = ReadOnnx(builder.Bytes(), {}, OnnxLoss::kMeanSquaredError);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(NodesOf(*model), viewed ? "relu1 Relu(0), softmax1 Softmax(1), flatten1 Flatten(2)"
                                      : "relu1 Relu(0), softmax1 Softmax(1)");
    EXPECT_EQ(model->final_activation, "");
    const absl::StatusOr<Graph> graph = WithLoss(*model, "n");
    ASSERT_TRUE(graph.ok()) << graph.status();
    EXPECT_EQ(graph->nodes().back().op.name, "MeanSquaredErrorLoss");
    EXPECT_EQ(graph->target_size(), 4);
  }
}

// By hand, on inputs where a wrong axis or order gives other numbers.
TEST(ReadOnnxTest, PointwiseNodesComputeWhatTheyMean) {
  OnnxBuilder transpose({2, 1, 3});
  auto& perm = *transpose.Node("Transpose", {"x"}, "y").add_attribute();
  perm.set_name("perm");
  perm.set_type(v1::ATTRIBUTE_TYPE_INTS);
  for (const int64_t axis : {0, 2, 3, 1}) perm.add_ints(axis);
  EXPECT_EQ(Imported(transpose).output_shape, (Shape{1, 3, 2}));
  EXPECT_THAT(Compute(Imported(transpose), {0, 1, 2, 10, 11, 12}),
              ElementsAre(0, 10, 1, 11, 2, 12));

  OnnxBuilder clip({3});
  clip.SetOperatorSet(11);
  clip.Floats("low", {}, {0.5f});
  clip.Node("Clip", {"x", "low"}, "y");
  EXPECT_THAT(Compute(Imported(clip), {0, 1, 100}), ElementsAre(0.5f, 1, 100));

  OnnxBuilder softmax({2, 2, 1});
  softmax.SetOperatorSet(13);
  OnnxBuilder::SetInt(softmax.Node("Softmax", {"x"}, "s"), "axis", 1);
  softmax.Node("Relu", {"s"}, "y");
  EXPECT_THAT(Compute(Imported(softmax), {0, 200, 200, 0}), ElementsAre(0, 1, 1, 0));

  AfterRelu minus({2, 1, 1});
  minus.Node("Sub", {"r", "x"}, "y");
  EXPECT_THAT(Compute(Imported(minus), {-3, 2}), ElementsAre(3, 0));
}

TEST(ReadOnnxTest, ASoftmaxBeforeNodesThatChangeTheShapeIsLeftOut) {
  AfterRelu identity({4});
  identity.Node("Softmax", {"r"}, "s");
  identity.Node("Identity", {"s"}, "y");
  EXPECT_EQ(NodesOf(Imported(identity)), "relu1 Relu(0)");
  EXPECT_EQ(Imported(identity).final_activation, "Softmax");

  AfterRelu views({4, 1, 1});
  views.SetOperatorSet(9);
  views.Node("Softmax", {"r"}, "s");
  views.Node("Flatten", {"s"}, "y");
  const OnnxModel model = Imported(views);
  EXPECT_EQ(NodesOf(model), "relu1 Relu(0), flatten1 Flatten(1)");
  EXPECT_EQ(model.final_activation, "Softmax");
  EXPECT_EQ(model.output_shape, Shape{4});
  EXPECT_TRUE(WithLoss(model, "n").ok());
}

TEST(ReadOnnxTest, ASoftmaxOverAPartIsNotTheLosss) {
  AfterRelu joined({2, 2, 2});
  joined.SetOperatorSet(9);
  OnnxBuilder::SetInt(joined.Node("Softmax", {"r"}, "y"), "axis", 2);
  EXPECT_EQ(joined.Error(), "node that makes 'y': axis 2 joins several dimensions");
  AfterRelu all({2, 2, 1});
  all.SetOperatorSet(9);
  all.Node("Softmax", {"r"}, "s");
  all.Node("Relu", {"s"}, "y");
  EXPECT_EQ(Imported(all).output_shape, (Shape{2, 2, 1}));
  EXPECT_THAT(Compute(Imported(all), {0, 200, 0, 0}), ElementsAre(0, 1, 0, 0));
  AfterRelu batch({4});
  OnnxBuilder::SetInt(batch.Node("Softmax", {"r"}, "y"), "axis", 0);
  EXPECT_EQ(batch.Error(),
            "node that makes 'y': axis 0 is the batch, whose samples cannot be mixed");
}

TEST(ReadOnnxTest, NamesAreValidAndUnique) {
  AfterRelu builder;
  builder.Node("Relu", {"r"}, "1", "a b");
  builder.Node("Relu", {"1"}, "2", "a?b");
  builder.Node("Relu", {"2"}, "3", "a b_2");
  builder.Node("Relu", {"3"}, "4", "a b");
  builder.Node("Relu", {"4"}, "5", "/Relu_1");
  builder.Node("Relu", {"5"}, "6", "/layer.1/act/Relu");
  builder.Node("Relu", {"6"}, "7", "///");
  builder.Node("Relu", {"7"}, "8", std::string(300, 'n'));
  builder.Node("Relu", {"8"}, "9", std::string(300, 'n'));
  builder.Count("a b.weight", {1, 1, 1, 1});
  builder.Node("Conv", {"9", "a b.weight"}, "y", "other");
  const OnnxModel model = Imported(builder);
  std::vector<std::string> names;
  for (const GraphNode& node : model.nodes) {
    EXPECT_TRUE(IsNodeName(node.name)) << node.name;
    names.push_back(node.name);
  }
  EXPECT_THAT(names,
              ElementsAre("relu1", "a_b_2", "a_b_3", "a_b_2_2", "a_b_4", "Relu_1", "layer.1/act",
                          "relu2", std::string(120, 'n'), std::string(120, 'n') + "_2", "a_b"));
}

TEST(ReadOnnxTest, ASharedWeightIsCopied) {
  OnnxBuilder builder({1, 2, 2});
  builder.Count("w", {1, 1, 1, 1}, 3);
  builder.Node("Identity", {"w"}, "second.weight");
  builder.Node("Conv", {"x", "w"}, "c", "first");
  builder.Node("Conv", {"c", "second.weight"}, "y", "ignored");
  const OnnxModel model = Imported(builder);
  EXPECT_EQ(NodesOf(model), "first Conv(0), second Conv(1)");
  EXPECT_EQ(WeightsOf(model), "first.weight [1, 1, 1, 1], second.weight [1, 1, 1, 1]");
  EXPECT_THAT(model.shared_weights, ElementsAre("w"));
}

TEST(ReadOnnxTest, NodesThatTheOutputDoesNotNeedAreLeftOut) {
  AfterRelu builder;
  builder.Node("Unheard", {"x"}, "nothing");
  builder.Node("Relu", {"r"}, "also nothing");
  builder.Node("Tanh", {"r"}, "unread");
  builder.Node("Relu", {"r"}, "y");
  EXPECT_EQ(NodesOf(Imported(builder)), "relu1 Relu(0), relu2 Relu(1)");
}

TEST(ReadOnnxTest, TheBatchMayBeStatedAsOneOrUnknown) {
  for (const int64_t batch : {1, 0, -1}) {
    AfterRelu builder;
    builder.Node("Relu", {"r"}, "y");
    builder.graph()
        .mutable_input(0)
        ->mutable_type()
        ->mutable_tensor_type()
        ->mutable_shape()
        ->mutable_dim(0)
        ->set_dim_value(batch);
    EXPECT_EQ(Imported(builder).input_shape, (Shape{1, 2, 2})) << batch;
  }
}

TEST(ReadOnnxTest, StatedShapesAreCompared) {
  AfterRelu builder;
  builder.Node("Relu", {"r"}, "y");
  *builder.graph().add_value_info() = OnnxBuilder::Value("r", {1, 2, 2});
  *builder.graph().add_value_info() = OnnxBuilder::Value("unknown to all", {7});
  EXPECT_TRUE(builder.Read().ok());
  *builder.graph().add_value_info() = OnnxBuilder::Value("r", {1, 2, 3});
  EXPECT_EQ(builder.Error(),
            "value 'r': the file states the shape [N, 1, 2, 3], but its nodes make [1, 2, 2] for "
            "each sample");
  OnnxBuilder wrong_output({3}, {4});
  wrong_output.Node("Relu", {"x"}, "y");
  EXPECT_THAT(wrong_output.Error(), HasSubstr("value 'y': the file states the shape [N, 4]"));
}

TEST(ReadOnnxTest, TheLossIsAddedWithAFlattenWhereItIsNeeded) {
  AfterRelu builder({2, 2, 2});
  builder.Node("Relu", {"r"}, "y", "loss");
  const absl::StatusOr<Graph> graph = WithLoss(Imported(builder), "network");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->name(), "network");
  ASSERT_EQ(graph->node_count(), 4);
  EXPECT_EQ(graph->nodes()[2].name, "flatten");
  EXPECT_EQ(graph->nodes()[3].name, "loss1");
  EXPECT_EQ(graph->num_classes(), 8);
}

}  // namespace
}  // namespace capstan::training::onnx
