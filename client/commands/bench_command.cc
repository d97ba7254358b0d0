// `capstan bench kvstore`: how fast workers and shards exchange gradients and weights.
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/bench/kvstore_bench.h"
#include "client/bench/machine_limits.h"
#include "client/commands/commands.h"
#include "client/commands/follow.h"
#include "client/commands/local_run.h"
#include "client/job_source.h"
#include "client/text/text_table.h"
#include "services/clock/clock.h"
#include "services/files/files.h"
#include "services/proto_json/proto_json.h"
#include "services/server/signals.h"
#include "training/spec/resolve.h"

namespace capstan::client {
namespace {

using services::Dump;

constexpr absl::Duration kWarmUp = absl::Seconds(1);
constexpr absl::Duration kPoll = absl::Milliseconds(200);
constexpr absl::Duration kStartLimit = absl::Minutes(2);  // until the job has trained a step
constexpr absl::Duration kEndLimit = absl::Seconds(30);   // of a job that was cancelled

struct BenchOptions {
  KvstoreBench bench;
  std::string sizes = "4KiB,64KiB,1MiB,4MiB,64MiB";
  int seconds = 3;
  bool cluster = false;
  bool no_shared_memory = false;
};

struct Row {
  int64_t bytes = 0;
  ExchangeFigures figures;

  // Gradients in one direction and weights in the other.
  double BytesPerSecond() const { return 2.0 * static_cast<double>(bytes) / figures.exchange(); }
};

absl::StatusOr<ExchangeFigures> Measure(JobClient& client, const std::string& job_id,
                                        absl::Duration length,
                                        const std::function<absl::Status()>& health) {
  services::ShutdownSignal& signal = services::ShutdownSignal::Install();
  const absl::Duration limit = MonotonicNow() + kStartLimit + kWarmUp + length;
  for (;;) {
    if (absl::Status status = health(); !status.ok()) return status;
    job::v1::GetMetricsRequest request;
    request.set_job_id(job_id);
    const auto history = client.Call(&JobClient::Stub::GetMetrics, request);
    if (!history.ok()) return history.status();
    const std::optional<ExchangeFigures> figures =
        FiguresOf({history->points().begin(), history->points().end()}, kWarmUp, length);
    if (figures.has_value()) return *figures;
    const absl::StatusOr<job::v1::Job> job = client.Get(job_id);
    if (!job.ok()) return job.status();
    if (IsTerminal(job->state())) {
      return absl::InternalError(
          absl::StrCat(job_id, " ended before it was measured: ", job->message()));
    }
    if (MonotonicNow() > limit) {
      return absl::DeadlineExceededError(
          absl::StrCat(job_id, " has not trained for ", absl::FormatDuration(kWarmUp + length),
                       " within ", absl::FormatDuration(kStartLimit + kWarmUp + length), ": ",
                       job->message().empty() ? "it is slow" : job->message()));
    }
    if (signal.WaitFor(kPoll)) return absl::CancelledError("interrupted");
  }
}

// Cancels the job and waits for its end, so that the next one has the machines for itself.
absl::Status End(JobClient& client, const std::string& job_id, const Console& console) {
  job::v1::CancelJobRequest request;
  request.set_job_id(job_id);
  if (auto answer = client.Call(&JobClient::Stub::CancelJob, request); !answer.ok()) {
    return answer.status();
  }
  FollowOptions options;
  options.show = FollowOptions::Show::kNothing;
  options.limit = kEndLimit;
  const Followed followed = Follow(client, job_id, options, console);
  if (followed.end == Followed::End::kError) return followed.error;
  if (followed.end != Followed::End::kTimedOut) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      job_id, " was cancelled and has not ended within ", absl::FormatDuration(kEndLimit)));
}

absl::StatusOr<ExchangeFigures> MeasureAndEnd(JobClient& client, const std::string& job_id,
                                              absl::Duration length,
                                              const std::function<absl::Status()>& health,
                                              const Console& console) {
  absl::StatusOr<ExchangeFigures> figures = Measure(client, job_id, length, health);
  const absl::Status end = End(client, job_id, console);
  if (figures.ok() && !end.ok()) return end;
  return figures;
}

