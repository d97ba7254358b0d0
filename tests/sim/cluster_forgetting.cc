// The coordinator forgets ended jobs, with their request ids and events, and nodes that were lost
// long ago. A node that comes back is known again, but as the same process only if it is.
#include "absl/strings/str_cat.h"
#include "services/check/check.h"
#include "tests/sim/cluster.h"
#include "training/spec/job_file.h"

namespace capstan::sim {
namespace {

namespace core = coordinator::core;

constexpr absl::Duration kLook = absl::Milliseconds(150);
constexpr absl::Duration kLooks = absl::Seconds(6);  // since the start
// Another person, whose jobs are forgotten before the only job of the watched person.
const core::Caller kSomebody{.name = "somebody"};

// Asks for more workers than there are, so it never starts and does not block others.
job::v1::JobSpec PassingSpec() {
  training::spec::JobFile file = training::spec::ParseJobFile(absl::StrCat(
      "version: 1\nname: ", kPassing, "\nresources: {num_workers: 30, lanes: 30}\n",
      "model: {name: mlp}\ndata: {format: synthetic_digits, train_samples: 300, test_samples: 40}\n"
      "kvstore: {type: dist_sync}\ntraining: {epochs: 1, global_batch_size: 300, "
      "optimizer: {name: sgd, learning_rate: 0.1}}\n"));
  CAPSTAN_CHECK(file.errors.empty());
  return file.spec;
}

}  // namespace

void Cluster::PlanForgetting() {
  if (!plan_.forgetting.has_value()) return;
  Node& node = AddNode(kGone, true);
  queue_.After(plan_.forgetting->gone_at, [this, &node] {
    if (plan_.forgetting->goodbye) {
      LeaveService(node);
    } else if (node.service_runs) {
      StopService(node);
    }
    node.gone = true;
  });
  passing_.resize(plan_.forgetting->submits.size());
  WatchPassing();
}

// Repeats calls that were not answered.
void Cluster::WatchPassing() {
  const absl::Duration since = queue_.now() - absl::Seconds(1000);
  if (since > kLooks) return;
  queue_.After(kLook, [this] { WatchPassing(); });
  if (!coordinator_process_.alive()) return;
  for (size_t i = 0; i < passing_.size(); ++i) {
    Passing& job = passing_[i];
    const auto number = static_cast<core::CallId>(i);
    const bool fresh = job.id.empty() && since >= plan_.forgetting->submits[i];
    if (fresh || (forgotten_.count(job.id) > 0 && !job.again)) {
      const core::Submit submit{kPassSubmit + number, absl::StrCat("passing-", i), PassingSpec(),
                                kSomebody};
      coordinator_process_.After(absl::Milliseconds(1), [this, submit] { Tell(submit); });
    } else if (!job.id.empty() && !job.cancelled) {
      const core::Cancel cancel{kPassCancel + number, job.id, kSomebody};
      coordinator_process_.After(absl::Milliseconds(1), [this, cancel] { Tell(cancel); });
    }
  }
}

void Cluster::NotePassing(const core::Reply& reply) {
  if (reply.call >= kPassCancel) {
    Passing& job = passing_[static_cast<size_t>(reply.call - kPassCancel)];
    if (!reply.status.ok() && forgotten_.count(job.id) == 0)
      return Violation(absl::StrCat(job.id, " is not cancelled: ", reply.status.message()));
    job.cancelled = true;
    return;
  }
  Passing& job = passing_[static_cast<size_t>(reply.call - kPassSubmit)];
  if (!reply.status.ok())
    return Violation(absl::StrCat("a job is not accepted: ", reply.status.message()));
  const auto& submitted = std::get<job::v1::SubmitJobResponse>(reply.response);
  if (forgotten_.count(submitted.job_id()) > 0)
    return Violation(absl::StrCat(submitted.job_id(), " was forgotten, and is given again"));
  if (submitted.job_id() == job.id) return;  // a repeated call
  if (!job.id.empty() && forgotten_.count(job.id) == 0)
    return Violation(absl::StrCat("two jobs of one request: ", job.id, ", ", submitted.job_id()));
  if (!job.id.empty()) {
    job.again = true;
    ++result_.reused_requests;
  }
  job.id = submitted.job_id();
  job.cancelled = false;
}

void Cluster::NoteDurable(const core::Record& record) {
  durable_.Apply(record);
  if (const auto* issued = std::get_if<core::IncarnationIssued>(&record)) {
    const auto [known, fresh] = issued_.emplace(issued->reg.resume_key(), issued->incarnation);
    if (!fresh) {
      Violation(absl::StrCat(issued->reg.name(), ": one process has the incarnations ",
                             known->second, " and ", issued->incarnation));
    }
  } else if (const auto* job = std::get_if<core::JobForgotten>(&record)) {
    result_.effects.Saw(FaultClass::kForget);
    ++result_.forgotten_jobs;
    forgotten_.insert(job->job_id);
  } else if (std::holds_alternative<core::NodeForgotten>(record)) {
    result_.effects.Saw(FaultClass::kForget);
    ++result_.forgotten_nodes;
  }
}

bool Cluster::HasForgotten() const {
  return coordinator_ != nullptr && coordinator_->nodes().Find(kGone) == nullptr &&
         durable_.nodes.count(kGone) == 0;
}

void Cluster::CheckForgotten() {
  if (coordinator_->nodes().Find(kGone) != nullptr || durable_.nodes.count(kGone) > 0)
    Violation("a node that is gone for good was not forgotten");
  for (const std::string& id : forgotten_) {
    if (coordinator_->Peek(id) != nullptr || durable_.jobs.count(id) > 0 ||
        durable_.events.count(id) > 0 || durable_.history.count(id) > 0) {
      Violation(absl::StrCat("something of the forgotten job ", id, " is left"));
    }
  }
  if (durable_.jobs.size() > passing_.size() + 1)
    Violation("the journal has a job that nobody has submitted");
}

}  // namespace capstan::sim
