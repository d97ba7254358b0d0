#include "coordinator/scheduler/plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace capstan::coordinator::scheduler {
namespace {

// `job` outlives the nodes.
void Hold(const Gang& gang, const std::string& job, Nodes& nodes) {
  for (const Gang::Worker& worker : gang.workers) {
    Node& node = *Find(nodes, worker.node);
    for (const int device : worker.devices) node.devices[static_cast<size_t>(device)].holder = job;
    ++node.jobs;
  }
  for (const std::string& shard : gang.shards) ++Find(nodes, shard)->jobs;
}

}  // namespace

Planned Plan(Snapshot snapshot, absl::Duration now) {
  Planned planned;
  planned.queue = std::move(snapshot.queue);
  Queue& queue = planned.queue;
  Nodes& nodes = snapshot.nodes;
  for (const PendingJob& job : snapshot.pending) {
    if (job.not_before > now) {
      queue.next_retry = std::min(queue.next_retry, job.not_before);
      continue;
    }
    const GangRequest& request = job.request;
    std::string text;
    if (queue.reserved_by.empty()) {
      // Thousands may wait: a request that did not fit is not tried again for each job that has it.
      auto lacks = queue.lacks.find(request);
      if (lacks == queue.lacks.end()) {
        if (std::optional<Gang> gang = FindGang(nodes, request); gang.has_value()) {
          std::string kind = KindText(nodes, request, gang->on_gpus);
          Hold(*gang, job.id, nodes);
          planned.decisions.emplace_back(Start{job.id, *std::move(gang), std::move(kind)});
          queue.lacks.clear();  // fewer devices are free
          continue;
        }
        lacks = queue.lacks.emplace(request, MissingText(nodes, request)).first;
        if (CouldFit(nodes, request)) {
          queue.reserved_by = job.id;
          planned.decisions.emplace_back(Reserve{job.id});
        } else if (request.exclude.empty() && snapshot.nobody_else_comes) {
          planned.decisions.emplace_back(Explain{
              job.id, absl::StrCat(lacks->second, ", and no other service will come"), true});
          continue;
        }
      }
      text = lacks->second;
    } else {
      text = absl::StrCat("behind job ", queue.reserved_by);
    }
    if (++queue.places > kMaxQueueTexts) {
      text = absl::StrCat("more than ", kMaxQueueTexts, " jobs are before it in the queue");
    } else if (queue.places > 1) {
      absl::StrAppend(&text, " (place ", queue.places, " in the queue)");
    }
    planned.decisions.emplace_back(Explain{job.id, std::move(text)});
  }
  return planned;
}

}  // namespace capstan::coordinator::scheduler