// With services of its own, which end with the job.
absl::StatusOr<ExchangeFigures> MeasureHere(job::v1::JobSpec spec, const BenchOptions& options,
                                            const Console& console) {
  absl::StatusOr<std::string> folder = services::MakePrivateDir("capstan-bench");
  if (!folder.ok()) return folder.status();
  const absl::Cleanup remove = [&folder] {
    std::error_code ignored;
    std::filesystem::remove_all(*folder, ignored);
  };
  spec.mutable_checkpoint()->set_storage_path("file://" + *folder);
  const absl::StatusOr<job::v1::ResolvedSpec> plan = ResolveHere(spec);
  if (!plan.ok()) return plan.status();
  absl::StatusOr<RunPlace> place = MakeRunPlace(spec, console);
  if (!place.ok()) return place.status();
  place->shared_memory = !options.no_shared_memory;
  const absl::StatusOr<LocalRun> run = StartLocalRun(*place, spec, *plan, console);
  if (!run.ok()) return run.status();
  return MeasureAndEnd(
      *run->client, run->job_id, options.bench.length, [&run] { return run->cluster->Health(); },
      console);
}

absl::StatusOr<ExchangeFigures> MeasureOn(JobClient& client, const job::v1::JobSpec& spec,
                                          absl::Duration length, const Console& console) {
  job::v1::SubmitJobRequest request;
  request.set_request_id(NewRequestId());
  *request.mutable_spec() = spec;
  const auto answer = client.Call(&JobClient::Stub::SubmitJob, request);
  if (!answer.ok()) return answer.status();
  return MeasureAndEnd(
      client, answer->job_id(), length, [] { return absl::OkStatus(); }, console);
}

std::string Milliseconds(double seconds) { return absl::StrFormat("%.3f", seconds * 1e3); }

std::string Table(const std::vector<Row>& rows) {
  TextTable table({"WEIGHTS", "STEPS", "STEP ms", "COMPUTING", "PUSH", "WAIT", "PULL", "GB/s"});
  for (const Row& row : rows) {
    const ExchangeFigures& f = row.figures;
    table.Add({training::spec::BytesText(row.bytes), absl::StrCat(f.steps), Milliseconds(f.step),
               Milliseconds(f.computing), Milliseconds(f.push), Milliseconds(f.wait),
               Milliseconds(f.pull), absl::StrFormat("%.3f", row.BytesPerSecond() / 1e9)});
  }
  return table.Text(0);
}

std::string LimitsText(const MachineLimits& limits) {
  return absl::StrFormat(
      "limits of this machine, GB/s: %.1f copied in memory, %.1f over a Unix socket, %.1f over TCP "
      "on the loopback\n",
      limits.copy / 1e9, limits.unix_socket / 1e9, limits.tcp / 1e9);
}

void Print(const BenchOptions& options, const std::vector<Row>& rows, const MachineLimits& limits,
           const Console& console) {
  if (!console.json()) {
    console.Out(Table(rows));
    console.Out(LimitsText(limits));
    return;
  }
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    const ExchangeFigures& f = row.figures;
    list.push_back({{"weight_bytes", row.bytes},
                    {"steps", f.steps},
                    {"step_seconds", f.step},
                    {"computing_seconds", f.computing},
                    {"push_seconds", f.push},
                    {"wait_seconds", f.wait},
                    {"pull_seconds", f.pull},
                    {"bytes_per_second", row.BytesPerSecond()}});
  }
  const KvstoreBench& bench = options.bench;
  console.Out(Dump({{"workers", bench.workers},
                    {"shards", bench.shards},
                    {"kvstore", bench.kvstore},
                    {"gradient_compression", bench.compression},
                    {"shared_memory", !options.no_shared_memory},
                    {"rows", list},
                    {"copy_bytes_per_second", limits.copy},
                    {"unix_socket_bytes_per_second", limits.unix_socket},
                    {"tcp_bytes_per_second", limits.tcp}}) +
              "\n");
}

using MeasureJob = std::function<absl::StatusOr<ExchangeFigures>(const job::v1::JobSpec&)>;

