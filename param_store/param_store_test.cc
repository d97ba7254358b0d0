// Whole shards behind real gRPC servers on Unix sockets, trained by a client written by hand with
// nothing but generated protobuf code, against a plain loop.
#include "param_store/param_store.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "param_store/shard_job.h"
#include "param_store/test_shards.h"
#include "services/logging/log.h"
#include "training/codec/safetensors.h"
#include "training/codec/sha256.h"
#include "training/init/init.h"

namespace capstan::param_store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Two workers: the first pushes its two lanes as one node, the second one by one, repeats itself
// and has a frame damaged on the way. Every version equals the plain loop, bit for bit.
TEST_P(Shards, TrainBitForBitLikeAPlainLoop) {
  const int count = GetParam();
  StartAll(count);
  const int64_t floats = layout_->total_floats();
  std::vector<Call*> data0, data1;
  for (int i = 0; i < count; ++i) {
    data0.push_back(&Open(i, v1::STREAM_KIND_DATA, 0));
    data1.push_back(&Open(i, v1::STREAM_KIND_DATA, 1));
  }
  // With one shard seals ride on the data stream.
  Call& control0 = count == 1 ? *data0[0] : Open(0, v1::STREAM_KIND_CONTROL, 0);
  Call& control1 = count == 1 ? *data1[0] : Open(0, v1::STREAM_KIND_CONTROL, 1);

  std::vector<float> weights(floats), momentum(floats, 0.0f);
  training::InitRange(*layout_, spec::MakeInitOptions(resolved_), 7, 0, absl::MakeSpan(weights));
  std::vector<float> got0(floats), got1(floats);
  for (int i = 0; i < count; ++i) {
    Pull(*data0[i], i, 0, got0);
    Pull(*data1[i], i, 0, got1);
  }
  ASSERT_EQ(std::memcmp(got0.data(), weights.data(), floats * 4), 0);

  const exchange::wire::CopyCount before = exchange::wire::GetCopyCount();
  int64_t pushed = 0;
  bool stop = false, evaluate = false;
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<std::vector<float>> g;
    for (int lane = 0; lane < kLanes; ++lane) g.push_back(Gradient(step, lane, floats));
    const std::vector<float> left = Sum(g[0], g[1]), right = Sum(g[2], g[3]);
    for (int i = count - 1; i >= 0; --i) {
      Push(*data1[i], i, step, {3, 1}, g[3]);
      Push(*data1[i], i, step, {2, 1}, g[2], /*damage=*/step == 1);
      Push(*data1[i], i, step, {2, 1}, g[2]);
      Push(*data1[i], i, step, {2, 2}, right);  // covered
      Push(*data0[i], i, step, {0, 2}, left);
    }
    pushed += 5 * floats * 4;
    Seal(control1, step, {2, 1});
    Seal(control1, step, {2, 1});
    Seal(control1, step, {3, 1});
    Seal(control0, step, {0, 2});
    if (evaluate) {  // of version `step`: blocks of 3, 3, 2 and 2 samples
      for (int block = 0; block < 4; ++block) {
        v1::ExchangeRequest request;
        v1::EvaluationPart& part = *request.mutable_evaluation();
        part.set_version(step);
        part.set_block(block);
        part.set_samples(block < 2 ? 3 : 2);
        part.set_correct(2);
        part.set_loss_sum(5);
        ASSERT_TRUE(Write(block % 2 == 0 ? control0 : control1, request));
      }
    }
    Update(weights, momentum, Sum(left, right));
    for (int i = 0; i < count; ++i) {
      Pull(*data0[i], i, step + 1, got0, &stop, &evaluate);
      Pull(*data1[i], i, step + 1, got1);
      if (HasFatalFailure()) return;
    }
    ASSERT_EQ(std::memcmp(got0.data(), weights.data(), floats * 4), 0) << "step " << step;
    ASSERT_EQ(std::memcmp(got1.data(), weights.data(), floats * 4), 0) << "step " << step;
    EXPECT_EQ(stop, step + 1 == kSteps);
    EXPECT_EQ(evaluate, step + 1 == 3 || step + 1 == kSteps);
  }
  // What came in was copied once at most, and what went out not at all.
  const exchange::wire::CopyCount after = exchange::wire::GetCopyCount();
  // (A repeated frame of the last step may still be on its way in.)
  const int64_t pulled = kSteps * 2 * floats * 4;
  EXPECT_LE(after.exchanged_bytes - before.exchanged_bytes, pushed + pulled);
  EXPECT_GE(after.exchanged_bytes - before.exchanged_bytes, pushed / 2 + pulled);
  EXPECT_LE(after.copied_bytes - before.copied_bytes, pushed);

  EXPECT_THAT(data0[0]->acks, SizeIs(0));
  ASSERT_FALSE(data1[0]->acks.empty());
  bool corrupt = false;
  for (const v1::FrameAck& ack : data1[0]->acks) {
    for (const int outcome : ack.outcomes()) corrupt |= outcome == v1::FRAME_OUTCOME_CORRUPT;
  }
  EXPECT_TRUE(corrupt);

  for (int block = 0; block < 4; ++block) {
    v1::ExchangeRequest request;
    v1::EvaluationPart& part = *request.mutable_evaluation();
    part.set_version(kSteps);
    part.set_block(block);
    part.set_samples(block < 2 ? 3 : 2);
    part.set_correct(1);
    part.set_loss_sum(2.5);
    ASSERT_TRUE(Write(control0, request));
  }
  ASSERT_TRUE(WaitFor(0, [](const node::v1::ShardState& s) { return s.lead().complete(); }));
  const node::v1::LeadState lead = State(0).lead();
  EXPECT_EQ(lead.step(), kSteps);
  EXPECT_EQ(lead.samples_used(), 36);
  ASSERT_EQ(lead.epochs_size(), 2);
  EXPECT_DOUBLE_EQ(lead.epochs(0).train_loss(), 0.5);
  EXPECT_DOUBLE_EQ(lead.epochs(0).validation_accuracy(), 0.8);
  EXPECT_DOUBLE_EQ(lead.epochs(0).validation_loss(), 2.0);
  EXPECT_DOUBLE_EQ(lead.epochs(1).validation_accuracy(), 0.4);

  // The files hold the weights and the momentum.
  for (int i = 0; i < count; ++i) {
    ASSERT_TRUE(WaitFor(i, [](const node::v1::ShardState& s) { return s.has_files(); }));
    EXPECT_TRUE(State(i).stopped());
    const node::v1::WrittenFiles written = State(i).files();
    EXPECT_EQ(written.step(), kSteps);
    ASSERT_EQ(written.files_size(), 1);
    const std::string name = absl::StrCat("shard-", i, ".safetensors");
    EXPECT_EQ(written.files(0).name(), name);
    const auto file = services::ReadWholeFile(
        absl::StrCat(resolved_.storage_path(), "/1-", kSteps, "/", name), 1 << 30);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(static_cast<int64_t>(file->size()), written.files(0).size_bytes());
    training::Sha256 sha;
    sha.Update(*file);
    const auto hash = sha.Finish();
    EXPECT_EQ(written.files(0).sha256(), std::string(hash.begin(), hash.end()));
    const auto header = training::ParseSafetensorsHeader(name, *file, file->size());
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->metadata.at("job_id"), "t-1");
    EXPECT_EQ(header->metadata.at("step"), "5");
    EXPECT_THAT(header->tensors, SizeIs(2 * runs_[i].chunk_count));
    for (int32_t chunk = runs_[i].first_chunk; chunk < runs_[i].end(); ++chunk) {
      const FlatRange range = layout_->ChunkRange(chunk);
      const char* const data = file->data() + header->data_start;
      EXPECT_EQ(std::memcmp(data + header->Find(absl::StrCat("chunks.", chunk))->begin,
                            weights.data() + range.offset, range.size * 4),
                0);
      EXPECT_EQ(std::memcmp(data + header->Find(absl::StrCat("momentum.", chunk))->begin,
                            momentum.data() + range.offset, range.size * 4),
                0);
    }
  }
  const auto log =
      services::ReadWholeFile(absl::StrCat(resolved_.storage_path(), "/metrics.jsonl"), 1 << 20);
  ASSERT_TRUE(log.ok()) << log.status();
  const std::vector<std::string> lines = absl::StrSplit(*log, '\n', absl::SkipEmpty());
  ASSERT_THAT(lines, SizeIs(kSteps));
  EXPECT_THAT(lines[4],
              HasSubstr("\"step\": 4, \"epoch\": 2, \"loss\": 0.5, \"learning_rate\": 0.25"));

  const std::string scrape = registry_.Scrape();
  EXPECT_THAT(scrape, HasSubstr("capstan_ps_model_version{job_id=\"t-1\",shard=\"0\"} 5"));
  EXPECT_THAT(scrape, HasSubstr("capstan_ps_gradients_dropped_total{job_id=\"t-1\","
                                "reason=\"corrupt\"} "));

  // The coordinator has taken the files and ends the job.
  node::v1::ConnectResponse taken;
  taken.mutable_files_taken()->set_job_id("t-1");
  taken.mutable_files_taken()->set_lineage(1);
  taken.mutable_files_taken()->set_step(kSteps);
  shards_[0].store->OnMessage(taken);
  EXPECT_TRUE(WaitFor(0, [](const node::v1::ShardState& s) { return !s.has_files(); }));
  node::v1::ConnectResponse end;
  end.mutable_end_job()->set_job_id("t-1");
  shards_[0].store->OnMessage(end);
  EXPECT_EQ(shards_[0].store->MakeHeartbeat().shards_size(), 0);
  v1::ExchangeResponse response;
  while (data0[0]->stream->Read(&response)) {
  }
  EXPECT_EQ(data0[0]->stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  data0[0]->stream.reset();
}

