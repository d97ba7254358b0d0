// Files that are wrong, by accident or on purpose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/ascii.h"
#include "training/onnx/onnx_builder.h"

namespace capstan::training::onnx {
namespace {

namespace v1 = capstan::onnx::v1;
using testing::HasSubstr;

// x [2, 3, 3] -> Conv with weight and bias -> y
OnnxBuilder SmallModel() {
  OnnxBuilder builder({2, 3, 3});
  builder.Count("w", {2, 2, 3, 3});
  builder.Count("b", {2});
  builder.Node("Conv", {"x", "w", "b"}, "c", "conv");
  builder.Node("Relu", {"c"}, "y", "relu");
  return builder;
}

v1::TensorProto& WeightOf(OnnxBuilder& builder) { return *builder.graph().mutable_initializer(0); }
v1::NodeProto& NodeOf(OnnxBuilder& builder, int index) {
  return *builder.graph().mutable_node(index);
}
v1::TensorShapeProto& InputShape(OnnxBuilder& builder) {
  return *builder.graph().mutable_input(0)->mutable_type()->mutable_tensor_type()->mutable_shape();
}

// The error after a change of SmallModel.
template <typename Change>
std::string ErrorAfter(Change change, const OnnxLimits& limits = {}) {
  OnnxBuilder builder = SmallModel();
  EXPECT_TRUE(builder.Read().ok());
  change(builder);
  return builder.Error(limits);
}

std::string ErrorOfBytes(const std::string& bytes) {
  return std::string(ReadOnnx(bytes).status().message());
}

TEST(OnnxHostileTest, BytesThatAreNoModel) {
  EXPECT_EQ(ErrorOfBytes(""), "file: no graph, want an ONNX model");
  EXPECT_EQ(ErrorOfBytes("\x0B"), "file: not an ONNX model: a field of an unknown kind at byte 1");
  EXPECT_EQ(ErrorOfBytes("\x3A"), "file: not an ONNX model: a length is cut off at byte 1");
  EXPECT_EQ(ErrorOfBytes("\x3A\x05\x0A"),
            "file: not an ONNX model: a field of 5 bytes ends after its message at byte 2");
  EXPECT_EQ(ErrorOfBytes("\x3A\x02\x0A\x7F"),
            "file: not an ONNX model: a field of 127 bytes ends after its message at byte 4");
  EXPECT_EQ(ErrorOfBytes(std::string(12, '\xFF')),
            "file: not an ONNX model: a field is cut off at byte 10");
  EXPECT_EQ(ErrorOfBytes(std::string("\x00\x00", 2)), "file: not an ONNX model: field 0 at byte 2");
}

TEST(OnnxHostileTest, EveryPrefixIsRefusedOrAModel) {
  const std::string bytes = SmallModel().Bytes();
  int refused = 0;
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto model = ReadOnnx(absl::string_view(bytes).substr(0, size));
    refused += !model.ok();
    EXPECT_TRUE(model.ok() || absl::IsInvalidArgument(model.status())) << model.status();
  }
  EXPECT_EQ(refused, static_cast<int>(bytes.size()));
}

TEST(OnnxHostileTest, EveryChangedByteIsRefusedOrAModel) {
  const std::string bytes = SmallModel().Bytes();
  int refused = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const int value : {0x00, 0x01, 0x7F, 0x80, 0xFF}) {
      std::string changed = bytes;
      changed[i] = static_cast<char>(value);
      const auto model = ReadOnnx(changed);
      if (model.ok()) continue;
      ++refused;
      EXPECT_TRUE(absl::IsInvalidArgument(model.status())) << model.status();
      for (const char c : model.status().message()) {
        EXPECT_TRUE(absl::ascii_isprint(static_cast<unsigned char>(c))) << model.status();
      }
    }
  }
  EXPECT_GT(refused, static_cast<int>(bytes.size()));
}

