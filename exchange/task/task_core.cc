#include "exchange/task/task_core.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/check/check.h"
#include "services/check/mutant.h"

namespace capstan::exchange::task {

using training::LaneBlock;
using training::LaneTree;
using training::SealSums;

namespace {

// The device of the i-th of `count` lanes.
size_t DeviceOf(size_t i, size_t count, size_t devices, bool runs) {
  return runs ? i * devices / count : i % devices;
}

}  // namespace

std::vector<std::vector<int32_t>> PlanLanes(const training::SamplePlan& samples,
                                            const std::vector<int32_t>& lane_owners, int32_t rank,
                                            int device_count, int64_t step, bool runs) {
  std::vector<int32_t> lanes;
  for (int32_t lane = 0; lane < static_cast<int32_t>(lane_owners.size()); ++lane) {
    if (lane_owners[lane] != rank || samples.LaneSampleCount(step, lane) == 0) continue;
    lanes.push_back(lane);
  }
  std::vector<std::vector<int32_t>> planned(device_count);
  for (size_t i = 0; i < lanes.size(); ++i) {
    planned[DeviceOf(i, lanes.size(), planned.size(), runs)].push_back(lanes[i]);
  }
  return planned;
}

SealSums FoldSeals(const LaneTree& tree, const LaneBlock& block,
                   const std::map<int32_t, SealSums>& lanes) {
  if (block.lane_count == 1) return lanes.at(block.first_lane);
  const LaneBlock left = LaneTree::Left(block);
  const LaneBlock right = LaneTree::Right(block);
  if (!tree.HasLanes(left)) return FoldSeals(tree, right, lanes);
  SealSums sums = FoldSeals(tree, left, lanes);
  if (tree.HasLanes(right)) sums += FoldSeals(tree, right, lanes);
  return sums;
}

TaskCore::TaskCore(training::SamplePlan samples, training::EvalPlan evaluation,
                   TaskCoreOptions options)
    : samples_(std::move(samples)),
      evaluation_(std::move(evaluation)),
      options_(options),
      queues_(options.device_count),
      busy_(options.device_count, 0) {
  CAPSTAN_CHECK(options_.device_count >= 1);
  CAPSTAN_CHECK(options_.rank >= 0 && options_.total_steps >= 1);
  CAPSTAN_CHECK(options_.lanes_apart || !options_.asynchronous);
  CAPSTAN_CHECK(!options_.keeps_residuals || (options_.lanes_apart && !options_.asynchronous));
  CAPSTAN_CHECK(!options_.lanes_apart || !(options_.lanes_together || options_.lanes_at_once));
}

Effects TaskCore::Step(const Event& event, absl::Duration now) {
  CAPSTAN_CHECK(now >= now_);
  now_ = now;
  Effects out;
  if (ended_) return out;
  std::visit([this, &out](const auto& e) { On(e, out); }, event);
  if (!ended_) UpdatePhase(out);
  return out;
}

absl::Duration TaskCore::NextDeadline() const {
  return ended_ ? absl::InfiniteDuration() : std::min(resend_at_, report_at_);
}

std::vector<int32_t> TaskCore::OwnedLanes(int64_t step) const {
  std::vector<int32_t> lanes;
  for (int32_t lane = 0; lane < static_cast<int32_t>(owners_.size()); ++lane) {
    if (!Owns(lane) || samples_.LaneSampleCount(step, lane) == 0) continue;
    const bool computes =
        !options_.keeps_residuals || CAPSTAN_MUTANT("reissued_without_residual") ||
        (residual_version_ >= 0 &&
         std::binary_search(residual_lanes_.begin(), residual_lanes_.end(), lane));
    if (computes) lanes.push_back(lane);
  }
  return lanes;
}

void TaskCore::On(const ViewGiven& e, Effects& out) {
  if (e.lineage < lineage_ || (e.lineage == lineage_ && e.generation <= generation_)) return;
  if (static_cast<int32_t>(e.lane_owners.size()) != samples_.lanes()) {
    On(Failed{"InternalError",
              absl::StrCat("view of generation ", e.generation, ": ", e.lane_owners.size(),
                           " lane owners, want ", samples_.lanes())},
       out);
    return;
  }
  generation_ = e.generation;
  owners_ = e.lane_owners;
  if (e.lineage != lineage_) {
    // R7: nothing of the old history may meet the new one.
    DropStep(out);
    if (!CAPSTAN_MUTANT("weights_survive_lineage")) held_.reset();
    lineage_ = e.lineage;
    out.emplace_back(OpenLineage{lineage_});
    if (options_.keeps_residuals) {
      residual_version_ = -1;
      residual_lanes_.clear();
      for (int32_t lane = 0; lane < samples_.lanes(); ++lane) {
        if (Owns(lane)) residual_lanes_.push_back(lane);
      }
      out.emplace_back(ReadResiduals{lineage_, residual_lanes_});
    }
  } else {
    out.emplace_back(UseView{lineage_, generation_});
    if (held_.has_value()) {
      if (options_.asynchronous) {
        BeginLanes(out);
      } else if (!held_->stop) {
        std::vector<int32_t> gained = OwnedLanes(held_->version);
        gained.erase(std::remove_if(gained.begin(), gained.end(),
                                    [this](int32_t lane) { return taken_lanes_[lane]; }),
                     gained.end());
        TakeUpLanes(held_->version, gained);
      }
      TakeUpEvaluation(out);
      OweWeights(out);
      GiveOrders(out);
    }
  }
  Report(out);
}

void TaskCore::On(const WeightsComplete& e, Effects& out) {
  if (e.lineage != lineage_) return;
  if (held_.has_value() && held_->stop) return;  // there is none after the last
  if (options_.asynchronous) return TakeMarks(e, out);
  if (e.version <= version()) return;
  DropStep(out);
  held_ = Held{e.version, e.stop, e.evaluate, e.saved};
  taken_lanes_.assign(owners_.size(), false);
  if (options_.keeps_residuals && residual_version_ >= 0 && e.version < options_.total_steps) {
    if (!HasResidualsFor(e.version, out)) return;
    OweResiduals(out);
  }
  if (!e.stop) TakeUpLanes(e.version, OwnedLanes(e.version));
  TakeUpEvaluation(out);
  OweWeights(out);
  GiveOrders(out);
  if (report_at_ == absl::InfiniteDuration()) report_at_ = now_ + options_.progress_interval;
}

bool TaskCore::HasResidualsFor(int64_t version, Effects& out) {
  const int64_t behind = version - residual_version_;
  residual_version_ = version;
  // A step without samples for these lanes does not wait for them, so versions may be missed. What
  // became of the steps between is said by the next version, of so many.
  if (residual_lanes_.empty() || (behind >= 0 && behind <= kStepsToldOf)) return true;
  On(Failed{"InternalError",
            absl::StrCat("version ", version, " came ", behind, " versions after the residuals of ",
                         residual_lanes_.size(), " lanes")},
     out);
  return false;
}

void TaskCore::OweResiduals(Effects& out) const {
  // Nothing begins from version T.
  if (!held_->saved || held_->version >= options_.total_steps || residual_lanes_.empty()) return;
  out.emplace_back(WriteResiduals{lineage_, held_->version, held_->stop, residual_lanes_});
}

void TaskCore::On(const ResidualsRead& e, Effects& out) {
  if (!options_.keeps_residuals || e.lineage != lineage_ || residual_version_ >= 0) return;
  residual_version_ = e.version;
  if (!held_.has_value()) return;
  if (!HasResidualsFor(held_->version, out)) return;
  OweResiduals(out);  // a step without samples for these lanes may have passed meanwhile
  if (held_->stop) return;
  TakeUpLanes(held_->version, OwnedLanes(held_->version));
  GiveOrders(out);
}

int64_t TaskCore::Begin(int64_t work) {
  const auto it =
      std::find_if(works_.begin(), works_.end(), [work](const Work& w) { return w.id == work; });
  CAPSTAN_CHECK(it != works_.end());
  if (options_.asynchronous) it->staleness = std::max<int64_t>(it->step - floor_, 0);
  return it->step;
}

bool TaskCore::IsAtWork(int32_t lane) const {
  return std::any_of(works_.begin(), works_.end(),
                     [lane](const Work& work) { return work.lane == lane; });
}

// Takes lanes without a work out of the queues, and evaluations if that is said.
void TaskCore::ForgetJobs(bool evaluations) {
  for (std::deque<Job>& queue : queues_) {
    queue.erase(std::remove_if(queue.begin(), queue.end(),
                               [&](const Job& job) {
                                 if (job.is_evaluation) return evaluations;
                                 return std::none_of(
                                     works_.begin(), works_.end(),
                                     [&job](const Work& work) { return work.id == job.work; });
                               }),
                queue.end());
  }
}

// A2: a lane's step is over when all shards say so. A work that is over was answered, maybe to
// another task.
void TaskCore::TakeMarks(const WeightsComplete& e, Effects& out) {
  if (marks_.empty()) marks_.assign(samples_.lanes(), 0);
  CAPSTAN_CHECK(e.marks.size() == marks_.size());
  for (size_t lane = 0; lane < marks_.size(); ++lane) {
    marks_[lane] = std::max(marks_[lane], e.marks[lane]);
  }
  floor_ = std::max(floor_, e.floor);
  max_staleness_ = e.max_staleness;
  const auto over = [this](int64_t step, int32_t lane) { return marks_[lane] > step; };
  for (const Work& work : works_) {
    if (over(work.step, work.lane)) out.emplace_back(DropWork{work.id});
  }
  works_.erase(std::remove_if(works_.begin(), works_.end(),
                              [&](const Work& work) { return over(work.step, work.lane); }),
               works_.end());
  seals_.erase(
      std::remove_if(seals_.begin(), seals_.end(),
                     [&](const Seal& seal) { return over(seal.step, seal.block.first_lane); }),
      seals_.end());
  const bool newer = e.version > version();
  if (newer) blocks_.clear();
  if (e.version >= version()) held_ = Held{e.version, e.stop, e.evaluate};
  if (held_->stop) {
    for (const Work& work : works_) out.emplace_back(DropWork{work.id});
    works_.clear();
    seals_.clear();
  }
  ForgetJobs(/*evaluations=*/newer);
  TakeUpEvaluation(out);
  OweWeights(out);
  BeginLanes(out);
  GiveOrders(out);
  if (report_at_ == absl::InfiniteDuration()) report_at_ = now_ + options_.progress_interval;
}

// A3 and K: every idle lane begins at its mark, if the weights are new enough.
void TaskCore::BeginLanes(Effects& out) {
  asked_.clear();
  if (held_->stop) return;
  for (int32_t lane = 0; lane < static_cast<int32_t>(owners_.size()); ++lane) {
    const int64_t step = marks_[lane];
    if (!Owns(lane) || step >= options_.total_steps || IsAtWork(lane)) continue;
    const int64_t k = max_staleness_;
    if (k < 0 || floor_ >= step - k || CAPSTAN_MUTANT("any_weights_will_do")) {
      TakeUpLanes(step, {lane});
      continue;
    }
    if (CAPSTAN_MUTANT("nobody_asks_for_weights")) continue;
    asked_[lane] = step;  // K2
    out.emplace_back(AskForWeights{lineage_, step, lane});
    if (resend_at_ == absl::InfiniteDuration()) resend_at_ = now_ + options_.resend_interval;
  }
}

// Everything that belongs to the version held so far.
void TaskCore::DropStep(Effects& out) {
  for (const Work& work : works_) out.emplace_back(DropWork{work.id});
  works_.clear();
  for (auto& queue : queues_) queue.clear();
  taken_lanes_.clear();
  seals_.clear();
  blocks_.clear();
  weights_owed_ = false;
  weights_written_ = false;
  resend_at_ = absl::InfiniteDuration();
  marks_.clear();
  floor_ = 0;
  max_staleness_ = -1;
  asked_.clear();
}

void TaskCore::TakeUpLanes(int64_t step, const std::vector<int32_t>& lanes) {
  if (lanes.empty()) return;
  Work work;
  work.id = next_work_++;
  work.step = step;
  work.tree = samples_.StepTree(step);
  if (options_.lanes_apart) {
    for (const int32_t lane : lanes) work.targets.push_back({lane, 1});
  } else {
    work.targets = work.tree.LargestBlocks(lanes);
  }
  if (options_.asynchronous) {
    // The device that reads this lane's samples ahead (PlanLanes).
    CAPSTAN_CHECK(lanes.size() == 1);
    work.lane = lanes[0];
    const std::vector<int32_t> owned = OwnedLanes(step);
    const auto at = std::find(owned.begin(), owned.end(), lanes[0]) - owned.begin();
    queues_[DeviceOf(at, owned.size(), queues_.size(), /*runs=*/false)].push_back(
        Job{false, work.id, lanes[0]});
  } else {
    for (size_t i = 0; i < lanes.size(); ++i) {
      taken_lanes_[lanes[i]] = true;
      queues_[DeviceOf(i, lanes.size(), queues_.size(), options_.lanes_at_once)].push_back(
          Job{false, work.id, lanes[i]});
    }
  }
  works_.push_back(std::move(work));
}

void TaskCore::TakeUpEvaluation(Effects& out) {
  if (!held_->evaluate) return;
  size_t next = 0;
  for (int64_t block = 0; block < evaluation_.block_count(); ++block) {
    if (!Owns(evaluation_.OwnerLane(block)) || blocks_.count(block) > 0) continue;
    blocks_[block] = std::nullopt;
    // After the lanes: the evaluation then runs while the frames travel.
    queues_[next++ % queues_.size()].push_back(Job{true, 0, block});
  }
}

void TaskCore::OweWeights(Effects& out) {
  if (!held_->stop || held_->version != options_.total_steps) return;
  if (weights_owed_ || owners_.empty() || !Owns(0)) return;
  weights_owed_ = true;
  out.emplace_back(WriteWeights{lineage_, held_->version});
}

bool TaskCore::GiveLanesTogether(Effects& out) {
  int64_t work = 0;
  for (const std::deque<Job>& queue : queues_) {
    for (const Job& job : queue) {
      if (!job.is_evaluation && (work == 0 || job.work < work)) work = job.work;
    }
  }
  if (work == 0) return false;
  // Blocks that are under way end first; none is begun meanwhile.
  if (std::count(busy_.begin(), busy_.end(), 0) < static_cast<int64_t>(busy_.size())) return true;
  CAPSTAN_CHECK(!held_->stop);
  for (size_t device = 0; device < queues_.size(); ++device) {
    std::deque<Job> rest;
    for (const Job& job : queues_[device]) {
      if (job.is_evaluation || job.work != work) {
        rest.push_back(job);
        continue;
      }
      ++busy_[device];
      out.emplace_back(ComputeLane{static_cast<int>(device), work, lineage_, Begin(work),
                                   static_cast<int32_t>(job.index)});
    }
    queues_[device] = std::move(rest);
  }
  return true;
}

void TaskCore::GiveOrders(Effects& out) {
  if (options_.lanes_together && GiveLanesTogether(out)) return;
  for (size_t device = 0; device < queues_.size(); ++device) {
    std::deque<Job>& queue = queues_[device];
    if (busy_[device] > 0 || queue.empty()) continue;
    const Job first = queue.front();
    const int d = static_cast<int>(device);
    do {
      const Job job = queue.front();
      queue.pop_front();
      ++busy_[device];
      if (job.is_evaluation) {
        out.emplace_back(EvaluateBlock{d, lineage_, held_->version, job.index});
      } else {
        CAPSTAN_CHECK(!held_->stop);
        out.emplace_back(
            ComputeLane{d, job.work, lineage_, Begin(job.work), static_cast<int32_t>(job.index)});
      }
    } while (options_.lanes_at_once && !first.is_evaluation && !queue.empty() &&
             !queue.front().is_evaluation && queue.front().work == first.work);
  }
}

void TaskCore::On(const LaneComputed& e, Effects& out) {
  --busy_[e.device];
  for (Work& work : works_) {
    if (work.id != e.work) continue;
    work.computed[e.lane] = e.sums;
    PushWhatIsWhole(work, out);
  }
  GiveOrders(out);
}

void TaskCore::PushWhatIsWhole(Work& work, Effects& out) {
  for (auto it = work.targets.begin(); it != work.targets.end();) {
    bool whole = true;
    for (int32_t lane = it->first_lane; lane < it->first_lane + it->lane_count; ++lane) {
      if (lane < work.tree.lane_count() && work.tree.HasLane(lane) &&
          work.computed.count(lane) == 0) {
        whole = false;
        break;
      }
    }
    if (!whole) {
      ++it;
      continue;
    }
    const bool finite =
        !options_.asynchronous || std::isfinite(work.computed.at(work.lane).loss_sum);
    out.emplace_back(FoldAndPush{work.id, lineage_, work.step, *it, finite});
    work.ordered.push_back(*it);
    it = work.targets.erase(it);
  }
}

void TaskCore::On(const BlockPushed& e, Effects& out) {
  for (Work& work : works_) {
    if (work.id != e.work) continue;
    const auto it = std::find(work.ordered.begin(), work.ordered.end(), e.block);
    if (it == work.ordered.end()) return;
    work.ordered.erase(it);
    SealSums sums = FoldSeals(work.tree, e.block, work.computed);
    if (!e.finite) sums.loss_sum = std::numeric_limits<double>::quiet_NaN();
    seals_.push_back(Seal{work.step, e.block, sums, work.staleness});
    out.emplace_back(SendSeal{lineage_, work.step, e.block, sums, work.staleness});
    if (resend_at_ == absl::InfiniteDuration()) resend_at_ = now_ + options_.resend_interval;
  }
}

void TaskCore::On(const EvaluationComputed& e, Effects& out) {
  --busy_[e.device];
  if (e.lineage == lineage_ && e.version == version()) {
    const auto it = blocks_.find(e.block);
    if (it != blocks_.end() && !it->second.has_value()) {
      it->second = e.sums;
      out.emplace_back(SendEvaluationPart{lineage_, e.version, e.block, e.sums});
      if (resend_at_ == absl::InfiniteDuration()) resend_at_ = now_ + options_.resend_interval;
    }
  }
  GiveOrders(out);
}

void TaskCore::On(const WeightsWritten& e, Effects& out) {
  if (e.lineage != lineage_ || e.version != version() || !weights_owed_) return;
  weights_written_ = true;
  Report(out);  // with the files, also where the phase does not change
}

void TaskCore::On(const Failed& e, Effects& out) {
  phase_ = TaskPhase::kFailed;
  ended_ = true;
  out.emplace_back(ReportState{phase_, lineage_, generation_, std::max<int64_t>(version(), 0),
                               e.reason, e.message});
  out.emplace_back(Exit{true});
}

void TaskCore::On(const StopOrder&, Effects& out) {
  ended_ = true;
  out.emplace_back(Exit{false});
}

void TaskCore::On(const Tick&, Effects& out) {
  if (now_ >= resend_at_) {
    resend_at_ = now_ + options_.resend_interval;
    for (const Seal& seal : seals_) {
      if (CAPSTAN_MUTANT("sealed_once")) break;
      out.emplace_back(SendSeal{lineage_, seal.step, seal.block, seal.sums, seal.staleness});
    }
    for (const auto& [lane, step] : asked_) {
      out.emplace_back(AskForWeights{lineage_, step, lane});
    }
    for (const auto& entry : blocks_) {
      if (!entry.second.has_value()) continue;
      out.emplace_back(SendEvaluationPart{lineage_, held_->version, entry.first, *entry.second});
    }
  }
  if (now_ >= report_at_) {
    report_at_ = absl::InfiniteDuration();
    if (reported_step_ != version()) Report(out);
  }
}

bool TaskCore::waiting() const {
  for (const Work& work : works_) {
    if (!work.targets.empty() || !work.ordered.empty()) return false;
  }
  for (const auto& entry : blocks_) {
    if (!entry.second.has_value()) return false;
  }
  return true;
}

void TaskCore::UpdatePhase(Effects& out) {
  TaskPhase phase = phase_;
  if (!held_.has_value()) {
    // A task that took up a new lineage has run before; it goes on from the next complete version.
    phase = phase_ == TaskPhase::kFinished ? TaskPhase::kRunning : phase_;
  } else if (held_->stop && waiting() && weights_owed_ == weights_written_) {
    phase = TaskPhase::kFinished;
  } else {
    phase = TaskPhase::kRunning;
  }
  if (phase == phase_) return;
  phase_ = phase;
  Report(out);
}

void TaskCore::Report(Effects& out) {
  reported_step_ = version();
  out.emplace_back(
      ReportState{phase_, lineage_, generation_, std::max<int64_t>(version(), 0), "", ""});
}

std::string TaskCore::Waiting() const {
  if (lineage_ == 0) return "waits for a view";
  if (!held_.has_value()) return absl::StrCat("lineage ", lineage_, ": waits for weights");
  const std::string at = absl::StrCat("step ", held_->version, ": ");
  std::vector<int32_t> lanes;
  for (const Work& work : works_) {
    for (const std::vector<LaneBlock>* blocks : {&work.targets, &work.ordered}) {
      for (const LaneBlock& block : *blocks) {
        for (int32_t lane = block.first_lane; lane < block.first_lane + block.lane_count; ++lane) {
          if (lane < work.tree.lane_count() && work.tree.HasLane(lane)) lanes.push_back(lane);
        }
      }
    }
  }
  std::sort(lanes.begin(), lanes.end());
  if (!lanes.empty()) return absl::StrCat(at, "computes lanes ", absl::StrJoin(lanes, ","));
  int64_t blocks = 0;
  for (const auto& entry : blocks_) blocks += entry.second.has_value() ? 0 : 1;
  if (blocks > 0) return absl::StrCat(at, "evaluates ", blocks, " blocks");
  if (held_->stop) return absl::StrCat(at, "the last version is here");
  if (!asked_.empty()) {
    return absl::StrCat(at, "lane ", asked_.begin()->first,
                        " waits for weights that have more steps of the slower lanes");
  }
  if (options_.asynchronous) return absl::StrCat(at, "all is pushed, waits for the shards");
  return absl::StrCat(at, "all is pushed, waits for version ", held_->version + 1);
}

}  // namespace capstan::exchange::task
