#include "client/job_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/strip.h"
#include "absl/time/time.h"

namespace capstan::client {
namespace {

using Json = nlohmann::ordered_json;

Json Number(bool present, double value) {
  return present && std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json Time(bool present, const google::protobuf::Timestamp& time) {
  if (!present) return nullptr;
  const absl::Time at = absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", at, absl::UTCTimeZone());
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

Json Members(const google::protobuf::RepeatedPtrField<job::v1::Member>& members) {
  Json out = Json::array();
  for (const auto& m : members) {
    out.push_back({{"index", m.index()},
                   {"node", m.node()},
                   {"state", m.state()},
                   {"step", m.step()},
                   {"message", m.message()},
                   {"exit_code", m.has_exit_code() ? Json(m.exit_code()) : Json(nullptr)}});
  }
  return out;
}

}  // namespace

std::string StateName(common::v1::JobState state) {
  return std::string(absl::StripPrefix(common::v1::JobState_Name(state), "JOB_STATE_"));
}

std::string JobJson(const job::v1::Job& job) {
  const auto& p = job.progress();
  const Json out = {
      {"job_id", job.job_id()},
      {"name", job.name()},
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
        {"eta_seconds", Number(p.has_eta_seconds(), p.eta_seconds())}}},
      {"weights_sha256", job.weights_sha256()},
      {"checkpoint_uri", job.checkpoint_uri()},
      {"samples_used", job.samples_used()},
      {"epochs", Epochs(job)},
      {"workers", Members(job.workers())},
      {"shards", Members(job.shards())},
      {"lineage", job.lineage()},
      {"generation", job.generation()},
      {"restarts", job.restarts()},
      {"submitted_at", Time(job.has_submitted_at(), job.submitted_at())},
      {"started_at", Time(job.has_started_at(), job.started_at())},
      {"finished_at", Time(job.has_finished_at(), job.finished_at())},
  };
  // A message of a foreign process may hold bytes that are no UTF-8: they become U+FFFD.
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace capstan::client
