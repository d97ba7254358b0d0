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
#include "services/logging/log.h"
#include "training/chunks/shard_memory.h"

namespace capstan::param_store {
namespace {

using ::testing::AllOf;
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

  // It reads what is still on its way, and then why it is closed.
  static void ExpectClosed(Call& call, const std::string& why) {
    v1::ExchangeResponse response;
    while (call.stream->Read(&response)) {
    }
    const grpc::Status status = call.stream->Finish();
    call.stream.reset();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr(why));
  }
  // As Pull, behind frames of older versions that were on their way.
  void PullNewest(Call& call, int64_t version, std::vector<float>& flat) {
    int32_t chunks = 0;
    v1::ExchangeResponse response;
    while (chunks < runs_[0].chunk_count) {
      ASSERT_TRUE(call.stream->Read(&response)) << call.stream->Finish().error_message();
      ASSERT_TRUE(response.has_weights());
      const v1::WeightFrame& frame = response.weights();
      if (frame.version() < version) continue;
      ASSERT_EQ(frame.version(), version);
      const FlatRange range = layout_->ChunkRange(frame.first_chunk());
      std::memcpy(flat.data() + range.offset, frame.payload().data(), frame.payload().size());
      chunks += frame.crc32c_size();
    }
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
  EXPECT_THAT(registry_.Scrape(),
              AllOf(HasSubstr("capstan_ps_slow_readers{job_id=\"t-1\"} 1\n"),
                    HasSubstr(absl::StrFormat(
                        "capstan_ps_versions_missed_total{job_id=\"t-1\"} %d\n", kSteps - 1))));
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
  for (Call* const call : slow) ExpectClosed(*call, "the stream is read too slowly");
}

// Buffers that came back from closed streams are nobody's: whoever is two versions behind
// later, while another version is held, is not closed for them.
TEST_F(SlowReadersTest, AfterManyBuffersWereNeededASlowReaderStillGetsVersions) {
  steps_ = 10;
  Begin();
  const std::vector<float> first = got_;
  Call& held = OpenSlow(1);
  std::vector<Call*> closed;
  for (int64_t s = 0; s < 5; ++s) {
    Step(s);
    if (s < 3) closed.push_back(&OpenSlow(static_cast<int>(2 + s)));
  }
  for (Call* const call : closed) ExpectClosed(*call, "the stream is read too slowly");
  const int64_t vector_bytes = int64_t{4} * layout_->total_floats();
  ASSERT_TRUE(WaitFor(0, [=](const node::v1::ShardState& s) {  // four of weights, a state, a sum
    return s.load().resident_bytes() <= 6 * vector_bytes;
  }));

  Call& behind = OpenSlow(2);  // inside version 5
  for (int64_t s = 5; s < 9; ++s) Step(s);
  std::vector<float> late(got_.size());
  Pull(held, 0, 0, late);
  EXPECT_EQ(std::memcmp(late.data(), first.data(), 4 * late.size()), 0);
  Step(9);  // the last one, which everybody is sent
  for (Call* const call : {&held, &behind}) {
    PullNewest(*call, 10, late);
    EXPECT_EQ(std::memcmp(late.data(), got_.data(), 4 * late.size()), 0);
  }
}

// Else nobody who is slow would get another version than the one that it holds.
TEST_F(SlowReadersTest, WhoTakesNothingOfTheHeldVersionIsClosed) {
  stuck_after_ = absl::Seconds(0.2);
  Mutex mu;
  std::vector<std::string> closed;
  const int sink = services::AddLogSink([&](const services::LogRecord& record) {
    MutexLock lock(mu);
    if (record.event == "stream_closed") closed.emplace_back(record.line);
  });
  Begin();
  Call& stuck = OpenSlow(1);
  Step(0);  // version 0 is held for it from here on
  EXPECT_TRUE(WaitFor(0, [&](const node::v1::ShardState&) {
    MutexLock lock(mu);
    return !closed.empty();
  }));
  services::RemoveLogSink(sink);
  ExpectClosed(stuck, "nothing is read from the stream");
  // Versions 2 and 3 are missed by nobody: nothing is held any more.
  Step(1);
  Step(2);
  EXPECT_TRUE(WaitFor(0, [](const node::v1::ShardState& s) { return s.version() == 3; }));
  EXPECT_THAT(registry_.Scrape(),
              HasSubstr("capstan_ps_versions_missed_total{job_id=\"t-1\"} 1\n"));
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
