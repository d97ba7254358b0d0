// Files of events that TensorBoard reads: scalars over the steps of a job.
//
// A file is a sequence of records: the length (u64), its checksum, an Event message, its checksum.
// Numbers are little-endian; a checksum is a CRC32C, rotated by 15 bits to the right, plus
// 0xa282ead8 (u32). Sources: TensorFlow's record_writer.h, event.proto and summary.proto.
#ifndef CAPSTAN_TRAINING_HISTORY_EVENT_FILE_H_
#define CAPSTAN_TRAINING_HISTORY_EVENT_FILE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "training/history/job_history.h"

namespace capstan::training {

// The first record of a file.
std::string EventFileHead(double unix_seconds);

struct ScalarEvent {
  double unix_seconds = 0;
  int64_t step = 0;
  std::vector<std::pair<std::string, double>> values;  // tag, value; stored as float32
};
std::string EventRecord(const ScalarEvent& event);

// What a file has already. An evaluation may come after the point of its step.
struct WrittenEvents {
  int64_t step = 0;             // points up to this one
  int64_t evaluation_step = 0;  // evaluations up to this one
};

// The metrics `names` of all points and evaluations that are not `written`, by rising step, and
// moves `written` on. An evaluation has its own step, and the time of the first point that is not
// before it, or of the last one.
std::vector<ScalarEvent> EventsOf(const JobHistory& history, const std::vector<std::string>& names,
                                  WrittenEvents& written);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_HISTORY_EVENT_FILE_H_
