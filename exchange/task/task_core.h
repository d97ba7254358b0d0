// TaskCore decides what one task does: which lane each device computes, which blocks leave, which
// seals and evaluation parts are said again, what is written and reported.
//
// It holds no tensor. The adapter around it (gpu_worker/task) owns buffers, threads, streams and
// files, carries out the effects in the order given, and tells what came of them as events.
//
// Rules that are kept here (exchange/README.md):
//   R7  A task that changes lineage discards all weights; a version with `stop` is never computed
//       on.
//   R8  Lanes are computed, and so frames sent, only at a complete version of one lineage.
//   A seal is sent behind its block's last frames and repeated until a newer version is complete.
//   Evaluation parts likewise.
//   A task that loses lanes finishes those of the step it is in; lanes gained by a new view are
//   computed at the newest complete version, all of each, as blocks of their own.
//   Lanes without samples in a step are skipped.
//   Asynchronous jobs (A2, A3, K, K2): each lane has a step of its own. It is over when the marks of
//   the weights are above it. The next one begins then, if the floor of the weights is high enough;
//   else the task asks for newer ones, again and again. Versions only say what is evaluated and when
//   the job ends.
//   Jobs that keep residuals (E1 to E4): a lane is computed only by a task that has its residual of
//   the version. A task reads those of its lanes where a lineage begins, and writes them with each
//   version that is saved. Lanes that it gains inside a lineage are not computed. If it misses a
//   version, it cannot know its residuals any more, and fails.
//   weights.safetensors is owed of version T; a version that is the last of its lineage by order
//   (suspend) owes nothing.
//
// Threads: none; one strand. Deterministic: the effects are a function of the events alone.
#ifndef CAPSTAN_EXCHANGE_TASK_TASK_CORE_H_
#define CAPSTAN_EXCHANGE_TASK_TASK_CORE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "training/fold/tree_fold.h"
#include "training/lanes/eval_plan.h"
#include "training/lanes/lane_tree.h"
#include "training/lanes/sample_plan.h"

