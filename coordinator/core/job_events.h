// What has happened to a job, for people, numbered in the job from 1.
#ifndef CAPSTAN_COORDINATOR_CORE_JOB_EVENTS_H_
#define CAPSTAN_COORDINATOR_CORE_JOB_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "capstan/job/v1/job_service.pb.h"

namespace capstan::coordinator::core {

// The first events say how the job began, the last how it ended. If there are too many, the one in the
// middle is dropped. Not thread-safe.
class JobEvents {
 public:
  struct Numbered {
    int64_t number = 0;
    job::v1::Event event;
  };
  using Iterator = std::vector<Numbered>::const_iterator;

  explicit JobEvents(int most) : most_(static_cast<size_t>(most)) {}

  // Their numbers grow.
  Iterator begin() const { return events_.begin(); }
  Iterator end() const { return events_.end(); }
  size_t size() const { return events_.size(); }
  bool empty() const { return events_.empty(); }
  const Numbered& operator[](size_t i) const { return events_[i]; }
  // Of the newest; 0: there was none.
  int64_t last_number() const { return last_number_; }
  // The first with a higher number.
  Iterator After(int64_t number) const;
  // Null: it was dropped, or is not there yet.
  const job::v1::Event* Find(int64_t number) const;

  void Add(job::v1::Event event);
  // As it was saved, after those with lower numbers.
  void Load(int64_t number, const job::v1::Event& event);

  // What the journal does not know yet: the newest first.
  struct Unsaved {
    std::vector<Numbered> added;
    std::vector<int64_t> dropped;
  };
  Unsaved TakeUnsaved();

 private:
  size_t most_;
  std::vector<Numbered> events_;
  int64_t last_number_ = 0;
  int64_t saved_number_ = 0;
  std::vector<int64_t> dropped_;  // since the last save
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_JOB_EVENTS_H_
