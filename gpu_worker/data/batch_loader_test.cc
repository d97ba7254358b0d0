#include "gpu_worker/data/batch_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "gpu_worker/data/failure.h"

namespace capstan::data {
namespace {

using ::testing::ElementsAre;

constexpr absl::Duration kLimit = absl::Seconds(60);

// Sample i in epoch e is the one pixel i + e / 8 with label i % 10. Counts its reads, and blocks
// them while the gate is shut.
class CountingDataset final : public Dataset {
 public:
  CountingDataset() { info_ = {1000, 1, 1, 1, 10}; }
  const DatasetInfo& info() const override { return info_; }

  absl::Status Read(absl::Span<const int64_t> indices, int64_t epoch, float* images,
                    int32_t* labels) const override {
    MutexLock lock(mu_);
    ++inside_;
    changed_.NotifyAll();
    while (!open_) changed_.Wait(mu_);
    --inside_;
    ++reads_;
    changed_.NotifyAll();
    if (no_memory_) throw std::bad_alloc();
    for (size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] >= info_.count) return absl::InvalidArgumentError("index");
      images[i] = static_cast<float>(indices[i]) + static_cast<float>(epoch) / 8;
      labels[i] = static_cast<int32_t>(indices[i] % 10);
    }
    return absl::OkStatus();
  }

  void WaitForReads(int64_t count) const {
    MutexLock lock(mu_);
    while (reads_ < count) changed_.Wait(mu_);
  }
  void WaitForReaders(int count) const {
    MutexLock lock(mu_);
    while (inside_ < count) changed_.Wait(mu_);
  }
  int64_t reads() const {
    MutexLock lock(mu_);
    return reads_;
  }
  void SetGate(bool open) {
    MutexLock lock(mu_);
    open_ = open;
    changed_.NotifyAll();
  }
  void SetNoMemory(bool no_memory) {
    MutexLock lock(mu_);
    no_memory_ = no_memory;
  }

 private:
  DatasetInfo info_;
  mutable Mutex mu_;
  mutable CondVar changed_;
  mutable int64_t reads_ ABSL_GUARDED_BY(mu_) = 0;
  mutable int inside_ ABSL_GUARDED_BY(mu_) = 0;
  bool open_ ABSL_GUARDED_BY(mu_) = true;
  bool no_memory_ ABSL_GUARDED_BY(mu_) = false;
};

// Lane 0 gets two samples of a step, lane 1 one.
std::vector<std::vector<int64_t>> TwoLanes(int64_t step) {
  return {{step * 10, step * 10 + 1}, {step * 10 + 2}};
}

TEST(BatchLoaderTest, GivesBytesWhereTheyAreWanted) {
  DatasetOptions options;
  options.format = Format::kSyntheticDigits;
  options.train_samples = 100;
  options.transforms = {RandomFlip{}};
  const auto set = OpenDataset(options, Split::kTrain);
  ASSERT_TRUE(set.ok()) << set.status();
  BatchLoader loader(**set, {.first_step = 3, .end_step = 5, .steps_per_epoch = 4, .bytes = true},
                     TwoLanes);
  for (const int64_t step : {3, 4}) {
    const absl::StatusOr<StepBatch> batch = loader.Next(kLimit);
    ASSERT_TRUE(batch.ok()) << batch.status();
    const LaneBatch& lane = batch->lanes[0];
    EXPECT_TRUE(lane.images.empty());
    std::vector<uint8_t> want(2 * 784);
    std::vector<int32_t> labels(2);
    ASSERT_TRUE(
        (*set)->ReadBytes({step * 10, step * 10 + 1}, step / 4, want.data(), labels.data()).ok());
    EXPECT_EQ(lane.bytes, want);
    EXPECT_EQ(lane.labels, labels);
  }
}