TEST(OnnxHostileTest, NothingExceedsTheLimits) {
  const auto nothing = [](OnnxBuilder&) {};
  OnnxLimits limits;
  limits.max_bytes = 100;
  EXPECT_THAT(ErrorAfter(nothing, limits), HasSubstr("bytes, want at most 100"));
  limits = {};
  limits.max_fields = 20;
  EXPECT_THAT(ErrorAfter(nothing, limits), HasSubstr("file: more than 20 fields up to byte"));
  limits = {};
  limits.max_nodes = 1;
  EXPECT_EQ(ErrorAfter(nothing, limits), "file: 2 nodes, want at most 1");
  limits = {};
  limits.max_tensors = 1;
  EXPECT_EQ(ErrorAfter(nothing, limits), "file: 2 initializers, want at most 1");
  limits = {};
  limits.max_weight_elements = 35;
  EXPECT_EQ(ErrorAfter(nothing, limits),
            "tensor 'w': shape [2, 2, 3, 3], want at most 35 elements");
  limits.max_weight_elements = 37;  // of 36 and 2
  EXPECT_EQ(ErrorAfter(nothing, limits),
            "node 'conv': all weights up to here have more than 37 elements");
  limits = {};
  limits.max_name_bytes = 4;
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { NodeOf(b, 0).set_name("convolution"); }, limits),
            "file: name 'convolution' of 11 bytes, want at most 4");
  limits = {};
  limits.max_dims = 3;
  EXPECT_EQ(ErrorAfter(nothing, limits), "tensor 'w': 4 dimensions, want at most 3");
}

TEST(OnnxHostileTest, ManyFieldsAreCountedBeforeTheyAreParsed) {
  // 1 MB of empty nodes would be parsed into some 100 MB.
  std::string nodes;
  for (int i = 0; i < 530'000; ++i) nodes.append("\x0A\x00", 2);
  v1::ModelProto model;
  std::string bytes = "\x3A";
  for (size_t size = nodes.size(); size > 0; size >>= 7) {
    bytes.push_back(static_cast<char>((size & 0x7F) | (size > 0x7F ? 0x80 : 0)));
  }
  EXPECT_THAT(ErrorOfBytes(bytes + nodes), HasSubstr("file: more than 524288 fields"));
}

TEST(OnnxHostileTest, TenThousandLayers) {
  OnnxBuilder builder({3});
  std::string last = "x";
  for (int i = 0; i < 10'000; ++i) {
    const std::string next = i == 9'999 ? "y" : "v" + std::to_string(i);
    builder.Node("Relu", {last}, next, "same name");
    last = next;
  }
  EXPECT_EQ(builder.Error(), "file: 10000 nodes, want at most 4096");
  OnnxLimits limits;
  limits.max_nodes = 10'000;
  EXPECT_EQ(builder.Error(limits),
            "node 'same name': the graph has more than 4096 nodes up to here");
}

TEST(OnnxHostileTest, NodesAreInOrderAndMakeEachValueOnce) {
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { NodeOf(b, 0).set_input(0, "z"); }),
            "node 'conv': reads 'z', which nothing makes");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { b.graph().mutable_node()->SwapElements(0, 1); }),
            "node 'relu': reads 'c', which is made later or by itself: want nodes in their order, "
            "and no cycle, of node 'conv'");
  EXPECT_THAT(ErrorAfter([](OnnxBuilder& b) { NodeOf(b, 0).set_input(0, "y"); }),
              HasSubstr("node 'conv': reads 'y', which is made later"));
  EXPECT_THAT(ErrorAfter([](OnnxBuilder& b) { NodeOf(b, 1).set_input(0, "y"); }),
              HasSubstr("node 'relu': reads 'y', which is made later or by itself"));
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { NodeOf(b, 1).set_output(0, "c"); }),
            "value 'c': is made by two nodes, node 'conv' and node 'relu'");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { NodeOf(b, 1).set_output(0, "x"); }),
            "value 'x': is made by node 'relu', but an initializer or the input has this name");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { WeightOf(b).set_name("b"); }),
            "value 'b': two initializers have this name");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { WeightOf(b).clear_name(); }),
            "file: an initializer has no name");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) {
              NodeOf(b, 0).add_output("indices");
              NodeOf(b, 1).set_input(0, "indices");
            }),
            "node 'relu': reads 'indices', an output that is not supported, of node 'conv'");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { NodeOf(b, 0).set_input(1, ""); }),
            "node 'conv': input 1 is missing");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { NodeOf(b, 0).set_input(1, "x"); }),
            "node 'conv': input 1, 'x', depends on the graph's input, want a constant");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { NodeOf(b, 1).set_input(0, "w"); }),
            "node 'relu': input 0, 'w', is a constant, want a value that depends on the graph's "
            "input");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { NodeOf(b, 1).add_input("c"); }),
            "node 'relu': 2 inputs, want 1 to 1");
}

