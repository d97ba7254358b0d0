#include "coordinator/core/journal.h"

#include <algorithm>
#include <variant>

#include "services/check/mutant.h"

namespace capstan::coordinator::core {

void DurableState::Apply(const Record& record) {
  if (const auto* issued = std::get_if<IncarnationIssued>(&record)) {
    last_incarnation = std::max(last_incarnation, issued->incarnation);
    nodes[issued->reg.name()] = *issued;
  } else if (const auto* node = std::get_if<NodeForgotten>(&record)) {
    nodes.erase(node->node);
  } else if (const auto* mark = std::get_if<NodeDrained>(&record)) {
    if (mark->drained) {
      drained.insert(mark->node);
    } else {
      drained.erase(mark->node);
    }
  } else if (const auto* saved = std::get_if<JobSaved>(&record)) {
    jobs[saved->job_id] = saved->job;
  } else if (const auto* added = std::get_if<EventAdded>(&record)) {
    events[added->job_id][added->number] = added->event;
  } else if (const auto* dropped = std::get_if<EventDropped>(&record)) {
    events[dropped->job_id].erase(dropped->number);
  } else if (const auto* forgotten = std::get_if<JobForgotten>(&record)) {
    jobs.erase(forgotten->job_id);
    if (!CAPSTAN_MUTANT("events_of_the_forgotten_stay")) events.erase(forgotten->job_id);
    history.erase(forgotten->job_id);
  } else if (const auto* page = std::get_if<HistoryPage>(&record)) {
    if (page->page.empty()) {
      history[page->job_id].erase(page->number);
    } else {
      history[page->job_id][page->number] = page->page;
    }
  }
}

}  // namespace capstan::coordinator::core
