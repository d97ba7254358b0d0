// `capstan predict`: a trained network on samples of this host.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/checkpoint_weights.h"
#include "client/commands/commands.h"
#include "client/commands/look.h"
#include "client/commands/predict_file.h"
#include "client/job_name.h"
#include "client/predict/predict.h"
#include "client/text/number_text.h"
#include "client/text/text_table.h"
#include "gpu_worker/engine/device/open.h"
#include "gpu_worker/job_data/job_data.h"
#include "services/files/files.h"
#include "services/proto_json/proto_json.h"
#include "services/server/signals.h"

namespace capstan::client {
namespace {

using services::Dump;

struct PredictFlags {
  std::string name;    // JOB[@STEP]
  std::string inputs;  // of an ONNX file
  std::string data;    // a folder or file in place of the job's
  std::string split;   // empty: test
  std::string out;
  std::string device = "cpu";
  bool logits = false;
  int64_t limit = 0;
  int batch = 64;
  int threads = 0;
};

ExitCode ReportCheckpoint(JobClient& client, const std::string& name, const absl::Status& status,
                          const Console& console) {
  if (absl::IsCancelled(status)) {
    console.Err(absl::StrCat("capstan: ", status.message(), "\n"));
    return kExitInterrupted;
  }
  const auto parsed = ParseCheckpointName(name);
  const auto id = FindJob(client, parsed.ok() ? parsed->job_id : name);
  return ReportJob(client, id.ok() ? *id : name, status, console);
}

// The data set that a person names, as the job reads it.
absl::StatusOr<std::unique_ptr<data::Dataset>> OpenData(const PredictFlags& options,
                                                        const job::v1::ResolvedSpec& resolved) {
  job::v1::JobSpec spec = resolved.spec();
  if (!options.data.empty()) {
    if (spec.data().format() == "synthetic_digits") {
      return absl::InvalidArgumentError(
          "--data would do nothing: the samples of synthetic_digits are drawn from the seed");
    }
    std::error_code error;
    const std::filesystem::path path = std::filesystem::absolute(options.data, error);
    spec.mutable_data()->set_uri("file://" + path.lexically_normal().string());
  }
  // Sparse text says only the features that a file has.
  if (spec.data().format() == "libsvm" && !spec.data().has_features() &&
      spec.data().shape().empty()) {
    spec.mutable_data()->set_features(resolved.dataset().width());
  }
  data::DatasetOptions dataset = gpu_worker::MakeDatasetOptions(spec, {});
  dataset.as_evaluation = true;
  return data::OpenDataset(dataset,
                           options.split == "test" ? data::Split::kTest : data::Split::kTrain);
}

// With the digits that give the float back.
std::string Exact(float value) { return NumberText(static_cast<double>(value), 9); }

// Where targets are numbers: all targets, then all outputs.
std::string NumbersRow(const Prediction& prediction) {
  std::string row = absl::StrCat(prediction.sample);
  for (const float target : prediction.targets) absl::StrAppend(&row, ",", Exact(target));
  for (const float output : prediction.logits) absl::StrAppend(&row, ",", Exact(output));
  return row + "\n";
}

std::string NumbersHead(int64_t outputs) {
  if (outputs == 1) return "sample,target,predicted\n";
  std::string head = "sample";
  for (const char* const name : {"target", "predicted"}) {
    for (int64_t i = 0; i < outputs; ++i) absl::StrAppend(&head, ",", name, "_", i);
  }
  return head + "\n";
}

std::string CsvRow(const Prediction& prediction, bool logits) {
  if (!prediction.targets.empty()) return NumbersRow(prediction);
  std::string row =
      absl::StrCat(prediction.sample, ",", prediction.label, ",", prediction.predicted, ",");
  if (std::isfinite(prediction.probability)) {
    absl::StrAppend(&row, NumberText(prediction.probability, 9));
  }
  if (logits) {
    for (const float logit : prediction.logits) absl::StrAppend(&row, ",", Exact(logit));
  }
  return row + "\n";
}

std::string CsvHead(bool logits, const training::Graph& graph) {
  const int64_t classes = graph.num_classes();
  if (graph.target_size() > 0) return NumbersHead(classes);
  std::string head = "sample,label,predicted,probability";
  for (int64_t i = 0; logits && i < classes; ++i) absl::StrAppend(&head, ",logit_", i);
  return head + "\n";
}

double Share(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(1, whole));
}

double MeanLoss(const PredictionSums& sums) {
  return sums.loss_sum / static_cast<double>(std::max<int64_t>(1, sums.samples));
}

std::string ResultText(const CheckpointWeights& weights, const PredictFlags& options,
                       const PredictionSums& sums, int width) {
  const char* const split = options.split == "test" ? "test" : "training";
  if (weights.graph.target_size() > 0) {
    return absl::StrFormat("%s@%s  %d %s samples\nloss      %s  mean squared error\n",
                           weights.job.job_id(), weights.found.saved.id(), sums.samples, split,
                           NumberText(MeanLoss(sums), 6));
  }
  std::string text = absl::StrFormat(
      "%s@%s  %d %s samples\naccuracy  %.4f  %d of them\nloss      %s\n\n", weights.job.job_id(),
      weights.found.saved.id(), sums.samples, split, Share(sums.correct, sums.samples),
      sums.correct, NumberText(MeanLoss(sums), 6));
  TextTable table({"CLASS", "SAMPLES", "CORRECT", "RECALL", "PREDICTED", "PRECISION"});
  for (size_t i = 0; i < sums.classes.size(); ++i) {
    const ClassCounts& counts = sums.classes[i];
    if (counts.samples == 0 && counts.predicted == 0) continue;
    table.Add(
        {absl::StrCat(i), absl::StrCat(counts.samples), absl::StrCat(counts.correct),
         counts.samples > 0 ? absl::StrFormat("%.4f", Share(counts.correct, counts.samples)) : "",
         absl::StrCat(counts.predicted),
         counts.predicted > 0 ? absl::StrFormat("%.4f", Share(counts.correct, counts.predicted))
                              : ""});
  }
  return text + table.Text(width);
}

std::string ResultJson(const CheckpointWeights& weights, const PredictFlags& options,
                       const PredictionSums& sums) {
  nlohmann::json classes = nlohmann::json::array();
  for (size_t i = 0; i < sums.classes.size(); ++i) {
    const ClassCounts& counts = sums.classes[i];
    classes.push_back({{"class", i},
                       {"samples", counts.samples},
                       {"correct", counts.correct},
                       {"predicted", counts.predicted}});
  }
  nlohmann::ordered_json result = {{"job_id", weights.job.job_id()},
                                   {"checkpoint", weights.found.saved.id()},
                                   {"step", weights.found.saved.step()},
                                   {"split", options.split},
                                   {"samples", sums.samples}};
  const bool numbers = weights.graph.target_size() > 0;
  if (!numbers) {
    result["correct"] = sums.correct;
    result["accuracy"] = Share(sums.correct, sums.samples);
  }
  const double loss = MeanLoss(sums);
  result["loss"] = std::isfinite(loss) ? nlohmann::json(loss) : nlohmann::json();
  if (!numbers) result["classes"] = classes;
  return Dump(result) + "\n";
}

// The flag of a job that was given for an ONNX file; empty: none.
std::string FlagOfJobs(const PredictFlags& options) {
  if (!options.data.empty()) return "--data";
  if (!options.split.empty()) return "--split";
  if (options.limit != 0) return "--limit";
  return options.logits ? "--logits" : "";
}

ExitCode PredictOnnx(const PredictFlags& options, const Context& context) {
  const std::string flag = FlagOfJobs(options);
  if (!flag.empty()) {
    return RefuseFlag(flag, "it is for the samples of a job, not for an ONNX file",
                      context.console);
  }
  const ExitCode refused = RefuseConnection(context, "an ONNX file is run on this machine");
  if (refused != kExitDone) return refused;
  return PredictFile(
      {options.name, options.inputs, options.out, options.device, options.batch, options.threads},
      context.console);
}

ExitCode PredictHere(const PredictFlags& options, JobClient& client, const Console& console) {
  auto weights = FindWeights(client, options.name);
  if (!weights.ok()) return ReportCheckpoint(client, options.name, weights.status(), console);

  if (options.logits && weights->graph.target_size() > 0) {
    return RefuseFlag("--logits", "the file of --out has the network's numbers anyway", console);
  }
  const auto dataset = OpenData(options, weights->job.resolved());
  if (!dataset.ok()) {
    console.Err(absl::StrCat("capstan: the samples must be on this host",
                             options.data.empty() ? ", or --data names others" : "", ": ",
                             dataset.status().message(), "\n"));
    return kExitUsage;
  }
  const data::DatasetInfo& info = (*dataset)->info();
  const training::Shape shape = {info.channels, info.height, info.width};
  if (shape != weights->graph.input_shape()) {
    console.Err(absl::StrCat("capstan: samples of ", training::ShapeToString(shape), ", ",
                             weights->job.job_id(), " was trained on ",
                             training::ShapeToString(weights->graph.input_shape()), "\n"));
    return kExitUsage;
  }
  const common::v1::DatasetInfo& trained_on = weights->job.resolved().dataset();
  if (weights->job.resolved().spec().data().format() == "text" &&
      info.num_classes != trained_on.num_classes()) {
    console.Err(absl::StrCat("capstan: a text of ", info.num_classes, " different characters, ",
                             weights->job.job_id(), " was trained on one of ",
                             trained_on.num_classes(), "\n"));
    return kExitUsage;
  }
  const auto device = engine::OpenDevice(options.device);
  if (!device.ok()) {
    console.Err(
        absl::StrCat("capstan: --device ", options.device, ": ", device.status().message(), "\n"));
    return kExitUsage;
  }
  if (absl::Status status = FetchWeights(client, *weights); !status.ok()) {
    return ReportCheckpoint(client, options.name, status, console);
  }

  std::unique_ptr<services::AtomicFile> file;
  std::string rows = CsvHead(options.logits, weights->graph);
  if (!options.out.empty()) {
    auto created = services::AtomicFile::Create(options.out);
    if (!created.ok()) {
      Report(created.status(), console);
      return kExitInternal;
    }
    file = *std::move(created);
  }
  constexpr size_t kFlushBytes = size_t{1} << 20;
  absl::Status written;
  services::ShutdownSignal& signal = services::ShutdownSignal::Install();
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const auto sums = Predict(
      **device, weights->graph, weights->layout, weights->values, **dataset,
      {options.batch, options.threads > 0 ? options.threads : cores, options.limit},
      [&](const Prediction& prediction) {
        if (prediction.sample % options.batch == 0 && signal.WaitFor(absl::ZeroDuration())) {
          return absl::CancelledError("interrupted");
        }
        if (file == nullptr) return absl::OkStatus();
        rows += CsvRow(prediction, options.logits);
        if (rows.size() < kFlushBytes) return absl::OkStatus();
        written = file->Append(std::exchange(rows, ""));
        return written;
      });
  if (sums.ok() && file != nullptr) {
    written = file->Append(rows);
    if (written.ok()) written = file->Commit();
  }
  if (absl::IsCancelled(sums.status())) {
    console.Err("capstan: interrupted, nothing was written\n");
    return kExitInterrupted;
  }
  const absl::Status& failed = written.ok() ? sums.status() : written;
  if (!failed.ok()) {
    Report(failed, console);
    return absl::IsUnimplemented(failed) || absl::IsResourceExhausted(failed) ? kExitUsage
                                                                              : kExitInternal;
  }
  console.Out(console.json()
                  ? ResultJson(*weights, options, *sums)
                  : ResultText(*weights, options, *sums, console.stdout_tty ? console.width : 0));
  return kExitDone;
}

}  // namespace

