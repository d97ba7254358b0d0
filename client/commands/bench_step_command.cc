// `capstan bench step`: one training step on this machine, layer by layer.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/bench/step_bench.h"
#include "client/commands/commands.h"
#include "client/commands/network.h"
#include "gpu_worker/engine/device/open.h"
#include "services/proto_json/proto_json.h"
#include "training/spec/resolve.h"
#include "training/spec/validate.h"

namespace capstan::client {
namespace {

constexpr int kDefaultBatch = 64;

struct StepFlags {
  std::string file;   // a job file or an ONNX file
  std::string model;  // built-in
  NetworkFlags network;
  std::optional<int> batch;
  std::optional<int> threads;
  int seconds = 3;
};

// What a job file says of a step on one device, with its own rule instead of an average of lanes.
absl::StatusOr<job::v1::ResolvedSpec> StepOf(const std::optional<job::v1::JobSpec>& spec) {
  job::v1::ResolvedSpec step;
  if (spec.has_value()) *step.mutable_spec() = *spec;
  training::spec::FillDefaults(*step.mutable_spec());
  step.mutable_spec()->mutable_kvstore()->clear_local_steps();
  const std::string& precision = step.spec().training().precision();
  if (precision == "fp32") return step;
  return absl::InvalidArgumentError(
      absl::StrCat("'training.precision' is '", precision,
                   "', want 'fp32': the step is measured on CPUs, which have no other"));
}

absl::StatusOr<StepReport> Measure(const StepFlags& flags, const Console& console) {
  const absl::StatusOr<Network> network = flags.model.empty()
                                              ? NetworkOfFile(flags.file, flags.network, console)
                                              : BuiltInNetwork(flags.model, flags.network);
  if (!network.ok()) return network.status();
  console.Note(NotesText(network->notes));
  const auto step = StepOf(network->spec);
  if (!step.ok()) return step.status();
  const auto optimizer = training::spec::MakeOptimizer(*step);
  if (!optimizer.ok()) return optimizer.status();
  const auto device = engine::OpenDevice("cpu");
  if (!device.ok()) return device.status();
  StepBench bench;
  bench.batch = network->spec.has_value() ? training::spec::GlobalBatch(*network->spec)
                                          : int64_t{kDefaultBatch};
  if (flags.batch.has_value()) bench.batch = *flags.batch;
  bench.threads = flags.threads.value_or(
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 1024));
  bench.length = absl::Seconds(flags.seconds);
  bench.optimizer_name = step->spec().training().optimizer().name();
  console.Note(absl::StrCat("measuring ", network->graph.name(), ", batch ", bench.batch, "\n"));
  return MeasureStep(**device, network->graph, **optimizer, bench);
}

ExitCode Bench(const StepFlags& flags, const Console& console) {
  if (flags.file.empty() == flags.model.empty()) {
    console.Err(flags.file.empty()
                    ? "capstan: a network is needed: FILE (a job file or an ONNX file) or --model "
                      "NAME\n"
                    : "capstan: FILE and --model are two networks, want one\n");
    return kExitUsage;
  }
  const absl::StatusOr<StepReport> report = Measure(flags, console);
  if (!report.ok()) {
    if (!report.status().message().empty()) {  // else it was printed
      console.Err(absl::StrCat("capstan: ", report.status().message(), "\n"));
    }
    return absl::IsResourceExhausted(report.status()) ? kExitInternal : kExitUsage;
  }
  const bool wide = console.output == Output::kWide;
  console.Out(console.json() ? services::Dump(StepJson(*report)) + "\n"
                             : StepText(*report, wide, console.stdout_tty ? console.width : 0));
  return kExitDone;
}

}  // namespace

void AddBenchStep(Command group, Action& slot) {
  const auto flags = std::make_shared<StepFlags>();
  flags->network.input_flag = "--input-shape";
  flags->network.classes_flag = "--classes";
  Command command = group.Sub(
      "step", "one training step on the CPUs of this machine, layer by layer, beside its limits");
  command.Add("FILE", flags->file, "a job file or an ONNX file");
  command.Add("--model", flags->model, "a built-in model instead of a file");
  command
      .Add("--batch", flags->batch,
           absl::StrCat("samples of the step, default those of the job file's batch, else ",
                        kDefaultBatch))
      .Between(1, kMostStepBatch);
  command.Add("--threads", flags->threads, "default one for each processor").Between(1, 1024);
  command.Add("--input-shape", flags->network.input,
              "what the network reads, as 3x32x32; default that of the job or the model");
  command.Add("--classes", flags->network.num_classes, "default those of the job or the model");
  command.Add("--seconds", flags->seconds, "how long steps are measured, default 3")
      .Between(1, 600);
  CarryOut(
      command, slot, {Output::kTable, Output::kWide, Output::kJson},
      [flags](const Context& context) { return Bench(*flags, context.console); }, kActsAlone);
}

}  // namespace capstan::client
