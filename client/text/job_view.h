// Jobs as people read them. Pure text, no terminal.
#ifndef CAPSTAN_CLIENT_TEXT_JOB_VIEW_H_
#define CAPSTAN_CLIENT_TEXT_JOB_VIEW_H_

#include <string>

#include "capstan/job/v1/job_service.pb.h"

namespace capstan::client {

struct ViewStyle {
  int width = 80;      // columns; lines are cut, never wrapped
  bool color = false;  // ANSI colours
};

// One finished epoch, in the form MXNet users parse:
// "Epoch[1] Step[469] Speed: 4318.2 samples/sec train-loss=0.512 train-accuracy=0.819
// validation-accuracy=0.784". Where targets are numbers: "... train-loss=0.512
// validation-loss=0.25". A loss that is not finite is "nan".
std::string EpochLine(const job::v1::Job& job, const common::v1::EpochRecord& epoch);

// The evaluation.metric of a checkpoint, "0.9871"; empty if it was not evaluated.
std::string CheckpointMetric(const job::v1::SavedCheckpoint& checkpoint);

// "PENDING  WaitingForSlots": state and reason, printed when one of them changes.
std::string StateLine(const job::v1::Job& job);

// The progress of a job that was told to end or to suspend: "CANCELLED" or "SUSPENDED" once it is
// done, else "cancelling" or "suspending: saves first".
std::string CancelledText(common::v1::JobState state);
std::string SuspendedText(common::v1::JobState state);

// Why a running job cannot be saved. After the last step this is the job's message, which says why
// it does not end. Empty: it can be saved.
struct SaveTrouble {
  std::string text;
  bool at_end = false;
};
SaveTrouble SaveTroubleOf(const job::v1::Job& job);

// The lines at the bottom of a terminal while a job runs: one to three, without a line feed at the
// end. The third is the job's message, or why it cannot be saved. If the terminal is narrow, the
// least important parts are left out: the bar, the epoch, the step; never the ETA.
std::string LiveLines(const job::v1::Job& job, const ViewStyle& style);

// "2 steps changed nothing, because loss or gradient was not finite".
std::string SkippedText(int64_t steps);

// The last lines of `run`: outcome, accuracy (where targets are numbers, the loss) and seconds. For
// a successful job also the checkpoint, the hash and two lines of Python that load the weights.
// Ends with a line feed.
std::string Summary(const job::v1::Job& job, const ViewStyle& style);

// "3m29s", "1h02m", "12.3s".
std::string ShortDuration(double seconds);

// Replaces characters that a terminal would obey or hide with '?' (visible_text.h).
std::string Printable(const std::string& text);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_TEXT_JOB_VIEW_H_