TEST(BatchLoaderTest, GivesTheStepsInOrderAndEnds) {
  const CountingDataset set;
  BatchLoader loader(set, {.first_step = 3, .end_step = 5, .read_ahead = 2}, TwoLanes);
  for (const int64_t step : {3, 4}) {
    absl::StatusOr<StepBatch> batch = loader.Next(kLimit);
    ASSERT_TRUE(batch.ok()) << batch.status();
    EXPECT_EQ(batch->step, step);
    ASSERT_EQ(batch->lanes.size(), 2u);
    EXPECT_THAT(batch->lanes[0].indices, ElementsAre(step * 10, step * 10 + 1));
    EXPECT_THAT(batch->lanes[0].images, ElementsAre(step * 10.0f, step * 10.0f + 1.0f));
    EXPECT_THAT(batch->lanes[1].labels, ElementsAre(2));
    loader.Recycle(*std::move(batch));
  }
  EXPECT_EQ(loader.Next(kLimit).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(BatchLoaderTest, EachStepIsReadInItsEpoch) {
  const CountingDataset set;
  BatchLoader loader(set, {.first_step = 2, .end_step = 7, .steps_per_epoch = 3}, TwoLanes);
  for (const auto& [step, epoch] : {std::pair(2, 0), {3, 1}, {4, 1}, {5, 1}, {6, 2}}) {
    const absl::StatusOr<StepBatch> batch = loader.Next(kLimit);
    ASSERT_TRUE(batch.ok()) << batch.status();
    EXPECT_EQ(batch->lanes[1].images[0], step * 10 + 2 + epoch / 8.0f);
  }
}

// Each of three threads holds a step while the gate is shut. The steps still arrive in order.
TEST(BatchLoaderTest, ManyThreadsGiveTheSameStepsInOrder) {
  CountingDataset set;
  set.SetGate(false);
  std::vector<int64_t> asked;  // only one reader writes at a time
  const auto lists = [&asked](int64_t step) {
    asked.push_back(step);
    return TwoLanes(step);
  };
  BatchLoader loader(set, {.first_step = 0, .end_step = 60, .threads = 3, .read_ahead = 3}, lists);
  set.WaitForReaders(3);
  EXPECT_EQ(loader.queued(), 0);
  set.SetGate(true);
  for (int64_t step = 0; step < 60; ++step) {
    absl::StatusOr<StepBatch> batch = loader.Next(kLimit);
    ASSERT_TRUE(batch.ok()) << batch.status();
    EXPECT_EQ(batch->step, step);
    ASSERT_EQ(batch->lanes.size(), 2u);
    EXPECT_THAT(batch->lanes[0].images, ElementsAre(step * 10.0f, step * 10.0f + 1.0f));
    EXPECT_THAT(batch->lanes[1].indices, ElementsAre(step * 10 + 2));
    loader.Recycle(*std::move(batch));
  }
  EXPECT_EQ(loader.Next(kLimit).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(set.reads(), 120);
  for (int64_t step = 0; step < 60; ++step) EXPECT_EQ(asked[step], step);
}

// The steps before it still arrive, whichever thread is done first.
TEST(BatchLoaderTest, AmongManyThreadsAnErrorComesAtItsStep) {
  for (int round = 0; round < 20; ++round) {
    const CountingDataset set;
    BatchLoader loader(set, {.first_step = 96, .end_step = 200, .threads = 4, .read_ahead = 4},
                       TwoLanes);
    for (int64_t step = 96; step < 100; ++step) ASSERT_EQ(loader.Next(kLimit)->step, step);
    EXPECT_EQ(loader.Next(kLimit).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(loader.Next(kLimit).status().code(), absl::StatusCode::kInvalidArgument);
    loader.Restart(5, TwoLanes);
    for (int64_t step = 5; step < 9; ++step) ASSERT_EQ(loader.Next(kLimit)->step, step);
  }
}

TEST(BatchLoaderTest, ReadsAheadAsFarAsAskedAndNoFurther) {
  const CountingDataset set;
  BatchLoader loader(set, {.first_step = 0, .end_step = 100, .read_ahead = 3}, TwoLanes);
  set.WaitForReads(6);  // 3 steps of two lanes, before the first Next
  ASSERT_TRUE(loader.Next(kLimit).ok());
  set.WaitForReads(8);
  // The reader cannot be further, because the queue is full with steps 1 to 3.
  EXPECT_EQ(set.reads(), 8);
}

TEST(BatchLoaderTest, RestartDropsWhatWasReadAhead) {
  CountingDataset set;
  BatchLoader loader(set, {.first_step = 0, .end_step = 100, .read_ahead = 2}, TwoLanes);
  set.WaitForReads(4);
  ASSERT_TRUE(loader.Next(kLimit).ok());
  // Starts again from step 1 with one more lane, whether or not the reader is in step 2 by now.
  loader.Restart(1, [](int64_t step) {
    return std::vector<std::vector<int64_t>>{{step}, {}, {step + 500}};
  });
  for (const int64_t step : {1, 2, 3}) {
    const absl::StatusOr<StepBatch> batch = loader.Next(kLimit);
    ASSERT_TRUE(batch.ok()) << batch.status();
    EXPECT_EQ(batch->step, step);
    ASSERT_EQ(batch->lanes.size(), 3u);
    EXPECT_THAT(batch->lanes[0].images, ElementsAre(static_cast<float>(step)));
    EXPECT_TRUE(batch->lanes[1].labels.empty());
    EXPECT_THAT(batch->lanes[2].indices, ElementsAre(step + 500));
  }
}

TEST(BatchLoaderTest, AnErrorComesAtItsStepAndStaysUntilRestart) {
  const CountingDataset set;
  BatchLoader loader(set, {.first_step = 98, .end_step = 200, .read_ahead = 2}, TwoLanes);
  EXPECT_TRUE(loader.Next(kLimit).ok());
  EXPECT_TRUE(loader.Next(kLimit).ok());
  EXPECT_EQ(loader.Next(kLimit).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(loader.Next(kLimit).status().code(), absl::StatusCode::kInvalidArgument);
  loader.Restart(5, TwoLanes);
  const absl::StatusOr<StepBatch> batch = loader.Next(kLimit);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->step, 5);
}

// The reason names the host, whatever the device is, because the job is worth another try.
TEST(BatchLoaderTest, WantOfMemoryIsTheStepsError) {
  CountingDataset set;
  set.SetNoMemory(true);
  BatchLoader loader(set, {.first_step = 0, .end_step = 9, .read_ahead = 1}, TwoLanes);
  const absl::Status status = loader.Next(kLimit).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(FailureReason(status), "HostOutOfMemory");
  EXPECT_EQ(FailureReason(InFront("step 0", status)), "HostOutOfMemory");
  set.SetNoMemory(false);
  loader.Restart(0, TwoLanes);
  EXPECT_TRUE(loader.Next(kLimit).ok());
}

TEST(BatchLoaderTest, WaitsNoLongerThanTold) {
  CountingDataset set;
  set.SetGate(false);
  BatchLoader loader(set, {.first_step = 0, .end_step = 9, .read_ahead = 1}, TwoLanes);
  EXPECT_EQ(loader.Next(absl::Milliseconds(1)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  set.SetGate(true);
  EXPECT_TRUE(loader.Next(kLimit).ok());
}

}  // namespace
}  // namespace capstan::data