namespace capstan::exchange::task {

// A version says of so many steps behind it whether they were skipped: CompleteWeights::SkippedSteps.
inline constexpr int64_t kStepsToldOf = 65;

enum class TaskPhase { kStarting, kRunning, kFinished, kFailed };

// ---- Events ----

// The view of StartTask or of a ViewChange. Older than, or the same as, the one at hand: ignored.
struct ViewGiven {
  int64_t lineage = 0;
  int64_t generation = 0;
  std::vector<int32_t> lane_owners;  // one rank per lane
};
// Every chunk of `version` is here. Ignored unless newer than what is held, in the view's lineage. An
// asynchronous job has marks, floor and a bound of staleness (CompleteWeights), and many weights may
// be of one version.
struct WeightsComplete {
  int64_t lineage = 0;
  int64_t version = 0;
  bool stop = false;
  bool evaluate = false;
  std::vector<int64_t> marks;
  int64_t floor = 0;
  int64_t max_staleness = -1;
  bool saved = false;  // a checkpoint has the version
};
// The residuals of the lanes of the last ReadResiduals are here, of this version.
struct ResidualsRead {
  int64_t lineage = 0;
  int64_t version = 0;
};
// The device has computed the lane and is free; its gradient is in the fold of `work`.
struct LaneComputed {
  int device = 0;
  int64_t work = 0;
  int32_t lane = 0;
  training::SealSums sums;
};
// The frames of the block are on their way to every shard.
struct BlockPushed {
  int64_t work = 0;
  training::LaneBlock block;
  bool finite = true;  // false: a skip was sent in its place (asynchronous jobs)
};
// The device has computed the evaluation block and is free.
struct EvaluationComputed {
  int device = 0;
  int64_t lineage = 0;
  int64_t version = 0;
  int64_t block = 0;
  training::SealSums sums;
};
struct WeightsWritten {
  int64_t lineage = 0;
  int64_t version = 0;
};
// The adapter cannot go on. The first one counts.
struct Failed {
  std::string reason;  // of docs/interface.md section 1
  std::string message;
};
struct StopOrder {};
struct Tick {};

using Event = std::variant<ViewGiven, WeightsComplete, ResidualsRead, LaneComputed, BlockPushed,
                           EvaluationComputed, WeightsWritten, Failed, StopOrder, Tick>;

// ---- Effects ----

// Forget all weights and streams, and take up the view's lineage.
struct OpenLineage {
  int64_t lineage = 0;
};
// The view's generation changed inside its lineage.
struct UseView {
  int64_t lineage = 0;
  int64_t generation = 0;
};
// Compute `lane` of `step` with the weights of version `step` of `lineage` (asynchronous jobs: with
// the newest weights), add it to the fold of `work`, and answer LaneComputed. A device has one order
// at a time, or, with lanes_together or lanes_at_once, those that come in one go.
struct ComputeLane {
  int device = 0;
  int64_t work = 0;
  int64_t lineage = 0;
  int64_t step = 0;
  int32_t lane = 0;
};
// All lanes of the block are in the fold of `work`: push their sum, answer BlockPushed.
struct FoldAndPush {
  int64_t work = 0;
  int64_t lineage = 0;
  int64_t step = 0;
  training::LaneBlock block;
  bool finite_loss = true;  // asynchronous jobs: false: send a skip in its place
};
// The fold of `work` is needed no more. A lane of it that is still being computed is answered as
// usual, and its gradient dropped.
struct DropWork {
  int64_t work = 0;
};
struct SendSeal {
  int64_t lineage = 0;
  int64_t step = 0;
  training::LaneBlock block;
  training::SealSums sums;
  int64_t staleness = 0;  // of the weights of a lane's step; 0: a synchronous job
};
// The lane cannot begin the step on the weights at hand: they are too old. Repeated.
struct AskForWeights {
  int64_t lineage = 0;
  int64_t step = 0;
  int32_t lane = 0;
};
struct EvaluateBlock {
  int device = 0;
  int64_t lineage = 0;
  int64_t version = 0;
  int64_t block = 0;
};
struct SendEvaluationPart {
  int64_t lineage = 0;
  int64_t version = 0;
  int64_t block = 0;
  training::SealSums sums;
};
// Write weights.safetensors of the version, answer WeightsWritten.
struct WriteWeights {
  int64_t lineage = 0;
  int64_t version = 0;
};
// Behind OpenLineage: read the residuals of these lanes with which the lineage begins, answer
// ResidualsRead.
struct ReadResiduals {
  int64_t lineage = 0;
  std::vector<int32_t> lanes;
};
// Write the residuals of these lanes as they are at the version. Comes before any order to compute
// on it.
struct WriteResiduals {
  int64_t lineage = 0;
  int64_t version = 0;
  bool last = false;  // of its lineage: it must be written
  std::vector<int32_t> lanes;
};
struct ReportState {
  TaskPhase phase = TaskPhase::kStarting;
  int64_t lineage = 0;
  int64_t generation = 0;
  int64_t step = 0;     // computed or waited for
  std::string reason;   // kFailed
  std::string message;  // kFailed
};
// End the process; nothing follows.
struct Exit {
  bool failed = false;
};

using Effect = std::variant<OpenLineage, UseView, ComputeLane, FoldAndPush, DropWork, SendSeal,
                            AskForWeights, EvaluateBlock, SendEvaluationPart, WriteWeights,
                            ReadResiduals, WriteResiduals, ReportState, Exit>;
using Effects = std::vector<Effect>;

struct TaskCoreOptions {
  int32_t rank = 0;         // >= 0
  int64_t total_steps = 0;  // T >= 1: weights are written of it alone
  int device_count = 1;     // >= 1
  // The devices sum their lanes by themselves: the lanes of a work are ordered in one go, when every
  // device is free; an evaluation block still takes one device.
  bool lanes_together = false;
  // A device is given all of its lanes of a work in one go: it computes them together.
  bool lanes_at_once = false;
  // Each lane is pushed by itself, never in a sum with others. Then neither of the two above.
  bool lanes_apart = false;
  bool asynchronous = false;     // then lanes are apart
  bool keeps_residuals = false;  // of error feedback; then lanes are apart, and not asynchronous
  absl::Duration resend_interval = absl::Milliseconds(500);    // of seals and evaluation parts
  absl::Duration progress_interval = absl::Milliseconds(250);  // of ReportState for the step alone
};

class TaskCore {
 public:
  // The plans are those of the resolved spec; they have the same lanes.
  TaskCore(training::SamplePlan samples, training::EvalPlan evaluation, TaskCoreOptions options);

  // `now` never goes back; its origin is arbitrary.
  Effects Step(const Event& event, absl::Duration now);

  // When Step(Tick) is due; InfiniteDuration where nothing is timed.
  absl::Duration NextDeadline() const;

  TaskPhase phase() const { return phase_; }
  int64_t lineage() const { return lineage_; }
  int64_t generation() const { return generation_; }
  // The newest complete version of the lineage; -1: none.
  int64_t version() const { return held_.has_value() ? held_->version : -1; }
  // Nothing left to compute or push for version(): the task waits for the next one.
  bool waiting() const;
  // For people: "step 812: lanes 2,3 computed and pushed, waits for version 813".
  std::string Waiting() const;

 private:
  // Lanes that were taken up together at one step, with the blocks that they make.
  struct Work {
    int64_t id = 0;
    int64_t step = 0;
    int32_t lane = 0;       // asynchronous jobs: its only lane
    int64_t staleness = 0;  // likewise: of the weights that it is computed on
    training::LaneTree tree{1};
    std::map<int32_t, training::SealSums> computed;  // by lane
    std::vector<training::LaneBlock> targets;        // not pushed yet
    std::vector<training::LaneBlock> ordered;        // FoldAndPush is out
  };
  struct Seal {
    int64_t step = 0;
    training::LaneBlock block;
    training::SealSums sums;
    int64_t staleness = 0;
  };
  struct Job {
    bool is_evaluation = false;
    int64_t work = 0;
    int64_t index = 0;  // lane or evaluation block
  };
  struct Held {
    int64_t version = 0;
    bool stop = false;
    bool evaluate = false;
    bool saved = false;
  };

