#include "client/commands/predict_file.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "client/model/onnx_file.h"
#include "client/predict/run_network.h"
#include "client/text/text_table.h"
#include "gpu_worker/data/arrays.h"
#include "gpu_worker/engine/device/open.h"
#include "services/files/files.h"
#include "services/proto_json/proto_json.h"
#include "services/server/signals.h"
#include "training/onnx/onnx_model.h"

namespace capstan::client {
namespace {

ExitCode Wrong(absl::string_view what, const Console& console) {
  console.Err(absl::StrCat("capstan: ", what, "\n"));
  return kExitUsage;
}

// What is wrong with the names of the files; empty: nothing.
std::string FilesProblem(const PredictFileOptions& options) {
  if (options.inputs.empty()) {
    return absl::StrCat(options.file, " needs a file with its inputs: capstan predict ",
                        options.file, " INPUTS.npz --out OUTPUTS.npz");
  }
  if (options.outputs.empty()) return "--out is needed: the .npz or .npy file for the outputs";
  if (!absl::EndsWith(options.outputs, ".npz") && !data::IsNpyName(options.outputs)) {
    return absl::StrCat("--out ", options.outputs, ": want a name that ends with .npz or .npy");
  }
  return "";
}

absl::Status WriteOutputs(const std::string& path, const std::vector<data::Array>& outputs) {
  absl::StatusOr<std::unique_ptr<services::AtomicFile>> file = services::AtomicFile::Create(path);
  if (!file.ok()) return file.status();
  const auto write = [&file](absl::string_view bytes) { return (*file)->Append(bytes); };
  absl::Status status =
      data::IsNpyName(path) ? data::WriteNpy(outputs[0], write) : data::WriteNpz(outputs, write);
  if (status.ok()) status = (*file)->Commit();
  return status;
}

void Say(const PredictFileOptions& options, const std::vector<data::Array>& outputs,
         const Console& console) {
  if (console.json()) {
    nlohmann::json arrays = nlohmann::json::array();
    for (const data::Array& output : outputs) {
      arrays.push_back({{"name", output.name}, {"shape", output.shape}});
    }
    console.Out(
        services::Dump(
            {{"path", options.outputs}, {"samples", outputs[0].shape[0]}, {"outputs", arrays}}) +
        "\n");
    return;
  }
  TextTable table({"OUTPUT", "SHAPE"});
  for (const data::Array& output : outputs) {
    table.Add({output.name, training::ShapeToString(output.shape)});
  }
  console.Out(
      absl::StrCat(options.outputs, "\n", table.Text(console.stdout_tty ? console.width : 0)));
}

}  // namespace

bool NamesOnnxFile(const std::string& name) {
  std::error_code error;
  return IsOnnxFile(name) || std::filesystem::is_regular_file(name, error);
}

ExitCode PredictFile(const PredictFileOptions& options, const Console& console) {
  const std::string problem = FilesProblem(options);
  if (!problem.empty()) return Wrong(problem, console);
  const absl::StatusOr<std::string> bytes =
      services::ReadWholeFile(options.file, training::onnx::OnnxLimits().max_bytes);
  if (!bytes.ok()) return Wrong(bytes.status().message(), console);
  const absl::StatusOr<training::onnx::OnnxNetwork> network =
      training::onnx::ReadOnnxNetwork(*bytes, options.file);
  if (!network.ok()) {
    return Wrong(absl::StrCat(options.file, ": ", network.status().message()), console);
  }
  if (data::IsNpyName(options.outputs) && network->outputs.size() != 1) {
    return Wrong(absl::StrCat("--out ", options.outputs, ": ", options.file, " has ",
                              network->outputs.size(), " outputs, want a .npz file"),
                 console);
  }
  const absl::StatusOr<std::vector<data::Array>> inputs = data::ReadArrays(options.inputs);
  if (!inputs.ok()) return Wrong(inputs.status().message(), console);
  const auto device = engine::OpenDevice(options.device);
  if (!device.ok()) {
    return Wrong(absl::StrCat("--device ", options.device, ": ", device.status().message()),
                 console);
  }
  for (const std::string& name : network->left_out) {
    console.Note(absl::StrCat("capstan: output '", name,
                              "' is left out: it depends on no input, or "
                              "is one that its node does not make here\n"));
  }
  services::ShutdownSignal& signal = services::ShutdownSignal::Install();
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const auto outputs =
      RunNetwork(**device, *network, *inputs,
                 {options.batch, options.threads > 0 ? options.threads : cores}, [&signal] {
                   return signal.WaitFor(absl::ZeroDuration())
                              ? absl::CancelledError("interrupted, nothing was written")
                              : absl::OkStatus();
                 });
  if (absl::IsCancelled(outputs.status())) {
    console.Err(absl::StrCat("capstan: ", outputs.status().message(), "\n"));
    return kExitInterrupted;
  }
  if (absl::IsInvalidArgument(outputs.status())) {
    return Wrong(absl::StrCat(options.inputs, ": ", outputs.status().message()), console);
  }
  if (!outputs.ok()) {
    Report(outputs.status(), console);
    const bool usage =
        absl::IsUnimplemented(outputs.status()) || absl::IsResourceExhausted(outputs.status());
    return usage ? kExitUsage : kExitInternal;
  }
  const absl::Status written = WriteOutputs(options.outputs, *outputs);
  if (absl::IsInvalidArgument(written)) {
    return Wrong(absl::StrCat(options.outputs, ": ", written.message()), console);
  }
  if (!written.ok()) {
    Report(written, console);
    return kExitInternal;
  }
  Say(options, *outputs, console);
  return kExitDone;
}

}  // namespace capstan::client
