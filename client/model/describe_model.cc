#include "client/model/describe_model.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/text/text_table.h"
#include "training/graph/models.h"

namespace capstan::client {
namespace {

using training::Graph;
using training::ShapeToString;

std::string NameOfValue(const Graph& graph, training::ValueId value) {
  return value == 0 ? "input" : graph.nodes()[value - 1].name;
}

int64_t TrainedOf(const Graph& graph, int node) {
  int64_t elements = 0;
  for (const int index : graph.parameters_of(node)) {
    const training::Parameter& parameter = graph.parameters()[index];
    if (!parameter.statistic) elements += parameter.elements;
  }
  return elements;
}

// 1234567 as "1,234,567".
std::string Grouped(int64_t number) {
  std::string text = absl::StrCat(number);
  for (int64_t at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) text.insert(at, ",");
  return text;
}

std::string Flops(int64_t flops) {
  const double count = static_cast<double>(flops);
  if (count >= 1e9) return absl::StrFormat("%.2f GFLOP", count / 1e9);
  return absl::StrFormat("%.3f MFLOP", count / 1e6);
}

std::string Mebibytes(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

std::string ModelText(const Graph& graph, const ModelMemory& memory, int width) {
  const bool one = graph.num_classes() == 1;
  const char* const what = graph.target_size() > 0 ? (one ? " output: " : " outputs: ")
                                                   : (one ? " class: " : " classes: ");
  std::string text =
      absl::StrCat(graph.name(), " on images of ", ShapeToString(graph.input_shape()), ", ",
                   graph.num_classes(), what, Grouped(graph.parameter_elements()), " parameters");
  if (graph.statistic_elements() > 0) {
    absl::StrAppend(&text, ", ", Grouped(graph.statistic_elements()), " running statistics");
  }
  absl::StrAppend(&text, "\n\n");
  TextTable table({"NODE", "OPERATOR", "INPUTS", "OUTPUT", "PARAMETERS", "MFLOP"});
  for (int node = 0; node < graph.node_count(); ++node) {
    const training::GraphNode& of = graph.nodes()[node];
    const int64_t flops = graph.instance(node).inferred.flops;
    const int64_t trained = TrainedOf(graph, node);
    table.Add({of.name, of.op.name,
               absl::StrJoin(of.inputs, " ",
                             [&](std::string* out, training::ValueId value) {
                               absl::StrAppend(out, NameOfValue(graph, value));
                             }),
               ShapeToString(graph.value_shape(graph.output_of(node))),
               trained > 0 ? Grouped(trained) : "",
               flops > 0 ? absl::StrFormat("%.3f", static_cast<double>(flops) / 1e6) : ""});
  }
  absl::StrAppend(&text, table.Text(width), "\nOne sample: ", Flops(graph.forward_flops()),
                  " forward, ", Flops(graph.training_flops()),
                  " in training (products with parameters or of matrices; a multiply-add is 2).\n");
  if (memory.batch > 0) {
    absl::StrAppend(&text, "Training ", memory.batch, " samples at a time on a CPU of this host: ",
                    Mebibytes(memory.plan_bytes + memory.float_bytes), ", of which ",
                    Mebibytes(memory.float_bytes), " for weights and gradient.\n");
  }
  return text;
}

std::string NotesText(const ImportNotes& notes) {
  std::string text;
  if (!notes.final_activation.empty()) {
    absl::StrAppend(&text, "The file's last node, ", notes.final_activation,
                    ", is left out: the loss contains it.\n");
  }
  if (!notes.shared_weights.empty()) {
    absl::StrAppend(&text, "Several nodes read each of these weights and have copies here, which ",
                    "training changes apart: ", absl::StrJoin(notes.shared_weights, ", "), "\n");
  }
  return text;
}

nlohmann::ordered_json ModelJson(const Graph& graph, const ModelMemory& memory) {
  nlohmann::ordered_json nodes = nlohmann::ordered_json::array();
  for (int node = 0; node < graph.node_count(); ++node) {
    const training::GraphNode& of = graph.nodes()[node];
    nlohmann::ordered_json inputs = nlohmann::ordered_json::array();
    for (const training::ValueId value : of.inputs) inputs.push_back(NameOfValue(graph, value));
    nlohmann::ordered_json parameters = nlohmann::ordered_json::array();
    for (const int index : graph.parameters_of(node)) {
      const training::Parameter& parameter = graph.parameters()[index];
      parameters.push_back({{"name", parameter.name},
                            {"shape", parameter.shape},
                            {"statistic", parameter.statistic}});
    }
    nodes.push_back({{"name", of.name},
                     {"operator", of.op.name},
                     {"inputs", inputs},
                     {"output", graph.value_shape(graph.output_of(node))},
                     {"parameters", parameters},
                     {"flops", graph.instance(node).inferred.flops}});
  }
  nlohmann::ordered_json json = {
      {"name", graph.name()},
      {"input", graph.input_shape()},
      {graph.target_size() > 0 ? "num_outputs" : "num_classes", graph.num_classes()},
      {"parameters", graph.parameter_elements()},
      {"statistics", graph.statistic_elements()},
      {"forward_flops", graph.forward_flops()},
      {"training_flops", graph.training_flops()},
      {"nodes", nodes}};
  if (memory.batch > 0) {
    json["memory"] = {{"batch", memory.batch},
                      {"plan_bytes", memory.plan_bytes},
                      {"weight_and_gradient_bytes", memory.float_bytes}};
  }
  return json;
}

std::vector<BuiltInModel> BuiltInModels() {
  std::vector<BuiltInModel> models;
  for (const absl::string_view name : training::ModelNames()) {
    if (training::ModelReadsTokens(name)) {
      models.push_back({name, {1, 1, 64}, 65});
    } else if (absl::StartsWith(name, "lenet") || name == "mlp") {
      models.push_back({name, {1, 28, 28}, 10});
    } else {
      models.push_back({name, {3, 224, 224}, 1000});
    }
  }
  return models;
}

absl::StatusOr<training::Shape> ParseImageShape(absl::string_view text) {
  constexpr int64_t kMost = int64_t{1} << 20;
  training::Shape shape;
  for (const absl::string_view word : absl::StrSplit(text, 'x')) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(word, &number) || number < 1 || number > kMost) shape.resize(4);
    shape.push_back(number);
  }
  if (shape.size() == 3) return shape;
  return absl::InvalidArgumentError(absl::StrCat("'", text, "', want CHANNELSxHEIGHTxWIDTH, 1 to ",
                                                 kMost, " each, such as 3x32x32"));
}

}  // namespace capstan::client
