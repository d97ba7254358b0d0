// The lead decides the outcome of each step, once and for all shards (rule R7). Shard 0 of a job
// has a lead. With `local` and `device` the task has one.
//
// If the job clips by norm, the norm is that of the whole gradient, without the loss scale. It is
// computed from the square sums in the parts (norm_tree.h). A gradient with a norm above clip_norm
// is multiplied by clip_norm / norm.
//
// If the optimizer has a trust rule (LARS, LAMB), the decision of an applied step has the norms of
// all tensors, from the squares of pieces in the parts (tensor_norms.h).
//
// Step s turns version s into version s+1. It is decided when the lead holds, all of one lineage,
//   the folded seal of every present lane of s,
//   a part of every shard (all its chunks are complete, and whether the sums are finite),
//   every evaluation block of version s, if an evaluation of version s was ordered.
// A step with a non-finite loss or part is skipped: version s+1 equals s, and its samples count as
// used. The third such step in a row fails the job (NonFiniteLoss) instead of being decided.
// Version v >= 1 is evaluated if v is a multiple of evaluate_every_steps, and so is version T =
// total_steps. The decision that makes version T carries stop, checkpoint and evaluate.
//
// Version v is saved if v is a multiple of checkpoint_every_steps, if checkpoint_every has passed
// since the last save, if an order asks for it, and if v is T. The next save waits for FilesTaken
// of the last one, except for T, a suspend and an order that names its step. While nobody takes
// written files, for instance because there is no coordinator, n of them delay the next one by n
// times kUntakenPatience only. They are committed once the coordinator is back, and the number of
// files on the disk grows with the square root of the time.
//
// Orders: an id takes effect once. The lead picks the next step, unless the order names the step at
// which it took effect before a rollback. A suspend makes step+1 the last version of this lineage:
// it is saved and not evaluated. If an evaluation is due, the lead that continues from the snapshot
// makes it. A suspend has no effect at T.
//
// Asynchronous jobs: a shard has applied what it needs of step s when it sends its part, so every
// part is finite and `apply` means nothing. Lanes run ahead of each other. A seal of a later step is
// kept until that step's turn. A snapshot has no such seals: the lanes compute these steps again,
// and shards know the gradients already (exchange/README.md).
//
// Pure: `now` is a monotonic time from any origin, passed in. Each lineage has its own Lead. A Lead
// sends nothing: its owner repeats the last decision until every shard shows its version.
// Threads: none of its own; the owner serialises.
#ifndef CAPSTAN_TRAINING_LEAD_LEAD_H_
#define CAPSTAN_TRAINING_LEAD_LEAD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "training/codec/step_log.h"
#include "training/fold/tree_fold.h"
#include "training/lanes/eval_plan.h"
#include "training/lanes/lane_tree.h"
#include "training/lanes/sample_plan.h"
#include "training/lead/loss_scale.h"
#include "training/norm/norm_tree.h"
#include "training/norm/tensor_norms.h"
#include "training/schedule/schedule.h"

namespace capstan::training {

struct LeadOptions {
  int64_t lineage = 1;
  int64_t total_steps = 0;           // T >= 1
  int32_t num_parts = 1;             // shards whose part a step needs; 1 for `local` and `device`
  int64_t evaluate_every_steps = 0;  // >= 1; 0: only version T
  int32_t max_nonfinite_steps = 3;   // in a row; the job fails with the last of them
  // The loss of fp16 is scaled (loss_scale.h). A non-finite step does not count while the scale may
  // be its reason.
  bool dynamic_loss_scale = false;
  int64_t checkpoint_every_steps = 0;                          // >= 1; 0: none by steps
  absl::Duration checkpoint_every = absl::InfiniteDuration();  // above 0
  // The gradient's Euclidean norm is brought down to this. Above 0; 0: no clipping by norm.
  double clip_norm = 0;
  int32_t norm_chunks = 0;  // chunks with weights, >= 1; read only if clip_norm is above 0
  // Shared with whoever else reads them. Null: the optimizer has no trust rule.
  std::shared_ptr<const TensorPieces> pieces;
  bool asynchronous = false;
  bool has_accuracy = true;  // false: targets are numbers, and no record has an accuracy
};

// Order of block.proto.
struct Order {
  enum class What { kLearningRate, kMaxStaleness, kCheckpoint, kSuspend };