INSTANTIATE_TEST_SUITE_P(OneAndTwo, Shards, testing::Values(1, 2));

class ShardTest : public Shards {};

// A stream that breaks is opened again with what it has; what it pushes again changes nothing.
TEST_F(ShardTest, AStreamThatBreaksLosesNothing) {
  StartAll(1);
  const int64_t floats = layout_->total_floats();
  std::vector<float> got(floats);
  Call& first = Open(0, v1::STREAM_KIND_DATA, 0);
  Pull(first, 0, 0, got);
  const std::vector<float> gradient = Gradient(0, 0, floats);
  Push(first, 0, 0, {0, 4}, gradient);
  first.context.TryCancel();
  first.stream->Finish();
  first.stream.reset();

  Call& second = Open(0, v1::STREAM_KIND_DATA, 0, /*have=*/0);
  Push(second, 0, 0, {0, 4}, gradient);
  Seal(second, 0, {0, 4});
  std::vector<float> weights = got, momentum(floats, 0.0f);
  Update(weights, momentum, gradient);
  Pull(second, 0, 1, got);
  EXPECT_EQ(std::memcmp(got.data(), weights.data(), floats * 4), 0);
  EXPECT_TRUE(WaitFor(0, [](const node::v1::ShardState& s) { return s.version() == 1; }));
}

