#include "client/job_source.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/checkpoint_name.h"
#include "client/model/onnx_file.h"
#include "gpu_worker/job_data/job_data.h"
#include "services/files/files.h"
#include "training/ops/limits.h"
#include "training/spec/graph_message.h"
#include "training/spec/resolve.h"
#include "training/spec/validate.h"

namespace capstan::client {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxJobFileBytes = 1 << 20;

// Installed: <prefix>/bin/capstan and <prefix>/share/capstan/examples. Built:
// <tree>/build/<preset>/bin and <tree>/examples.
fs::path ExamplesFolder() {
  std::error_code ignored;
  const fs::path bin = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const fs::path& folder : {bin / "../share/capstan/examples", bin / "../../../examples"}) {
    if (fs::is_directory(folder, ignored)) return fs::weakly_canonical(folder, ignored);
  }
  return {};
}

absl::StatusOr<std::string> ReadStdin() {
  std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  if (std::cin.bad()) return absl::UnavailableError("standard input cannot be read");
  return text;
}

// Makes a path of the job file absolute. URIs stay unchanged.
std::string Absolute(const std::string& path, const fs::path& base) {
  if (path.empty() || absl::StrContains(path, "://") || path[0] == '/') return path;
  return (base / path).lexically_normal().string();
}

// Sets how many outputs the network of a file has, where the job file does not.
void SetOutputs(int32_t outputs, job::v1::JobSpec& spec) {
  job::v1::Model& model = *spec.mutable_model();
  if (training::spec::HasNumericTargets(spec)) {
    if (!model.has_num_outputs()) model.set_num_outputs(outputs);
  } else if (!model.has_num_classes()) {
    model.set_num_classes(outputs);
  }
}

bool Overridden(const std::vector<std::pair<std::string, std::string>>& sets,
                absl::string_view path) {
  return std::any_of(sets.begin(), sets.end(), [&](const auto& set) {
    return path == set.first || absl::StartsWith(path, absl::StrCat(set.first, "."));
  });
}

}  // namespace

std::vector<std::string> ExampleNames() {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(ExamplesFolder(), ignored)) {
    if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

ExitCode NeedSource(const JobSource& source, const Console& console) {
  if (!source.file.empty() || !source.example.empty()) return kExitDone;
  console.Err("capstan: a job file is needed: FILE, - for standard input, or --example NAME\n");
  return kExitUsage;
}

absl::StatusOr<job::v1::JobSpec> LoadJob(const JobSource& source, const Console& console,
                                         JobPlaces& places) {
  std::vector<std::pair<std::string, std::string>> sets;
  for (const std::string& set : source.sets) {
    const size_t equals = set.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(absl::StrCat("--set takes key=value, found '", set, "'"));
    }
    sets.emplace_back(set.substr(0, equals), set.substr(equals + 1));
  }
  std::string name = source.file;
  fs::path base = fs::current_path();
  if (!source.example.empty()) {
    const std::vector<std::string> names = ExampleNames();
    if (std::find(names.begin(), names.end(), source.example) == names.end()) {
      return absl::InvalidArgumentError(absl::StrCat("no example '", source.example,
                                                     "'; there are: ", absl::StrJoin(names, ", ")));
    }
    name = (ExamplesFolder() / (source.example + ".yaml")).string();
  }
  absl::StatusOr<std::string> text =
      name == "-" ? ReadStdin() : services::ReadWholeFile(name, kMaxJobFileBytes);
  if (!text.ok()) {
    // Nothing was sent, and the person must name another file. So the caller sees a usage error.
    return absl::InvalidArgumentError(text.status().message());
  }
  if (name != "-" && source.example.empty()) base = fs::absolute(name).parent_path();

  const auto base_of = [&](absl::string_view path) {
    return Overridden(sets, path) ? fs::current_path() : base;
  };
  int64_t outputs_of_graph = 0;
  const auto read_graph = [&](const std::string& path,
                              bool numbers) -> absl::StatusOr<job::v1::Graph> {
    if (!IsOnnxFile(path)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", path,
          "', want a group of keys, or the name of an ONNX file, which ends with .onnx"));
    }
    using training::onnx::OnnxLoss;
    const auto onnx =
        ReadOnnxFile(Absolute(path, base_of("model.graph")),
                     numbers ? OnnxLoss::kMeanSquaredError : OnnxLoss::kSoftmaxCrossEntropy);
    if (!onnx.ok()) return onnx.status();
    outputs_of_graph = onnx->graph.num_classes();
    const int64_t fewest = numbers ? 1 : 2;
    if (outputs_of_graph < fewest || outputs_of_graph > training::kMaxOutputs) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": has ", outputs_of_graph, outputs_of_graph == 1 ? " output" : " outputs",
          ", want ", fewest, " to ", training::kMaxOutputs,
          outputs_of_graph == 1 ? ", or 'training.loss: mean_squared_error', which takes 1" : ""));
    }
    job::v1::Graph graph = training::spec::ToMessage(onnx->graph);
    for (const int64_t size : onnx->graph.input_shape()) graph.add_input_shape(size);
    return graph;
  };
  training::spec::JobFile file = training::spec::ParseJobFile(*text, sets, read_graph);
  places.file = name == "-" ? "<stdin>" : source.example.empty() ? source.file : name;
  places.marks = std::move(file.marks);
  if (!file.errors.empty()) {
    console.Err(training::spec::FormatErrors(places.file, file.errors));
    console.Err(absl::StrCat(file.errors.size(), file.errors.size() == 1 ? " error" : " errors",
                             ", nothing was submitted\n"));
    return absl::InvalidArgumentError("");
  }
  auto& data = *file.spec.mutable_data();
  if (data.has_uri()) data.set_uri(Absolute(data.uri(), base_of("data.uri")));
  auto& model = *file.spec.mutable_model();
  if (outputs_of_graph > 0) SetOutputs(static_cast<int32_t>(outputs_of_graph), file.spec);
  if (model.has_initial_weights() && !IsCheckpointName(model.initial_weights())) {
    model.set_initial_weights(Absolute(model.initial_weights(), base_of("model.initial_weights")));
  }
  if (file.spec.checkpoint().has_storage_path()) {
    file.spec.mutable_checkpoint()->set_storage_path(
        Absolute(file.spec.checkpoint().storage_path(), base_of("checkpoint.storage_path")));
  }
  return std::move(file.spec);
}

std::string ErrorLine(const JobPlaces& places, absl::string_view message) {
  absl::string_view key = message;
  if (!absl::ConsumePrefix(&key, "'")) return absl::StrCat("capstan: ", message, "\n");
  key = key.substr(0, key.find('\''));
  const training::spec::Mark mark = training::spec::MarkOf(places.marks, key);
  return training::spec::FormatErrors(places.file, {{mark, std::string(message)}});
}

ExitCode ReportStorage(const absl::Status& status, bool given, const JobPlaces& places,
                       const Console& console) {
  console.Err(ErrorLine(places, absl::StrCat(given ? "'checkpoint.storage_path' cannot be used: "
                                                   : "the runs cannot be stored here: ",
                                             status.message())));
  return kExitUsage;
}

absl::StatusOr<job::v1::ResolvedSpec> ResolveHere(const job::v1::JobSpec& spec) {
  job::v1::JobSpec full = spec;
  training::spec::FillDefaults(full);
  const absl::StatusOr<common::v1::DatasetInfo> info = gpu_worker::ProbeJobData(full, {});
  if (!info.ok()) return info.status();
  return training::spec::Resolve(full, *info, {.job_id = full.name(), .storage_path = "/"});
}

}  // namespace capstan::client