void AddPredict(Command parent, Action& slot) {
  const auto options = std::make_shared<PredictFlags>();
  Command command = parent.Sub("predict", "a trained network on samples that are on this host");
  command
      .Add("JOB", options->name,
           "id of the job or the folder of a run, JOB@STEP or JOB@best; default its newest "
           "checkpoint; or an ONNX file")
      .Required();
  command.Add("FILE", options->inputs,
              "of an ONNX file: the .npz file with its inputs by their names, or a .npy file");
  command.Add("--data", options->data,
              "folder or file with samples of the job's data format, default those of the job");
  command.Add("--split", options->split, "test (default) or train").OneOf({"test", "train"});
  command.Add("--limit", options->limit, "only the first N samples, default all")
      .Between(1, int64_t{1} << 40);
  command.Add("--out", options->out,
              "CSV file to write: a line with the prediction for each sample; of an ONNX file the "
              ".npz or .npy file for its outputs");
  command.AddSwitch("--logits", options->logits, "with --out: also what the loss reads, by class");
  command.Add("--device", options->device, "cpu (default), or cuda:0 and so on");
  command.Add("--batch", options->batch, "samples computed at a time, default 64")
      .Between(1, 65536);
  command.Add("--threads", options->threads, "CPU threads, default one per core").Between(1, 1024);
  CarryOut(command, slot, {Output::kTable, Output::kJson}, [options](const Context& context) {
    if (NamesOnnxFile(options->name)) return PredictOnnx(*options, context);
    if (!options->inputs.empty()) {
      context.console.Err(absl::StrCat("capstan: '", options->inputs, "' would do nothing: '",
                                       options->name,
                                       "' is no ONNX file; --data names samples for a job\n"));
      return kExitUsage;
    }
    if (options->split.empty()) options->split = "test";
    if (options->logits && options->out.empty()) {
      return RefuseFlag("--logits", "it adds columns to the file of --out", context.console);
    }
    return WithPlaceOf(context, options->name, [&](JobClient& client) {
      return PredictHere(*options, client, context.console);
    });
  });
}

}  // namespace capstan::client
