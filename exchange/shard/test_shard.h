// A ShardCore with two workers, for the tests of this folder.
#ifndef CAPSTAN_EXCHANGE_SHARD_TEST_SHARD_H_
#define CAPSTAN_EXCHANGE_SHARD_TEST_SHARD_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "exchange/shard/shard_core.h"
#include "gtest/gtest.h"

namespace capstan::exchange::shard {

inline constexpr StreamId kW0 = 10;       // DATA of rank 0
inline constexpr StreamId kW1 = 11;       // DATA of rank 1
inline constexpr StreamId kControl = 12;  // CONTROL of rank 0
inline constexpr StreamId kShard1 = 13;   // SHARD of shard 1

// A model of 3 chunks of 4096 floats: two weights whose slots fill them. Two lanes, two workers, 8
// samples in batches of 4: two steps an epoch. One evaluation block of one sample per lane.
inline ShardPlan Plan(int32_t shard, int64_t total_steps = 4) {
  training::TensorSpec weight;
  weight.name = "fc.weight";
  weight.shape = {3, 4096};
  weight.fan_in = weight.fan_out = 1;
  training::SamplePlanOptions samples;
  samples.dataset_size = 8;
  samples.global_batch = 4;
  samples.lanes = 2;
  training::ScheduleOptions schedule;
  schedule.learning_rate = 0.5;
  return ShardPlan{.job_id = "j1",
                   .spec_digest = std::string(32, 'd'),
                   .shard = shard,
                   .total_steps = total_steps,
                   .evaluate_every_steps = 2,
                   .layout = *training::FlatLayout::Create({weight}, /*chunk_floats=*/4096),
                   .samples = *training::SamplePlan::Create(samples),
                   .evaluation = *training::EvalPlan::Create(2, 2),
                   .schedule = *training::Schedule::Create(schedule, 2, total_steps)};
}

template <typename T>
std::vector<T> All(const Effects& effects) {
  std::vector<T> found;
  for (const Effect& effect : effects) {
    if (std::holds_alternative<T>(effect)) found.push_back(std::get<T>(effect));
  }
  return found;
}

template <typename T>
int IndexOf(const Effects& effects) {
  for (size_t i = 0; i < effects.size(); ++i) {
    if (std::holds_alternative<T>(effects[i])) return static_cast<int>(i);
  }
  return -1;
}

inline absl::StatusCode ClosedWith(const Effects& effects, StreamId stream) {
  for (const CloseStream& close : All<CloseStream>(effects)) {
    if (close.stream == stream) return close.status.code();
  }
  return absl::StatusCode::kOk;  // it was not closed
}

// One shard; 2 shards of which it is the lead or the second: its run is chunk 0, or chunks 1 and 2.
class ShardCoreTest : public testing::Test {
 protected:
  void Make(int32_t shard, int32_t num_shards, int64_t total_steps = 4) {
    core_.emplace(Plan(shard, total_steps));
    num_shards_ = num_shards;
    run_ = num_shards == 1 ? training::ChunkRun{0, 3}
                           : (shard == 0 ? training::ChunkRun{0, 1} : training::ChunkRun{1, 2});
  }
  Effects Do(const Event& event) { return core_->Step(event, now_); }
  Effects Start(int64_t lineage) {
    return Do(StartLineage{.lineage = lineage,
                           .generation = lineage,
                           .num_shards = num_shards_,
                           .run = run_,
                           .workers = {0, 1},
                           .lane_owners = {0, 1}});
  }
  Effects Load(int64_t lineage, int64_t version = 0) {
    return Do(BaseLoaded{.lineage = lineage, .version = version});
  }
  Effects Hello(StreamId stream, v1::StreamKind kind, int32_t index, int64_t have = -1,
                int64_t lineage = 1) {
    return Do(StreamOpened{stream, kind, std::string(32, 'd'), lineage, index, have});
  }
  // Ready in lineage 1 with a DATA stream of each worker.
  void Ready(int32_t shard = 0, int32_t num_shards = 1, int64_t total_steps = 4) {
    Make(shard, num_shards, total_steps);
    Start(1);
    Load(1);
    Hello(kW0, v1::STREAM_KIND_DATA, 0);
    Hello(kW1, v1::STREAM_KIND_DATA, 1);
  }
  FrameArrived Frame(StreamId stream, int64_t step, training::LaneBlock block) {
    FrameArrived frame;
    frame.stream = stream;
    frame.step = step;
    frame.block = block;
    frame.first_chunk = run_.first_chunk;
    frame.chunk_count = run_.chunk_count;
    frame.payload_bytes = run_.chunk_count * 4096 * 4;
    frame.intact.assign(run_.chunk_count, true);
    frame.payload = 77;
    return frame;
  }
  Effects Roots(bool finite = true) {
    return Do(RootsChecked{core_->lineage(), core_->version(), {finite, {}}});
  }
  Effects Seal(StreamId stream, int64_t step, training::LaneBlock block = {0, 2}) {
    return Do(SealArrived{stream, step, block, {2 * block.lane_count, 8.0, 1}});
  }
  void Evaluate(int64_t version) {
    Do(EvaluationArrived{kW0, version, 0, {1, 1.0, 1}});
    Do(EvaluationArrived{kW0, version, 1, {1, 1.0, 0}});
  }
  // A whole step on one shard; the effects of the event that decided it.
  Effects RunStep() {
    const int64_t step = core_->version();
    Do(Frame(kW0, step, {0, 2}));
    Roots();
    return Seal(kW0, step);
  }

  std::optional<ShardCore> core_;
  int32_t num_shards_ = 1;
  training::ChunkRun run_;
  absl::Duration now_ = absl::ZeroDuration();
};

}  // namespace capstan::exchange::shard

#endif  // CAPSTAN_EXCHANGE_SHARD_TEST_SHARD_H_
