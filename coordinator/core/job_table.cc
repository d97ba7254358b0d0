#include "coordinator/core/job_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace capstan::coordinator::core {

Job* JobTable::Find(absl::string_view id) {
  const auto it = jobs_.find(std::string(id));
  return it == jobs_.end() ? nullptr : it->second.get();
}

const Job* JobTable::Find(absl::string_view id) const {
  const auto it = jobs_.find(std::string(id));
  return it == jobs_.end() ? nullptr : it->second.get();
}

const Job* JobTable::OfRequest(const std::string& request_id) const {
  const auto it = requests_.find(request_id);
  return it == requests_.end() ? nullptr : Find(it->second);
}

Job& JobTable::Add(std::unique_ptr<Job> owned) {
  Job& job = *owned;
  requests_[job.request_id()] = job.id();
  all_[job.sequence()] = &job;
  if (!job.spec().model().initial_weights().empty()) with_weights_[job.sequence()] = &job;
  jobs_[job.id()] = std::move(owned);
  return job;
}

void JobTable::Reopen(const Job& job) {
  const auto at = std::find(ended_.begin(), ended_.end(), job.id());
  if (at != ended_.end()) ended_.erase(at);
}

size_t JobTable::OldestOfTheGreatest(const std::function<int64_t(const Job&)>& share) const {
  struct Owned {
    int64_t sum = 0;
    size_t oldest = 0;
  };
  std::map<std::string, Owned> owners;
  size_t found = ended_.size();
  int64_t most = 0;
  for (size_t i = 0; i < ended_.size(); ++i) {
    const Job& job = *Find(ended_[i]);
    const int64_t its = share(job);
    if (its <= 0) continue;
    const auto [owned, fresh] = owners.try_emplace(job.owner());
    if (fresh) owned->second.oldest = i;
    owned->second.sum += its;
  }
  for (const auto& entry : owners) {
    const Owned& owned = entry.second;
    if (owned.sum < most || (owned.sum == most && owned.oldest > found)) continue;
    most = owned.sum;
    found = owned.oldest;
  }
  return found;
}

void JobTable::Forget(size_t index) {
  const Job& job = *Find(ended_[index]);
  const int64_t sequence = job.sequence();
  requests_.erase(job.request_id());
  all_.erase(sequence);
  with_weights_.erase(sequence);
  touched_.erase(sequence);
  takeovers_.Set(sequence, absl::InfiniteDuration());
  recoveries_.Set(sequence, absl::InfiniteDuration());
  lacking_.erase(sequence);
  ended_.erase(ended_.begin() + static_cast<std::ptrdiff_t>(index));
  jobs_.erase(std::string(job.id()));
}

void JobTable::UpdateIndexes() {
  for (const auto& [sequence, job] : touched_) {
    const bool active = active_.count(sequence) > 0;
    const Recovery& recovery = job->recovery();
    takeovers_.Set(sequence, active ? recovery.takeover_at() : absl::InfiniteDuration());
    recoveries_.Set(sequence,
                    active && recovery.wanted() ? recovery.at() : absl::InfiniteDuration());
    if (active && job->LackingWorkers() > 0) {
      lacking_.insert(sequence);
    } else {
      lacking_.erase(sequence);
    }
  }
  touched_.clear();
}

absl::Duration JobTable::NextDue(absl::Duration now) const {
  return std::min(takeovers_.First(), recoveries_.FirstAfter(now));
}

std::vector<Job*> JobTable::TakeUnsavedHistories() {
  std::vector<Job*> jobs;
  for (const int64_t sequence : std::exchange(unsaved_histories_, {})) {
    const auto job = active_.find(sequence);
    if (job != active_.end()) jobs.push_back(job->second);
  }
  return jobs;
}

}  // namespace capstan::coordinator::core
