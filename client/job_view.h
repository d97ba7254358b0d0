// A job as people read it: pure text, no terminal.
#ifndef CAPSTAN_CLIENT_JOB_VIEW_H_
#define CAPSTAN_CLIENT_JOB_VIEW_H_

#include <string>

#include "capstan/job/v1/job_service.pb.h"

namespace capstan::client {

struct ViewStyle {
  int width = 80;      // columns; lines are cut, never wrapped
  bool color = false;  // ANSI colours
};

// The steps that are decided once the epoch is done.
int64_t LastStepOf(const job::v1::Job& job, const common::v1::EpochRecord& epoch);

// One finished epoch, in the form MXNet users parse:
// "Epoch[1] Step[469] Speed: 4318.2 samples/sec train-loss=0.512 train-accuracy=0.819
// validation-accuracy=0.784".
std::string EpochLine(const job::v1::Job& job, const common::v1::EpochRecord& epoch);

// "PENDING  WaitingForSlots": state and reason, for a line where one of them changes.
std::string StateLine(const job::v1::Job& job);

// What a job does that was asked to end, or to rest: its state where it is done, "CANCELLED", else
// "cancelling" and "suspending: saves first".
std::string CancelledText(common::v1::JobState state);
std::string SuspendedText(common::v1::JobState state);

// Why a job that runs cannot be saved; of one that has all its steps behind it the message, which says
// why it does not end. Empty: it can be saved.
struct SaveTrouble {
  std::string text;
  bool at_end = false;
};
SaveTrouble SaveTroubleOf(const job::v1::Job& job);

// What stands at the bottom of a terminal while a job runs: one to three lines without a line feed at
// the end. The third is its message, or why it cannot be saved. In a narrow one what matters least is
// left out: the bar, epoch, step; not the ETA.
std::string LiveLines(const job::v1::Job& job, const ViewStyle& style);

// "2 steps changed nothing, for loss or gradient was not finite".
std::string SkippedText(int64_t steps);

// The last lines of `run`: outcome, accuracy, seconds, and for a job that succeeded the checkpoint,
// the hash and two lines of Python that load the weights. Ends with a line feed.
std::string Summary(const job::v1::Job& job, const ViewStyle& style);

// "3m29s", "1h02m", "12.3s".
std::string ShortDuration(double seconds);

// What a terminal would obey or hide becomes '?': visible_text.h.
std::string Printable(const std::string& text);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_JOB_VIEW_H_
