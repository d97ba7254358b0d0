// Tests the order in which a group enqueues, recorded by streams that do nothing.
// plugin/plugin_group_test.cc tests the results.
#include "gpu_worker/engine/cuda/group.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::engine::cuda {
namespace {

using Calls = std::vector<std::string>;

const char* NameOfStream(DeviceStream stream) {
  return stream == DeviceStream::kCompute ? "compute" : "fold";
}

// One bucket; all work is done at once. A wait is recorded with the work that it waits for, i.e.
// the last work before the event's record.
class WrittenStreams : public GroupStreams {
 public:
  WrittenStreams(int count, Calls* calls) : count_(count), calls_(*calls), block_(192) {}

  int devices() const override { return count_; }
  std::string NameOf(int device) const override { return absl::StrCat("GPU ", device); }
  bool reduces() const override { return false; }
  absl::Status Reserve(const std::vector<int64_t>&, const GroupMemory&) override {
    return absl::OkStatus();
  }
  int64_t DeviceBytes(int) const override { return 0; }
  float* block(int) override { return block_.data(); }
  float* host_weights() override { return block_.data(); }
  float* host_state() override { return block_.data(); }
  void MakeEvents(int) override {}
  absl::Status Record(int event, int device, DeviceStream stream) override {
    behind_[event] = last_[NameOfStream(stream) + std::to_string(device)];
    return absl::OkStatus();
  }
  absl::Status Wait(int event, int device, DeviceStream stream) override {
    const auto behind = behind_.find(event);
    // Nothing to wait for: the event was never recorded, or before any work.
    if (behind == behind_.end() || behind->second.empty()) return absl::OkStatus();
    calls_.push_back(
        absl::StrCat("wait ", device, " ", NameOfStream(stream), " for ", behind->second));
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Done(int) override { return true; }
  absl::Status EnqueueLane(int device, const capstan_batch&, double,
                           const LaneHooks& hooks) override {
    static_cast<void>(Write("copy in", device, "compute"));
    if (absl::Status status = hooks.before_compute(); !status.ok()) return status;
    static_cast<void>(Write("lane", device, "compute"));
    return hooks.on_bucket(0);
  }
  capstan_result Sums(int) const override { return {}; }
  absl::Status Take(int device, int, const Slice&, int) override {
    return Write("take", device, "fold");
  }
  absl::Status AddLane(int device, int, const Slice&, int) override {
    return Write("add", device, "fold");
  }
  absl::Status AddSlot(int, const Slice&, int, int) override { return absl::OkStatus(); }
  absl::Status Emit(int device, const Slice&, int, int) override {
    return Write("emit", device, "fold");
  }
  absl::Status CheckFinite(int device, const Slice&, int) override {
    return Write("check", device, "fold");
  }
  bool TakeFinite(int) override { return true; }
  absl::Status Reduce(const std::vector<Slice>&, int, bool) override { return absl::OkStatus(); }
  absl::Status PushWeights(int, const Slice&) override { return absl::OkStatus(); }
  absl::Status PullWeights(int device, int from, const Slice&) override {
    return Write(absl::StrCat("pull of ", from, " by").c_str(), device, "fold");
  }
  absl::Status EmitWeights(int, const Slice&) override { return absl::OkStatus(); }
  absl::Status PushState(int, const Slice&) override { return absl::OkStatus(); }
  absl::Status EmitState(int, const Slice&) override { return absl::OkStatus(); }
  absl::Status Update(int device, const std::vector<UpdateSegment>& segments, int) override {
    segments_[device] = segments;
    return Write("update", device, "fold");
  }
  absl::Status UseWeights(int device) override { return Write("use", device, "compute"); }
  absl::Status CommunicatorStatus() override { return absl::OkStatus(); }
  void Abandon() override {}

  // Of the last Update of a device.
  const std::vector<UpdateSegment>& segments(int device) { return segments_[device]; }

 private:
  absl::Status Write(const char* what, int device, const char* stream) {
    calls_.push_back(absl::StrCat(what, " ", device, " ", stream));
    last_[stream + std::to_string(device)] = calls_.back();
    return absl::OkStatus();
  }

  const int count_;
  Calls& calls_;
  std::vector<float> block_;
  std::map<std::string, std::string> last_;  // work by stream and device
  std::map<int, std::string> behind_;        // by event
  std::map<int, std::vector<UpdateSegment>> segments_;
};

capstan_group_request OneBucket() {
  static constexpr int64_t kEnds[] = {64};
  capstan_group_request request = {};
  request.bucket_ends = kEnds;
  request.bucket_count = 1;
  request.timeout_seconds = 1;
  return request;
}

constexpr capstan_update_part kWhole = {64, 1, 0, CAPSTAN_RULE_SGD, 0, {}};

// A step of up to two lanes in one block. It contains pointers into itself.
struct OneNode {
  explicit OneNode(std::vector<capstan_fold_op> fold) : ops(std::move(fold)) {
    step.lanes = lanes;
    step.ops = ops.data();
    step.op_count = static_cast<int32_t>(ops.size());
    step.slot_count = step.block_count = 1;
    step.results = results;
  }
  OneNode(const OneNode&) = delete;
  OneNode& operator=(const OneNode&) = delete;

