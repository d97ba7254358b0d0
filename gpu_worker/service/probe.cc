#include "gpu_worker/service/probe.h"

#include <algorithm>
#include <deque>
#include <map>
#include <new>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/job_data/job_data.h"
#include "gpu_worker/task/job.h"
#include "services/sync/mutex.h"

namespace capstan::gpu_worker {
namespace {

absl::StatusOr<common::v1::DatasetInfo> Read(const node::v1::Probe& probe,
                                             const std::vector<std::string>& data_roots) {
  try {
    return ProbeJobData(probe.spec(), data_roots);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("the host is out of memory");
  }
}

}  // namespace

node::v1::ProbeResult AnswerProbe(const node::v1::Probe& probe,
                                  const std::vector<std::string>& data_roots) {
  node::v1::ProbeResult result;
  result.set_probe_id(probe.probe_id());
  result.set_job_id(probe.job_id());
  const absl::StatusOr<common::v1::DatasetInfo> info = Read(probe, data_roots);
  if (info.ok()) {
    *result.mutable_dataset() = *info;
  } else {
    result.set_reason(FailureReasonOf(info.status()));
    result.set_message(std::string(info.status().message()));
  }
  return result;
}

struct ProbeQueue::State {
  State(Answer to_answer, OnResult to_tell)
      : answer(std::move(to_answer)), on_result(std::move(to_tell)) {}

  const Answer answer;
  const OnResult on_result;
  Mutex mu;
  CondVar changed;
  // By data set. A set has a thread as long as it has an entry.
  std::map<std::string, std::deque<node::v1::Probe>> sets ABSL_GUARDED_BY(mu);
  int telling ABSL_GUARDED_BY(mu) = 0;
  bool closed ABSL_GUARDED_BY(mu) = false;
};

ProbeQueue::ProbeQueue(Answer answer, OnResult on_result)
    : state_(std::make_shared<State>(std::move(answer), std::move(on_result))) {}

ProbeQueue::~ProbeQueue() {
  MutexLock lock(state_->mu);
  state_->closed = true;
  while (state_->telling > 0) state_->changed.Wait(state_->mu);
}

void ProbeQueue::Add(const node::v1::Probe& probe) {
  // The source of the data: the place, or the generator with its numbers. Nothing else of the spec
  // counts, or jobs that differ in it would take all threads to one place that hangs.
  const job::v1::Data& data = probe.spec().data();
  const std::string set = data.uri().empty() ? data.SerializeAsString() : data.uri();
  MutexLock lock(state_->mu);
  if (state_->sets.count(set) == 0 && state_->sets.size() >= kMostSets) return;
  std::deque<node::v1::Probe>& probes = state_->sets[set];
  const bool there = std::any_of(probes.begin(), probes.end(), [&probe](const auto& other) {
    return other.probe_id() == probe.probe_id();
  });
  if (there || probes.size() >= kMostOfASet) return;
  probes.push_back(probe);
  if (probes.size() == 1) std::thread([state = state_, set] { Run(*state, set); }).detach();
}

void ProbeQueue::Run(State& state, const std::string& set) {
  for (bool more = true; more;) {
    node::v1::Probe probe;
    {
      MutexLock lock(state.mu);
      probe = state.sets[set].front();
    }
    node::v1::ProbeResult result = state.answer(probe);
    {
      MutexLock lock(state.mu);
      if (state.closed) return;
      ++state.telling;
    }
    state.on_result(std::move(result));
    MutexLock lock(state.mu);
    --state.telling;
    std::deque<node::v1::Probe>& probes = state.sets[set];
    probes.pop_front();
    more = !state.closed && !probes.empty();
    if (!more) state.sets.erase(set);
    state.changed.NotifyAll();
  }
}

}  // namespace capstan::gpu_worker
