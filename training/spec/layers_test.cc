// `model.layers` in a job file.
#include "training/spec/layers.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/graph/models.h"
#include "training/ops/op.h"
#include "training/ops/op_cases.h"
#include "training/spec/graph_message.h"
#include "training/spec/layer_ranges.h"

namespace capstan::training::spec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kLayersJob[] =
    "version: 1\nname: n\ndata: {uri: /data, format: idx}\n"
    "training: {epochs: 1, global_batch_size: 64, optimizer: {name: sgd, learning_rate: 0.1}}\n";

JobFile LayersFile(absl::string_view model) {
  return ParseJobFile(absl::StrCat(kLayersJob, "model:\n", model));
}

std::string LayerErrors(absl::string_view model) {
  return FormatErrors("j", LayersFile(model).errors);
}

// The error of a list of one layer in front of a gemm.
std::string ErrorOfLayer(absl::string_view layer) {
  return LayerErrors(absl::StrCat("  layers:\n    - ", layer, "\n    - gemm\n"));
}

Graph GraphOfLayers(absl::string_view model, const Shape& input) {
  const JobFile file = LayersFile(model);
  EXPECT_EQ(FormatErrors("j", file.errors), "");
  absl::StatusOr<Graph> graph = GraphOf(file.spec.model().graph(), input);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

constexpr char kLenetLayers[] = R"(  layers:
    - conv: {out_channels: 6, kernel_shape: 5}
    - relu
    - max_pool: {kernel_shape: 2, strides: 2}
    - conv: {out_channels: 16, kernel_shape: 3}
    - relu
    - max_pool: {kernel_shape: 2, strides: 2}
    - flatten
    - gemm: {out_features: 120}
    - relu
    - gemm: {out_features: 84}
    - relu
    - gemm
)";

TEST(LayersTest, LenetAsAListIsTheNamedModel) {
  const Graph list = GraphOfLayers(kLenetLayers, {1, 28, 28});
  const Graph named = *MakeModel("lenet", 10, {1, 28, 28});
  ASSERT_EQ(list.node_count(), named.node_count());
  for (int i = 0; i < list.node_count(); ++i) {
    EXPECT_EQ(list.nodes()[i].op.name, named.nodes()[i].op.name);
    EXPECT_EQ(list.nodes()[i].op.attributes.values(), named.nodes()[i].op.attributes.values());
    EXPECT_EQ(list.nodes()[i].inputs, named.nodes()[i].inputs);
  }
  ASSERT_EQ(list.parameters().size(), named.parameters().size());
  for (size_t i = 0; i < list.parameters().size(); ++i) {
    EXPECT_EQ(list.parameters()[i].name, named.parameters()[i].name);
  }
}

TEST(LayersTest, TheLastGemmHasTheJobsClasses) {
  EXPECT_EQ(
      GraphOfLayers(absl::StrCat(kLenetLayers, "  num_classes: 37\n"), {1, 28, 28}).num_classes(),
      37);
  EXPECT_EQ(GraphOfLayers("  num_classes: 5\n"
                          "  layers: [flatten, gemm, softmax_cross_entropy_loss: "
                          "{label_smoothing: 0.1}]\n",
                          {1, 28, 28})
                .num_classes(),
            5);
  EXPECT_EQ(LayerErrors("  layers: [flatten, gemm: {out_features: 10}]\n"), "");
  EXPECT_EQ(LayerErrors("  layers: [flatten, gemm: {out_features: 12}]\n"),
            "j:6:21: error: 'model.layers[1].gemm.out_features' is 12, 'model.num_classes' is 10: "
            "leave it out\n");
  EXPECT_EQ(LayerErrors("  num_classes: many\n  layers: [flatten, gemm: {out_features: 12}]\n"),
            "j:6:16: error: 'model.num_classes' must be a whole number, found 'many'\n");
  EXPECT_EQ(LayerErrors("  layers: [flatten, gemm, relu, gemm]\n"),
            "j:6:21: error: 'model.layers[1].gemm.out_features' is required\n");
  EXPECT_EQ(LayerErrors("  layers: [flatten, gemm, relu]\n"),
            "j:6:21: error: 'model.layers[1].gemm.out_features' is required\n");
}

