// Which waiting jobs start now, and what the others wait for.
//
// First come, first served. A job that the registered nodes could carry, if all of them were free,
// reserves them: no job behind it starts before it, or large jobs would wait for ever. A job that
// they could not carry reserves nothing, and those behind it may start. Nor does a job that backs
// off.
//
// A pure function: no clock, no state, equal snapshots give equal plans
// (docs/decisions/2026-11-26-scheduler-of-plain-data.md).
#ifndef CAPSTAN_COORDINATOR_SCHEDULER_PLAN_H_
#define CAPSTAN_COORDINATOR_SCHEDULER_PLAN_H_

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/scheduler/gang.h"
#include "coordinator/scheduler/snapshot.h"

namespace capstan::coordinator::scheduler {

// Jobs that are told their place in the queue.
inline constexpr size_t kMaxQueueTexts = 100;

struct Start {
  std::string job;
  Gang gang;
  std::string kind;  // what it computes on, for people: KindText
};
// All jobs behind it wait for it.
struct Reserve {
  std::string job;
};
// It waits. Of a job that reserves, it follows the Reserve.
struct Explain {
  std::string job;
  std::string text;
  bool for_ever = false;  // no node will come that could carry it
};
using Decision = std::variant<Start, Reserve, Explain>;

struct Planned {
  std::vector<Decision> decisions;  // in the order of the queue; none for a job that backs off
  Queue queue;                      // where a later job continues
};

// Each Start counts as carried out for the jobs behind it.
Planned Plan(Snapshot snapshot, absl::Duration now);

}  // namespace capstan::coordinator::scheduler

#endif  // CAPSTAN_COORDINATOR_SCHEDULER_PLAN_H_