  int64_t id = 0;  // >= 1
  What what = What::kCheckpoint;
  double learning_rate = 0;     // kLearningRate: > 0, finite; the base rate of the schedule
  std::optional<int64_t> step;  // takes effect with the decision of exactly this step
  int64_t max_staleness = -1;   // kMaxStaleness: of an asynchronous job; -1: no bound

  friend bool operator==(const Order&, const Order&) = default;
};

// StepDecision of param_store.proto.
struct Decision {
  int64_t step = 0;
  bool apply = false;
  double learning_rate = 0;
  bool stop = false;          // version step+1 is the last
  bool checkpoint = false;    // version step+1 is written to files
  bool evaluate = false;      // version step+1 is evaluated
  double gradient_scale = 1;  // factor on the gradient: 1 / the loss scale of this step
  double loss_scale = 1;      // of step+1
  // Factor on the gradient, in addition to gradient_scale: in (0, 1), or 1 where the norm is at
  // most clip_norm. Running statistics do not have it.
  double clip_factor = 1;
  std::vector<int64_t> order_ids;
  int64_t applied_steps = 0;  // of those before `step`
  // Asynchronous jobs: the schedule's base rate that an order has set; 0: none has. Shards compute
  // the rate of each contribution by themselves.
  double base_learning_rate = 0;
  // Asynchronous jobs: the bound that an order has set, -1: none; unset: no order has.
  std::optional<int64_t> max_staleness = {};
  // By tensor with weights, in the order of FlatLayout::slots(). Empty if the optimizer has no trust
  // rule, and for a skipped step.
  std::vector<TensorNorms> tensor_norms = {};

  friend bool operator==(const Decision&, const Decision&) = default;
};

struct DecidedStep {
  Decision decision;
  StepLogLine
      line;  // for metrics.jsonl; `seconds` counts from the step's start to its last seal and part
};

// EpochRecord of common.proto. A number that is not finite or was not computed stays unset.
struct EpochRecord {
  int32_t epoch = 0;  // from 1
  std::optional<double> train_loss;
  std::optional<double> train_accuracy;
  std::optional<double> validation_loss;
  std::optional<double> validation_accuracy;
  std::optional<double> samples_per_second;
  double seconds = 0;  // sum over its steps, without waits for evaluation alone
};

// The counts of an epoch.
struct EpochSums {
  int32_t epoch = 0;  // from 1; 0: nothing yet
  SealSums seals;
  double seconds = 0;
};

// Everything that a lead needs to continue from a version with the same bits.
struct LeadSnapshot {
  int64_t step = 0;  // the version
  int64_t samples_used = 0;
  int64_t skipped_steps = 0;
  int32_t nonfinite_in_a_row = 0;
  EpochSums epoch;                       // of the last decided step
  std::optional<EpochSums> ending;       // an epoch that waits for the evaluation of the version
  std::vector<EpochRecord> epochs;       // complete, oldest first; the last kSnapshotEpochs
  std::vector<Order> applied_orders;     // with their steps
  double learning_rate = 0;              // base rate set by an order; 0: that of the schedule
  std::optional<int64_t> max_staleness;  // set by an order, as in Order
  double loss_scale = 0;                 // of the next step; 0: no scale
  int64_t loss_scale_good_steps = 0;     // finite steps since it last changed
};
inline constexpr size_t kSnapshotEpochs = 1000;

// DataLoss, naming field and value: not a valid snapshot of version `version` of this job.
absl::Status CheckSnapshot(const LeadSnapshot& snapshot, int64_t version, int64_t total_steps,
                           const SamplePlan& samples);

struct LeadFailure {
  std::string reason;   // of docs/interface.md section 1
  std::string message;  // names step and lanes
};

// The result of an Add call.
enum class Told {
  kTaken,
  kKnown,  // it, or a block that covers it, was known already; nothing changed
  kPast,   // of an earlier step or version than the current one; nothing changed
};

// What the current step lacks. Empty if it waits for nothing.
struct LeadWaiting {
  std::vector<int32_t> lanes;              // without a seal
  std::vector<int32_t> parts;              // shards
  std::vector<int32_t> evaluation_blocks;  // of version step()
  bool empty() const { return lanes.empty() && parts.empty() && evaluation_blocks.empty(); }
};

class Lead {
 public:
  // The plans are those of the resolved spec. An evaluation plan without blocks evaluates nothing.
  // Version 0 is held from `now` on. Bug of ours: an option outside its range.
  Lead(const LeadOptions& options, SamplePlan samples, EvalPlan evaluation, Schedule schedule,
       absl::Duration now);

