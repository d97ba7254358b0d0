#include "client/predict/run_network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/engine/device/open.h"
#include "training/ops/arithmetic/arithmetic.h"
#include "training/ops/cast/cast.h"
#include "training/ops/concat/concat.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gather/gather.h"
#include "training/ops/parameter/parameter.h"
#include "training/ops/reshape/reshape.h"
#include "training/ops/slice/slice.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::client {
namespace {

using testing::ElementsAre;
using training::SliceNode;

// a [2] and b [1, 2] -> "difference" a - b [1, 2] and "scaled" a * [10, 100] [2].
training::onnx::OnnxNetwork TwoInputs() {
  auto graph = training::Graph::Build("two", {4},
                                      {{"a", SliceNode{{0}, {2}, {1}, {1}}, {0}},
                                       {"b", SliceNode{{2}, {4}, {1}, {1}}, {0}},
                                       {"b2", training::Reshape{{1, 2}}, {2}},
                                       {"difference", training::Sub(), {1, 3}},
                                       {"factor", training::ParameterNode{{2}, "ones"}, {}},
                                       {"scaled", training::Mul(), {1, 5}},
                                       {"row", training::Flatten(), {4}},
                                       {"rows", training::Concat{1}, {7, 6}},
                                       {"loss", training::SoftmaxCrossEntropyLoss(), {8}}});
  EXPECT_TRUE(graph.ok()) << graph.status();
  return {{{"a", {2}}, {"b", {1, 2}}},
          {{"difference", {1, 2}}, {"scaled", {2}}},
          {},
          *std::move(graph),
          {{"factor.weight", {2}, {10, 100}}}};
}

class RunNetworkTest : public testing::Test {
 protected:
  RunNetworkTest() : device_(*engine::OpenDevice("cpu")), network_(TwoInputs()) {}

  absl::StatusOr<std::vector<data::Array>> Run(const std::vector<data::Array>& inputs,
                                               int64_t batch = 64) {
    return RunNetwork(*device_, network_, inputs, {.max_batch = batch, .threads = 1}, [this] {
      ++batches_;
      return stop_;
    });
  }
  std::string Error(const std::vector<data::Array>& inputs) {
    const absl::Status status = Run(inputs).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }

  const std::unique_ptr<engine::Device> device_;
  const training::onnx::OnnxNetwork network_;
  int batches_ = 0;
  absl::Status stop_;
};

TEST_F(RunNetworkTest, OutputsBySampleInAnyBatch) {
  const data::Array a = {"a", {3, 2}, {1, 2, 3, 4, 5, 6}};
  const data::Array b = {"b", {3, 1, 2}, {1, 1, 1, 1, 0, 0}};
  for (const int64_t batch : {1, 2, 64}) {
    batches_ = 0;
    const auto outputs = Run({b, a}, batch);
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    ASSERT_EQ(outputs->size(), 2u);
    EXPECT_EQ((*outputs)[0].name, "difference");
    EXPECT_THAT((*outputs)[0].shape, ElementsAre(3, 1, 2));
    EXPECT_THAT((*outputs)[0].numbers, ElementsAre(0, 1, 2, 3, 5, 6));
    EXPECT_EQ((*outputs)[1].name, "scaled");
    EXPECT_THAT((*outputs)[1].shape, ElementsAre(3, 2));
    EXPECT_THAT((*outputs)[1].numbers, ElementsAre(10, 200, 30, 400, 50, 600));
    EXPECT_EQ(batches_, batch == 1 ? 3 : batch == 2 ? 2 : 1);
  }
}

TEST_F(RunNetworkTest, WhatDoesNotFitIsNamed) {
  const data::Array a = {"a", {1, 2}, {1, 2}};
  const data::Array b = {"b", {1, 1, 2}, {1, 2}};
  EXPECT_EQ(Error({a}), "input 'b' has no array, want one of [N, 1, 2]");
  EXPECT_EQ(Error({a, b, {"c", {1}, {1}}}), "array 'c' is no input of the network, want 'a', 'b'");
  EXPECT_EQ(Error({{"", {1, 2}, {1, 2}}}), "array '' is no input of the network, want 'a', 'b'");
  EXPECT_EQ(Error({a, a, b}), "two arrays 'a', want one");
  EXPECT_EQ(Error({a, {"b", {1, 2}, {1, 2}}}), "input 'b': array of [1, 2], want [N, 1, 2]");
  EXPECT_EQ(Error({{"a", {1, 3}, {1, 2, 3}}, b}), "input 'a': array of [1, 3], want [N, 2]");
  EXPECT_EQ(Error({a, {"b", {2, 1, 2}, {1, 2, 3, 4}}}), "input 'b': 2 samples, want 1 as in 'a'");
  EXPECT_EQ(Error({{"a", {0, 2}, {}}, {"b", {0, 1, 2}, {}}}),
            "input 'a': 0 samples, want at least 1");
}

// Of one input, and of the second of two, whose numbers are cut off.
TEST(RunNetworkOfTokensTest, ARowThatTheTableLacksIsNamed) {
  const auto device = *engine::OpenDevice("cpu");
  const auto run = [&](bool two, const std::vector<float>& tokens) {
    std::vector<training::GraphNode> nodes = {{"table", training::ParameterNode{{3, 1}}, {}}};
    if (two) nodes.push_back({"part", SliceNode{{1}, {3}, {1}, {1}}, {0}});
    nodes.push_back({"whole", training::Cast{"int64"}, {two ? 2 : 0}});
    nodes.push_back({"look", training::Gather(), {1, two ? 3 : 2}});
    nodes.push_back({"row", training::Flatten(), {two ? 4 : 3}});
    nodes.push_back({"loss", training::SoftmaxCrossEntropyLoss(), {two ? 5 : 4}});
    auto graph = training::Graph::Build("tokens", {two ? 3 : 2}, nodes);
    EXPECT_TRUE(graph.ok()) << graph.status();
    training::onnx::OnnxNetwork network = {
        {{"ids", {2}}}, {{"y", {2, 1}}}, {}, *std::move(graph), {{"table", {3, 1}, {5, 6, 7}}}};
    std::vector<data::Array> arrays = {{"ids", {1, 2}, tokens}};
    if (two) network.inputs.insert(network.inputs.begin(), {"other", {1}});
    if (two) arrays.push_back({"other", {1, 1}, {99}});
    return RunNetwork(*device, network, arrays, {.max_batch = 1, .threads = 1},
                      [] { return absl::OkStatus(); });
  };
  for (const bool two : {false, true}) {
    const auto fits = run(two, {2.5f, -3});
    ASSERT_TRUE(fits.ok()) << fits.status();
    EXPECT_THAT((*fits)[0].numbers, ElementsAre(7, 5));
    for (const auto& [token, text] : {std::pair(3.0f, "3"), std::pair(-4.0f, "-4")}) {
      EXPECT_EQ(run(two, {0, token}).status().message(),
                absl::StrCat("input 'ids': number 1 is ", text,
                             ", want -3 to 2, a row of the table of node 'look'"));
    }
  }
}

TEST_F(RunNetworkTest, ItCanBeStopped) {
  stop_ = absl::CancelledError("enough");
  EXPECT_TRUE(absl::IsCancelled(Run({{"a", {1, 2}, {1, 2}}, {"b", {1, 1, 2}, {1, 2}}}).status()));
  EXPECT_EQ(batches_, 1);
}

}  // namespace
}  // namespace capstan::client
