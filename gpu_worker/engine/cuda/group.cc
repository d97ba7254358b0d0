#include "gpu_worker/engine/cuda/group.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/engine/collective/collective.h"

// Returns from the function if a call failed. Like the macro of cuda_status.h, which needs CUDA.
#define CAPSTAN_GROUP_RETURN(call)                   \
  do {                                               \
    const absl::Status capstan_status = (call);      \
    if (!capstan_status.ok()) return capstan_status; \
  } while (false)

namespace capstan::engine::cuda {

// Worker and plug-in may be compiled from different sources with one CAPSTAN_PLUGIN_ABI. If one of
// the assertions of this block fails, the interface has changed and needs a new number.
constexpr bool Crosses(training::RuleForm form, int number) {
  return static_cast<int>(form) == number;
}
static_assert(Crosses(training::RuleForm::kKeep, CAPSTAN_RULE_KEEP) && CAPSTAN_RULE_KEEP == 0);
static_assert(Crosses(training::RuleForm::kSgd, CAPSTAN_RULE_SGD) && CAPSTAN_RULE_SGD == 1);
static_assert(Crosses(training::RuleForm::kMomentum, CAPSTAN_RULE_MOMENTUM) &&
              CAPSTAN_RULE_MOMENTUM == 2);
static_assert(Crosses(training::RuleForm::kNesterov, CAPSTAN_RULE_NESTEROV) &&
              CAPSTAN_RULE_NESTEROV == 3);
static_assert(Crosses(training::RuleForm::kAdam, CAPSTAN_RULE_ADAM) && CAPSTAN_RULE_ADAM == 4);
static_assert(Crosses(training::RuleForm::kAdamW, CAPSTAN_RULE_ADAMW) && CAPSTAN_RULE_ADAMW == 5);
static_assert(Crosses(training::RuleForm::kRmsprop, CAPSTAN_RULE_RMSPROP) &&
              CAPSTAN_RULE_RMSPROP == 6);
static_assert(Crosses(training::RuleForm::kRmspropCentered, CAPSTAN_RULE_RMSPROP_CENTERED) &&
              CAPSTAN_RULE_RMSPROP_CENTERED == 7);
static_assert(Crosses(training::RuleForm::kRmspropMomentum, CAPSTAN_RULE_RMSPROP_MOMENTUM) &&
              CAPSTAN_RULE_RMSPROP_MOMENTUM == 8);
static_assert(Crosses(training::RuleForm::kRmspropCenteredMomentum,
                      CAPSTAN_RULE_RMSPROP_CENTERED_MOMENTUM) &&
              CAPSTAN_RULE_RMSPROP_CENTERED_MOMENTUM == 9);
static_assert(Crosses(training::RuleForm::kAdagrad, CAPSTAN_RULE_ADAGRAD) &&
              CAPSTAN_RULE_ADAGRAD == 10);
static_assert(Crosses(training::RuleForm::kFtrl, CAPSTAN_RULE_FTRL) && CAPSTAN_RULE_FTRL == 11);
static_assert(Crosses(training::RuleForm::kStatistic, CAPSTAN_RULE_STATISTIC) &&
              CAPSTAN_RULE_STATISTIC == 12);
static_assert(training::kRuleForms == 13 && training::kMostRuleNumbers == CAPSTAN_RULE_NUMBERS);

// Whether a field is the float of that place.
#define CAPSTAN_IS_NUMBER(type, field, place) (offsetof(training::type, field) == (place)*4)
static_assert(sizeof(training::SgdConstants) == 12 &&
              CAPSTAN_IS_NUMBER(SgdConstants, momentum, 0) &&
              CAPSTAN_IS_NUMBER(SgdConstants, weight_decay, 1) &&
              CAPSTAN_IS_NUMBER(SgdConstants, learning_rate, 2));
static_assert(sizeof(training::AdamConstants) == 36 && CAPSTAN_IS_NUMBER(AdamConstants, beta1, 0) &&
              CAPSTAN_IS_NUMBER(AdamConstants, rest1, 1) &&
              CAPSTAN_IS_NUMBER(AdamConstants, beta2, 2) &&
              CAPSTAN_IS_NUMBER(AdamConstants, rest2, 3) &&
              CAPSTAN_IS_NUMBER(AdamConstants, epsilon, 4) &&
              CAPSTAN_IS_NUMBER(AdamConstants, weight_decay, 5) &&
              CAPSTAN_IS_NUMBER(AdamConstants, keep, 6) &&
              CAPSTAN_IS_NUMBER(AdamConstants, step_size, 7) &&
              CAPSTAN_IS_NUMBER(AdamConstants, root_correction, 8));
static_assert(sizeof(training::RmspropConstants) == 24 &&
              CAPSTAN_IS_NUMBER(RmspropConstants, alpha, 0) &&
              CAPSTAN_IS_NUMBER(RmspropConstants, rest, 1) &&
              CAPSTAN_IS_NUMBER(RmspropConstants, epsilon, 2) &&
              CAPSTAN_IS_NUMBER(RmspropConstants, momentum, 3) &&
              CAPSTAN_IS_NUMBER(RmspropConstants, weight_decay, 4) &&
              CAPSTAN_IS_NUMBER(RmspropConstants, learning_rate, 5));
static_assert(sizeof(training::AdagradConstants) == 12 &&
              CAPSTAN_IS_NUMBER(AdagradConstants, epsilon, 0) &&
              CAPSTAN_IS_NUMBER(AdagradConstants, weight_decay, 1) &&
              CAPSTAN_IS_NUMBER(AdagradConstants, learning_rate, 2));
static_assert(sizeof(training::FtrlConstants) == 16 && CAPSTAN_IS_NUMBER(FtrlConstants, l1, 0) &&
              CAPSTAN_IS_NUMBER(FtrlConstants, beta, 1) &&
              CAPSTAN_IS_NUMBER(FtrlConstants, weight_decay, 2) &&
              CAPSTAN_IS_NUMBER(FtrlConstants, learning_rate, 3));
#undef CAPSTAN_IS_NUMBER
static_assert(sizeof(capstan_update_part) == 64 && offsetof(capstan_update_part, size) == 0 &&
              offsetof(capstan_update_part, scale) == 8 &&
              offsetof(capstan_update_part, clip) == 12 &&
              offsetof(capstan_update_part, form) == 16 &&
              offsetof(capstan_update_part, decay) == 20 &&
              offsetof(capstan_update_part, numbers) == 24);

Group::Group(std::unique_ptr<GroupStreams> streams, const capstan_group_request& request)
    : streams_(std::move(streams)),
      timeout_seconds_(request.timeout_seconds),
      bucket_ends_(request.bucket_ends, request.bucket_ends + request.bucket_count),
      slot_floats_(static_cast<size_t>(streams_->devices()), 0),
      total_floats_(bucket_ends_.back()),
      memory_{request.slot_count, 0, request.state_floats},
      device_bytes_(slot_floats_.size(), 0),
      new_weights_(static_cast<size_t>(streams_->devices()), false) {
  int64_t begin = 0;
  for (const int64_t end : bucket_ends_) {
    std::vector<Slice>& slices = slices_.emplace_back();
    for (int device = 0; device < devices(); ++device) {
      const training::FlatRange range = SliceOf(begin, end, device, devices());
      slices.push_back({range.offset, range.size, slot_floats_[device], buckets() - 1});
      slot_floats_[device] += range.size;
    }
    begin = end;
  }
}

template <typename Try>
absl::Status Group::OrBreak(Try attempt) {
  if (!broken_.ok()) return broken_;
  broken_ = attempt();
  // Neighbours of the failed device may wait for it for ever.
  if (!broken_.ok()) streams_->Abandon();
  return broken_;
}

absl::Status Group::TakeMemory() {
  absl::Status status = streams_->Reserve(slot_floats_, memory_);
  for (int d = 0; d < devices(); ++d) device_bytes_[d] = streams_->DeviceBytes(d);
  return status;
}

absl::Status Group::LoadWeights(const float* weights, const float* state) {
  if (broken_.ok() && state != nullptr && memory_.states == 0) {
    return absl::InvalidArgumentError("group: a state, but the group was made without one");
  }
  return OrBreak([&] { return TryLoadWeights(weights, state); });
}

absl::Status Group::TryLoadWeights(const float* weights, const float* state) {
  kept_slot_ = -1;
  has_state_ = state != nullptr;
  CAPSTAN_GROUP_RETURN(TakeMemory());
  streams_->MakeEvents(Emitted(memory_.blocks, 0, 0));
  for (int d = 0; d < devices(); ++d) {
    CAPSTAN_GROUP_RETURN(WaitFor(WeightsPushed(d), d, "the weights' way there"));
  }
  const size_t bytes = static_cast<size_t>(total_floats_) * 4;
  std::memcpy(streams_->host_weights(), weights, bytes);
  if (has_state_) std::memcpy(streams_->host_state(), state, bytes * memory_.states);
  for (int d = 0; d < devices(); ++d) {
    CAPSTAN_GROUP_RETURN(WaitToWriteWeights(d));
    for (const std::vector<Slice>& bucket : slices_) {
      if (bucket[d].size == 0) continue;
      CAPSTAN_GROUP_RETURN(streams_->PushWeights(d, bucket[d]));
      if (has_state_) CAPSTAN_GROUP_RETURN(streams_->PushState(d, bucket[d]));
    }
    CAPSTAN_GROUP_RETURN(streams_->Record(WeightsPushed(d), d, DeviceStream::kFold));
  }
  CAPSTAN_GROUP_RETURN(SpreadWeights());
  for (int d = 0; d < devices(); ++d) CAPSTAN_GROUP_RETURN(UseNewWeights(d));
  return absl::OkStatus();
}

absl::Status Group::WaitToWriteWeights(int device) {
  CAPSTAN_GROUP_RETURN(streams_->Record(WeightsFree(device), device, DeviceStream::kCompute));
  CAPSTAN_GROUP_RETURN(streams_->Wait(WeightsFree(device), device, DeviceStream::kFold));
  for (int other = 0; other < devices(); ++other) {
    // The neighbours have copied the previous contents.
    CAPSTAN_GROUP_RETURN(streams_->Wait(WeightsThere(other), device, DeviceStream::kFold));
  }
  return absl::OkStatus();
}

absl::Status Group::SpreadWeights() {
  for (int d = 0; d < devices(); ++d) {
    // Each device begins with another neighbour, so that no link serves all of them at the same
    // time.
    for (int i = 1; i < devices(); ++i) {
      const int from = (d + i) % devices();
      CAPSTAN_GROUP_RETURN(streams_->Wait(WeightsPushed(from), d, DeviceStream::kFold));
      for (const std::vector<Slice>& bucket : slices_) {
        if (bucket[from].size == 0) continue;
        CAPSTAN_GROUP_RETURN(streams_->PullWeights(d, from, bucket[from]));
      }
    }
    CAPSTAN_GROUP_RETURN(streams_->Record(WeightsThere(d), d, DeviceStream::kFold));
    new_weights_[d] = true;
  }
  return absl::OkStatus();
}

absl::Status Group::UseNewWeights(int device) {
  if (!new_weights_[device]) return absl::OkStatus();
  new_weights_[device] = false;
  CAPSTAN_GROUP_RETURN(streams_->Wait(WeightsThere(device), device, DeviceStream::kCompute));
  CAPSTAN_GROUP_RETURN(streams_->UseWeights(device));
  return streams_->Record(WeightsFree(device), device, DeviceStream::kCompute);
}

absl::Status Group::Update(const capstan_update& update) {
  if (broken_.ok()) CAPSTAN_GROUP_RETURN(CheckUpdate(update));
  return OrBreak([&] { return TryUpdate(update); });
}

absl::Status Group::CheckUpdate(const capstan_update& update) const {
  if (kept_slot_ < 0) {
    return absl::FailedPreconditionError("group update: no sum is on the devices");
  }
  int64_t end = 0;
  for (int i = 0; i < update.part_count; ++i) {
    const capstan_update_part& part = update.parts[i];
    if (part.form < 0 || part.form >= training::kRuleForms || part.size < 1 ||
        part.size > total_floats_ - end) {
      return absl::InvalidArgumentError(absl::StrCat("group update: part ", i, " of form ",
                                                     part.form, " with ", part.size,
                                                     " floats does not fit"));
    }
    end += part.size;
    const int states = training::StatesOf(static_cast<training::RuleForm>(part.form));
    if (states > 0 && (!has_state_ || states != memory_.states)) {
      return absl::FailedPreconditionError(
          absl::StrCat("group update: a rule with ", states, " floats of state per weight, ",
                       has_state_ ? memory_.states : 0, " were loaded"));
    }
  }
  if (end != total_floats_) {
    return absl::InvalidArgumentError(
        absl::StrCat("group update: parts of ", end, " floats, want ", total_floats_));
  }
  return absl::OkStatus();
}

std::vector<UpdateSegment> Group::SegmentsOf(int device, const capstan_update& update) const {
  std::vector<UpdateSegment> segments;
  int last_part = -1;
  for (const std::vector<Slice>& bucket : slices_) {
    const Slice& slice = bucket[device];
    int64_t begin = 0;
    for (int i = 0; i < update.part_count; begin += update.parts[i++].size) {
      const capstan_update_part& part = update.parts[i];
      const int64_t first = std::max(begin, slice.offset);
      const int64_t end = std::min(begin + part.size, slice.offset + slice.size);
      if (first >= end || part.form == CAPSTAN_RULE_KEEP) continue;
      // On a single device the slices of two buckets follow each other.
      if (i == last_part && segments.back().offset + segments.back().size == first) {
        segments.back().size += end - first;
        continue;
      }
      last_part = i;
      UpdateSegment segment = {
          first, slice.local + first - slice.offset, end - first, part.scale, part.clip, {}};
      segment.rule.form = static_cast<training::RuleForm>(part.form);
      segment.rule.decay = part.decay != 0;
      std::copy(std::begin(part.numbers), std::end(part.numbers), segment.rule.numbers);
      segments.push_back(segment);
    }
  }
  return segments;
}

absl::Status Group::TryUpdate(const capstan_update& update) {
  for (int d = 0; d < devices(); ++d) {
    CAPSTAN_GROUP_RETURN(WaitToWriteWeights(d));
    CAPSTAN_GROUP_RETURN(streams_->Update(d, SegmentsOf(d, update), kept_slot_));
    CAPSTAN_GROUP_RETURN(streams_->Record(WeightsPushed(d), d, DeviceStream::kFold));
  }
  kept_slot_ = -1;
  // Lanes use them after the copy of their batch.
  return SpreadWeights();
}

absl::Status Group::ReadWeights(float* weights, float* state) {
  if (broken_.ok() && state != nullptr && !has_state_) {
    return absl::FailedPreconditionError("group: no state was loaded");
  }
  return OrBreak([&] { return TryReadWeights(weights, state); });
}

absl::Status Group::TryReadWeights(float* weights, float* state) {
  for (int d = 0; d < devices(); ++d) {
    for (const std::vector<Slice>& bucket : slices_) {
      if (bucket[d].size == 0) continue;
      CAPSTAN_GROUP_RETURN(streams_->EmitWeights(d, bucket[d]));
      if (state != nullptr) CAPSTAN_GROUP_RETURN(streams_->EmitState(d, bucket[d]));
    }
    CAPSTAN_GROUP_RETURN(streams_->Record(WeightsPushed(d), d, DeviceStream::kFold));
    CAPSTAN_GROUP_RETURN(UseNewWeights(d));
  }
  for (int d = 0; d < devices(); ++d) {
    CAPSTAN_GROUP_RETURN(WaitFor(WeightsPushed(d), d, "the weights' way back"));
    // The plan may be used by itself from now on.
    CAPSTAN_GROUP_RETURN(WaitFor(WeightsFree(d), d, "the weights"));
  }
  const size_t bytes = static_cast<size_t>(total_floats_) * 4;
  std::memcpy(weights, streams_->host_weights(), bytes);
  if (state != nullptr) std::memcpy(state, streams_->host_state(), bytes * memory_.states);
  return absl::OkStatus();
}

absl::Status Group::Compute(const capstan_group_step& step) {
  if (broken_.ok()) CAPSTAN_GROUP_RETURN(CheckStep(step));
  return OrBreak([&] { return TryCompute(step); });
}

absl::Status Group::CheckStep(const capstan_group_step& step) const {
  int round = 0;
  for (int i = 0; i < step.op_count; ++i) {
    const capstan_fold_op& op = step.ops[i];
    const bool lane = op.kind == CAPSTAN_FOLD_TAKE || op.kind == CAPSTAN_FOLD_ADD_LANE;
    const bool fits =
        op.round >= round && op.round < step.round_count && op.slot >= 0 &&
        op.slot < step.slot_count &&
        (!lane || (op.device >= 0 && op.device < devices() &&
                   step.lanes[op.round * devices() + op.device].count > 0)) &&
        (op.kind != CAPSTAN_FOLD_ADD_SLOT || (op.from >= 0 && op.from < step.slot_count)) &&
        (op.kind != CAPSTAN_FOLD_EMIT || (op.block >= 0 && op.block < step.block_count));
    const bool reduce = op.kind == CAPSTAN_FOLD_REDUCE || op.kind == CAPSTAN_FOLD_REDUCE_ADD;
    if (!fits || (reduce && !reduces())) {
      return absl::InvalidArgumentError(
          absl::StrCat("group step: operation ", i, " of kind ", op.kind, " does not fit"));
    }
    round = op.round;
  }
  if (step.op_count == 0 || step.ops[step.op_count - 1].kind != CAPSTAN_FOLD_EMIT ||
      round + 1 != step.round_count) {
    return absl::InvalidArgumentError("group step: the last round ends with no sum");
  }
  if (step.blocks == nullptr && (step.block_count != 1 || step.finite == nullptr)) {
    return absl::InvalidArgumentError(absl::StrCat("group step: ", step.block_count,
                                                   " blocks, want one that stays on the devices"));
  }
  return absl::OkStatus();
}

absl::Status Group::TryCompute(const capstan_group_step& step) {
  const bool keep = step.blocks == nullptr;
  memory_.slots = std::max(memory_.slots, step.slot_count);
  if (!keep) memory_.blocks = std::max(memory_.blocks, step.block_count);
  kept_slot_ = -1;
  CAPSTAN_GROUP_RETURN(TakeMemory());
  streams_->MakeEvents(Emitted(std::max(memory_.blocks, step.block_count), 0, 0));
  for (int round = 0; round < step.round_count; ++round) {
    CAPSTAN_GROUP_RETURN(EnqueueRound(step, round));
  }
  // Also for a device that had no lane.
  for (int d = 0; d < devices(); ++d) CAPSTAN_GROUP_RETURN(UseNewWeights(d));
  int64_t begin = 0;
  for (int bucket = 0; bucket < buckets(); ++bucket) {
    for (int block = 0; block < step.block_count; ++block) {
      for (int d = 0; d < devices(); ++d) {
        CAPSTAN_GROUP_RETURN(
            WaitFor(Emitted(block, bucket, d), d,
                    absl::StrCat("the sum of bucket ", bucket, " over ", devices(), " devices")));
      }
      if (keep) continue;
      std::memcpy(step.blocks[block] + begin, streams_->block(block) + begin,
                  static_cast<size_t>(bucket_ends_[bucket] - begin) * 4);
      if (step.ready != nullptr) step.ready(step.context, block, bucket);
    }
    begin = bucket_ends_[bucket];
  }
  CAPSTAN_GROUP_RETURN(FinishRound(step, step.round_count - 1));
  for (int d = 0; d < devices(); ++d) {
    // The plan may be used by itself from now on.
    CAPSTAN_GROUP_RETURN(WaitFor(WeightsFree(d), d, "the weights"));
  }
  if (!keep) return absl::OkStatus();
  kept_slot_ = step.ops[step.op_count - 1].slot;
  *step.finite = 1;
  for (int d = 0; d < devices(); ++d) {
    // Every device must be asked, because asking clears the answer.
    if (!streams_->TakeFinite(d)) *step.finite = 0;
  }
  return absl::OkStatus();
}

absl::Status Group::EnqueueRound(const capstan_group_step& step, int round) {
  if (round > 0) CAPSTAN_GROUP_RETURN(FinishRound(step, round - 1));
  for (int d = 0; d < devices(); ++d) {
    const capstan_batch& batch = step.lanes[round * devices() + d];
    if (batch.count == 0) continue;
    LaneHooks hooks;
    hooks.before_compute = [this, d, round]() -> absl::Status {
      CAPSTAN_GROUP_RETURN(UseNewWeights(d));
      for (int other = 0; other < devices() && round > 0; ++other) {
        CAPSTAN_GROUP_RETURN(streams_->Wait(FoldDone(other), d, DeviceStream::kCompute));
      }
      return absl::OkStatus();
    };
    hooks.on_bucket = [this, d](int bucket) {
      return streams_->Record(Ready(d, bucket), d, DeviceStream::kCompute);
    };
    CAPSTAN_GROUP_RETURN(streams_->EnqueueLane(d, batch, step.loss_scale, hooks));
    CAPSTAN_GROUP_RETURN(streams_->Record(LaneDone(d), d, DeviceStream::kCompute));
  }
  for (int bucket = 0; bucket < buckets(); ++bucket) {
    CAPSTAN_GROUP_RETURN(EnqueueFold(step, round, bucket));
  }
  for (int d = 0; d < devices(); ++d) {
    CAPSTAN_GROUP_RETURN(streams_->Record(FoldDone(d), d, DeviceStream::kFold));
  }
  return absl::OkStatus();
}

absl::Status Group::EnqueueFold(const capstan_group_step& step, int round, int bucket) {
  for (int d = 0; d < devices(); ++d) {
    for (int from = 0; from < devices(); ++from) {
      if (step.lanes[round * devices() + from].count == 0) continue;
      CAPSTAN_GROUP_RETURN(streams_->Wait(Ready(from, bucket), d, DeviceStream::kFold));
    }
  }
  for (int i = 0; i < step.op_count; ++i) {
    if (step.ops[i].round == round) CAPSTAN_GROUP_RETURN(Run(step, step.ops[i], bucket));
  }
  return absl::OkStatus();
}

absl::Status Group::Run(const capstan_group_step& step, const capstan_fold_op& op, int bucket) {
  const std::vector<Slice>& slices = slices_[bucket];
  if (op.kind == CAPSTAN_FOLD_REDUCE || op.kind == CAPSTAN_FOLD_REDUCE_ADD) {
    return streams_->Reduce(slices, op.slot, op.kind == CAPSTAN_FOLD_REDUCE_ADD);
  }
  for (int d = 0; d < devices(); ++d) {
    const Slice& slice = slices[d];
    absl::Status status;
    if (slice.size > 0 && op.kind == CAPSTAN_FOLD_TAKE) {
      status = streams_->Take(d, op.device, slice, op.slot);
    } else if (slice.size > 0 && op.kind == CAPSTAN_FOLD_ADD_LANE) {
      status = streams_->AddLane(d, op.device, slice, op.slot);
    } else if (slice.size > 0 && op.kind == CAPSTAN_FOLD_ADD_SLOT) {
      status = streams_->AddSlot(d, slice, op.slot, op.from);
    } else if (slice.size > 0 && op.kind == CAPSTAN_FOLD_EMIT) {
      status = step.blocks == nullptr ? streams_->CheckFinite(d, slice, op.slot)
                                      : streams_->Emit(d, slice, op.slot, op.block);
    }
    if (status.ok() && op.kind == CAPSTAN_FOLD_EMIT) {
      status = streams_->Record(Emitted(op.block, bucket, d), d, DeviceStream::kFold);
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Group::FinishRound(const capstan_group_step& step, int round) {
  for (int d = 0; d < devices(); ++d) {
    const int lane = round * devices() + d;
    if (step.lanes[lane].count == 0) continue;
    CAPSTAN_GROUP_RETURN(WaitFor(LaneDone(d), d, "its lane"));
    step.results[lane] = streams_->Sums(d);
  }
  return absl::OkStatus();
}

absl::Status Group::WaitFor(int event, int device, const std::string& what) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  const auto named = [&](const absl::Status& status) {
    return absl::Status(status.code(),
                        absl::StrCat(streams_->NameOf(device), ", ", what, ": ", status.message()));
  };
  for (int64_t polls = 0;; ++polls) {
    const absl::StatusOr<bool> done = streams_->Done(event);
    if (!done.ok()) return named(done.status());
    if (*done) return absl::OkStatus();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    // A step of a small model takes less than a millisecond, so a sleep would be noticeable.
    if (seconds < 0.002) {
      std::this_thread::yield();
      continue;
    }
    // Sleep between two polls of the event. cudaEventSynchronize has no deadline, and a lost peer
    // never signals it.
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    absl::Status status;
    if (polls % 64 == 0) status = streams_->CommunicatorStatus();
    if (status.ok() && seconds > timeout_seconds_) {
      status = absl::DeadlineExceededError(absl::StrCat("not done after ", timeout_seconds_, " s"));
    }
    if (!status.ok()) return named(status);
  }
}

absl::Status CheckGroup(const capstan_group_request& request,
                        const std::vector<GroupMember>& members) {
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i].device != request.devices[i]) {
      return absl::InvalidArgumentError(absl::StrCat("group: plan ", i, " was compiled for GPU ",
                                                     members[i].device, ", not for GPU ",
                                                     request.devices[i]));
    }
    if (members[i].total_floats != members[0].total_floats) {
      return absl::InvalidArgumentError(
          absl::StrCat("group: plan ", i, " has ", members[i].total_floats, " floats, plan 0 has ",
                       members[0].total_floats));
    }
  }
  if (request.state_floats < 0 || request.state_floats > training::kMostRuleStates) {
    return absl::InvalidArgumentError(absl::StrCat("group: ", request.state_floats,
                                                   " floats of state per weight, want 0 to ",
                                                   training::kMostRuleStates));
  }
  int64_t end = 0;
  bool rising = request.bucket_count > 0;
  for (int i = 0; i < request.bucket_count; ++i) {
    rising = rising && request.bucket_ends[i] > end;
    end = request.bucket_ends[i];
  }
  if (members.empty() || !rising || end != members[0].total_floats) {
    return absl::InvalidArgumentError("group: no plan, or buckets that are not the whole vector");
  }
  return absl::OkStatus();
}

std::vector<int> BucketStages(const CardProgram& program, const std::vector<int64_t>& bucket_ends) {
  std::vector<int> stages;
  // Once backward has done stage s, everything in front of the parameters of earlier stages is
  // final.
  int s = static_cast<int>(program.stages.size()) - 1;
  for (const int64_t end : bucket_ends) {
    for (; s > 0; --s) {
      int64_t ready = program.total_floats;
      for (int before = 0; before < s; ++before) {
        ready = std::min(ready, program.stages[before].first_parameter());
      }
      if (ready >= end) break;
    }
    stages.push_back(s);
  }
  return stages;
}

}  // namespace capstan::engine::cuda
