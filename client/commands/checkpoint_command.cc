// `capstan checkpoint list`, `describe` and `verify`. checkpoint_files_command.cc has the others.
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/checkpoint_name.h"
#include "client/commands/commands.h"
#include "client/commands/look.h"
#include "client/text/job_json.h"
#include "client/text/job_view.h"
#include "client/text/text_table.h"
#include "services/proto_json/proto_json.h"

namespace capstan::client {
namespace {

using services::TimeText;

struct CheckpointOptions {
  std::string job_id;
  std::string id;  // empty: the newest
};

void PrintList(const job::v1::ListCheckpointsResponse& answer, const Console& console) {
  if (console.json()) {
    console.Out(CheckpointListJson({answer.checkpoints().begin(), answer.checkpoints().end()}) +
                "\n");
    return;
  }
  if (answer.checkpoints().empty()) {
    console.Note("no checkpoints\n");
    return;
  }
  TextTable table({"CHECKPOINT", "STEP", "SAMPLES", "BYTES", "METRIC", "BEST", "COMMITTED", "URI"});
  for (const auto& c : answer.checkpoints()) {
    table.Add({c.id(), absl::StrCat(c.step()), absl::StrCat(c.samples_used()),
               absl::StrCat(c.size_bytes()), CheckpointMetric(c), c.best() ? "yes" : "",
               c.has_committed_at() ? TimeText(c.committed_at()) : "", c.uri()});
  }
  console.Out(table.Text(console.stdout_tty ? console.width : 0));
}

void PrintOne(const job::v1::SavedCheckpoint& checkpoint, const Console& console) {
  if (console.json()) {
    console.Out(CheckpointJson(checkpoint) + "\n");
    return;
  }
  TextTable table({"FILE", "BYTES", "SHA256"});
  for (const auto& file : checkpoint.files()) {
    table.Add(
        {file.name(), absl::StrCat(file.size_bytes()), absl::BytesToHexString(file.sha256())});
  }
  console.Out(absl::StrCat(table.Text(console.stdout_tty ? console.width : 0), "\nCheckpoint  ",
                           checkpoint.uri(), "\nStep        ", checkpoint.step(), ", ",
                           checkpoint.samples_used(), " samples\n"));
}

ExitCode Verify(const std::string& job_id, const std::string& id, JobClient& client,
                const Console& console) {
  job::v1::VerifyCheckpointRequest request;
  request.set_job_id(job_id);
  request.set_checkpoint(id);
  const auto answer = client.Call(&JobClient::Stub::VerifyCheckpoint, request);
  if (!answer.ok()) return ReportJob(client, job_id, answer.status(), console);
  PrintOne(answer->checkpoint(), console);
  if (!console.json()) console.Out("Verified    every size and hash agrees with the manifest\n");
  return kExitDone;
}

enum class Verb { kList, kDescribe, kVerify };

ExitCode Answer(const CheckpointOptions& options, Verb verb, JobClient& client,
                const Console& console) {
  absl::StatusOr<CheckpointName> name = ParseCheckpointName(options.job_id);
  if (!name.ok()) return Report(name.status(), console);
  if (!name->which.empty() && (verb == Verb::kList || !options.id.empty())) {
    return RefuseFlag(absl::StrCat("@", name->which),
                      verb == Verb::kList ? "all checkpoints of the job are listed"
                                          : absl::StrCat("CHECKPOINT says ", options.id),
                      console);
  }
  const NamedJob job = NameJob(client, name->job_id, console);
  if (job.code != kExitDone) return job.code;
  name->job_id = job.id;
  job::v1::ListCheckpointsRequest request;
  request.set_job_id(job.id);
  const auto answer = client.Call(&JobClient::Stub::ListCheckpoints, request);
  if (!answer.ok()) return ReportJob(client, name->job_id, answer.status(), console);
  if (verb == Verb::kList) {
    PrintList(*answer, console);
    return kExitDone;
  }
  if (!name->which.empty() && options.id.empty()) {
    const auto found = FindCheckpoint(*name, answer->checkpoints());
    if (!found.ok()) return Report(found.status(), console);
    if (verb == Verb::kVerify) return Verify(name->job_id, (*found)->id(), client, console);
    PrintOne(**found, console);
    return kExitDone;
  }
  for (const auto& checkpoint : answer->checkpoints()) {
    if (!options.id.empty() && checkpoint.id() != options.id) continue;
    if (verb == Verb::kVerify) return Verify(job.id, checkpoint.id(), client, console);
    PrintOne(checkpoint, console);
    return kExitDone;
  }
  console.Err(answer->checkpoints().empty()
                  ? absl::StrCat("capstan: ", job.id, " has no checkpoint yet\n")
                  : absl::StrCat("capstan: ", job.id, " has no checkpoint ", options.id,
                                 "; capstan checkpoint list ", job.id,
                                 " shows those that it has\n"));
  return kExitUsage;
}

}  // namespace

void AddCheckpoint(Command parent, Action& slot) {
  Command group = parent.Sub("checkpoint", "saved states of a job");
  group.NeedsSub();
  const auto add = [&](const char* name, const char* help, Verb verb) {
    const auto options = std::make_shared<CheckpointOptions>();
    Command command = group.Sub(name, help);
    command
        .Add("JOB", options->job_id,
             verb == Verb::kList ? "id of the job, or the folder of a run"
                                 : "id of the job or the folder of a run, JOB@STEP or JOB@best")
        .Required();
    if (verb != Verb::kList) {
      command.Add("CHECKPOINT", options->id, "<lineage>-<step>; default the newest");
    }
    CarryOut(command, slot, {Output::kTable, Output::kJson},
             [options, verb](const Context& context) {
               return WithPlaceOf(context, options->job_id, [&](JobClient& client) {
                 return Answer(*options, verb, client, context.console);
               });
             });
  };
  add("list", "committed checkpoints, newest first", Verb::kList);
  add("describe", "files of a checkpoint", Verb::kDescribe);
  add("verify", "read every file of a checkpoint and compare sizes and hashes", Verb::kVerify);
  AddCheckpointFiles(group, slot);
}

}  // namespace capstan::client
