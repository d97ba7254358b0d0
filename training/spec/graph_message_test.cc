#include "training/spec/graph_message.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "training/graph/models.h"
#include "training/graph/random_graph.h"
#include "training/spec/job_file.h"
#include "training/spec/resolve.h"
#include "training/spec/validate.h"

namespace capstan::training::spec {
namespace {

using google::protobuf::util::MessageDifferencer;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using GraphMessage = job::v1::Graph;

void ExpectSame(const Graph& a, const Graph& b) {
  EXPECT_EQ(a.input_shape(), b.input_shape());
  ASSERT_EQ(a.node_count(), b.node_count());
  for (int i = 0; i < a.node_count(); ++i) {
    SCOPED_TRACE(a.nodes()[i].name);
    EXPECT_EQ(a.nodes()[i].name, b.nodes()[i].name);
    EXPECT_EQ(a.nodes()[i].op.name, b.nodes()[i].op.name);
    EXPECT_EQ(a.nodes()[i].op.attributes.values(), b.nodes()[i].op.attributes.values());
    EXPECT_EQ(a.nodes()[i].inputs, b.nodes()[i].inputs);
    EXPECT_EQ(a.value_shape(a.output_of(i)), b.value_shape(b.output_of(i)));
  }
  ASSERT_EQ(a.parameters().size(), b.parameters().size());
  for (size_t i = 0; i < a.parameters().size(); ++i) {
    EXPECT_EQ(a.parameters()[i].name, b.parameters()[i].name);
    EXPECT_EQ(a.parameters()[i].shape, b.parameters()[i].shape);
    EXPECT_EQ(a.parameters()[i].init, b.parameters()[i].init);
    EXPECT_EQ(a.parameters()[i].statistic, b.parameters()[i].statistic);
  }
}

// To a message, to bytes, to a job file, and back.
void ExpectReadsBack(const Graph& graph) {
  const GraphMessage message = ToMessage(graph);
  EXPECT_THAT(CheckGraph(message), IsEmpty());
  GraphMessage again;
  ASSERT_TRUE(again.ParseFromString(message.SerializeAsString()));
  const absl::StatusOr<Graph> back = GraphOf(again, graph.input_shape());
  ASSERT_TRUE(back.ok()) << back.status();
  ExpectSame(graph, *back);
  EXPECT_TRUE(MessageDifferencer::Equals(ToMessage(*back), message));
  GraphMessage filled = message;
  FillGraphDefaults(filled);
  EXPECT_TRUE(MessageDifferencer::Equals(filled, message)) << "something was left to its default";

  job::v1::JobSpec spec;
  *spec.mutable_model()->mutable_graph() = message;
  const JobFile file = ParseJobFile(ToYaml(spec));
  EXPECT_TRUE(MessageDifferencer::Equals(file.spec.model(), spec.model())) << ToYaml(spec);
}

TEST(GraphMessageTest, EveryNamedModelReadsBack) {
  const std::vector<Shape> inputs = {{1, 28, 28}, {3, 32, 32}, {3, 224, 224}};
  for (const absl::string_view name : ModelNames()) {
    for (const Shape& input : inputs) {
      if (ModelReadsTokens(name) && input.back() > 32)
        continue;  // a network for 1024 tokens and more takes long
      for (const double dropout : {0.0, 0.25}) {
        SCOPED_TRACE(absl::StrCat(name, " ", ShapeToString(input), " ", dropout));
        const absl::StatusOr<Graph> graph = MakeModel(name, 10, input, dropout);
        ASSERT_TRUE(graph.ok()) << graph.status();
        ExpectReadsBack(*graph);
      }
    }
  }
}

TEST(GraphMessageTest, RandomGraphsOfTheWholeTableReadBack) {
  std::set<std::string> seen;
  for (int seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = RandomGraph(seed);
    for (const GraphNode& node : graph.nodes()) seen.insert(node.op.name);
    ExpectReadsBack(graph);
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_EQ(seen.size(), AllOps().size()) << "some operator was never drawn";
}

// ---- Job files ----

constexpr char kGraphJob[] = R"(version: 1
name: own-net
data: {uri: /data, format: idx}
training: {epochs: 1, global_batch_size: 64, optimizer: {learning_rate: 0.1}}
model:
  graph:
    nodes:
)";

constexpr char kNodes[] =
    R"(    - {name: conv, op: Conv, attributes: {out_channels: 4, kernel_shape: [3, 3], auto_pad: SAME_UPPER, bias: false}}
    - {name: bn, op: BatchNormalization, attributes: {momentum: 1, epsilon: 1e-3}}
    - {name: gelu, op: Gelu}
    - {name: add, op: Add, inputs: [bn, gelu]}
    - {name: flatten, op: Flatten}
    - {name: fc, op: Gemm, attributes: {out_features: 10}}
    - {name: loss, op: SoftmaxCrossEntropyLoss}
)";

std::string ErrorsOf(absl::string_view nodes) {
  return FormatErrors("j", ParseJobFile(absl::StrCat(kGraphJob, nodes)).errors);
}

common::v1::DatasetInfo Digits() {
  common::v1::DatasetInfo info;
  info.set_train_samples(60000);
  info.set_test_samples(10000);
  info.set_channels(1);
  info.set_height(28);
  info.set_width(28);
  info.set_num_classes(10);
  return info;
}

const ResolveOptions kResolve{.job_id = "own-net-x3n9k4", .storage_path = "/out"};

TEST(GraphOfAJobTest, WhatIsLeftOutHasItsDefault) {
  const JobFile file = ParseJobFile(absl::StrCat(kGraphJob, kNodes));
  ASSERT_THAT(file.errors, IsEmpty()) << FormatErrors("j", file.errors);
  const auto spec = Resolve(file.spec, Digits(), kResolve);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const GraphMessage& graph = spec->spec().model().graph();
  EXPECT_THAT(graph.inputs(), testing::ElementsAre("input"));
  EXPECT_THAT(graph.outputs(), testing::ElementsAre("loss"));
  EXPECT_THAT(graph.nodes(0).inputs(), testing::ElementsAre("input"));
  EXPECT_THAT(graph.nodes(3).inputs(), testing::ElementsAre("bn", "gelu"));
  EXPECT_THAT(graph.nodes(4).inputs(), testing::ElementsAre("add"));
  EXPECT_THAT(ToYaml(spec->spec()), HasSubstr(R"(    nodes:
      - name: conv
        op: Conv
        inputs: [input]
        attributes: {"auto_pad": "SAME_UPPER", "bias": 0, "dilations": [1, 1], "group": 1, )"
                                              R"("kernel_shape": [3, 3], "out_channels": 4, )"
                                              R"("pads": [0, 0, 0, 0], "strides": [1, 1]}
      - name: bn
        op: BatchNormalization
        inputs: [conv]
        attributes: {"epsilon": 0.001, "momentum": 1.0}
      - name: gelu
        op: Gelu
        inputs: [bn]
        attributes: {"approximate": "none"}
)"));
  EXPECT_THAT(PlanText(*spec), HasSubstr("\n      graph of 7 nodes, 31414 parameters and 8 running "
                                         "statistics; /data, "));
  const absl::StatusOr<Graph> made = MakeGraph(*spec);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_THAT(made->value_shape(1), testing::ElementsAre(4, 28, 28));
  const std::string bytes = spec->SerializeAsString();
  EXPECT_EQ(ParseResolved(bytes, Digest(bytes)).status(), absl::OkStatus());

  // The same job, written differently.
  job::v1::JobSpec whole = file.spec;
  FillDefaults(whole);
  EXPECT_EQ(Resolve(whole, Digits(), kResolve)->SerializeAsString(), bytes);
  // A different number makes a different job.
  whole.mutable_model()->mutable_graph()->mutable_nodes(1)->mutable_attributes(1)->set_number(0.5);
  EXPECT_NE(Resolve(whole, Digits(), kResolve)->training_digest(), spec->training_digest());
}

// A checkpoint of either can start the other, because they have the same tensors in the same
// places.
TEST(GraphOfAJobTest, ANamedModelAsAGraphHasItsTensors) {
  for (const absl::string_view name : {"lenet", "resnet18_v1"}) {
    JobFile file = ParseJobFile(absl::StrCat(kGraphJob, kNodes));
    *file.spec.mutable_model()->mutable_graph() = ToMessage(*MakeModel(name, 10, {1, 28, 28}));
    const auto as_graph = Resolve(file.spec, Digits(), kResolve);
    ASSERT_TRUE(as_graph.ok()) << as_graph.status();
    file.spec.mutable_model()->clear_graph();
    file.spec.mutable_model()->set_name(std::string(name));
    const auto named = Resolve(file.spec, Digits(), kResolve);
    ASSERT_TRUE(named.ok()) << named.status();
    EXPECT_FALSE(named->spec().model().has_graph());  // as in earlier versions
    ASSERT_EQ(as_graph->parameters_size(), named->parameters_size());
    for (int i = 0; i < named->parameters_size(); ++i) {
      EXPECT_TRUE(MessageDifferencer::Equals(as_graph->parameters(i), named->parameters(i)));
    }
    EXPECT_EQ(as_graph->chunk_floats(), named->chunk_floats());
    EXPECT_EQ(as_graph->flat_floats(), named->flat_floats());
    ExpectSame(*MakeGraph(*as_graph), *MakeGraph(*named));
  }
}

TEST(GraphOfAJobTest, BatchNormalizationCouplesSamples) {
  for (const absl::string_view name : ModelNames()) {
    const bool couples = absl::StartsWith(name, "resnet") || name == "mobilenet_v1";
    job::v1::Model model;
    model.set_name(std::string(name));
    EXPECT_EQ(SampleCoupling(model), couples ? std::string(name) : "");
    *model.mutable_graph() = ToMessage(*MakeModel(name, 10, {3, 32, 32}));
    EXPECT_EQ(SampleCoupling(model).empty(), !couples) << name;
  }
  job::v1::Model model;
  *model.mutable_graph() = ToMessage(*MakeModel("resnet18_v1", 10, {3, 32, 32}));
  EXPECT_EQ(SampleCoupling(model), "node bn1 (BatchNormalization)");
}

// A Parameter reads nothing, also if it stands first or behind another node.
TEST(GraphOfAJobTest, AnOperatorWithoutInputsReadsNothing) {
  const JobFile file = ParseJobFile(
      absl::StrCat(kGraphJob, R"(    - {name: first, op: Parameter, attributes: {shape: [1]}}
    - {name: flatten, op: Flatten, inputs: [input]}
    - {name: place, op: Parameter, attributes: {shape: [784], init: initializer}}
    - {name: add, op: Add, inputs: [flatten, place]}
    - {name: scaled, op: Mul, inputs: [add, first]}
    - {name: fc, op: Gemm, attributes: {out_features: 10}}
    - {name: loss, op: SoftmaxCrossEntropyLoss}
)"));
  ASSERT_THAT(file.errors, IsEmpty()) << FormatErrors("j", file.errors);
  const auto spec = Resolve(file.spec, Digits(), kResolve);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const GraphMessage& message = spec->spec().model().graph();
  EXPECT_THAT(message.nodes(0).inputs(), IsEmpty());
  EXPECT_THAT(message.nodes(2).inputs(), IsEmpty());
  EXPECT_THAT(message.nodes(5).inputs(), testing::ElementsAre("scaled"));
  const absl::StatusOr<Graph> graph = MakeGraph(*spec);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->parameters()[0].name, "first.weight");
  EXPECT_EQ(graph->parameters()[1].name, "place.weight");
  EXPECT_EQ(graph->parameters()[1].elements, 784);
  ExpectReadsBack(*graph);
  EXPECT_THAT(
      ErrorsOf("    - {name: a, op: Parameter, inputs: [input], attributes: {shape: [1]}}\n"),
      HasSubstr("node a (Parameter): 1 inputs, want 0"));
}

TEST(GraphOfAJobTest, TheFormOfAnAttributeIsItsType) {
  const JobFile file = ParseJobFile(absl::StrCat(
      kGraphJob,
      "    - {name: a, op: Relu, attributes: {a: 3, b: 3.0, c: true, d: false, e: '3', "
      "f: TRUE, g: [], h: [-1, 2], i: -1e-3, j: \"true\"}}\n"));
  const job::v1::GraphNode& node = file.spec.model().graph().nodes(0);
  ASSERT_EQ(node.attributes_size(), 10);
  EXPECT_EQ(node.attributes(0).integer(), 3);
  EXPECT_EQ(node.attributes(1).number(), 3.0);
  EXPECT_TRUE(node.attributes(2).has_integer());
  EXPECT_EQ(node.attributes(2).integer(), 1);
  EXPECT_TRUE(node.attributes(3).has_integer());
  EXPECT_EQ(node.attributes(4).text(), "3");
  EXPECT_EQ(node.attributes(5).text(), "TRUE");
  EXPECT_TRUE(node.attributes(6).has_integers());
  EXPECT_THAT(node.attributes(7).integers().values(), testing::ElementsAre(-1, 2));
  EXPECT_EQ(node.attributes(8).number(), -1e-3);
  EXPECT_EQ(node.attributes(9).text(), "true");
  job::v1::JobSpec again = ParseJobFile(ToYaml(file.spec)).spec;
  EXPECT_TRUE(MessageDifferencer::Equals(again.model(), file.spec.model())) << ToYaml(file.spec);
  for (const char* bad : {"9223372036854775808", "1e999", "{a: 1}", "[1.5]", "[[1]]", "['1']"}) {
    EXPECT_THAT(ErrorsOf(absl::StrCat("    - {name: a, op: Relu, attributes: {b: ", bad, "}}\n")),
                HasSubstr("'model.graph.nodes[0].attributes.b' must be a whole number"))
        << bad;
  }
  EXPECT_THAT(ErrorsOf("    - {name: a, op: Relu, attributes: [1]}\n"),
              HasSubstr("'model.graph.nodes[0].attributes' must be a group of keys, found a list"));
}

TEST(GraphOfAJobTest, ErrorsHaveTheirPlaceInTheFile) {
  EXPECT_EQ(ErrorsOf(R"(    - {name: fc, op: Gemm, attributes: {out_feature: 10}}
    - {name: again, op: Relu, inputs: [fcc]}
    - {name: loss, op: SoftmaxCrossEntropyLoss, inputs: [loss]}
)"),
            "j:9:31: error: 'model.graph.nodes[1].inputs' has 'fcc', which is not the name of a "
            "node or an input\n"
            "j:10:49: error: 'model.graph.nodes[2].inputs' has 'loss', the node itself: a node "
            "can read only earlier nodes\n");
  EXPECT_EQ(ErrorsOf(R"(    - {name: flat, op: Flatten}
    - {name: fc, op: Gemm, attributes: {out_feature: 10}}
    - {name: loss, op: SoftmaxCrossEntropyLoss}
)"),
            "j:9:7: error: 'model.graph.nodes[1]' is refused: node fc (Gemm): attribute "
            "out_feature: not known, want one of out_features, bias\n");
  EXPECT_THAT(ErrorsOf("    - {name: a, ops: Relu}\n"),
              HasSubstr("unknown field 'model.graph.nodes[0].ops' (did you mean 'op'?)"));
  const auto with = [](const char* key, const char* value) {
    return FormatErrors("j", ParseJobFile(absl::StrCat(kGraphJob, kNodes), {{key, value}}).errors);
  };
  EXPECT_EQ(with("model.num_classes", "10"), "");
  EXPECT_THAT(with("model.name", "lenet"), HasSubstr("'model.graph' and 'model.name' exclude"));
  EXPECT_THAT(with("model.dropout", "0.5"), HasSubstr("'model.dropout' has no meaning with"));
  EXPECT_THAT(with("model.graph", "net.onnx"),
              HasSubstr("'model.graph' must be a group of keys, found 'net.onnx'"));
  EXPECT_THAT(with("model.graph.outputs", "[fc]"),
              HasSubstr("'model.graph.outputs' is 'fc', want the last node, 'loss'"));
}

TEST(GraphOfAJobTest, WhatDoesNotFitTheDataIsNamed) {
  const JobFile file = ParseJobFile(absl::StrCat(kGraphJob, kNodes));
  const auto refused = [](const job::v1::JobSpec& spec) {
    return std::string(Resolve(spec, Digits(), kResolve).status().message());
  };
  job::v1::JobSpec spec = file.spec;
  spec.mutable_model()->set_num_classes(12);
  EXPECT_EQ(refused(spec),
            "'model.graph' is refused: its loss reads 10 numbers, 'model.num_classes' is 12");
  spec = file.spec;
  spec.mutable_model()->mutable_graph()->mutable_nodes(4)->set_op("Relu");
  EXPECT_THAT(refused(spec), HasSubstr("'model.graph' is refused: node fc (Gemm): "));
  // No parameters, so nothing to train.
  GraphMessage& graph = *spec.mutable_model()->mutable_graph();
  while (graph.nodes_size() > 2) graph.mutable_nodes()->RemoveLast();
  graph.mutable_nodes(0)->set_op("Flatten");
  graph.mutable_nodes(0)->clear_attributes();
  *graph.mutable_nodes(1) = file.spec.model().graph().nodes(6);
  spec.mutable_model()->set_num_classes(784);
  EXPECT_THAT(refused(spec), HasSubstr("parameters: got none, want at least 1"));
}

TEST(GraphOfAJobTest, ThePageListsEveryOperatorAndAttributeAndItsExampleIsTaken) {
  std::ifstream page(CAPSTAN_INTERFACE_MD);
  ASSERT_TRUE(page) << CAPSTAN_INTERFACE_MD;
  std::map<std::string, std::string> rows;  // by operator
  std::string example;
  bool in_example = false;
  int headings = 0;
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("| `", 0) == 0) rows[line.substr(3, line.find('`', 3) - 3)] = line;
    if (line.rfind("### ", 0) == 0) headings += line == "### Networks of your own";
    if (line.rfind("```", 0) == 0)
      in_example = line == "```yaml" && headings == 1 && example.empty();
    if (in_example && line != "```yaml") absl::StrAppend(&example, line, "\n");
  }
  for (const OpDef* op : AllOps()) {
    // AveragePool has the attributes of MaxPool, too.
    const std::string row = rows[op->name] + (op->name == "AveragePool" ? rows["MaxPool"] : "");
    ASSERT_FALSE(rows[op->name].empty()) << op->name;
    for (const AttributeDef& attribute : op->attributes) {
      EXPECT_THAT(row, HasSubstr(absl::StrCat("`", attribute.name, "`"))) << op->name;
    }
  }
  const absl::string_view head = kGraphJob;
  const JobFile file = ParseJobFile(absl::StrCat(head.substr(0, head.find("model:")), example));
  ASSERT_THAT(file.errors, IsEmpty()) << example << FormatErrors("page", file.errors);
  EXPECT_EQ(Resolve(file.spec, Digits(), kResolve).status(), absl::OkStatus());
}