TEST(OnnxHostileTest, TheOutputDependsOnTheInput) {
  const auto output = [](const char* name) {
    return [name](OnnxBuilder& b) { b.graph().mutable_output(0)->set_name(name); };
  };
  EXPECT_EQ(ErrorAfter(output("z")), "value 'z': is the output, but nothing makes it");
  EXPECT_EQ(ErrorAfter(output("w")), "value 'w': the output does not depend on the input");
  EXPECT_EQ(ErrorAfter(output("x")), "value 'x': no operator is between the input and the output");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { *b.graph().add_output() = OnnxBuilder::Value("c"); }),
            "file: 2 outputs, want 1");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { b.graph().clear_output(); }),
            "file: 0 outputs, want 1");
}

// A network gets one input and one output whatever its loss is.
TEST(OnnxHostileTest, TheLossOfNumbersHasTheSameRules) {
  const auto refused = [](auto change) {
    OnnxBuilder builder = SmallModel();
    change(builder);
    const auto model = ReadOnnx(builder.Bytes(), {}, OnnxLoss::kMeanSquaredError);
    EXPECT_EQ(model.status().message(), builder.Error());
    return !model.ok();
  };
  EXPECT_TRUE(refused([](OnnxBuilder& b) { *b.graph().add_output() = OnnxBuilder::Value("c"); }));
  EXPECT_TRUE(refused([](OnnxBuilder& b) { *b.graph().add_input() = OnnxBuilder::Value("z"); }));
  EXPECT_TRUE(refused([](OnnxBuilder& b) { InputShape(b).mutable_dim(0)->set_dim_value(64); }));
}

TEST(OnnxHostileTest, TensorsHaveTheirData) {
  const auto dims = [](const std::vector<int64_t>& dims) {
    return [dims](OnnxBuilder& b) {
      WeightOf(b).mutable_dims()->Clear();
      WeightOf(b).mutable_dims()->Add(dims.begin(), dims.end());
    };
  };
  EXPECT_EQ(ErrorAfter(dims({2, 2, 3, 4})),
            "tensor 'w': shape [2, 2, 3, 4] of FLOAT with 0 bytes of raw data and 36 listed "
            "numbers, want 192 bytes or 48 numbers");
  EXPECT_EQ(ErrorAfter(dims({-2, -2, 3, 3})),
            "tensor 'w': shape [-2, -2, 3, 3], want dimensions of at least 0");
  constexpr int64_t kHuge = int64_t{1} << 62;
  EXPECT_THAT(ErrorAfter(dims({kHuge, kHuge, kHuge})),
              HasSubstr("want at most 268435456 elements"));
  EXPECT_THAT(ErrorAfter(dims({0, kHuge, kHuge})), HasSubstr("want at most 268435456 elements"));
  EXPECT_THAT(ErrorAfter(dims({0, 2, 3, 3})), HasSubstr("36 listed numbers, want 0 bytes or 0"));
  EXPECT_EQ(ErrorAfter(dims({2, 2, 9})), "node 'conv': attribute kernel_shape: 1 numbers, want 2");
  EXPECT_EQ(ErrorAfter(dims({4, 9})),
            "node 'conv': weight: shape [4, 9], want [out, in, height, width]");
  EXPECT_EQ(ErrorAfter(dims({2, 1, 6, 3})),
            "node 'conv': height 3 with padding 0 + 0, want at least the kernel 6 at dilation 1");
  EXPECT_EQ(ErrorAfter(dims({4, 1, 3, 3})),
            "node 'conv': weight: shape [4, 1, 3, 3], want [4, 2, 3, 3]");
  EXPECT_THAT(ErrorAfter([](OnnxBuilder& b) { WeightOf(b).set_raw_data("1234"); }),
              HasSubstr("with 4 bytes of raw data and 36 listed numbers"));
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { WeightOf(b).add_external_data("location"); }),
            "tensor 'w': external data is not read, want the data in the file");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { WeightOf(b).set_data_location(1); }),
            "tensor 'w': external data is not read, want the data in the file");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { WeightOf(b).set_segment(""); }),
            "tensor 'w': a part of a tensor, want all of it");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { WeightOf(b).set_data_type(v1::DATA_TYPE_STRING); }),
            "node 'conv': tensor 'w': elements of STRING, want FLOAT, DOUBLE, FLOAT16 or BFLOAT16");
  EXPECT_EQ(
      ErrorAfter([](OnnxBuilder& b) { WeightOf(b).set_data_type(23); }),
      "node 'conv': tensor 'w': elements of type 23, want FLOAT, DOUBLE, FLOAT16 or BFLOAT16");
}