TEST_F(ShardTest, HostileMessagesEndTheirStreamAlone) {
  StartAll(1);
  Call& good = Open(0, v1::STREAM_KIND_DATA, 0);
  const auto status_of = [this](const std::vector<v1::ExchangeRequest>& requests) {
    grpc::ClientContext context;
    services::SetTimeout(context, absl::Seconds(20));
    auto stream = shards_[0].stub->Exchange(&context);
    for (v1::ExchangeRequest request : requests) {
      exchange::wire::SetCheck(&request, 1);
      stream->Write(request);
    }
    v1::ExchangeResponse response;
    while (stream->Read(&response)) {
    }
    return stream->Finish().error_code();
  };
  v1::ExchangeRequest hello, frame, unknown, seal;
  hello.mutable_hello()->set_job_id("t-1");
  hello.mutable_hello()->set_spec_digest(digest_);
  hello.mutable_hello()->set_lineage(1);
  hello.mutable_hello()->set_kind(v1::STREAM_KIND_DATA);
  hello.mutable_hello()->set_have_version(-1);
  hello.mutable_hello()->set_speaks(exchange::wire::kSpeaks);
  unknown = hello;
  unknown.mutable_hello()->set_job_id("t-2");
  frame.mutable_frame()->set_first_lane(-1);
  frame.mutable_frame()->add_crc32c(0);
  seal.mutable_seal()->set_step(99);
  v1::ExchangeRequest bad_hello = hello;
  bad_hello.mutable_hello()->set_kind(static_cast<v1::StreamKind>(77));
  EXPECT_EQ(status_of({unknown}), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status_of({frame}), grpc::StatusCode::INVALID_ARGUMENT);           // no Hello
  EXPECT_EQ(status_of({v1::ExchangeRequest()}), grpc::StatusCode::DATA_LOSS);  // says nothing
  EXPECT_EQ(status_of({bad_hello}), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status_of({hello, frame}), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status_of({hello, seal}), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status_of({hello, hello}), grpc::StatusCode::INVALID_ARGUMENT);
  std::vector<float> got(layout_->total_floats());
  Pull(good, 0, 0, got);  // the others go on
}

