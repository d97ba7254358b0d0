#include "client/text/describe_text.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/text/exit_codes.h"
#include "client/text/job_json.h"
#include "client/text/job_view.h"
#include "client/text/text_table.h"
#include "services/proto_json/proto_json.h"
#include "training/spec/resolve.h"

namespace capstan::client {
namespace {

using services::TimeText;

constexpr int kShownEvents = 30;
constexpr int kShownEpochs = 10;

void Row(std::string& out, const char* name, const std::string& value) {
  if (!value.empty()) absl::StrAppendFormat(&out, "%-12s%s\n", name, Printable(value));
}

std::string Moment(bool present, const google::protobuf::Timestamp& time) {
  return present ? TimeText(time) : "";
}

std::string Members(const char* title, const char* index,
                    const google::protobuf::RepeatedPtrField<job::v1::Member>& members, int width) {
  if (members.empty()) return "";
  TextTable table({index, "NODE", "STATE", "STEP", "MESSAGE"});
  for (const auto& member : members) {
    std::string message = member.message();
    if (member.has_exit_code() && member.exit_code() != 0) {
      absl::StrAppend(&message, message.empty() ? "" : ", ", "exit code ", member.exit_code());
    }
    table.Add({absl::StrCat(member.index()), member.node(), member.state(),
               absl::StrCat(member.step()), message});
  }
  return absl::StrCat("\n", title, "\n", table.Text(width));
}

// "shared folder" if all members share it, else those that send files.
std::string FilesText(const job::v1::Job& job) {
  std::vector<std::string> senders;
  bool shares = false;
  const auto look = [&](const char* what, const auto& members) {
    for (const job::v1::Member& member : members) {
      if (member.files_way() == job::v1::FILES_WAY_SHARED) shares = true;
      if (member.files_way() != job::v1::FILES_WAY_GRPC) continue;
      senders.push_back(absl::StrCat(what, " ", member.index()));
    }
  };
  look("shard", job.shards());
  look("worker", job.workers());
  if (senders.empty()) return shares ? "shared folder" : "";
  return absl::StrCat("over gRPC to the coordinator's host by ", absl::StrJoin(senders, ", "),
                      shares ? "; shared folder for the others" : "");
}

std::string Checkpoints(const job::v1::Job& job, int width) {
  if (job.checkpoints().empty()) return "";
  TextTable table({"CHECKPOINT", "STEP", "BYTES", "METRIC", "COMMITTED"});
  for (const auto& checkpoint : job.checkpoints()) {
    table.Add({checkpoint.id(), absl::StrCat(checkpoint.step()),
               absl::StrCat(checkpoint.size_bytes()),
               absl::StrCat(CheckpointMetric(checkpoint), checkpoint.best() ? " best" : ""),
               Moment(checkpoint.has_committed_at(), checkpoint.committed_at())});
  }
  return absl::StrCat("\nCheckpoints\n", table.Text(width));
}

std::string Events(const job::v1::Job& job, int width) {
  if (job.events().empty()) return "";
  const int first = std::max(0, job.events_size() - kShownEvents);
  TextTable table({"TIME", "EVENT", "STEP", "MESSAGE"});
  for (int i = first; i < job.events_size(); ++i) {
    const auto& event = job.events(i);
    table.Add({TimeText(event.time()), event.type(),
               event.step() > 0 ? absl::StrCat(event.step()) : "", event.message()});
  }
  return absl::StrCat("\nEvents",
                      first > 0
                          ? absl::StrCat(" (the last ", kShownEvents, " of ", job.events_size(),
                                         "; capstan events ", job.job_id(), ")")
                          : "",
                      "\n", table.Text(width));
}

}  // namespace

std::string DescribeText(const job::v1::Job& job, const ViewStyle& style) {
  const auto& p = job.progress();
  std::string out;
  Row(out, "Job", job.job_id());
  Row(out, "Name", job.name());
  Row(out, "Owner", job.owner());
  Row(out, "Description", job.spec().description());
  Row(out, "Labels", absl::StrJoin(job.spec().labels(), ", ", absl::PairFormatter("=")));
  Row(out, "Submitted", Moment(job.has_submitted_at(), job.submitted_at()));
  Row(out, "Started", Moment(job.has_started_at(), job.started_at()));
  Row(out, "Finished", Moment(job.has_finished_at(), job.finished_at()));
  Row(out, "Devices", job.device() == "gpu" ? "GPUs" : job.device() == "cpu" ? "CPUs" : "");
  if (job.has_resolved()) absl::StrAppend(&out, "\n", training::spec::PlanText(job.resolved()));
  absl::StrAppend(&out, Members("Workers", "RANK", job.workers(), style.width));
  if (job.workers_left_out() > 0) {
    absl::StrAppend(&out, "(and ", job.workers_left_out(), " that were lost before these)\n");
  }
  absl::StrAppend(&out, Members("Shards", "SHARD", job.shards(), style.width));
  if (!job.epochs().empty()) {
    absl::StrAppend(&out, "\nEpochs\n");
    for (int i = std::max(0, job.epochs_size() - kShownEpochs); i < job.epochs_size(); ++i) {
      absl::StrAppend(&out, EpochLine(job, job.epochs(i)), "\n");
    }
  }
  absl::StrAppend(&out, Checkpoints(job, style.width), Events(job, style.width), "\n");
  if (job.lineage() > 0) {
    Row(out, "History",
        absl::StrFormat("lineage %d, generation %d, %d of %d restarts", job.lineage(),
                        job.generation(), job.restarts(), job.max_restarts()));
  }
  if (p.total_steps() > 0) {
    Row(out, "Progress",
        absl::StrFormat("epoch %d, step %d of %d, %d samples%s", p.epoch(), p.step(),
                        p.total_steps(), job.samples_used(),
                        p.has_eta_seconds() && !IsTerminal(job.state())
                            ? absl::StrCat(", ETA ", ShortDuration(p.eta_seconds()))
                            : ""));
  }
  if (p.has_loss()) {
    Row(out, "Last step",
        absl::StrFormat(
            "loss %.4f%s", p.loss(),
            p.has_learning_rate() ? absl::StrCat(", learning rate ", p.learning_rate()) : ""));
  }
  Row(out, "Files", FilesText(job));
  if (p.skipped_steps() > 0) Row(out, "Skipped", SkippedText(p.skipped_steps()));
  Row(out, "Checkpoint", job.checkpoint_uri());
  Row(out, "Sha256", job.weights_sha256());
  Row(out, "Conditions", absl::StrJoin(job.conditions(), ", "));
  Row(out, "Retry at", Moment(job.has_retry_at(), job.retry_at()));
  Row(out, "State", StateLine(job));
  Row(out, job.state() == common::v1::JOB_STATE_FAILED ? "Root cause" : "Message", job.message());
  return out;
}

}  // namespace capstan::client