TEST(LayersTest, NodesAreNamedAndCountedByOperator) {
  const JobFile file = LayersFile(R"(  layers:
    - conv: {out_channels: 4, kernel_shape: [3, 1], pads: 1, strides: 2, bias: false}
    - batch_normalization: {momentum: 1}
    - leaky_relu: {alpha: 0.2}
    - average_pool: {kernel_shape: 2}
    - max_pool: {kernel_shape: 2, auto_pad: SAME_UPPER}
    - layer_normalization: {axis: 1}
    - reduce_mean: {axes: 1, keepdims: true}
    - flatten
    - dropout: {ratio: 0.25}
    - dropout
    - gemm
)");
  EXPECT_EQ(FormatErrors("j", file.errors), "");
  std::vector<std::string> names;
  for (const job::v1::GraphNode& node : file.spec.model().graph().nodes()) {
    names.push_back(node.name());
    EXPECT_EQ(node.inputs_size(), 0);
  }
  EXPECT_THAT(names,
              ElementsAre("conv1", "bn1", "leaky_relu1", "pool1", "pool2", "layer_normalization1",
                          "reduce_mean1", "flatten1", "dropout1", "dropout2", "fc1", "loss"));
  const job::v1::GraphNode& conv = file.spec.model().graph().nodes(0);
  EXPECT_THAT(conv.attributes(1).integers().values(), ElementsAre(3, 1));
  EXPECT_THAT(conv.attributes(2).integers().values(), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(conv.attributes(3).integers().values(), ElementsAre(2, 2));
  EXPECT_THAT(file.spec.model().graph().nodes(6).attributes(0).integers().values(), ElementsAre(1));
  EXPECT_TRUE(CheckGraph(file.spec.model().graph()).empty());
}

TEST(LayersTest, EveryOperatorOfOneInputIsALayer) {
  const std::vector<std::string> names = LayerNames();
  EXPECT_THAT(names, testing::IsSupersetOf({"average_pool", "batch_normalization", "conv", "lrn",
                                            "global_average_pool", "softmax_cross_entropy_loss"}));
  EXPECT_THAT(names, testing::Not(testing::Contains("add")));
  EXPECT_THAT(names, testing::Not(testing::Contains("parameter")));
  // Each is found by its name: what is wrong is an attribute, or nothing.
  for (const std::string& name : names) {
    EXPECT_THAT(ErrorOfLayer(absl::StrCat(name, ": {nothing: 1}")),
                HasSubstr(absl::StrCat(
                    absl::EndsWith(name, "_loss")
                        ? "'model.layers[0]' is the loss, want it only"
                        : absl::StrCat("'model.layers[0].", name, ".nothing' is unknown"))));
  }
}

TEST(LayersTest, ErrorsNameTheEntryAndItsPlace) {
  EXPECT_EQ(ErrorOfLayer("conv: {out_channels: 6, kernel_shape: big}"),
            "j:7:45: error: 'model.layers[0].conv.kernel_shape' must be a whole number or a list "
            "of whole numbers, found 'big'\n");
  EXPECT_EQ(ErrorOfLayer("conv: {out_channels: [6], kernel_shape: 3}"),
            "j:7:28: error: 'model.layers[0].conv.out_channels' must be a whole number, found a "
            "list\n");
  EXPECT_EQ(ErrorOfLayer("conv: {out_channels: 6, kernel: 3}"),
            "j:7:7: error: 'model.layers[0].conv.kernel_shape' is required\n"
            "j:7:31: error: 'model.layers[0].conv.kernel' is unknown, want one of kernel_shape, "
            "strides, pads, dilations, auto_pad, out_channels, group, bias\n");
  EXPECT_EQ(ErrorOfLayer("conv: {out_channel: 6, kernel_shape: 3}"),
            "j:7:7: error: 'model.layers[0].conv.out_channels' is required\n"
            "j:7:14: error: 'model.layers[0].conv.out_channel' is unknown (did you mean "
            "'out_channels'?)\n");
  EXPECT_EQ(ErrorOfLayer("relu: {alpha: 1}"),
            "j:7:14: error: 'model.layers[0].relu.alpha' is unknown: the layer has no "
            "attributes\n");
  EXPECT_EQ(ErrorOfLayer("dropout: {ratio: much}"),
            "j:7:24: error: 'model.layers[0].dropout.ratio' must be a number, found 'much'\n");
  EXPECT_EQ(ErrorOfLayer("gelu: {approximate: 1}"),
            "j:7:27: error: 'model.layers[0].gelu.approximate' must be a text, found '1'\n");
  EXPECT_EQ(ErrorOfLayer("dropout: 0.5"),
            "j:7:16: error: 'model.layers[0].dropout' must be a group of keys, found '0.5'\n");
}

TEST(LayersTest, NumbersOutOfRangeAreNamedByTheirEntry) {
  EXPECT_EQ(
      ErrorOfLayer("conv: {out_channels: 6, kernel_shape: 0}"),
      "j:7:45: error: 'model.layers[0].conv.kernel_shape' is refused: kernel of the height 0, "
      "want at least 1\n");
  EXPECT_EQ(
      ErrorOfLayer("conv: {out_channels: 0, kernel_shape: 3, strides: [1, -2]}"),
      "j:7:28: error: 'model.layers[0].conv.out_channels' is refused: out_channels 0, want at "
      "least 1\n"
      "j:7:57: error: 'model.layers[0].conv.strides' is refused: stride of the width -2, want "
      "at least 1\n");
  EXPECT_EQ(
      ErrorOfLayer("dropout: {ratio: 2}"),
      "j:7:24: error: 'model.layers[0].dropout.ratio' is refused: 2, want at least 0 and less "
      "than 1\n");
  EXPECT_THAT(ErrorOfLayer("conv: {out_channels: 6, kernel_shape: [3, 3, 3]}"),
              HasSubstr("'model.layers[0].conv.kernel_shape' is refused: "));
  EXPECT_THAT(ErrorOfLayer("max_pool: {kernel_shape: 2, auto_pad: AROUND}"),
              HasSubstr("'model.layers[0].max_pool.auto_pad' is refused: "));
  // Two that do not go together, and what depends on the image.
  EXPECT_EQ(ErrorOfLayer("slice: {starts: [1], ends: [3, 4], axes: [1]}"), "");
  EXPECT_EQ(ErrorOfLayer("conv: {out_channels: 4, kernel_shape: 3, group: 3}"), "");
  EXPECT_EQ(ErrorOfLayer("conv: {group: 11, out_channels: 22, kernel_shape: 3000}"), "");
  EXPECT_THAT(ErrorOfLayer("clip: {min: 2, max: 1}"),
              HasSubstr("'model.layers[0].clip.max' is refused: "));
  EXPECT_THAT(ErrorOfLayer("gemm: {out_features: -1}"),
              HasSubstr("'model.layers[0].gemm.out_features' is refused: "));
  EXPECT_THAT(
      LayerErrors("  layers: [flatten, gemm, softmax_cross_entropy_loss: "
                  "{label_smoothing: 7}]\n"),
      HasSubstr("'model.layers[2].softmax_cross_entropy_loss.label_smoothing' is refused: "));
}

// Attributes of every case of every operator, each for an input that the parser does not know. What
// the case's own input fits must not be refused.
TEST(LayersTest, NothingIsRefusedThatSomeInputFits) {
  int layers = 0;
  for (const OpCase& op_case : AllOpCases()) {
    const OpDef& op = *FindOp(op_case.op.name);
    if (op_case.hostile || op.min_inputs != 1 || op.max_inputs != 1) continue;
    job::v1::GraphNode node;
    for (const auto& [name, value] : op_case.op.attributes.values()) {
      job::v1::Attribute& attribute = *node.add_attributes();
      attribute.set_name(name);
      if (const auto* const whole = std::get_if<int64_t>(&value)) attribute.set_integer(*whole);
      if (const auto* const number = std::get_if<double>(&value)) attribute.set_number(*number);
      if (const auto* const text = std::get_if<std::string>(&value)) attribute.set_text(*text);
      if (const auto* const list = std::get_if<std::vector<int64_t>>(&value)) {
        attribute.mutable_integers()->mutable_values()->Add(list->begin(), list->end());
      }
    }
    // In any order: each comes first and last, in both directions.
    auto& attributes = *node.mutable_attributes();
    for (int order = 0; order < 2 * attributes.size(); ++order) {
      if (order == attributes.size()) std::reverse(attributes.begin(), attributes.end());
      std::rotate(attributes.begin(), attributes.begin() + 1, attributes.end());
      for (const LayerFault& fault : FaultsOfLayer(op, node)) {
        ADD_FAILURE() << op.name << " " << op_case.name << ": " << fault.attribute << " "
                      << fault.message << " in the order " << node.ShortDebugString();
      }
    }
    ++layers;
  }
  EXPECT_GT(layers, 60);
}

TEST(LayersTest, AttributesAreRefusedForThemselvesAndInAnyOrder) {
  for (const char* const fits :
       {"max_pool: {pads: 1, kernel_shape: 3, strides: 2}",
        "max_pool: {kernel_shape: 3, pads: 1, strides: 2}",
        "average_pool: {strides: 1, pads: [0, 0, 1, 1], kernel_shape: 2}",
        "conv: {out_channels: 8, kernel_shape: 64, dilations: 100, pads: 3200}",
        "conv: {out_channels: 8, kernel_shape: 64, dilations: 100, auto_pad: SAME_UPPER}",
        "conv: {group: 3, kernel_shape: 3, out_channels: 6}", "clip: {max: 9, min: 8}"}) {
    EXPECT_EQ(ErrorOfLayer(fits), "");
  }
  // Of a kernel of 0, the padding is not the fault.
  for (const char* const wrong :
       {"max_pool: {pads: 1, kernel_shape: 0}", "max_pool: {kernel_shape: 0, pads: 1}"}) {
    const std::string error = ErrorOfLayer(wrong);
    EXPECT_THAT(error, HasSubstr("max_pool.kernel_shape' is refused: kernel of the height 0"));
    EXPECT_THAT(error, testing::Not(HasSubstr("max_pool.pads"))) << error;
  }
  EXPECT_THAT(ErrorOfLayer("max_pool: {pads: 3, kernel_shape: 2}"),
              HasSubstr("max_pool.kernel_shape' is refused: padding 3, want less than the kernel "
                        "2\n"));
  // What no image that is tried has room for says nothing of the image.
  EXPECT_THAT(ErrorOfLayer("conv: {out_channels: 8, kernel_shape: 9000}"),
              testing::Not(testing::AnyOf(HasSubstr("4096"), HasSubstr("4095"))));
}

TEST(LayersTest, UnknownLayersAreRefused) {
  const std::vector<std::string> names = LayerNames();
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_EQ(ErrorOfLayer("rellu"),
            "j:7:7: error: 'model.layers[0]' is the unknown layer 'rellu' (did you mean "
            "'relu'?)\n");
  EXPECT_EQ(ErrorOfLayer("MaxPool: {kernel_shape: 2}"),
            "j:7:7: error: 'model.layers[0]' is the unknown layer 'MaxPool' (did you mean "
            "'max_pool'?)\n");
  EXPECT_THAT(ErrorOfLayer("dense: {units: 3}"),
              HasSubstr("'model.layers[0]' is the unknown layer 'dense', want one of average_pool, "
                        "batch_normalization, cast, clip, conv, "));
  for (const char* const name : {"concat", "Parameter"}) {
    EXPECT_THAT(ErrorOfLayer(name),
                HasSubstr(absl::StrCat("'model.layers[0]' is the unknown layer '", name,
                                       "': it reads other values than the one before it, so write "
                                       "a graph")));
  }
}

TEST(LayersTest, AnEntryIsATextOrAGroupOfOneKey) {
  const std::string must =
      "'model.layers[0]' must be the name of a layer or a group of one key, found ";
  EXPECT_THAT(ErrorOfLayer("{relu: {}, flatten: {}}"), HasSubstr(must + "2 keys\n"));
  EXPECT_THAT(ErrorOfLayer("[relu]"), HasSubstr(must + "a list\n"));
  EXPECT_THAT(ErrorOfLayer(""), HasSubstr(must + "nothing\n"));
  EXPECT_EQ(LayerErrors("  layers: relu\n"),
            "j:6:11: error: 'model.layers' must be a list, found 'relu'\n");
  EXPECT_EQ(LayerErrors("  layers: []\n"),
            "j:6:11: error: 'model.layers' is empty, want at least 1 layer\n");
}

TEST(LayersTest, AListStandsInPlaceOfANameAndAGraph) {
  for (const char* const other :
       {"name: lenet", "dropout: 0.5", "graph: {nodes: [{name: loss, op: Flatten}]}"}) {
    const std::string key = std::string(other).substr(0, std::string(other).find(':'));
    EXPECT_THAT(LayerErrors(absl::StrCat("  ", other, "\n  layers: [flatten, gemm]\n")),
                HasSubstr(absl::StrCat("j:7:3: error: 'model.layers' and 'model.", key,
                                       "' exclude each other: give one of them\n")));
  }
  EXPECT_THAT(LayerErrors("  layer: [flatten, gemm]\n"),
              HasSubstr("unknown field 'model.layer' (did you mean 'layers'?)"));
}

TEST(LayersTest, ThereAreAtMost4095AndAtMost16Errors) {
  std::string list = "  layers: [flatten";
  for (int i = 0; i < 4094; ++i) list += ", relu";
  EXPECT_EQ(LayerErrors(list + "]\n"), "");
  EXPECT_EQ(LayerErrors(list + ", relu]\n"),
            "j:6:11: error: 'model.layers' has 4096 layers, want at most 4095\n");
  std::string wrong = "  layers: [no";
  for (int i = 0; i < 100; ++i) wrong += ", no";
  EXPECT_EQ(LayersFile(wrong + "]\n").errors.size(), 16u);
}

TEST(LayersTest, ItMayComeFromSet) {
  const JobFile file = ParseJobFile(absl::StrCat(kLayersJob, "model: {name: lenet}\n"),
                                    {{"model.name", "null"}, {"model.layers", "[flatten, gemm]"}});
  EXPECT_EQ(FormatErrors("j", file.errors), "");
  EXPECT_EQ(file.spec.model().graph().nodes_size(), 3);
  // A file that is written again has the graph.
  const JobFile again = ParseJobFile(ToYaml(file.spec));
  EXPECT_EQ(FormatErrors("j", again.errors), "");
  EXPECT_EQ(again.spec.SerializeAsString(), file.spec.SerializeAsString());
}

}  // namespace
}  // namespace capstan::training::spec