// ---- Messages that no file produces ----

// A chain of `relus`, a dense layer and the loss.
GraphMessage Good(int relus = 2) {
  GraphMessage graph;
  const auto add = [&graph](const std::string& name, const std::string& op) {
    graph.add_nodes()->set_name(name);
    graph.mutable_nodes(graph.nodes_size() - 1)->set_op(op);
  };
  for (int i = 0; i < relus; ++i) add(absl::StrCat("relu", i), "Relu");
  add("flatten", "Flatten");
  add("fc", "Gemm");
  graph.mutable_nodes(relus + 1)->add_attributes()->set_name("out_features");
  graph.mutable_nodes(relus + 1)->mutable_attributes(0)->set_integer(10);
  add("loss", "SoftmaxCrossEntropyLoss");
  return graph;
}

TEST(GraphShapeTest, ImagesOfAnotherShapeAreRefused) {
  GraphMessage graph = Good();
  for (const int64_t size : {1, 28, 28}) graph.add_input_shape(size);
  EXPECT_TRUE(GraphOf(graph, {1, 28, 28}).ok());
  EXPECT_EQ(GraphOf(graph, {3, 32, 32}).status().message(),
            "'model.graph' is refused: it is made for images of [1, 28, 28], the data set has "
            "[3, 32, 32]");
  graph.clear_input_shape();
  EXPECT_TRUE(GraphOf(graph, {3, 32, 32}).ok());
}

