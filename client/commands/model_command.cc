// `capstan model`: networks, without training them.
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/checkpoint_weights.h"
#include "client/commands/commands.h"
#include "client/commands/look.h"
#include "client/commands/network.h"
#include "client/job_name.h"
#include "client/model/describe_model.h"
#include "client/model/onnx_file.h"
#include "client/text/text_table.h"
#include "gpu_worker/engine/device/open.h"
#include "services/files/files.h"
#include "services/proto_json/proto_json.h"
#include "training/chunks/flat_layout.h"
#include "training/graph/models.h"
#include "training/graph/tensors.h"
#include "training/onnx/write_onnx.h"
#include "training/spec/rules.h"

namespace capstan::client {
namespace {

using services::Dump;

ExitCode ListModels(const Console& console) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  TextTable table({"MODEL", "IMAGES", "CLASSES", "PARAMETERS", "MFLOP", "LAYERS"});
  for (const BuiltInModel& model : BuiltInModels()) {
    const auto graph = training::MakeModel(model.name, model.num_classes, model.input);
    if (!graph.ok()) return Report(graph.status(), console);
    table.Add({std::string(model.name), training::ShapeToString(model.input),
               absl::StrCat(model.num_classes), absl::StrCat(graph->parameter_elements()),
               absl::StrFormat("%.4g", static_cast<double>(graph->forward_flops()) / 1e6),
               std::string(training::AboutModel(model.name))});
    list.push_back({{"name", model.name},
                    {"input", model.input},
                    {"num_classes", model.num_classes},
                    {"parameters", graph->parameter_elements()},
                    {"forward_flops", graph->forward_flops()}});
  }
  console.Out(console.json() ? list.dump() + "\n"
                             : table.Text(console.stdout_tty ? console.width : 0));
  return kExitDone;
}

// A file's name may be no UTF-8.
std::string TextOf(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

struct DescribeFlags {
  std::string model;  // a built-in name, a job file or an ONNX file
  NetworkFlags network;
  int batch = 0;
};

absl::StatusOr<Network> FindNetwork(const DescribeFlags& flags, const Console& console) {
  if (IsBuiltInModel(flags.model)) return BuiltInNetwork(flags.model, flags.network);
  std::error_code error;
  if (!IsOnnxFile(flags.model) && flags.model != "-" &&
      !std::filesystem::exists(flags.model, error)) {
    std::string names;
    for (const absl::string_view name : training::ModelNames()) {
      absl::StrAppend(&names, names.empty() ? "" : ", ", name);
    }
    return absl::NotFoundError(
        absl::StrCat("'", flags.model, "' is neither a file nor a model; the models are ", names));
  }
  return NetworkOfFile(flags.model, flags.network, console);
}

absl::StatusOr<ModelMemory> PlanMemory(const training::Graph& graph, int batch) {
  const auto layout = training::FlatLayout::Create(training::TensorSpecs(graph));
  if (!layout.ok()) return layout.status();
  const auto device = engine::OpenDevice("cpu");
  if (!device.ok()) return device.status();
  engine::PlanOptions options;
  options.max_batch = batch;
  options.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const auto plan = (*device)->Compile(graph, *layout, options);
  if (!plan.ok()) return plan.status();
  constexpr int64_t kWeightsAndGradient = 2 * sizeof(float);
  return ModelMemory{batch, (*plan)->info().planned_bytes(),
                     kWeightsAndGradient * layout->total_floats()};
}

ExitCode DescribeModel(const DescribeFlags& flags, const Console& console) {
  const absl::StatusOr<Network> network = FindNetwork(flags, console);
  ModelMemory memory;
  absl::Status status = network.status();
  if (status.ok() && flags.batch > 0) {
    const auto planned = PlanMemory(network->graph, flags.batch);
    status = planned.status();
    if (status.ok()) memory = *planned;
  }
  if (!status.ok()) {
    if (!status.message().empty()) {  // else it was printed
      console.Err(absl::StrCat("capstan: ", status.message(), "\n"));
    }
    return kExitUsage;
  }
  console.Note(NotesText(network->notes));
  console.Out(console.json()
                  ? TextOf(ModelJson(network->graph, memory))
                  : ModelText(network->graph, memory, console.stdout_tty ? console.width : 0));
  return kExitDone;
}

struct ImportFlags {
  std::string file;
  std::string out;  // empty: none
};

// What a job file says to train the network of a file from its weights. A string of JSON is one of
// YAML.
nlohmann::ordered_json GroupsOfJob(const std::string& path, const training::Graph& graph) {
  const bool numbers = graph.target_size() > 0;
  nlohmann::ordered_json groups;
  groups["model"] = {{"graph", path},
                     {"initial_weights", path},
                     {numbers ? "num_outputs" : "num_classes", graph.num_classes()}};
  if (numbers) groups["training"] = {{"loss", training::spec::kMeanSquaredError}};
  return groups;
}

std::string YamlOf(const nlohmann::ordered_json& groups) {
  std::string text;
  for (const auto& [name, group] : groups.items()) {
    absl::StrAppend(&text, name, ":\n");
    for (const auto& [key, value] : group.items()) {
      absl::StrAppend(&text, "  ", key, ": ", value.dump(), "\n");
    }
  }
  return text;
}

ExitCode ImportModel(const ImportFlags& flags, const Console& console) {
  const auto refuse = [&console](absl::string_view what) {
    console.Err(absl::StrCat("capstan: ", what, "\n"));
    return kExitUsage;
  };
  if (!IsOnnxFile(flags.file)) {
    return refuse(absl::StrCat(flags.file, ": want an ONNX file, whose name ends with .onnx"));
  }
  const absl::StatusOr<Network> network = NetworkOfFile(flags.file, {}, console);
  if (!network.ok()) return refuse(network.status().message());
  std::error_code error;
  const std::string path = std::filesystem::absolute(flags.file, error).lexically_normal().string();
  if (error) return refuse(absl::StrCat(flags.file, ": ", error.message()));
  const nlohmann::ordered_json groups = GroupsOfJob(path, network->graph);
  std::string yaml;
  try {
    yaml = YamlOf(groups);
  } catch (const nlohmann::json::exception&) {
    return refuse(absl::StrCat(flags.file, ": want a path of UTF-8, as a job file has"));
  }
  console.Note(NotesText(network->notes));
  if (!flags.out.empty()) {
    const absl::Status written = services::WriteFileAtomically(flags.out, yaml);
    if (!written.ok()) {
      Report(written, console);
      return kExitInternal;
    }
  }
  if (console.json()) {
    nlohmann::ordered_json json = ModelJson(network->graph, {});
    json.update(groups);
    console.Out(TextOf(json));
    return kExitDone;
  }
  console.Out(ModelText(network->graph, {}, console.stdout_tty ? console.width : 0));
  console.Out(flags.out.empty() ? "\n" + yaml : "\n" + flags.out + "\n");
  return kExitDone;
}

struct ExportFlags {
  std::string name;  // JOB[@STEP]
  std::string out;   // empty: JOB.onnx
};

ExitCode ExportModel(const ExportFlags& flags, JobClient& client, const Console& console) {
  auto weights = FindWeights(client, flags.name);
  absl::Status status = weights.status();
  if (status.ok()) status = FetchWeights(client, *weights);
  if (absl::IsCancelled(status)) {
    console.Err(absl::StrCat("capstan: ", status.message(), "\n"));
    return kExitInterrupted;
  }
  if (!status.ok()) {
    const auto name = ParseCheckpointName(flags.name);
    const auto id = FindJob(client, name.ok() ? name->job_id : flags.name);
    return ReportJob(client, id.ok() ? *id : flags.name, status, console);
  }
  const auto offsets = training::ParameterOffsets(weights->graph, weights->layout);
  if (!offsets.ok()) return Report(offsets.status(), console);
  std::vector<const float*> parameters;
  for (const int64_t offset : *offsets) {
    parameters.push_back(&weights->values[static_cast<size_t>(offset)]);
  }
  const auto bytes = training::onnx::WriteOnnx(weights->graph, parameters);
  if (!bytes.ok()) {
    Report(bytes.status(), console);
    return kExitUsage;
  }
  const std::string out = flags.out.empty() ? weights->found.job_id + ".onnx" : flags.out;
  if (status = services::WriteFileAtomically(out, *bytes); !status.ok()) {
    Report(status, console);
    return kExitInternal;
  }
  console.Note(absl::StrCat("step ", weights->found.saved.step(), ", ", bytes->size(), " bytes\n"));
  console.Out(console.json() ? Dump({{"job_id", weights->found.job_id},
                                     {"checkpoint", weights->found.saved.id()},
                                     {"step", weights->found.saved.step()},
                                     {"path", out},
                                     {"size_bytes", bytes->size()}}) +
                                   "\n"
                             : out + "\n");
  return kExitDone;
}

}  // namespace

void AddModel(Command parent, Action& slot) {
  Command group = parent.Sub("model", "networks: their layers, shapes, parameters and operations");
  group.NeedsSub();
  CarryOut(
      group.Sub("list", "the built-in models"), slot, {Output::kTable, Output::kJson},
      [](const Context& context) { return ListModels(context.console); }, kActsAlone);

  const auto flags = std::make_shared<DescribeFlags>();
  Command describe = group.Sub("describe", "a line for each node of a network, and its sums");
  describe.Add("MODEL", flags->model, "name of a built-in model, a job file or an ONNX file")
      .Required();
  describe.Add("--input", flags->network.input,
               "images of a sample, as 3x32x32; default those of the job's data set");
  describe.Add("--num-classes", flags->network.num_classes, "default those of the job file");
  describe
      .Add("--batch", flags->batch,
           "also the memory of training on so many samples at a time, for which it is allocated")
      .Between(1, 65536);
  CarryOut(
      describe, slot, {Output::kTable, Output::kJson},
      [flags](const Context& context) { return DescribeModel(*flags, context.console); },
      kActsAlone);

  const auto imported = std::make_shared<ImportFlags>();
  Command read = group.Sub(
      "import",
      "checks that an ONNX file can be trained, and shows it and the lines of a job file for it");
  read.Add("FILE", imported->file, "an ONNX file").Required();
  read.Add("--out", imported->out, "file to write these lines of a job file to");
  CarryOut(
      read, slot, {Output::kTable, Output::kJson},
      [imported](const Context& context) { return ImportModel(*imported, context.console); },
      kActsAlone);

  const auto exported = std::make_shared<ExportFlags>();
  Command write = group.Sub("export", "the network and weights of a checkpoint as an ONNX file");
  write
      .Add("JOB", exported->name,
           "id of the job or the folder of a run, JOB@STEP or JOB@best; default its newest "
           "checkpoint")
      .Required();
  write.Add("--out", exported->out, "file to write, default JOB.onnx");
  CarryOut(write, slot, {Output::kTable, Output::kJson}, [exported](const Context& context) {
    return WithPlaceOf(context, exported->name, [&](JobClient& client) {
      return ExportModel(*exported, client, context.console);
    });
  });
}

}  // namespace capstan::client
