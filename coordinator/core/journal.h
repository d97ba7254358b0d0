// Where durable facts of the coordinator go before it tells them, and what is left of them after a crash.
#ifndef CAPSTAN_COORDINATOR_CORE_JOURNAL_H_
#define CAPSTAN_COORDINATOR_CORE_JOURNAL_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "coordinator/core/types.h"

namespace capstan::coordinator::core {

// What all records so far add up to: what a coordinator begins with.
struct DurableState {
  int64_t last_incarnation = 0;
  std::map<std::string, IncarnationIssued> nodes;  // by name: the newest process of that name
  std::set<std::string> drained;                   // names of nodes
  std::map<std::string, std::string> jobs;         // by id: serialized coordinator.v1.DurableJob
  std::map<std::string, std::map<int64_t, job::v1::Event>> events;  // by job id and number
  std::map<std::string, std::map<int64_t, std::string>> history;    // pages by job id and number

  void Apply(const Record& record);
};

// Called from the coordinator's strand alone.
class Journal {
 public:
  virtual ~Journal() = default;
  // Not OK, here or from Commit: from then on nothing may be told. What was not committed may or may not
  // survive.
  virtual absl::Status Append(const Record& record) = 0;
  // Returns once everything that was appended would survive a crash, all of it or nothing.
  // ResourceExhausted: the disk is full; nothing of it would, a later call tries it again.
  virtual absl::Status Commit() = 0;
  // There is hardly any room left for what comes. May look at the disk.
  virtual bool low() { return false; }
};

// Outlives a core, but not the process: for tests.
class MemoryJournal final : public Journal {
 public:
  absl::Status Append(const Record& record) override {
    state_.Apply(record);
    ++records_;
    return absl::OkStatus();
  }
  absl::Status Commit() override { return absl::OkStatus(); }

  const DurableState& state() const { return state_; }
  int64_t records() const { return records_; }

 private:
  DurableState state_;
  int64_t records_ = 0;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_JOURNAL_H_