// A flipped bit in a key must not put a sum under another node, nor a decision be taken on it.
TEST_F(ShardTest, AMessageThatWasDamagedEndsItsStreamAndNothingOfItCounts) {
  StartAll(1);
  const int64_t floats = layout_->total_floats();
  const std::vector<float> left = Gradient(0, 0, floats), right = Gradient(0, 2, floats);
  const auto damaged = [&](v1::ExchangeRequest request, auto damage) {
    Call& call = Open(0, v1::STREAM_KIND_DATA, 0);
    exchange::wire::SetCheck(&request, lineage_);
    damage(request);
    call.stream->Write(request);
    v1::ExchangeResponse response;
    while (call.stream->Read(&response)) {
    }
    const auto code = call.stream->Finish().error_code();
    call.stream.reset();
    return code;
  };
  const training::ChunkRun run = training::FramesOf(*layout_, runs_[0], 64 << 10)[0];
  v1::ExchangeRequest request;
  v1::Frame& frame = *request.mutable_frame();
  frame.set_lane_count(2);
  frame.set_first_chunk(run.first_chunk);
  for (int32_t chunk = run.first_chunk; chunk < run.end(); ++chunk) {
    const FlatRange range = layout_->ChunkRange(chunk);
    const char* const bytes = reinterpret_cast<const char*>(left.data() + range.offset);
    frame.add_crc32c(training::Crc32c(bytes, range.size * 4));
    frame.mutable_payload()->append(bytes, range.size * 4);
  }
  EXPECT_EQ(damaged(request, [](auto& r) { r.mutable_frame()->set_first_lane(2); }),
            grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(damaged(request, [](auto& r) { r.mutable_frame()->set_first_chunk(1); }),
            grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(damaged(request, [](auto& r) { r.mutable_frame()->clear_check(); }),
            grpc::StatusCode::DATA_LOSS);
  v1::ExchangeRequest seal;
  seal.mutable_seal()->set_lane_count(4);
  seal.mutable_seal()->set_samples(8);
  EXPECT_EQ(damaged(seal, [](auto& r) { r.mutable_seal()->set_loss_sum(1e30); }),
            grpc::StatusCode::DATA_LOSS);
  // Whole, and of another lineage: a bug of the sender.
  EXPECT_EQ(damaged(request, [&](auto& r) { exchange::wire::SetCheck(&r, lineage_ + 1); }),
            grpc::StatusCode::DATA_LOSS);

  // The step is what the whole messages say.
  Call& call = Open(0, v1::STREAM_KIND_DATA, 0);
  std::vector<float> got(floats), momentum(floats, 0.0f);
  Pull(call, 0, 0, got);
  std::vector<float> weights = got;
  Push(call, 0, 0, {2, 2}, right);
  Push(call, 0, 0, {0, 2}, left);
  Seal(call, 0, {0, 4});
  Pull(call, 0, 1, got);
  Update(weights, momentum, Sum(left, right));
  EXPECT_EQ(std::memcmp(got.data(), weights.data(), floats * 4), 0);
}

// What a worker found wrong may have been computed wrong here; it would be wrong for ever.
TEST_F(ShardTest, AHelloThatNamesADamagedVersionHasItsSumsComputedAnew) {
  Mutex mu;
  std::vector<std::string> renewed;
  const int sink = services::AddLogSink([&](const services::LogRecord& record) {
    MutexLock lock(mu);
    if (record.event == "checksums_renewed") renewed.emplace_back(record.line);
  });
  StartAll(1);
  Open(0, v1::STREAM_KIND_DATA, 0);  // which found nothing wrong
  Call& again = Open(0, v1::STREAM_KIND_DATA, 1, /*have=*/-1, /*lineage=*/0, /*damaged=*/0);
  std::vector<float> got(layout_->total_floats());
  Pull(again, 0, 0, got);
  services::RemoveLogSink(sink);
  EXPECT_THAT(renewed, ElementsAre(HasSubstr("job=t-1 shard=0 rank=1 version=0 wrong=0")));
}

// The messages of an older worker have no checks: both sides are named, and it does not try again.
TEST_F(ShardTest, AWorkerThatSpeaksAnotherExchangeIsRefusedByName) {
  StartAll(1);
  Open(0, v1::STREAM_KIND_DATA, 0);  // the job is known
  grpc::ClientContext context;
  services::SetTimeout(context, absl::Seconds(20));
  const auto stream = shards_[0].stub->Exchange(&context);
  v1::ExchangeRequest request;
  request.mutable_hello()->set_job_id("t-1");
  request.mutable_hello()->set_spec_digest(digest_);
  request.mutable_hello()->set_lineage(1);
  request.mutable_hello()->set_kind(v1::STREAM_KIND_DATA);
  stream->Write(request);
  v1::ExchangeResponse response;
  EXPECT_FALSE(stream->Read(&response));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(),
              HasSubstr("the caller speaks exchange 0, this shard speaks exchange 1"));
}

TEST_F(ShardTest, AJobThatCannotBeReadIsReportedUntilItEnds) {
  StartAll(1);
  node::v1::ConnectResponse order;
  node::v1::StartLineage& start = *order.mutable_start_lineage();
  start.set_job_id("t-2");
  start.set_resolved_spec("no spec");
  start.set_spec_digest(digest_);
  start.mutable_view()->set_lineage(1);
  shards_[0].store->OnMessage(order);
  const node::v1::Heartbeat heartbeat = shards_[0].store->MakeHeartbeat();
  ASSERT_EQ(heartbeat.shards_size(), 2);
  EXPECT_EQ(heartbeat.shards(1).job_id(), "t-2");
  EXPECT_EQ(heartbeat.shards(1).reason(), "InvalidSpec");
  node::v1::ConnectResponse end;
  end.mutable_end_job()->set_job_id("t-2");
  shards_[0].store->OnMessage(end);
  EXPECT_EQ(shards_[0].store->MakeHeartbeat().shards_size(), 1);
}

TEST(ReadJobTest, AModelWithRunningStatisticsIsTaken) {
  const job::v1::ResolvedSpec lenet = MakeSpec(2, "/out");
  job::v1::JobSpec wanted = lenet.spec();
  wanted.mutable_model()->set_name("resnet18_v1");
  const auto resolved =
      spec::Resolve(wanted, lenet.dataset(), {.job_id = "t-1", .storage_path = "/out"});
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  const std::string bytes = resolved->SerializeAsString();
  const auto job = ReadJob(bytes, spec::Digest(bytes), 1);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(job->plan.layout.has_statistics());
}

// Else the job would show a loss without a cause.
TEST_F(ShardTest, ItsJobsAreReportedAfterItsStreamsHaveEnded) {
  StartAll(1);
  Open(0, v1::STREAM_KIND_DATA, 0);
  ParamStore& store = *shards_[0].store;
  store.Shutdown();
  ASSERT_EQ(store.MakeHeartbeat().shards_size(), 1);
  EXPECT_EQ(store.MakeHeartbeat().shards(0).reason(), "");
  EXPECT_EQ(store.FindJob("t-1"), nullptr);
}

// Shards were moved: what was shard 1 of 2 is the only one now. An old order does not bring the old number back.
TEST_F(ShardTest, AProcessTakesAnotherNumberWithANewLineage) {
  StartAll(2);
  Open(1, v1::STREAM_KIND_DATA, 0);
  const common::v1::View before = view_;
  view_.set_lineage(2);
  view_.set_generation(2);
  common::v1::ShardRoute only = before.shards(1);
  only.set_index(0);
  only.set_first_chunk(0);
  only.set_chunk_count(layout_->chunk_count());
  view_.clear_shards();
  *view_.add_shards() = only;
  const auto order = [this](int32_t number) {
    node::v1::ConnectResponse message;
    node::v1::StartLineage& start = *message.mutable_start_lineage();
    start.set_job_id("t-1");
    start.set_shard(number);
    start.set_resolved_spec(bytes_);
    start.set_spec_digest(digest_);
    *start.mutable_view() = view_;
    shards_[1].store->OnMessage(message);
  };
  order(0);
  const auto state = [this] {
    const node::v1::Heartbeat heartbeat = shards_[1].store->MakeHeartbeat();
    return heartbeat.shards_size() == 1 ? heartbeat.shards(0) : node::v1::ShardState();
  };
  // Without a second order.
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (!(state().ready() && state().lineage() == 2) && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(state().shard(), 0);
  EXPECT_TRUE(state().has_lead());
  runs_[1] = {0, layout_->chunk_count()};
  std::vector<float> got(layout_->total_floats());
  Pull(Open(1, v1::STREAM_KIND_DATA, 0, -1, /*lineage=*/2), 1, 0, got);
  view_ = before;
  order(1);
  EXPECT_EQ(state().shard(), 0);
  EXPECT_EQ(state().lineage(), 2);
}

// The coordinator repeats its order while the old one ends, so that two threads want to begin the next one.
TEST_F(ShardTest, AnOrderThatIsRepeatedWhileTheOldOneEndsBeginsOneJob) {
  StartAll(2);
  const common::v1::View before = view_;
  const auto order = [this](int32_t number, int64_t lineage) {
    node::v1::ConnectResponse message;
    node::v1::StartLineage& start = *message.mutable_start_lineage();
    start.set_job_id("t-1");
    start.set_shard(number);
    start.set_resolved_spec(bytes_);
    start.set_spec_digest(digest_);
    *start.mutable_view() = view_;
    start.mutable_view()->set_lineage(lineage);
    start.mutable_view()->set_generation(lineage);
    return message;
  };
  const auto state = [this] {
    const node::v1::Heartbeat heartbeat = shards_[1].store->MakeHeartbeat();
    return heartbeat.shards_size() == 1 ? heartbeat.shards(0) : node::v1::ShardState();
  };
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  for (int64_t lineage = 2; lineage < 60; ++lineage) {
    const auto number = static_cast<int32_t>(lineage % 2);
    const node::v1::ConnectResponse message = order(number, lineage);
    do {
      shards_[1].store->OnMessage(message);
      ASSERT_LT(absl::Now(), deadline) << "lineage " << lineage;
    } while (state().lineage() != lineage);
    EXPECT_EQ(state().shard(), number);
  }
  // The end of the job takes away what waits for the end of the one before.
  shards_[1].store->OnMessage(order(0, 60));
  node::v1::ConnectResponse end;
  end.mutable_end_job()->set_job_id("t-1");
  shards_[1].store->OnMessage(end);
  EXPECT_FALSE(shards_[1].store->HoldsJobs());
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_FALSE(shards_[1].store->HoldsJobs());
  view_ = before;
}

TEST_F(ShardTest, ANewLineageEndsTheStreamsOfTheOld) {
  StartAll(1);
  Call& old = Open(0, v1::STREAM_KIND_DATA, 0);
  view_.set_lineage(2);
  view_.set_generation(2);
  Begin(0);
  v1::ExchangeResponse response;
  while (old.stream->Read(&response)) {
  }
  EXPECT_EQ(old.stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  old.stream.reset();
  std::vector<float> got(layout_->total_floats());
  Pull(Open(0, v1::STREAM_KIND_DATA, 0, -1, /*lineage=*/2), 0, 0, got);
}

}  // namespace
}  // namespace capstan::param_store