TEST(OnnxHostileTest, WeightsAreFinite) {
  const std::string want =
      "node 'conv': tensor 'w': contains a number that is not finite as a float";
  for (const float value :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_EQ(ErrorAfter([&](OnnxBuilder& b) { WeightOf(b).set_float_data(7, value); }), want);
  }
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) {
              WeightOf(b).clear_float_data();
              WeightOf(b).set_data_type(v1::DATA_TYPE_DOUBLE);
              for (int i = 0; i < 36; ++i) WeightOf(b).add_double_data(-3.5e38);
            }),
            want);
  OnnxBuilder scaled({1});
  scaled.Floats("w", {1, 1}, {1e30f});
  OnnxBuilder::SetFloat(scaled.Node("Gemm", {"x", "w"}, "y"), "alpha", 1e30f);
  EXPECT_EQ(scaled.Error(), "node that makes 'y': a scaled weight is not finite");
  OnnxBuilder norm({1, 1, 1});
  norm.Floats("w", {1}, {1});
  norm.Floats("v", {1}, {-1});
  norm.Node("BatchNormalization", {"x", "w", "w", "w", "v"}, "y");
  EXPECT_EQ(norm.Error(), "node that makes 'y': a running variance is negative");
}

TEST(OnnxHostileTest, WhatIsNotSupportedIsNamed) {
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) {
              b.SetOperatorSet(9);
              NodeOf(b, 1).set_op_type("Foo");
            }),
            "node 'relu': operator Foo of operator set 9 is not supported");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { NodeOf(b, 1).set_domain("com.microsoft"); }),
            "node 'relu': operator Relu of domain 'com.microsoft' is not supported");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { b.model.add_functions("f"); }),
            "file: functions are not supported");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { b.graph().add_sparse_initializer("s"); }),
            "file: sparse initializers are not supported");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { b.SetOperatorSet(5); }),
            "file: operator set 5, want 6 to 25");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { b.SetOperatorSet(26); }),
            "file: operator set 26, want 6 to 25");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { b.model.clear_opset_import(); }),
            "file: names no operator set, want one of 6 to 25");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { b.model.add_opset_import()->set_version(7); }),
            "file: operator sets 17 and 7, want one of them");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { OnnxBuilder::Set(NodeOf(b, 1), "body").set_g("g"); }),
            "node 'relu': attribute 'body' is a graph, which is not supported");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) {
              OnnxBuilder::Set(NodeOf(b, 1), "alpha").set_ref_attr_name("beta");
            }),
            "node 'relu': attribute 'alpha' refers to a function, which is not supported");
}

