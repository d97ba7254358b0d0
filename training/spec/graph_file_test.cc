// `model.graph` as the name of a file.
#include <string>

#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/spec/job_file.h"

namespace capstan::training::spec {
namespace {

using testing::HasSubstr;

TEST(GraphFileTest, AGraphMayBeTheNameOfAFile) {
  const std::string text =
      "version: 1\nname: n\nmodel: {graph: net.onnx}\ndata: {format: synthetic_digits}\n"
      "training: {epochs: 1, global_batch_size: 64, optimizer: {name: sgd, learning_rate: 0.1}}\n";
  const auto read = [](const std::string& path, bool) -> absl::StatusOr<job::v1::Graph> {
    if (path != "net.onnx") return absl::InvalidArgumentError(path + ": is no network");
    job::v1::Graph graph;
    for (const char* const op : {"Flatten", "SoftmaxCrossEntropyLoss"}) {
      job::v1::GraphNode& node = *graph.add_nodes();
      node.set_name(op);
      node.set_op(op);
    }
    return graph;
  };
  const JobFile file = ParseJobFile(text, {}, read);
  EXPECT_EQ(FormatErrors("j", file.errors), "");
  EXPECT_EQ(file.spec.model().graph().nodes_size(), 2);
  EXPECT_THAT(FormatErrors("j", ParseJobFile(text, {{"model.graph", "other"}}, read).errors),
              HasSubstr("j: error: 'model.graph': other: is no network\n"));
  EXPECT_THAT(FormatErrors("j", ParseJobFile(text).errors),
              HasSubstr("'model.graph' must be a group of keys, found 'net.onnx'\n"));
}

}  // namespace
}  // namespace capstan::training::spec
