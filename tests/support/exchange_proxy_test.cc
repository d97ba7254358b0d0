// The proxy between a caller and a toy shard, which both use the generated protobuf code.
#include "tests/support/exchange_proxy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "capstan/param_store/v1/param_store.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "services/channel/channel.h"
#include "services/files/files.h"
#include "services/server/server.h"
#include "services/sync/mutex.h"
#include "training/codec/crc32c.h"

namespace capstan::tests {
namespace {

namespace v1 = param_store::v1;
using ::testing::Each;

constexpr absl::Duration kLimit = absl::Seconds(60);
constexpr uint64_t kSeed = 20240607;

// Answers a Hello with a HelloReply, each frame with weights of the same bytes, and a seal with
// FAILED_PRECONDITION.
class EchoShard final : public v1::ParamStoreService::Service {
 public:
  grpc::Status Exchange(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::ExchangeResponse, v1::ExchangeRequest>* stream) override {
    v1::ExchangeRequest request;
    bool first = true;
    while (stream->Read(&request)) {
      v1::ExchangeResponse response;
      if (request.has_hello() != first) return {grpc::StatusCode::INVALID_ARGUMENT, "Hello"};
      first = false;
      if (request.has_seal()) return {grpc::StatusCode::FAILED_PRECONDITION, "as asked"};
      if (request.has_hello()) {
        response.mutable_hello()->set_lineage(1);
      } else {
        const v1::Frame& frame = request.frame();
        response.mutable_weights()->set_version(frame.step());
        *response.mutable_weights()->mutable_crc32c() = frame.crc32c();
        response.mutable_weights()->set_payload(frame.payload());
        MutexLock lock(mu_);
        steps_.push_back(frame.step());
      }
      stream->Write(response);
    }
    MutexLock lock(mu_);
    ++half_closed_;
    return grpc::Status::OK;
  }

  std::vector<int64_t> steps() {
    MutexLock lock(mu_);
    return steps_;
  }
  int half_closed() {
    MutexLock lock(mu_);
    return half_closed_;
  }

