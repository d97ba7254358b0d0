// Where the coordinator's durable facts go before anybody is told of them.
#ifndef CAPSTAN_COORDINATOR_CORE_JOURNAL_H_
#define CAPSTAN_COORDINATOR_CORE_JOURNAL_H_

#include <cstddef>
#include <deque>

#include "absl/status/status.h"
#include "coordinator/core/types.h"

namespace capstan::coordinator::core {

// Called from the coordinator's strand alone.
class Journal {
 public:
  virtual ~Journal() = default;
  // Returns once the record would survive a crash. Not OK: it may or may not have; whoever carries
  // out the effects must then tell nobody anything any more.
  virtual absl::Status Append(const Record& record) = 0;
};

// Survives nothing: the coordinator of this version forgets its jobs when it ends. Keeps the last
// records for whoever wants to look.
class MemoryJournal final : public Journal {
 public:
  explicit MemoryJournal(size_t max_records = 10000) : max_records_(max_records) {}
  absl::Status Append(const Record& record) override {
    records_.push_back(record);
    if (records_.size() > max_records_) records_.pop_front();
    return absl::OkStatus();
  }
  const std::deque<Record>& records() const { return records_; }

 private:
  const size_t max_records_;
  std::deque<Record> records_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_JOURNAL_H_