  void On(const ViewGiven& e, Effects& out);
  void On(const WeightsComplete& e, Effects& out);
  void On(const ResidualsRead& e, Effects& out);
  void On(const LaneComputed& e, Effects& out);
  void On(const BlockPushed& e, Effects& out);
  void On(const EvaluationComputed& e, Effects& out);
  void On(const WeightsWritten& e, Effects& out);
  void On(const Failed& e, Effects& out);
  void On(const StopOrder& e, Effects& out);
  void On(const Tick& e, Effects& out);

  void DropStep(Effects& out);
  // Jobs that keep residuals. False: it has failed, because they cannot be those of the version.
  bool HasResidualsFor(int64_t version, Effects& out);
  // Writes those of the held version, if it is saved.
  void OweResiduals(Effects& out) const;
  void TakeUpLanes(int64_t step, const std::vector<int32_t>& lanes);
  // Asynchronous jobs.
  void TakeMarks(const WeightsComplete& e, Effects& out);
  void BeginLanes(Effects& out);
  bool IsAtWork(int32_t lane) const;
  void ForgetJobs(bool evaluations);
  // The step of a work that a device begins now; asynchronous jobs note the staleness of its weights.
  int64_t Begin(int64_t work);
  void TakeUpEvaluation(Effects& out);
  void GiveOrders(Effects& out);
  // Orders all lanes of the work that comes first. False: no lane waits.
  bool GiveLanesTogether(Effects& out);
  void PushWhatIsWhole(Work& work, Effects& out);
  void OweWeights(Effects& out);
  void UpdatePhase(Effects& out);
  void Report(Effects& out);
  bool Owns(int32_t lane) const { return owners_[lane] == options_.rank; }
  // Those with samples that it may compute.
  std::vector<int32_t> OwnedLanes(int64_t step) const;

  const training::SamplePlan samples_;
  const training::EvalPlan evaluation_;
  const TaskCoreOptions options_;

  absl::Duration now_ = absl::ZeroDuration();
  bool ended_ = false;
  TaskPhase phase_ = TaskPhase::kStarting;
  int64_t lineage_ = 0;
  int64_t generation_ = 0;
  std::vector<int32_t> owners_;
  std::optional<Held> held_;

  // Of a job that keeps residuals, in the lineage: the lanes that have one here, and the version that
  // these are of; -1: they are being read.
  std::vector<int32_t> residual_lanes_;
  int64_t residual_version_ = -1;

  // Of an asynchronous job: by lane, its next step, as far as the task has heard in this lineage;
  // the floor and the bound of the newest weights; and the lanes for which it asks.
  std::vector<int64_t> marks_;
  int64_t floor_ = 0;
  int64_t max_staleness_ = -1;
  std::map<int32_t, int64_t> asked_;  // by lane, its step

  // Of the held version alone. An asynchronous job: until each lane's step is over.
  std::vector<Work> works_;
  std::vector<bool> taken_lanes_;                                // ever taken up at this step
  std::vector<Seal> seals_;                                      // said, to be repeated
  std::map<int64_t, std::optional<training::SealSums>> blocks_;  // taken up; set: computed
  bool weights_owed_ = false;                                    // WriteWeights is out
  bool weights_written_ = false;
  absl::Duration resend_at_ = absl::InfiniteDuration();

  int64_t next_work_ = 1;
  std::vector<std::deque<Job>> queues_;  // by device
  std::vector<int> busy_;                // orders out, by device
  absl::Duration report_at_ = absl::InfiniteDuration();
  int64_t reported_step_ = -1;
};

// The lanes with samples at `step` that `rank` owns, by device, in the order in which a device takes
// them. `runs` (lanes_at_once): each device has a run of them, so that its lanes make large blocks. Else
// device d has the d-th of them and every device_count-th after it, so that devices that work side by
// side complete blocks early, and few sums are held. Pure.
std::vector<std::vector<int32_t>> PlanLanes(const training::SamplePlan& samples,
                                            const std::vector<int32_t>& lane_owners, int32_t rank,
                                            int device_count, int64_t step, bool runs);

// The tree sum of the present lanes below `block`, in doubles (rule R1). Every present lane of the
// block is in `lanes`.
training::SealSums FoldSeals(const training::LaneTree& tree, const training::LaneBlock& block,
                             const std::map<int32_t, training::SealSums>& lanes);

}  // namespace capstan::exchange::task

#endif  // CAPSTAN_EXCHANGE_TASK_TASK_CORE_H_