TEST(OnnxHostileTest, AttributesAreChecked) {
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { OnnxBuilder::SetInt(NodeOf(b, 1), "alpha", 1); }),
            "node 'relu': attribute 'alpha' is not supported");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) {
              OnnxBuilder::SetInt(NodeOf(b, 0), "group", 1);
              OnnxBuilder::SetInt(NodeOf(b, 0), "group", 2);
            }),
            "node 'conv': attribute 'group' is there twice");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { OnnxBuilder::SetFloat(NodeOf(b, 0), "group", 1); }),
            "node 'conv': attribute 'group' has the type 1, want 2");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) {
              OnnxBuilder::SetInts(NodeOf(b, 0), "pads", std::vector<int64_t>(65, 0));
            }),
            "node 'conv': attribute 'pads' has 65 numbers, want at most 64");
  EXPECT_EQ(
      ErrorAfter([](OnnxBuilder& b) { OnnxBuilder::SetText(NodeOf(b, 0), "auto_pad", "SAME\n"); }),
      "node 'conv': attribute 'auto_pad' is 'SAME\\n', want at most 64 printable bytes");
  EXPECT_EQ(
      ErrorAfter([](OnnxBuilder& b) {
        OnnxBuilder::SetInts(NodeOf(b, 0), "strides", {std::numeric_limits<int64_t>::min(), 1});
      }),
      "node 'conv': stride of the height -9223372036854775808, want at least 1");
}

TEST(OnnxHostileTest, CeilModeOfAbsurdWindows) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  struct Case {
    std::vector<int64_t> kernel, strides, pads, dilations;
    const char* want;
  };
  for (const Case& c : std::vector<Case>{
           {{kLeast, 1}, {1, 1}, {0, 0, 0, 0}, {1, 1}, "kernel of the height -92233720368547758"},
           {{2, 2}, {0, 1}, {0, 0, 0, 0}, {1, 1}, "stride of the height 0, want at least 1"},
           {{2, 2}, {1, 1}, {0, 0, kLeast, 0}, {1, 1}, "padding of the height -92233720368547758"},
           {{2, 2}, {1, 1}, {0, 0, 0, 0}, {kLeast, 1}, "dilation of the height -92233720368547758"},
           {{kMost, kMost}, {1, 1}, {0, 0, 0, 0}, {kMost, kMost}, "height 3 with padding 0 + 0"},
           {{kMost, 1}, {1, 1}, {kMost, 0, kMost, 0}, {1, 1}, "is too large"},
           {{1, 1}, {kMost, 1}, {2, 0, 0, 0}, {1, 1}, "padding 2, want less than the kernel 1"},
           {{2}, {1, 1}, {0, 0, 0, 0}, {1, 1}, "attribute kernel_shape: 1 numbers, want 2"}}) {
    OnnxBuilder builder({1, 3, 3});
    v1::NodeProto& node = builder.Node("MaxPool", {"x"}, "y", "pool");
    OnnxBuilder::SetInts(node, "kernel_shape", c.kernel);
    OnnxBuilder::SetInts(node, "strides", c.strides);
    OnnxBuilder::SetInts(node, "pads", c.pads);
    OnnxBuilder::SetInts(node, "dilations", c.dilations);
    OnnxBuilder::SetInt(node, "ceil_mode", 1);
    EXPECT_THAT(builder.Error(), HasSubstr(c.want));
  }
}

TEST(OnnxHostileTest, TheInputIsOneImageOrOneRowOfFeatures) {
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { *b.graph().add_input() = OnnxBuilder::Value("z"); }),
            "file: 2 inputs that are not initializers, want 1");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { b.graph().clear_input(); }),
            "file: 0 inputs that are not initializers, want 1");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { InputShape(b).mutable_dim(0)->set_dim_value(64); }),
            "value 'x': the input has the shape [64, 2, 3, 3], want a batch of 1, -1 or a name as "
            "the first dimension");
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) { InputShape(b).mutable_dim(2)->set_dim_param("\x01"); }),
            "value 'x': the input has the shape [N, 2, \\x01, 3], want known dimensions of at "
            "least 1 after the batch");
  EXPECT_THAT(ErrorAfter([](OnnxBuilder& b) { InputShape(b).mutable_dim(2)->set_dim_value(-3); }),
              HasSubstr("want known dimensions of at least 1"));
  EXPECT_THAT(ErrorAfter([](OnnxBuilder& b) {
                for (int i = 1; i < 4; ++i) {
                  InputShape(b).mutable_dim(i)->set_dim_value(int64_t{1} << 62);
                }
              }),
              HasSubstr("value 'x': input: shape"));
  EXPECT_THAT(ErrorAfter([](OnnxBuilder& b) { InputShape(b).mutable_dim()->RemoveLast(); }),
              HasSubstr("want [N, C, H, W] or [N, features]"));
  EXPECT_THAT(ErrorAfter([](OnnxBuilder& b) {
                for (int i = 0; i < 100'000; ++i) InputShape(b).add_dim()->set_dim_value(7);
              }),
              HasSubstr("7, 7...], want [N, C"));
  EXPECT_EQ(ErrorAfter([](OnnxBuilder& b) {
              b.graph().mutable_input(0)->mutable_type()->mutable_tensor_type()->set_elem_type(
                  v1::DATA_TYPE_UINT8);
            }),
            "value 'x': the input has elements of type 2, want a type of floating point, int32 or "
            "int64");
  EXPECT_THAT(ErrorAfter([](OnnxBuilder& b) { b.graph().mutable_input(0)->clear_type(); }),
              HasSubstr("value 'x': the input has no shape"));
}

