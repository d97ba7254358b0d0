#include "gpu_worker/engine/plugin/sent_graph.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/graph/models.h"
#include "training/graph/tensors.h"

namespace capstan::engine {
namespace {

using ::testing::HasSubstr;
using training::FlatLayout;
using training::Graph;
using training::Shape;

FlatLayout LayoutOf(const Graph& graph) {
  return *FlatLayout::Create(training::TensorSpecs(graph));
}

TEST(SentGraphTest, EveryModelArrivesAsItWasSent) {
  for (const absl::string_view name : training::ModelNames()) {
    SCOPED_TRACE(std::string(name));
    const absl::StatusOr<Graph> graph = training::MakeModel(name, 10, {3, 32, 32});
    ASSERT_TRUE(graph.ok()) << graph.status();
    const FlatLayout layout = LayoutOf(*graph);
    // A sent graph stays valid after it is moved.
    SentGraph first = *SentGraph::Of(*graph, layout);
    const SentGraph sent = std::move(first);
    capstan_compile_request request = {};
    sent.Describe(request);
    const absl::StatusOr<ReceivedGraph> received = ReceiveGraph(request);
    ASSERT_TRUE(received.ok()) << received.status();
    const Graph& got = received->graph;
    EXPECT_EQ(got.input_shape(), graph->input_shape());
    ASSERT_EQ(got.node_count(), graph->node_count());
    for (int i = 0; i < got.node_count(); ++i) {
      EXPECT_EQ(got.nodes()[i].name, graph->nodes()[i].name);
      EXPECT_EQ(got.nodes()[i].op.name, graph->nodes()[i].op.name);
      EXPECT_EQ(got.nodes()[i].op.attributes.values(), graph->nodes()[i].op.attributes.values());
      EXPECT_EQ(got.nodes()[i].inputs, graph->nodes()[i].inputs);
      EXPECT_EQ(got.value_shape(i + 1), graph->value_shape(i + 1));
    }
    ASSERT_EQ(received->offsets.size(), graph->parameters().size());
    for (size_t p = 0; p < received->offsets.size(); ++p) {
      EXPECT_EQ(received->offsets[p], layout.Find(graph->parameters()[p].name)->offset);
    }
  }
}

TEST(SentGraphTest, ALayoutOfAnotherGraphIsNotSent) {
  const Graph graph = *training::MakeModel("lenet", 10, {1, 28, 28});
  const FlatLayout other = LayoutOf(*training::MakeModel("lenet", 11, {1, 28, 28}));
  EXPECT_THAT(std::string(SentGraph::Of(graph, other).status().message()),
              HasSubstr("want [10, 84]"));
  const FlatLayout without = LayoutOf(*training::MakeModel("mlp", 10, {1, 28, 28}));
  EXPECT_EQ(SentGraph::Of(graph, without).status().message(),
            "layout: no tensor conv1.weight of graph lenet");
}

TEST(SentGraphTest, WhatIsNoGraphIsNotReceived) {
  const Graph graph = *training::MakeModel("lenet", 10, {1, 28, 28});
  const FlatLayout layout = LayoutOf(graph);
  const SentGraph sent = *SentGraph::Of(graph, layout);
  const auto received = [&](auto change) {
    capstan_compile_request request = {};
    sent.Describe(request);
    change(request);
    const absl::Status status = ReceiveGraph(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(received([](auto& request) { request.node_count = 0; }), HasSubstr("node"));
  EXPECT_EQ(received([](auto& request) { request.parameter_count -= 1; }),
            "parameters: 9, want 10");
  const int64_t offset = layout.Find("conv1.weight")->offset;
  const std::string beyond = received([&](auto& request) { request.total_floats = offset + 149; });
  EXPECT_THAT(beyond, HasSubstr("parameter conv1.weight: 150 floats from "));
  capstan_attribute unknown = {};
  unknown.name = "kernel_shape";
  unknown.type = 9;
  capstan_node node = {};
  EXPECT_EQ(received([&](auto& request) {
              node = request.nodes[0];
              node.attributes = &unknown;
              node.attribute_count = 1;
              request.nodes = &node;
              request.node_count = 1;
            }),
            "node conv1: attribute kernel_shape: type 9, want 0 to 3");
}

}  // namespace
}  // namespace capstan::engine
