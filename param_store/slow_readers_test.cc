// Workers that take weights more slowly than they are made, over real connections.
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "param_store/test_shards.h"
#include "training/chunks/shard_memory.h"

namespace capstan::param_store {
namespace {

using ::testing::HasSubstr;

// Worker 0 owns all lanes; the others own none and read when they are told to.
class SlowReadersTest : public Shards {
 protected:
  void Begin() {
    StartAll(1);
    fast_ = &Open(0, v1::STREAM_KIND_DATA, 0);
    node::v1::ConnectResponse order;
    view_.set_generation(2);
    view_.clear_lane_owners();
    for (int lane = 0; lane < kLanes; ++lane) view_.add_lane_owners(0);
    for (int rank = 2; rank < ranks_; ++rank) view_.add_workers()->set_rank(rank);
    *order.mutable_view_change()->mutable_view() = view_;
    shards_[0].store->OnMessage(order);
    ASSERT_TRUE(WaitFor(0, [](const node::v1::ShardState& s) { return s.generation() == 2; }));
    got_.resize(layout_->total_floats());
    Pull(*fast_, 0, 0, got_);
  }
  // On a connection whose window stays at 64 KiB: no version fits.
  Call& OpenSlow(int rank) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    auto stub = v1::ParamStoreService::NewStub(grpc::CreateCustomChannel(
        view_.shards(0).address(), grpc::InsecureChannelCredentials(), arguments));
    std::swap(shards_[0].stub, stub);
    Call& call = Open(0, v1::STREAM_KIND_DATA, rank);
    std::swap(shards_[0].stub, stub);
    return call;
  }
  void Step(int64_t step) {
    Push(*fast_, 0, step, {0, 4}, Gradient(step, 0, layout_->total_floats()));
    Seal(*fast_, step, {0, 4});
    for (int block = 0; block < 4 && evaluate_; ++block) {  // 3, 3, 2 and 2 samples
      v1::ExchangeRequest request;
      v1::EvaluationPart& part = *request.mutable_evaluation();
      part.set_version(step);
      part.set_block(block);
      part.set_samples(block < 2 ? 3 : 2);
      ASSERT_TRUE(Write(*fast_, request));
    }
    Pull(*fast_, 0, step + 1, got_, nullptr, &evaluate_);
  }

  int64_t Resident(int64_t lineage, int64_t version) {
    EXPECT_TRUE(WaitFor(0, [=](const node::v1::ShardState& s) {
      return s.lineage() == lineage && s.ready() && s.version() == version;
    }));
    return State(0).load().resident_bytes();
  }

  int ranks_ = 5;
  Call* fast_ = nullptr;
  std::vector<float> got_;  // the newest version
  bool evaluate_ = false;   // it is evaluated
};

// What it has begun it gets to the end, however many versions there are by then.
TEST_F(SlowReadersTest, ASlowReaderFinishesTheVersionItIsInside) {
  Begin();
  const std::vector<float> first = got_;
  Call& slow = OpenSlow(1);
  for (int64_t s = 0; s < kSteps - 1; ++s) Step(s);
  EXPECT_TRUE(WaitFor(0, [](const node::v1::ShardState& s) {
    return s.lead().slow_readers_size() == 1 && s.lead().slow_readers(0).rank() == 1 &&
           s.lead().slow_readers(0).missed_versions() == kSteps - 1;
  }));
  EXPECT_THAT(registry_.Scrape(), HasSubstr("capstan_ps_slow_readers{job_id=\"t-1\"} 1"));
  std::vector<float> late(got_.size());
  Pull(slow, 0, 0, late);  // of which it had taken a part when step 0 was decided
  EXPECT_EQ(std::memcmp(late.data(), first.data(), 4 * late.size()), 0);
  // The next decision finds that nobody reads it any more: the newest comes.
  Step(kSteps - 1);
  Pull(slow, 0, kSteps, late);
  EXPECT_EQ(std::memcmp(late.data(), got_.data(), 4 * late.size()), 0);
}

// Each keeps a buffer by the frame that is on its way. There are no more than a few of them, and who
// has to go is told why.
TEST_F(SlowReadersTest, AReaderThatIsClosedIsToldWhy) {
  Begin();
  std::vector<Call*> slow = {&OpenSlow(1)};
  for (int64_t s = 0; s < kSteps; ++s) {
    Step(s);
    if (s < 3) slow.push_back(&OpenSlow(static_cast<int>(2 + s)));
  }
  for (Call* const call : slow) {
    v1::ExchangeResponse response;
    while (call->stream->Read(&response)) {
    }
    const grpc::Status status = call->stream->Finish();
    call->stream.reset();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr("the stream is read too slowly"));
  }
}

// At each step another task stops reading, files are written, and then the job goes back to its
// beginning. Without an end to what streams keep it would hold a buffer for each.
TEST_F(SlowReadersTest, AShardHoldsNoMoreThanThePlanSays) {
  checkpoint_every_ = 2;
  steps_ = 20;
  ranks_ = 20;
  Begin();
  const int64_t bound = training::MostShardBytes(layout_->total_floats(), 1, kLanes);
  EXPECT_THAT(spec::PlanText(resolved_),
              HasSubstr(absl::StrFormat("memory of a shard at most %.1f MiB\n",
                                        std::ceil(bound / 1048576.0 * 10) / 10)));
  for (int s = 0; s < 16; ++s) {
    OpenSlow(1 + s);
    Step(s);
    if (s < 8 || s % 4 != 3) continue;
    EXPECT_LE(Resident(1, s + 1), bound) << s;
  }
  EXPECT_GT(Resident(1, 16), bound / 3);  // it was put to the test
  lineage_ = 2;
  view_.set_lineage(2);
  view_.set_generation(3);
  Shards::Begin(0);
  EXPECT_LE(Resident(2, 0), bound);
  fast_ = &Open(0, v1::STREAM_KIND_DATA, 0);
  Pull(*fast_, 0, 0, got_);
  evaluate_ = false;
  for (int s = 0; s < 4; ++s) {
    OpenSlow(1 + s);
    Step(s);
  }
  EXPECT_LE(Resident(2, 4), bound);
}

}  // namespace
}  // namespace capstan::param_store
