// `capstan verify`: whether a job came to the numbers that its spec determines.
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/commands/commands.h"
#include "client/commands/local_run.h"
#include "client/text/job_json.h"
#include "client/text/reference_spec.h"
#include "services/files/files.h"
#include "services/proto_json/proto_json.h"

namespace capstan::client {
namespace {

using services::Dump;

ExitCode PrintComparison(const job::v1::Job& job, const job::v1::Job& reference,
                         const Console& console) {
  const bool weights = job.weights_sha256() == reference.weights_sha256();
  const bool samples = job.samples_used() == reference.samples_used();
  if (console.json()) {
    console.Out(Dump({{"job_id", job.job_id()},
                      {"equal", weights && samples},
                      {"weights_sha256", job.weights_sha256()},
                      {"reference_weights_sha256", reference.weights_sha256()},
                      {"samples_used", job.samples_used()},
                      {"reference_samples_used", reference.samples_used()}}) +
                "\n");
  } else {
    console.Out(absl::StrFormat("weights  %s\n  job        %s\n  reference  %s\n",
                                weights ? "equal" : "DIFFERENT", job.weights_sha256(),
                                reference.weights_sha256()));
    console.Out(absl::StrFormat("samples  %s\n  job        %d\n  reference  %d\n",
                                samples ? "equal" : "DIFFERENT", job.samples_used(),
                                reference.samples_used()));
    console.Out(absl::StrCat(
        job.job_id(), weights && samples
                          ? ": verified, bit for bit\n"
                          : ": NOT equal to what one process computes from the same spec\n"));
  }
  return ExitCodeOfComparison(job, reference);
}

ExitCode Verify(const job::v1::Job& job, const Console& console) {
  if (job.state() != common::v1::JOB_STATE_SUCCEEDED) {
    console.Err(absl::StrCat("capstan: ", job.job_id(), " is ", StateName(job.state()),
                             "; only a job that SUCCEEDED can be compared\n"));
    return IsTerminal(job.state()) ? ExitCodeOf(job.state()) : kExitNotFinished;
  }
  const absl::StatusOr<job::v1::JobSpec> reference = ReferenceSpec(job);
  if (!reference.ok()) {
    Report(reference.status(), console);
    return kExitUsage;
  }
  absl::StatusOr<std::string> folder = services::MakePrivateDir("capstan-verify");
  if (!folder.ok()) return Report(folder.status(), console);
  const absl::Cleanup remove = [&folder] {
    std::error_code ignored;
    std::filesystem::remove_all(*folder, ignored);
  };
  job::v1::JobSpec spec = *reference;
  spec.mutable_checkpoint()->set_storage_path("file://" + *folder);
  const absl::StatusOr<job::v1::ResolvedSpec> plan = ResolveHere(spec);
  if (!plan.ok()) {
    console.Err(
        absl::StrCat("capstan: the data must be on this host: ", plan.status().message(), "\n"));
    return kExitUsage;
  }
  console.Note(absl::StrFormat("running the %d lanes of %s in one process, %d steps\n",
                               job.resolved().lanes(), job.job_id(), plan->total_steps()));
  Followed followed;
  {
    const absl::StatusOr<RunPlace> place = MakeRunPlace(spec, console);
    if (!place.ok()) return Report(place.status(), console);
    const absl::StatusOr<LocalRun> run = StartLocalRun(*place, spec, *plan, console);
    if (!run.ok()) return Report(run.status(), console);
    Console shown = console;
    shown.quiet = console.quiet || console.json();
    followed = FollowLocalRun(*run, FollowOptions::Show::kEpochs, shown);
  }
  if (followed.end == Followed::End::kError) {
    Report(followed.error, console);
    return kExitInternal;
  }
  if (followed.job.state() != common::v1::JOB_STATE_SUCCEEDED) {
    console.Err(absl::StrCat("capstan: the reference ended ", StateName(followed.job.state()), ": ",
                             followed.job.message(), "\n"));
    return ExitCodeOf(followed.job.state());
  }
  return PrintComparison(job, followed.job, console);
}

}  // namespace

void AddVerify(Command parent, Action& slot) {
  const auto job_id = std::make_shared<std::string>();
  Command command = parent.Sub(
      "verify",
      "train the same spec once more in one process here, and compare weights and samples");
  command.Add("JOB", *job_id, "id of a job that SUCCEEDED").Required();
  CarryOut(command, slot, {Output::kTable, Output::kJson},
           [job_id](const Context& context) {
             return WithJob(context, *job_id, [&](JobClient& client, const std::string& id) {
               const auto job = client.Get(id);
               return job.ok() ? Verify(*job, context.console)
                               : ReportJob(client, id, job.status(), context.console);
             });
           },
           {.verbose = true});
}

}  // namespace capstan::client
