// Files of other programs. CAPSTAN_ONNX names their folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "training/onnx/onnx_builder.h"

namespace capstan::training::onnx {
namespace {

// The stored output of `output` is a softmax over the input i / n.
void ExpectStored(const OnnxModel& model, const std::string& bytes) {
  capstan::onnx::v1::TensorProto want;
  ASSERT_TRUE(want.ParseFromString(bytes));
  ASSERT_EQ(want.raw_data().size() + 4 * static_cast<size_t>(want.float_data_size()), 4000u);
  std::vector<float> input(static_cast<size_t>(Elements(model.input_shape)));
  for (size_t i = 0; i < input.size(); ++i) {
    input[i] = static_cast<float>(i) / static_cast<float>(input.size());
  }
  std::vector<float> y = Compute(model, input);
  const float largest = *std::max_element(y.begin(), y.end());
  double sum = 0;
  for (float& value : y) sum += value = std::exp(value - largest);
  for (int i = 0; i < 1000; ++i) {
    float stored = 0;
    if (want.raw_data().empty()) {
      stored = want.float_data(i);
    } else {
      std::copy_n(want.raw_data().data() + 4 * i, 4, reinterpret_cast<char*>(&stored));
    }
    EXPECT_NEAR(y[i] / sum, stored, 1e-4) << i;
  }
}

class OnnxFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* const folder = std::getenv("CAPSTAN_ONNX");
    folder_ = folder == nullptr ? "../shared/data/onnx" : folder;
    const bool there = std::ifstream(folder_ + "/mnist-cntk-opset8.onnx").good();
    if (!there && folder == nullptr) GTEST_SKIP() << "no " << folder_ << ": set CAPSTAN_ONNX";
    ASSERT_TRUE(there) << "CAPSTAN_ONNX: no models in " << folder_;
  }

  std::string Bytes(const std::string& name) const {
    std::ifstream file(folder_ + "/" + name, std::ios::binary);
    EXPECT_TRUE(file.good()) << name;
    return {std::istreambuf_iterator<char>(file), {}};
  }
  OnnxModel Read(const std::string& name) const {
    absl::StatusOr<OnnxModel> model = ReadOnnx(Bytes(name));
    EXPECT_TRUE(model.ok()) << name << ": " << model.status();
    return model.ok() ? *std::move(model) : OnnxModel();
  }

  std::string folder_;
};

// Input i is (37 * i mod 101) / 100.
std::vector<float> PatternOf(const Shape& shape) {
  std::vector<float> input(static_cast<size_t>(Elements(shape)));
  for (size_t i = 0; i < input.size(); ++i) {
    input[i] = static_cast<float>(i * 37 % 101) / 100.0f;
  }
  return input;
}