TEST(OnnxHostileTest, SamplesAreNotMixed) {
  struct Case {
    const char* op;
    std::vector<int64_t> list;  // the second input
    const char* attribute;
    std::vector<int64_t> values;
    const char* want;
  };
  for (const Case& c : std::vector<Case>{
           {"Flatten", {}, "axis", {0}, "axis 0, want 1, since the batch cannot be mixed"},
           {"Flatten", {}, "axis", {2}, "axis 2, want 1, since the batch cannot be mixed"},
           {"Reshape", {18}, "", {}, "shape [18] of samples [2, 3, 3], want the batch in front"},
           {"Reshape", {2, 9}, "", {}, "shape [2, 9] of samples [2, 3, 3], want the batch in"},
           {"Reshape", {-1, 9}, "", {}, "want 18 elements, since samples cannot be mixed"},
           {"Reshape", {-1, -1}, "", {}, "shape [-1, -1] of samples [2, 3, 3], want one -1"},
           {"Reshape", {-2, 18}, "", {}, "want the batch in front, as 1, 0 or -1"},
           {"Reshape", {-1, 3, 3}, "", {}, "attribute shape: [3, 3] of an input [2, 3, 3], want"},
           {"Reshape", {0, 18}, "allowzero", {1}, "attribute 'allowzero' and a 0 in the shape"},
           {"Squeeze", {0}, "", {}, "axis 0 is the batch, whose samples cannot be mixed"},
           {"Squeeze", {1}, "", {}, "axis 1 has the size 2, want 1"},
           {"Squeeze", {}, "", {}, "names no axes"},
           {"Squeeze", {9}, "", {}, "axis 9, want -4 to 3"},
           {"Unsqueeze", {-5}, "", {}, "axis -5 is the batch, whose samples cannot be mixed"},
           {"Unsqueeze", {1, 1}, "", {}, "an axis twice"},
           {"Unsqueeze", {1, 2, 3, 4, 5}, "", {}, "9 dimensions, want at most 8"},
           {"Transpose", {}, "perm", {1, 0, 2, 3}, "attribute 'perm' moves the batch"},
           {"Transpose", {}, "perm", {0, 1, 1, 3}, "attribute 'perm' is no order of 4 axes"},
           {"Concat", {}, "axis", {-4}, "axis -4 is the batch, whose samples cannot be mixed"},
           {"Concat", {}, "axis", {4}, "axis 4, want -4 to 3"},
           {"ReduceMean", {}, "axes", {0, 1}, "axis 0 is the batch, whose samples cannot be"},
           {"ReduceMean", {}, "axes", {}, "reduces all axes, and so the batch"},
           {"Slice", {}, "", {}, "input 1 is missing"},
           {"Split", {}, "axis", {0}, "axis 0 is the batch, whose samples cannot be mixed"},
           {"Gather", {0}, "axis", {0}, "axis 0 is the batch, whose samples cannot be mixed"},
           {"Gather", {2}, "axis", {1}, "an index outside of axis 1 of 2"},
           {"Gather", {2, 0}, "axis", {2}, "indices that are not in a row"},
           {"Expand", {2}, "", {}, "for a constant that is repeated along the batch only"},
           {"Pad", {0, 0, 1, 1}, "", {}, "4 pads, want two for each of 4 axes"},
           {"Pad", {1, 0, 0, 0, 0, 0, 0, 0}, "", {}, "axis 0 is the batch, whose samples"}}) {
    const std::string error = ErrorAfter([&](OnnxBuilder& b) {
      NodeOf(b, 1).set_output(0, "r");
      // The Conv above makes [2, 1, 1]; its input has more axes to mix.
      v1::NodeProto& node = b.Node(c.op, {"x"}, "z", "it");
      if (!c.list.empty()) {
        b.Integers("list", c.list);
        node.add_input("list");
      }
      const absl::string_view name = c.attribute;
      if (name == "axis" || name == "allowzero")
        OnnxBuilder::SetInt(node, c.attribute, c.values[0]);
      if (name == "perm" || name == "axes") OnnxBuilder::SetInts(node, c.attribute, c.values);
      b.graph().mutable_output(0)->set_name("z");
    });
    EXPECT_THAT(error, HasSubstr(c.want)) << c.op;
    EXPECT_THAT(error, HasSubstr("node 'it': ")) << c.op;
  }
  OnnxBuilder gemm({2});
  gemm.Count("w", {2, 2});
  OnnxBuilder::SetInt(gemm.Node("Gemm", {"x", "w"}, "y", "fc"), "transA", 1);
  EXPECT_EQ(gemm.Error(), "node 'fc': attribute 'transA' mixes the samples of a batch");
}

