#include "client/text/job_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "services/proto_json/proto_json.h"

namespace capstan::client {
namespace {

using services::Dump;
using services::ProtoJson;
using services::TimeText;

using Json = nlohmann::ordered_json;

Json Number(bool present, double value) {
  return present && std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json Time(bool present, const google::protobuf::Timestamp& time) {
  return present ? Json(TimeText(time)) : Json(nullptr);
}

Json Epochs(const job::v1::Job& job) {
  Json out = Json::array();
  for (const auto& e : job.epochs()) {
    out.push_back(
        {{"epoch", e.epoch()},
         {"train_loss", Number(e.has_train_loss(), e.train_loss())},
         {"train_accuracy", Number(e.has_train_accuracy(), e.train_accuracy())},
         {"validation_loss", Number(e.has_validation_loss(), e.validation_loss())},
         {"validation_accuracy", Number(e.has_validation_accuracy(), e.validation_accuracy())},
         {"samples_per_second", Number(e.has_samples_per_second(), e.samples_per_second())},
         {"seconds", Number(e.has_seconds(), e.seconds())}});
  }
  return out;
}

Json FilesWay(job::v1::FilesWay way) {
  if (way == job::v1::FILES_WAY_SHARED) return "shared";
  return way == job::v1::FILES_WAY_GRPC ? Json("grpc") : Json(nullptr);
}

Json Members(const google::protobuf::RepeatedPtrField<job::v1::Member>& members) {
  Json out = Json::array();
  for (const auto& m : members) {
    Json devices = Json::array();  // of workers: indices in the node's list
    for (const int device : m.devices()) devices.push_back(device);
    out.push_back({{"index", m.index()},
                   {"node", m.node()},
                   {"devices", devices},
                   {"state", m.state()},
                   {"step", m.step()},
                   {"message", m.message()},
                   {"exit_code", m.has_exit_code() ? Json(m.exit_code()) : Json(nullptr)},
                   {"files_way", FilesWay(m.files_way())}});
  }
  return out;
}

Json Checkpoint(const job::v1::SavedCheckpoint& checkpoint) {
  return {{"id", checkpoint.id()},
          {"uri", checkpoint.uri()},
          {"lineage", checkpoint.lineage()},
          {"step", checkpoint.step()},
          {"size_bytes", checkpoint.size_bytes()},
          {"weights_sha256", checkpoint.weights_sha256()},
          {"samples_used", checkpoint.samples_used()},
          {"committed_at", Time(checkpoint.has_committed_at(), checkpoint.committed_at())},
          {"metric", Number(checkpoint.has_metric(), checkpoint.metric())},
          {"smaller_is_better", checkpoint.smaller_is_better()},
          {"best", checkpoint.best()}};
}

Json Event(const job::v1::Event& event) {
  return {{"time", Time(event.has_time(), event.time())},
          {"type", event.type()},
          {"message", event.message()},
          {"step", event.step()}};
}

}  // namespace

std::string RoleName(common::v1::Role role) {
  return absl::AsciiStrToLower(absl::StripPrefix(common::v1::Role_Name(role), "ROLE_"));
}

std::string StateName(common::v1::JobState state) {
  return std::string(absl::StripPrefix(common::v1::JobState_Name(state), "JOB_STATE_"));
}

absl::StatusOr<common::v1::JobState> ReadState(const std::string& text) {
  common::v1::JobState state = common::v1::JOB_STATE_UNSPECIFIED;
  if (common::v1::JobState_Parse("JOB_STATE_" + absl::AsciiStrToUpper(text), &state) &&
      state != common::v1::JOB_STATE_UNSPECIFIED) {
    return state;
  }
  std::string names;
  for (int i = common::v1::JobState_MIN + 1; i <= common::v1::JobState_MAX; ++i) {
    absl::StrAppend(&names, i > 1 ? ", " : "", StateName(static_cast<common::v1::JobState>(i)));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is not a state; there are: ", names));
}

static Json JobObject(const job::v1::Job& job) {
  const auto& p = job.progress();
  Json checkpoints = Json::array();
  for (const auto& checkpoint : job.checkpoints()) checkpoints.push_back(Checkpoint(checkpoint));
  Json conditions = Json::array();
  for (const std::string& condition : job.conditions()) conditions.push_back(condition);
  return {
      {"job_id", job.job_id()},
      {"name", job.name()},
      {"owner", job.owner()},
      {"state", StateName(job.state())},
      {"reason", job.reason()},
      {"message", job.message()},
      {"progress",
       {{"epoch", p.epoch()},
        {"step", p.step()},
        {"total_steps", p.total_steps()},
        {"loss", Number(p.has_loss(), p.loss())},
        {"accuracy", Number(p.has_accuracy(), p.accuracy())},
        {"learning_rate", Number(p.has_learning_rate(), p.learning_rate())},
        {"samples_per_second", Number(p.has_samples_per_second(), p.samples_per_second())},
        {"eta_seconds", Number(p.has_eta_seconds(), p.eta_seconds())},
        {"skipped_steps", p.skipped_steps()}}},
      {"weights_sha256", job.weights_sha256()},
      {"checkpoint_uri", job.checkpoint_uri()},
      {"samples_used", job.samples_used()},
      {"device", job.device()},
      {"epochs", Epochs(job)},
      {"workers", Members(job.workers())},
      {"workers_left_out", job.workers_left_out()},  // lost before the last 16
      {"shards", Members(job.shards())},
      {"lineage", job.lineage()},
      {"generation", job.generation()},
      {"restarts", job.restarts()},
      {"max_restarts", job.max_restarts()},
      {"conditions", conditions},
      {"retry_at", Time(job.has_retry_at(), job.retry_at())},
      {"checkpoints", checkpoints},
      {"submitted_at", Time(job.has_submitted_at(), job.submitted_at())},
      {"started_at", Time(job.has_started_at(), job.started_at())},
      {"finished_at", Time(job.has_finished_at(), job.finished_at())},
  };
}

std::string JobJson(const job::v1::Job& job) { return Dump(JobObject(job)); }

std::string DescriptionJson(const job::v1::Job& job) {
  Json out = JobObject(job);
  Json events = Json::array();
  for (const auto& event : job.events()) events.push_back(Event(event));
  out["events"] = events;
  out["spec"] = ProtoJson(job.spec());
  out["resolved"] = job.has_resolved() ? ProtoJson(job.resolved()) : Json(nullptr);
  return Dump(out);
}

std::string JobListJson(const std::vector<job::v1::Job>& jobs) {
  Json out = Json::array();
  for (const job::v1::Job& job : jobs) out.push_back(JobObject(job));
  return Dump(out);
}

std::string EventJson(const std::string& job_id, const job::v1::Event& event) {
  Json out = {{"job_id", job_id}};
  out.update(Event(event));
  return Dump(out);
}

std::string LogJson(const job::v1::StreamLogsResponse& response) {
  const job::v1::LogLine& line = response.line();
  return Dump({{"time", Time(line.has_time(), line.time())},
               {"role", RoleName(line.role())},
               {"index", line.index()},
               {"host", line.host()},
               {"level", line.level()},
               {"text", line.text()},
               {"dropped", response.dropped()}});
}

static Json CheckpointObject(const job::v1::SavedCheckpoint& checkpoint) {
  Json out = Checkpoint(checkpoint);
  Json files = Json::array();
  for (const auto& file : checkpoint.files()) {
    files.push_back({{"name", file.name()},
                     {"size_bytes", file.size_bytes()},
                     {"sha256", absl::BytesToHexString(file.sha256())}});
  }
  out["files"] = files;
  return out;
}

std::string CheckpointJson(const job::v1::SavedCheckpoint& checkpoint) {
  return Dump(CheckpointObject(checkpoint));
}

std::string CheckpointListJson(const std::vector<job::v1::SavedCheckpoint>& checkpoints) {
  Json out = Json::array();
  for (const auto& checkpoint : checkpoints) out.push_back(CheckpointObject(checkpoint));
  return Dump(out);
}

std::string NodeListJson(const std::vector<job::v1::NodeInfo>& nodes) {
  Json out = Json::array();
  for (const auto& node : nodes) {
    Json object = ProtoJson(node);
    object["role"] = RoleName(node.role());
    out.push_back(object);
  }
  return Dump(out);
}

}  // namespace capstan::client