void ExpectOutput(const OnnxModel& model, const std::vector<float>& want) {
  ASSERT_FALSE(model.nodes.empty());
  const std::vector<float> found = Compute(model, PatternOf(model.input_shape));
  ASSERT_EQ(found.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(found[i], want[i], 1e-4) << i;
}

// Computed by onnxruntime 1.32.0 for the same input.
const std::vector<float> kCntkOutput = {0.05773617f, -0.6515947f, -0.21500525f, 0.8199312f,
                                        -1.0462426f, 0.6041173f,  -0.46862072f, -0.8789815f,
                                        0.9920076f,  -0.42713025f};

TEST_F(OnnxFilesTest, MnistOfCntk) {
  const OnnxModel model = Read("mnist-cntk-opset8.onnx");
  EXPECT_EQ(NodesOf(model),
            "Convolution28 Conv(0), ReLU32 Relu(1), Pooling66 MaxPool(2), Convolution110 Conv(3), "
            "ReLU114 Relu(4), Pooling160 MaxPool(5), Times212_reshape0 Flatten(6), Times212 "
            "Gemm(7)");
  EXPECT_EQ(WeightsOf(model),
            "Convolution28.weight [8, 1, 5, 5], Convolution28.bias [8], Convolution110.weight [16, "
            "8, 5, 5], Convolution110.bias [16], Times212.weight [10, 256], Times212.bias [10]");
  EXPECT_EQ(model.input_shape, (Shape{1, 28, 28}));
  ExpectOutput(model, kCntkOutput);
}

TEST_F(OnnxFilesTest, MnistOfCntkOptimized) {
  const OnnxModel model = Read("mnist-cntk-optimized-opset8.onnx");
  EXPECT_EQ(model.nodes.size(), 8u);
  ExpectOutput(model, kCntkOutput);
}

TEST_F(OnnxFilesTest, MnistOfPyTorch) {
  const OnnxModel model = Read("mnist-pytorch-opset14.onnx");
  EXPECT_EQ(NodesOf(model),
            "conv1 Conv(0), Relu Relu(1), conv2 Conv(2), Relu_1 Relu(3), conv3 Conv(4), Relu_2 "
            "Relu(5), Flatten Flatten(6), fc1 Gemm(7), Relu_3 Relu(8), fc2 Gemm(9)");
  EXPECT_EQ(WeightsOf(model),
            "conv1.weight [8, 1, 3, 3], conv1.bias [8], conv2.weight [16, 8, 3, 3], conv2.bias "
            "[16], conv3.weight [24, 16, 3, 3], conv3.bias [24], fc1.weight [32, 11616], fc1.bias "
            "[32], fc2.weight [10, 32], fc2.bias [10]");
  EXPECT_EQ(model.final_activation, "LogSoftmax");
  ExpectOutput(model, {-1.6046551f, -1.3872546f, -0.87038338f, -0.38585269f, -1.0151992f,
                       -0.26657468f, -0.91077936f, -0.68263698f, -0.092176944f, -0.62832522f});
}

TEST_F(OnnxFilesTest, ResidualBlock) {
  const OnnxModel model = Read("residual_block-opset11.onnx");
  EXPECT_EQ(model.nodes.size(), 15u);
  EXPECT_EQ(model.weights.size(), 5u + 5u * 4u);
  EXPECT_EQ(model.output_shape, (Shape{256, 56, 56}));
  const std::vector<float> y = Compute(model, PatternOf(model.input_shape));
  // Computed by onnxruntime 1.32.0 for the same input, as is the sum.
  const std::pair<size_t, float> want[] = {{0, -0.04593772f},    {1, 0.15253985f},
                                           {3135, 0.50737804f},  {100000, 0.88852417f},
                                           {400000, 0.6018511f}, {802815, -1.059324f}};
  for (const auto& [at, value] : want) EXPECT_NEAR(y[at], value, 1e-4) << at;
  double sum = 0;
  for (const float value : y) sum += value;
  EXPECT_NEAR(sum, 346879.3886, 1);
}

TEST_F(OnnxFilesTest, SqueezeNet) {
  const OnnxModel model = Read("light_squeezenet.onnx");
  EXPECT_EQ(model.nodes.size(), 65u);
  EXPECT_EQ(model.final_activation, "Softmax");
  EXPECT_EQ(model.output_shape, (Shape{1000, 1, 1}));
  ExpectStored(model, Bytes("light_squeezenet_output_0.pb"));
}

// Its forward pass has 39 GFLOP, a minute in the references. Every stored output is 0.001, because
// all weights are equal. So only nodes and shapes are compared.
TEST_F(OnnxFilesTest, Vgg19) {
  const OnnxModel model = Read("light_vgg19.onnx");
  EXPECT_EQ(model.nodes.size(), 16u + 18u + 5u + 1u + 3u + 2u);
  EXPECT_EQ(model.output_shape, Shape{1000});
  EXPECT_EQ(model.final_activation, "Softmax");
  const absl::StatusOr<Graph> graph = WithLoss(model, "vgg19");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->parameter_elements(), 143'667'240);
  EXPECT_EQ(model.weights.size(), graph->parameters().size());
}

TEST_F(OnnxFilesTest, AlexNet) {
  const OnnxModel model = Read("light_bvlc_alexnet.onnx");
  EXPECT_EQ(model.output_shape, Shape{1000});
  EXPECT_EQ(model.final_activation, "Softmax");
  ExpectStored(model, Bytes("light_bvlc_alexnet_output_0.pb"));
}

TEST_F(OnnxFilesTest, AFileWithoutAnOperatorSet) {
  EXPECT_EQ(ReadOnnx(Bytes("super_resolution-ir1.onnx")).status().message(),
            "file: names no operator set, want one of 6 to 25");
}

}  // namespace
}  // namespace capstan::training::onnx