  // Continues from a snapshot that passed CheckSnapshot, with the version's evaluation due if it
  // was due there. Must be called before any Add call.
  void Restore(const LeadSnapshot& snapshot, absl::Duration now);
  // Of version step(). Must be called before any Add call of that step.
  LeadSnapshot Snapshot() const;

  // Known ids and past steps change nothing.
  void GiveOrders(const std::vector<Order>& orders);
  // The lead's own part of the checkpoint of `version` is on the disk.
  void FilesWritten(int64_t version);
  // The checkpoint of `version` is committed or was abandoned.
  void FilesTaken(int64_t version);
  static constexpr absl::Duration kUntakenPatience = absl::Seconds(5);

  // InvalidArgument, with nothing changed: a step or version ahead of step(), a version that is not
  // evaluated, a block, shard or block that the plan does not have, or counts that it does not
  // allow. The seal of a single lane may be ahead in an asynchronous job.
  absl::StatusOr<Told> AddSeal(int64_t step, const LaneBlock& block, const SealSums& sums,
                               absl::Duration now);
  // Also InvalidArgument if the job clips by norm: square sums that NormTree::Check refuses. If
  // those of all shards together are not one for each chunk, the job fails (InternalError).
  // Likewise the squares of pieces if the optimizer has a trust rule.
  absl::StatusOr<Told> AddPart(int64_t step, int32_t shard, const RootReport& report,
                               absl::Duration now);
  absl::StatusOr<Told> AddEvaluation(int64_t version, int64_t block, const SealSums& sums,
                                     absl::Duration now);

  // Decides step() if everything that it needs is there; at most one step per call. Returns nothing
  // after a failure or after step T-1.
  std::optional<DecidedStep> Decide(absl::Duration now);

  // The step to be decided next, which is also the newest version; T at the end.
  int64_t step() const { return step_; }
  // evaluating(): version step() is evaluated. stopped(): it is the last one.
  bool evaluating() const { return evaluating_; }
  bool stopped() const { return step_ == options_.total_steps || suspended_; }
  // Version T is decided and, if there are blocks, evaluated.
  bool complete() const;
  // Version step() is the last of this lineage, because of an order.
  bool suspended() const { return suspended_; }
  // Orders that took effect, with their steps, including those of the snapshot.
  const std::vector<Order>& applied_orders() const { return applied_orders_; }
  const std::optional<LeadFailure>& failure() const { return failure_; }
  const std::optional<Decision>& last_decision() const { return last_decision_; }
  // Factor on the loss of step(), by which all lanes of the step multiply.
  double loss_scale() const { return loss_scale_.value(); }
  LeadWaiting Waiting() const;