 private:
  Mutex mu_;
  std::vector<int64_t> steps_ ABSL_GUARDED_BY(mu_);  // of the frames, as received
  int half_closed_ ABSL_GUARDED_BY(mu_) = 0;
};

v1::ExchangeRequest HelloMessage() {
  v1::ExchangeRequest request;
  request.mutable_hello()->set_job_id("j");
  request.mutable_hello()->set_kind(v1::STREAM_KIND_DATA);
  return request;
}

std::string PayloadOf(int64_t step) {
  std::string payload(256, '\0');
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<char>(step * 31 + i);
  return payload;
}

v1::ExchangeRequest FrameMessage(int64_t step) {
  v1::ExchangeRequest request;
  v1::Frame& frame = *request.mutable_frame();
  frame.set_step(step);
  frame.set_lane_count(1);
  frame.set_payload(PayloadOf(step));
  frame.add_crc32c(training::Crc32c(frame.payload().data(), frame.payload().size()));
  return request;
}

class ExchangeProxyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto folder = services::MakePrivateDir("proxy");
    ASSERT_TRUE(folder.ok()) << folder.status();
    folder_ = *folder;
    services::ServerOptions options;
    options.listen = At("shard");
    options.drain_timeout = absl::Milliseconds(200);
    auto server =
        services::Server::Start(options, {{v1::ParamStoreService::service_full_name(), &shard_}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void TearDown() override {
    proxy_.reset();
    server_.reset();
    EXPECT_EQ(services::RemoveTree("/tmp", folder_), absl::OkStatus());
  }
  services::Endpoint At(const std::string& name) {
    return *services::ParseEndpoint(absl::StrCat("unix:", folder_, "/", name, ".sock"));
  }
  void StartProxy(const ProxyFaults& faults) {
    std::printf("seed %d\n", static_cast<int>(kSeed));
    ProxyOptions options;
    options.listen = At("proxy");
    options.target = At("shard");
    options.seed = kSeed;
    options.faults = faults;
    auto proxy = ExchangeProxy::Start(options);
    ASSERT_TRUE(proxy.ok()) << proxy.status();
    proxy_ = *std::move(proxy);
    services::ChannelOptions channel_options;
    channel_options.peer = At("proxy");
    channel_options.retry = false;
    stub_ = v1::ParamStoreService::NewStub(*services::MakeChannel(channel_options));
  }

  // Sends a Hello and the frames [0, count), then ends its side. Returns all responses in order,
  // and the end of the stream in *status.
  std::vector<v1::ExchangeResponse> Call(int count, grpc::Status* status, bool seal = false) {
    const auto context = services::NewContext(kLimit);
    const auto stream = stub_->Exchange(context.get());
    std::thread writer([&] {
      bool open = stream->Write(HelloMessage());
      for (int step = 0; step < count && open; ++step) open = stream->Write(FrameMessage(step));
      v1::ExchangeRequest request;
      request.mutable_seal();
      if (seal) stream->Write(request);
      stream->WritesDone();
    });
    std::vector<v1::ExchangeResponse> responses;
    v1::ExchangeResponse response;
    while (stream->Read(&response)) responses.push_back(response);
    writer.join();
    *status = stream->Finish();
    return responses;
  }

  EchoShard shard_;
  std::string folder_;
  std::unique_ptr<services::Server> server_;
  std::unique_ptr<ExchangeProxy> proxy_;
  std::unique_ptr<v1::ParamStoreService::Stub> stub_;
};

TEST_F(ExchangeProxyTest, WithoutFaultsAllComesOnceAndInOrder) {
  StartProxy({});
  grpc::Status status;
  const auto responses = Call(100, &status);
  EXPECT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(responses.size(), 101u);
  EXPECT_TRUE(responses[0].has_hello());
  for (int step = 0; step < 100; ++step) {
    EXPECT_EQ(responses[step + 1].weights().version(), step);
    EXPECT_EQ(responses[step + 1].weights().payload(), PayloadOf(step));
  }
  EXPECT_EQ(shard_.half_closed(), 1);
  const ProxyCounters counters = proxy_->counters();
  EXPECT_EQ(counters.ToString(),
            "streams=1 requests=101 responses=101 frames=100 weights=100 delayed=0 repeated=0 "
            "overtaken=0 broken=0 lost=0 flipped_frames=0 flipped_weights=0 flipped_headers=0 "
            "corrupt_acks=0 undecodable=0 late_hellos=0 refused=0");
}

TEST_F(ExchangeProxyTest, DelaysRepeatsAndReordersButHelloIsFirstAndBytesAreKept) {
  StartProxy({.max_delay = absl::Milliseconds(20), .repeat = 0.2});
  grpc::Status status;
  const auto responses = Call(200, &status);
  EXPECT_TRUE(status.ok()) << status.error_message();
  const ProxyCounters counters = proxy_->counters();
  std::printf("%s\n", counters.ToString().c_str());

  ASSERT_FALSE(responses.empty());
  EXPECT_TRUE(responses[0].has_hello());
  std::map<int64_t, int> copies;
  for (size_t i = 1; i < responses.size(); ++i) {
    ASSERT_TRUE(responses[i].has_weights());
    ++copies[responses[i].weights().version()];
    EXPECT_EQ(responses[i].weights().payload(), PayloadOf(responses[i].weights().version()));
  }
  EXPECT_EQ(copies.size(), 200u);
  const std::vector<int64_t> steps = shard_.steps();
  EXPECT_FALSE(std::is_sorted(steps.begin(), steps.end()));
  EXPECT_GT(steps.size(), 200u);
  // Nothing is lost or made up between what the shard received and what it answered.
  EXPECT_EQ(counters.requests, 201);
  EXPECT_EQ(counters.responses, 1 + static_cast<int64_t>(steps.size()));
  EXPECT_EQ(static_cast<int64_t>(responses.size() + steps.size()),
            200 + counters.responses + counters.repeated);
  EXPECT_GT(counters.overtaken, 50);
  EXPECT_GT(counters.delayed, 200);
  EXPECT_EQ(counters.lost, 0);
  EXPECT_EQ(counters.late_hellos, 0);
}

TEST_F(ExchangeProxyTest, AStreamBreaksWithUnavailableAndTheNextOneWorks) {
  StartProxy({.max_delay = absl::Milliseconds(2), .messages_per_break = 100});
  std::vector<int> codes;
  for (int i = 0; i < 10; ++i) {
    grpc::Status status;
    Call(50, &status);
    codes.push_back(status.error_code());
  }
  const ProxyCounters counters = proxy_->counters();
  std::printf("%s\n", counters.ToString().c_str());
  EXPECT_THAT(codes, Each(::testing::AnyOf(grpc::StatusCode::OK, grpc::StatusCode::UNAVAILABLE)));
  EXPECT_GE(counters.broken, 2);
  // Nobody sees a break after the last answer.
  const auto seen = std::count(codes.begin(), codes.end(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_GE(seen, 1);
  EXPECT_LE(seen, counters.broken);
  EXPECT_EQ(counters.streams, 10);
  EXPECT_GE(counters.lost, counters.broken);
}

TEST_F(ExchangeProxyTest, FlipsOneBitOfPayloadsAndNothingElse) {
  StartProxy({.flip = 0.25});
  grpc::Status status;
  const auto responses = Call(200, &status);
  EXPECT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(responses.size(), 201u);
  int64_t bits = 0, damaged = 0;
  for (int step = 0; step < 200; ++step) {
    const v1::WeightFrame& frame = responses[step + 1].weights();
    ASSERT_EQ(frame.version(), step);
    const std::string want = PayloadOf(step);
    ASSERT_EQ(frame.payload().size(), want.size());
    int here = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      here += __builtin_popcount(static_cast<uint8_t>(frame.payload()[i] ^ want[i]));
    }
    bits += here;
    damaged += here > 0;
    EXPECT_EQ(here > 0,
              frame.crc32c(0) != training::Crc32c(frame.payload().data(), frame.payload().size()));
  }
  const ProxyCounters counters = proxy_->counters();
  std::printf("%s\n", counters.ToString().c_str());
  // A frame and its echo may both be hit, at worst in the same bit.
  EXPECT_EQ(bits, counters.flipped_frames + counters.flipped_weights);
  EXPECT_LE(damaged, bits);
  EXPECT_GT(counters.flipped_frames, 20);
  EXPECT_GT(counters.flipped_weights, 20);
}

TEST_F(ExchangeProxyTest, TheErrorOfTheShardComesThrough) {
  StartProxy({.max_delay = absl::Milliseconds(5)});
  grpc::Status status;
  Call(0, &status, /*seal=*/true);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status.error_message(), "as asked");
  EXPECT_EQ(proxy_->counters().refused, 1);
}

TEST_F(ExchangeProxyTest, ItsEndBreaksTheStreamsAndACancelledCallReachesTheShard) {
  StartProxy({.max_delay = absl::Milliseconds(5)});
  const auto first_context = services::NewContext(kLimit);
  const auto first = stub_->Exchange(first_context.get());
  const auto second_context = services::NewContext(kLimit);
  const auto second = stub_->Exchange(second_context.get());
  v1::ExchangeResponse response;
  ASSERT_TRUE(first->Write(HelloMessage()) && first->Read(&response));
  ASSERT_TRUE(second->Write(HelloMessage()) && second->Read(&response));

  first_context->TryCancel();
  EXPECT_EQ(first->Finish().error_code(), grpc::StatusCode::CANCELLED);
  proxy_.reset();
  EXPECT_FALSE(second->Read(&response));
  EXPECT_EQ(second->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  server_->Shutdown();  // waits for its handlers
  EXPECT_EQ(shard_.half_closed(), 2);
}

}  // namespace
}  // namespace capstan::tests