ExitCode MeasureAll(const BenchOptions& options, const std::vector<int64_t>& sizes,
                    const MeasureJob& measure, const Console& console) {
  const absl::StatusOr<MachineLimits> limits = MeasureMachine();
  if (!limits.ok()) return Report(limits.status(), console);
  std::vector<Row> rows;
  ExitCode code = kExitDone;
  for (const int64_t size : sizes) {
    const absl::StatusOr<job::v1::JobSpec> spec = MakeBenchJob(options.bench, size);
    if (!spec.ok()) return Report(spec.status(), console);
    const int64_t bytes = WeightBytes(size);
    console.Note(absl::StrCat("measuring ", training::spec::BytesText(bytes), "\n"));
    const absl::StatusOr<ExchangeFigures> figures = measure(*spec);
    if (!figures.ok()) {
      code = absl::IsCancelled(figures.status()) ? kExitInterrupted
                                                 : Report(figures.status(), console);
      break;
    }
    rows.push_back({bytes, *figures});
  }
  if (!rows.empty()) Print(options, rows, *limits, console);
  return code;
}

// What can be said before anything is started.
absl::Status Check(const BenchOptions& options, const std::vector<int64_t>& sizes) {
  for (const int64_t size : sizes) {
    const absl::StatusOr<job::v1::JobSpec> spec = MakeBenchJob(options.bench, size);
    if (!spec.ok()) return spec.status();
    if (const auto plan = ResolveHere(*spec); !plan.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("weights of ",
                                                     training::spec::BytesText(WeightBytes(size)),
                                                     ": ", plan.status().message()));
    }
  }
  return absl::OkStatus();
}

ExitCode Bench(const BenchOptions& options, const Context& context) {
  const Console& console = context.console;
  const absl::StatusOr<std::vector<int64_t>> sizes = ReadSizes(options.sizes);
  if (!sizes.ok()) {
    console.Err(absl::StrCat("capstan: --sizes ", sizes.status().message(), "\n"));
    return kExitUsage;
  }
  if (absl::Status status = Check(options, *sizes); !status.ok()) {
    console.Err(absl::StrCat("capstan: ", status.message(), "\n"));
    return kExitUsage;
  }
  const absl::Duration length = options.bench.length;
  if (options.cluster) {
    if (options.no_shared_memory) {
      return RefuseFlag("--no-shared-memory", "it is a flag of the cluster's shards", console);
    }
    if (console.verbose) {
      return RefuseFlag("-v", "the services of a cluster have logs of their own", console);
    }
    return WithCoordinator(context, [&](JobClient& client) {
      return MeasureAll(
          options, *sizes,
          [&](const auto& spec) { return MeasureOn(client, spec, length, console); }, console);
    });
  }
  const ExitCode refused =
      RefuseConnection(context, "without --cluster, bench starts services of its own");
  if (refused != kExitDone) return refused;
  return MeasureAll(
      options, *sizes, [&](const auto& spec) { return MeasureHere(spec, options, console); },
      console);
}

}  // namespace

void AddBench(Command parent, Action& slot) {
  Command group = parent.Sub("bench", "benchmarks");
  group.NeedsSub();
  const auto options = std::make_shared<BenchOptions>();
  Command command =
      group.Sub("kvstore",
                "how fast workers and shards exchange gradients and weights, by size of the model");
  command.Add("--workers", options->bench.workers, "number of workers, default 1").Between(1, 64);
  command.Add("--shards", options->bench.shards, "number of shards, default 1").Between(1, 64);
  command.Add("--kvstore", options->bench.kvstore,
              "as kvstore.type in a job file, with shards; default dist_sync");
  command.Add("--compression", options->bench.compression,
              "as kvstore.gradient_compression in a job file, default none");
  command.Add("--sizes", options->sizes,
              "bytes of the weights, default 4KiB,64KiB,1MiB,4MiB,64MiB");
  command.Add("--seconds", options->seconds, "how long each size is measured, default 3")
      .Between(1, 600);
  command.AddSwitch("--cluster", options->cluster,
                    "submit jobs to the coordinator instead of starting services here");
  command.AddSwitch("--no-shared-memory", options->no_shared_memory,
                    "workers and shards exchange over gRPC, as between hosts");
  CarryOut(command, slot, {Output::kTable, Output::kJson},
           [options](const Context& context) {
             options->bench.length = absl::Seconds(options->seconds);
             return Bench(*options, context);
           },
           {.verbose = true});
  AddBenchStep(group, slot);
}

}  // namespace capstan::client