TEST(HostileGraphTest, IsRefusedWithFieldValueAndLimit) {
  struct Hostile {
    const char* path;
    const char* message;
    std::function<void(GraphMessage&)> change;
  };
  const auto node = [](GraphMessage& g) { return g.mutable_nodes(0); };
  const auto attribute = [](GraphMessage& g) { return g.mutable_nodes(3)->mutable_attributes(0); };
  const std::vector<Hostile> all = {
      {"model.graph", "no nodes", [](auto& g) { g.clear_nodes(); }},
      {"model.graph.nodes", "has 4097 entries, want at most 4096", [](auto& g) { g = Good(4094); }},
      {"model.graph.inputs", "has 2 entries, want 1",
       [](auto& g) { g.add_inputs("a"), g.add_inputs("b"); }},
      {"model.graph.inputs", "has '', want 1 to 128", [](auto& g) { g.add_inputs(""); }},
      {"model.graph.inputs", "has 'a\\x1b[2J'", [](auto& g) { g.add_inputs("a\x1b[2J"); }},
      {"model.graph.input_shape", "is [3, 32], want channels, height and width, each at least 1",
       [](auto& g) { g.add_input_shape(3), g.add_input_shape(32); }},
      {"model.graph.input_shape", "is [1, 0, 28], want",
       [](auto& g) { g.add_input_shape(1), g.add_input_shape(0), g.add_input_shape(28); }},
      {"model.graph.outputs", "has 2 entries, want 1",
       [](auto& g) { g.add_outputs("loss"), g.add_outputs("loss"); }},
      {"model.graph.outputs", "is 'fc', want the last node, 'loss'",
       [](auto& g) { g.add_outputs("fc"); }},
      {"model.graph.nodes[0]", "empty name", [&](auto& g) { node(g)->set_name(""); }},
      {"model.graph.nodes[0]", "of 129 bytes, want at most 128",
       [&](auto& g) { node(g)->set_name(std::string(129, 'a')); }},
      {"model.graph.nodes[0]", "name \"a\\nb\"", [&](auto& g) { node(g)->set_name("a\nb"); }},
      {"model.graph.nodes[1]", "relu0 is taken by an earlier node",
       [&](auto& g) { g.mutable_nodes(1)->set_name("relu0"); }},
      {"model.graph.nodes[0]", "is named 'input', as the graph's input is",
       [&](auto& g) { node(g)->set_name("input"); }},
      {"model.graph.nodes[0]", "node relu0 (LSTM): the operator is not known",
       [&](auto& g) { node(g)->set_op("LSTM"); }},
      {"model.graph.nodes[0]", "node relu0 (): the operator is not known",
       [&](auto& g) { node(g)->clear_op(); }},
      // Cycles: of one node, of two.
      {"model.graph.nodes[0].inputs", "has 'relu0', the node itself",
       [&](auto& g) { node(g)->add_inputs("relu0"); }},
      {"model.graph.nodes[0].inputs", "has 'relu1', which comes later, as nodes[1]",
       [&](auto& g) { node(g)->add_inputs("relu1"); }},
      {"model.graph.nodes[0].inputs", "has '', which is not the name",
       [&](auto& g) { node(g)->add_inputs(""); }},
      {"model.graph.nodes[0]", "2 inputs, want 1",
       [&](auto& g) { node(g)->add_inputs("input"), node(g)->add_inputs("input"); }},
      {"model.graph.nodes[0]", "node relu0 (Add): 1 inputs, want 2",
       [&](auto& g) { node(g)->set_op("Add"); }},
      {"model.graph.nodes[0]", "node relu0 (Sum): 1025 inputs, want 1 to 1024",
       [&](auto& g) {
         node(g)->set_op("Sum");
         for (int i = 0; i < 1025; ++i) node(g)->add_inputs("input");
       }},
      {"model.graph.nodes[0]", "relu0 (Relu): no node reads the value",
       [](auto& g) { g.mutable_nodes(1)->add_inputs("input"); }},
      {"model.graph.nodes[4]", "MeanSquaredErrorLoss), as the last of 5 nodes",
       [](auto& g) { g.mutable_nodes(4)->set_op("Relu"); }},
      {"model.graph.nodes[0]", "MeanSquaredErrorLoss), as the last of 5 nodes",
       [&](auto& g) { node(g)->set_op("SoftmaxCrossEntropyLoss"); }},
      {"model.graph.nodes[3].attributes", "has 'out_features' without a value",
       [&](auto& g) { attribute(g)->clear_value(); }},
      {"model.graph.nodes[3].attributes", "has the name '', want 1 to 64 printable bytes",
       [&](auto& g) { attribute(g)->clear_name(); }},
      {"model.graph.nodes[3].attributes", "has the name 'a\\x07'",
       [&](auto& g) { attribute(g)->set_name("a\a"); }},
      {"model.graph.nodes[3].attributes", "has 'out_features' twice",
       [&](auto& g) { *g.mutable_nodes(3)->add_attributes() = *attribute(g); }},
      {"model.graph.nodes[3]", "attribute out_features: text, want a whole number",
       [&](auto& g) { attribute(g)->set_text("10"); }},
      {"model.graph.nodes[3]", "attribute out_features: a number, want a whole number",
       [&](auto& g) { attribute(g)->set_number(10); }},
      {"model.graph.nodes[3].attributes", "has the text 'a\\n' as 'out_features'",
       [&](auto& g) { attribute(g)->set_text("a\n"); }},
      {"model.graph.nodes[3].attributes", "want at most 64 printable bytes",
       [&](auto& g) { attribute(g)->set_text(std::string(65, 'a')); }},
      {"model.graph.nodes[3].attributes", "has 65 numbers as 'out_features', want at most 64",
       [&](auto& g) { attribute(g)->mutable_integers()->mutable_values()->Resize(65, 1); }},
      {"model.graph.nodes[3]", "attribute out_features: is required",
       [](auto& g) { g.mutable_nodes(3)->clear_attributes(); }},
      {"model.graph.nodes[0]", "attribute ratio: nan, want a finite number",
       [&](auto& g) {
         node(g)->set_op("Dropout");
         node(g)->add_attributes()->set_name("ratio");
         node(g)->mutable_attributes(0)->set_number(std::numeric_limits<double>::quiet_NaN());
       }},
  };
  ASSERT_THAT(CheckGraph(Good()), IsEmpty());
  ASSERT_TRUE(GraphOf(Good(4093), {1, 2, 2}).ok());
  for (const Hostile& hostile : all) {
    SCOPED_TRACE(hostile.message);
    GraphMessage graph = Good();
    hostile.change(graph);
    const std::vector<GraphProblem> problems = CheckGraph(graph);
    ASSERT_FALSE(problems.empty());
    EXPECT_EQ(problems[0].path, hostile.path);
    EXPECT_THAT(problems[0].message, HasSubstr(hostile.message));
    const absl::Status status = GraphOf(graph, {1, 2, 2}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("'", hostile.path, "' ")));
    EXPECT_THAT(std::string(status.message()), HasSubstr(hostile.message));
    FillGraphDefaults(graph);  // must not crash
  }
}