TEST(OnnxHostileTest, ABatchIsNotBroadcast) {
  OnnxBuilder builder({3});
  builder.Integers("axes", {1, 2});
  builder.Node("Unsqueeze", {"x", "axes"}, "u");
  builder.Node("Add", {"u", "x"}, "y", "sum");
  EXPECT_EQ(builder.Error(),
            "node 'sum': inputs of the shapes [1, 1, 3] and [3] for each sample: want as many "
            "dimensions, since a batch cannot be broadcast");
  OnnxBuilder product({3});
  product.Node("MatMul", {"x", "x"}, "y", "product");
  EXPECT_EQ(product.Error(),
            "node 'product': the product of two values mixes the samples of a batch");
}

TEST(OnnxHostileTest, ConstantsAreFoldedWithinTheLimits) {
  const auto fill = [](const std::vector<int64_t>& dims) {
    OnnxBuilder builder({2});
    builder.Integers("dims", dims);
    builder.Node("ConstantOfShape", {"dims"}, "w", "fill");
    builder.Node("MatMul", {"x", "w"}, "y", "fc");
    return builder.Error();
  };
  constexpr int64_t kHuge = int64_t{1} << 40;
  EXPECT_EQ(fill({kHuge, kHuge}),
            "node 'fill': output: shape [1099511627776, 1099511627776], want at most 268435456 "
            "elements");
  EXPECT_EQ(fill({2, -1}), "node 'fill': output: shape [2, -1], want dimensions of at least 0");
  EXPECT_EQ(fill({2, 0}), "node 'fc': out_features 0, want at least 1");
  EXPECT_EQ(fill({2}), "node 'fc': weight: shape [2], want a matrix");
  EXPECT_EQ(fill(std::vector<int64_t>(65, 1)),
            "node 'fill': tensor 'dims': shape [65], want at most 64 numbers");
  EXPECT_EQ(fill(std::vector<int64_t>(9, 1)), "node 'fill': output: 9 dimensions, want at most 8");

  const auto reshape = [](const std::vector<int64_t>& dims) {
    OnnxBuilder builder({2});
    builder.Count("c", {2, 3});
    builder.Integers("dims", dims);
    builder.Node("Reshape", {"c", "dims"}, "w", "reshape");
    builder.Node("MatMul", {"x", "w"}, "y");
    return builder.Error();
  };
  for (const std::vector<int64_t>& dims : {std::vector<int64_t>{2, 4},
                                           {-1, -1},
                                           {0, 0, 0},
                                           {4, -1},
                                           {kHuge, kHuge, kHuge, kHuge},
                                           {-7, 1}}) {
    EXPECT_THAT(reshape(dims), HasSubstr("of a constant of shape [2, 3]")) << dims[0];
  }
}

}  // namespace
}  // namespace capstan::training::onnx
