// The order in which a group enqueues, written down by streams that do nothing. What the order
// computes: plugin/plugin_group_test.cc.
#include "gpu_worker/engine/cuda/group.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::engine::cuda {
namespace {

using Calls = std::vector<std::string>;

const char* NameOfStream(StreamKind stream) {
  return stream == StreamKind::kCompute ? "compute" : "fold";
}

// One bucket; all work is done at once.
class WrittenStreams : public GroupStreams {
 public:
  WrittenStreams(int count, Calls* calls) : count_(count), calls_(*calls), node_(64) {}

  int devices() const override { return count_; }
  std::string NameOf(int device) const override { return absl::StrCat("GPU ", device); }
  bool reduces() const override { return false; }
  absl::Status Reserve(const std::vector<int64_t>&, int, int) override { return absl::OkStatus(); }
  const float* node(int) const override { return node_.data(); }
  float* host_weights() override { return node_.data(); }
  void MakeEvents(int) override {}
  absl::Status Record(int, int device, StreamKind stream) override {
    return Write("record", device, NameOfStream(stream));
  }
  absl::Status Wait(int, int device, StreamKind stream) override {
    return Write("wait", device, NameOfStream(stream));
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
  absl::Status Reduce(const std::vector<Slice>&, int, bool) override { return absl::OkStatus(); }
  absl::Status PushWeights(int, int64_t, int64_t) override { return absl::OkStatus(); }
  absl::Status PullWeights(int, int, int64_t, int64_t) override { return absl::OkStatus(); }
  absl::Status UseWeights(int) override { return absl::OkStatus(); }
  absl::Status CommunicatorStatus() override { return absl::OkStatus(); }
  void Abandon() override {}

 private:
  absl::Status Write(const char* what, int device, const char* stream) {
    calls_.push_back(absl::StrCat(what, " ", device, " ", stream));
    return absl::OkStatus();
  }

  const int count_;
  Calls& calls_;
  std::vector<float> node_;
};

// The second lane's batch goes to the card while the first one's gradient is still being added; its
// kernels wait until that has been read.
TEST(GroupTest, ALaneWaitsForTheFoldBehindItsCopy) {
  const int64_t ends[] = {64};
  capstan_group_request request = {};
  request.bucket_ends = ends;
  request.bucket_count = 1;
  request.timeout_seconds = 1;
  Calls calls;
  Group group(std::make_unique<WrittenStreams>(/*count=*/1, &calls), request);
  capstan_batch lanes[2] = {};
  lanes[0].count = lanes[1].count = 1;
  const capstan_fold_op ops[] = {
      {CAPSTAN_FOLD_TAKE, 0, 0, 0, 0, 0},
      {CAPSTAN_FOLD_ADD_LANE, 1, 0, 0, 0, 0},
      {CAPSTAN_FOLD_EMIT, 1, 0, 0, 0, 0},
  };
  std::vector<float> sum(64);
  float* const nodes[] = {sum.data()};
  capstan_result results[2] = {};
  capstan_group_step step = {};
  step.lanes = lanes;
  step.round_count = 2;
  step.ops = ops;
  step.op_count = 3;
  step.slot_count = step.node_count = 1;
  step.nodes = nodes;
  step.results = results;
  const absl::Status status = group.Compute(step);
  ASSERT_TRUE(status.ok()) << status;
  const auto second = std::find(calls.rbegin(), calls.rend(), "copy in 0 compute").base();
  EXPECT_THAT(Calls(calls.begin(), second),
              ::testing::ElementsAre("copy in 0 compute", "lane 0 compute", "record 0 compute",
                                     "record 0 compute", "wait 0 fold", "take 0 fold",
                                     "record 0 fold", "copy in 0 compute"));
  EXPECT_THAT(Calls(second, calls.end()),
              ::testing::ElementsAre("wait 0 compute", "lane 0 compute", "record 0 compute",
                                     "record 0 compute", "wait 0 fold", "add 0 fold", "emit 0 fold",
                                     "record 0 fold", "record 0 fold"));
}

}  // namespace
}  // namespace capstan::engine::cuda