  std::vector<capstan_fold_op> ops;
  capstan_batch lanes[2] = {};
  capstan_result results[2] = {};
  capstan_group_step step = {};
};

// The second lane's batch goes to the card while the first one's gradient is still being added. Its
// kernels wait until that gradient has been read.
TEST(GroupTest, ALaneWaitsForTheFoldBehindItsCopy) {
  Calls calls;
  Group group(std::make_unique<WrittenStreams>(/*count=*/1, &calls), OneBucket());
  std::vector<float> sum(64);
  float* const blocks[] = {sum.data()};
  OneNode one({{CAPSTAN_FOLD_TAKE, 0, 0, 0, 0, 0},
               {CAPSTAN_FOLD_ADD_LANE, 1, 0, 0, 0, 0},
               {CAPSTAN_FOLD_EMIT, 1, 0, 0, 0, 0}});
  one.lanes[0].count = one.lanes[1].count = 1;
  one.step.round_count = 2;
  one.step.blocks = blocks;
  const absl::Status status = group.Compute(one.step);
  ASSERT_TRUE(status.ok()) << status;
  const auto second = std::find(calls.rbegin(), calls.rend(), "copy in 0 compute").base();
  EXPECT_THAT(
      Calls(calls.begin(), second),
      ::testing::ElementsAre("copy in 0 compute", "lane 0 compute",
                             "wait 0 fold for lane 0 compute", "take 0 fold", "copy in 0 compute"));
  EXPECT_THAT(
      Calls(second, calls.end()),
      ::testing::ElementsAre("wait 0 compute for take 0 fold", "lane 0 compute",
                             "wait 0 fold for lane 0 compute", "add 0 fold", "emit 0 fold"));
}

// Each device updates its slice and copies the other's after that one's update. Lanes see complete
// weights.
TEST(GroupTest, WeightsSpreadBehindTheUpdate) {
  Calls calls;
  Group group(std::make_unique<WrittenStreams>(/*count=*/2, &calls), OneBucket());
  int32_t finite = 0;
  OneNode one({{CAPSTAN_FOLD_TAKE, 0, 0, 0, 0, 0}, {CAPSTAN_FOLD_EMIT, 0, 0, 0, 0, 0}});
  one.lanes[0].count = 1;
  one.step.round_count = 1;
  one.step.finite = &finite;
  ASSERT_TRUE(group.Compute(one.step).ok());
  EXPECT_EQ(finite, 1);
  EXPECT_THAT(calls, ::testing::IsSupersetOf({"check 0 fold", "check 1 fold"}));
  for (int again = 0; again < 2; ++again) {
    calls.clear();
    ASSERT_TRUE(group.Update({&kWhole, 1}).ok());
    ASSERT_TRUE(group.Compute(one.step).ok());
    const bool first = again == 0;
    EXPECT_THAT(
        calls,
        ::testing::ElementsAreArray(
            first ? Calls{// Each device writes its slice once its lanes have read it.
                          "wait 0 fold for lane 0 compute", "update 0 fold", "update 1 fold",
                          // The other slice comes after its update.
                          "wait 0 fold for update 1 fold", "pull of 1 by 0 fold",
                          "wait 1 fold for update 0 fold", "pull of 0 by 1 fold",
                          // A lane waits after the copy of its batch, until all slices are there.
                          "copy in 0 compute", "wait 0 compute for pull of 1 by 0 fold",
                          "use 0 compute", "lane 0 compute", "wait 0 fold for lane 0 compute",
                          "wait 1 fold for lane 0 compute", "take 0 fold", "take 1 fold",
                          "check 0 fold", "check 1 fold",
                          // Has no lane, but still gets ready.
                          "wait 1 compute for pull of 0 by 1 fold", "use 1 compute"}
                  : Calls{// Also waits until the neighbours have taken the last contents.
                          "wait 0 fold for lane 0 compute",
                          "wait 0 fold for pull of 1 by 0 fold",
                          "wait 0 fold for pull of 0 by 1 fold", "update 0 fold",
                          "wait 1 fold for use 1 compute",
                          "wait 1 fold for pull of 1 by 0 fold",
                          "wait 1 fold for pull of 0 by 1 fold", "update 1 fold",
                          "wait 0 fold for update 1 fold", "pull of 1 by 0 fold",
                          "wait 1 fold for update 0 fold", "pull of 0 by 1 fold",
                          "copy in 0 compute", "wait 0 compute for pull of 1 by 0 fold",
                          "use 0 compute", "lane 0 compute", "wait 0 fold for lane 0 compute",
                          "wait 1 fold for lane 0 compute", "take 0 fold", "take 1 fold",
                          "check 0 fold", "check 1 fold",
                          "wait 1 compute for pull of 0 by 1 fold", "use 1 compute"}));
  }
}

// A device updates the parts of its slices: as few runs as possible, because each launch has a
// limited number of them.
TEST(GroupTest, ADeviceUpdatesTheRunsOfItsSlices) {
  static constexpr int64_t kEnds[] = {64, 128, 192};
  capstan_group_request request = OneBucket();
  request.bucket_ends = kEnds;
  request.bucket_count = 3;
  const capstan_update_part parts[] = {{80, 0.5f, 2, CAPSTAN_RULE_ADAGRAD, 1, {1, 2, 3}},
                                       {80, 0.25f, 0, CAPSTAN_RULE_KEEP, 0, {}},
                                       {32, 0.25f, 0, CAPSTAN_RULE_STATISTIC, 0, {0.125f}}};
  for (const int count : {1, 2}) {
    Calls calls;
    auto made = std::make_unique<WrittenStreams>(count, &calls);
    WrittenStreams& streams = *made;
    request.state_floats = 1;
    Group group(std::move(made), request);
    const std::vector<float> vector(192);
    const auto keep = [&] {
      int32_t finite = 0;
      OneNode one({{CAPSTAN_FOLD_TAKE, 0, 0, 0, 0, 0}, {CAPSTAN_FOLD_EMIT, 0, 0, 0, 0, 0}});
      one.lanes[0].count = 1;
      one.step.round_count = 1;
      one.step.finite = &finite;
      return group.Compute(one.step);
    };
    ASSERT_TRUE(keep().ok());
    EXPECT_EQ(group.Update({parts, 3}).code(), absl::StatusCode::kFailedPrecondition);
    ASSERT_TRUE(group.LoadWeights(vector.data(), vector.data()).ok());
    ASSERT_TRUE(keep().ok());
    const absl::Status status = group.Update({parts, 3});
    ASSERT_TRUE(status.ok()) << status;
    std::vector<std::string> got;
    for (int d = 0; d < count; ++d) {
      for (const UpdateSegment& s : streams.segments(d)) {
        got.push_back(absl::StrCat(d, ": ", s.offset, " ", s.local, " ", s.size, " ", s.scale, " ",
                                   s.clip, " ", static_cast<int>(s.rule.form), " ",
                                   s.rule.decay ? "decays " : "", s.rule.numbers[0]));
      }
    }
    // Slices of 32 floats on two devices.
    const Calls one = {"0: 0 0 80 0.5 2 10 decays 1", "0: 160 160 32 0.25 0 12 0.125"};
    const Calls two = {"0: 0 0 32 0.5 2 10 decays 1", "0: 64 32 16 0.5 2 10 decays 1",
                       "1: 32 0 32 0.5 2 10 decays 1", "1: 160 64 32 0.25 0 12 0.125"};
    EXPECT_EQ(got, count == 1 ? one : two);
  }
}

}  // namespace
}  // namespace capstan::engine::cuda