TEST(HostileGraphTest, SizesBeyondEveryLimitAreErrors) {
  const auto refused = [](const GraphMessage& graph, const Shape& input) {
    const absl::Status status = GraphOf(graph, input).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  for (const int64_t size : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::max(),
                             std::numeric_limits<int64_t>::min(), int64_t{1} << 40}) {
    GraphMessage graph = Good();
    graph.mutable_nodes(3)->mutable_attributes(0)->set_integer(size);
    EXPECT_THAT(refused(graph, {1, 2, 2}), HasSubstr("node fc (Gemm): ")) << size;
  }
  EXPECT_THAT(refused(Good(), {int64_t{1} << 30, 1 << 30, 2}), HasSubstr("elements"));
}

TEST(HostileGraphTest, OfManyProblemsTheFirstAreSaid) {
  GraphMessage graph = Good(100);
  for (job::v1::GraphNode& node : *graph.mutable_nodes()) node.set_op("Nothing");
  EXPECT_EQ(CheckGraph(graph).size(), 16u);
}

TEST(HostileGraphTest, ANodeMayHaveTheNameThatInputsHave) {
  GraphMessage graph = Good();
  graph.add_inputs("images");
  graph.mutable_nodes(0)->set_name("input");
  const absl::StatusOr<Graph> made = GraphOf(graph, {1, 2, 2});
  ASSERT_TRUE(made.ok()) << made.status();
  ExpectReadsBack(*made);
}

}  // namespace
}  // namespace capstan::training::spec