  // True samples of the decided steps; number of decided steps that were skipped.
  int64_t samples_used() const { return samples_used_; }
  int64_t skipped_steps() const { return skipped_steps_; }
  // The newest skipped step that this lead has decided.
  std::optional<int64_t> last_skipped_step() const { return last_skipped_step_; }
  // Of the last decided step. Unset before there is one, and if the value is not finite.
  std::optional<double> last_loss() const { return last_loss_; }
  std::optional<double> last_learning_rate() const;
  // Over the decided steps so far of the last step's epoch. Unset without accuracy.
  std::optional<double> running_accuracy() const;
  // Over the steps decided in about the last second.
  double samples_per_second() const { return samples_per_second_; }
  // Complete epochs; an epoch whose evaluation was ordered is complete once evaluated.
  const std::vector<EpochRecord>& epochs() const { return epochs_; }

 private:
  bool TrainingReady() const { return seals_.complete() && missing_parts_ == 0; }
  bool Evaluated() const { return !evaluating_ || missing_blocks_ == 0; }
  void NoteReady(absl::Duration now);
  void BeginStep(absl::Duration now);
  void FinishEpoch();
  void TakeOrders(Decision& decision);
  void PlanCheckpoint(Decision& decision, absl::Duration now);
  void CountRate(int64_t samples, absl::Duration now);
  int64_t NodeSamples(int64_t step, const LaneBlock& block) const;
  // Keeps a seal of a later step, or counts those that were kept for step_.
  absl::StatusOr<Told> KeepSeal(int64_t step, const LaneBlock& block, const SealSums& sums);
  void CountKeptSeals(absl::Duration now);
  void CountSeal(const LaneBlock& block, const SealSums& sums, absl::Duration now);
  // Computes square_sum_ and tensor_norms_ from all parts.
  void AddSquares();

  const LeadOptions options_;
  const SamplePlan samples_;
  const EvalPlan evaluation_;
  const Schedule planned_schedule_;
  const std::optional<NormTree> norms_;  // set: the job clips by norm
  Schedule schedule_;                    // with the base rate of an order, if there was one

  int64_t step_ = 0;
  absl::Duration step_start_;
  absl::Duration ready_at_;  // if TrainingReady(): when the last seal or part of step_ arrived
  TreeFold<SealSums> seals_;
  std::vector<LaneBlock> nonfinite_blocks_;  // seals of step_ whose loss is not finite
  std::map<int64_t, std::map<int32_t, SealSums>> later_seals_;  // by step, by lane
  std::vector<std::optional<RootReport>> parts_;                // by shard
  int32_t missing_parts_ = 0;
  // Of step_, with the loss scale. Unset before all parts are there, if some part is not finite,
  // and if the job does not clip by norm.
  std::optional<double> square_sum_;
  std::vector<TensorNorms> tensor_norms_;  // likewise, if the optimizer has a trust rule
  bool evaluating_ = false;
  std::vector<std::optional<SealSums>> blocks_;
  int64_t missing_blocks_ = 0;

  LossScale loss_scale_;
  std::optional<Decision> last_decision_;
  std::optional<LeadFailure> failure_;
  std::optional<double> last_loss_;
  int64_t samples_used_ = 0;
  int64_t skipped_steps_ = 0;
  std::optional<int64_t> last_skipped_step_;
  int32_t nonfinite_in_a_row_ = 0;
  EpochSums epoch_;
  std::optional<EpochSums> ending_;  // an epoch that waits for its evaluation
  std::vector<EpochRecord> epochs_;

  std::map<int64_t, Order> orders_;  // by id, not yet applied
  std::vector<Order> applied_orders_;
  double ordered_rate_ = 0;
  std::optional<int64_t> ordered_staleness_;
  bool suspended_ = false;
  bool checkpoint_due_ = false;
  absl::Duration last_checkpoint_;  // time of the last decision with a checkpoint, or of the start
  std::vector<int64_t> untaken_;    // versions being saved, oldest first
  bool newest_written_ = false;     // FilesWritten was called for the last of them

  absl::Duration rate_start_;
  int64_t rate_samples_ = 0;
  double samples_per_second_ = 0;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_LEAD_LEAD_H_
