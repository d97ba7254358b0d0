// One stream of raw messages, with a strand that is slower than its peer.
#include "exchange/transport/exchange_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "capstan/param_store/v1/param_store.grpc.pb.h"
#include "exchange/wire/byte_buffer.h"
#include "grpcpp/grpcpp.h"
#include "services/channel/channel.h"
#include "services/files/files.h"
#include "services/server/server.h"

namespace capstan::exchange {
namespace {

constexpr absl::Duration kStreamLimit = absl::Seconds(20);
constexpr int kVersions = ExchangeStream::kReadAhead + 2;

// Says them at once.
class Talker final : public v1::ParamStoreService::Service {
  grpc::Status Exchange(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::ExchangeResponse, v1::ExchangeRequest>* stream) override {
    v1::ExchangeResponse response;
    for (int version = 0; version < kVersions; ++version) {
      response.mutable_hello()->set_version(version);
      stream->Write(response);
    }
    v1::ExchangeRequest request;
    while (stream->Read(&request)) {
    }
    return grpc::Status::OK;
  }
};

// The second post takes until there is a third.
class SlowStrand final : public services::Strand {
 public:
  void Post(Function function) override {
    int number = 0;
    {
      MutexLock lock(mu_);
      number = ++posts_;
      changed_.NotifyAll();
      if (posts_ == 2) WaitLocked(3, absl::Milliseconds(300));  // which must not come
    }
    if (on_post) on_post(number);
    loop.Post(std::move(function));
  }
  void PostAfter(absl::Duration delay, Function function) override {
    loop.PostAfter(delay, std::move(function));
  }
  absl::Duration Now() const override { return loop.Now(); }

  bool WaitForPost(int number, absl::Duration limit = kStreamLimit) {
    MutexLock lock(mu_);
    return WaitLocked(number, limit);
  }

  services::StrandLoop loop;
  std::function<void(int)> on_post;  // of which number

 private:
  bool WaitLocked(int posts, absl::Duration limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const absl::Time end = absl::Now() + limit;
    while (posts_ < posts && absl::Now() < end) changed_.WaitWithTimeout(mu_, end - absl::Now());
    return posts_ >= posts;
  }

  Mutex mu_;
  CondVar changed_;
  int posts_ ABSL_GUARDED_BY(mu_) = 0;
};

class ExchangeStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    services::ServerOptions options;
    options.listen = *services::ParseEndpoint(absl::StrCat("unix:", folder_, "/s.sock"));
    options.drain_timeout = absl::Milliseconds(200);
    auto server =
        services::Server::Start(options, {{v1::ParamStoreService::service_full_name(), &talker_}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    services::ChannelOptions channel;
    channel.peer = options.listen;
    stub_ = std::make_unique<grpc::GenericStub>(*services::MakeChannel(channel));
  }
  void TearDown() override {
    stub_.reset();
    server_->Shutdown();
    EXPECT_TRUE(services::RemoveTree("/tmp", folder_).ok());
  }

  static ExchangeStream::Handlers Deaf() {
    return {[](wire::Pieces) {}, [](const grpc::Status&) {}};
  }
  // Within the limit; a stream that never ends would hold up the end of the test, too.
  static void ExpectNone(LiveStreams& live) {
    std::promise<void> none;
    std::thread thread([&] {
      live.WaitForNone();
      none.set_value();
    });
    if (none.get_future().wait_for(std::chrono::seconds(20)) != std::future_status::ready) {
      ADD_FAILURE() << "a stream has not ended";
      std::abort();
    }
    thread.join();
  }

  const std::string folder_ = *services::MakePrivateDir("stream-test");
  Talker talker_;
  std::unique_ptr<services::Server> server_;
  std::unique_ptr<grpc::GenericStub> stub_;
};

TEST_F(ExchangeStreamTest, NoMessageOvertakesTheOneBeforeItOnItsWayToTheStrand) {
  SlowStrand strand;
  LiveStreams live;
  std::vector<int64_t> versions;  // of the strand
  std::shared_ptr<ExchangeStream> stream;
  ExchangeStream::Handlers handlers;
  handlers.on_message = [&](wire::Pieces message) {
    // The first is dealt with while the second is on its way.
    if (versions.empty()) {
      EXPECT_TRUE(strand.WaitForPost(2));
    }
    versions.push_back(wire::DecodeResponse(message)->message.hello().version());
    if (versions.size() == kVersions) stream->Cancel();
  };
  handlers.on_done = [&](const grpc::Status&) { strand.loop.Stop(); };
  strand.loop.Post([&] { stream = ExchangeStream::Start(*stub_, strand, live, handlers); });
  strand.loop.PostAfter(kStreamLimit, [&] {
    ADD_FAILURE() << versions.size() << " messages came";
    stream->Cancel();
  });
  std::thread thread([&] { strand.loop.Run(); });
  thread.join();
  live.WaitForNone();
  EXPECT_THAT(versions, testing::ElementsAre(0, 1, 2, 3, 4, 5));
}

// A task that ends: what waits for its strand is dropped, and its streams are waited for.
TEST_F(ExchangeStreamTest, ACancelEndsAStreamThatNobodyListensTo) {
  SlowStrand strand;
  strand.loop.Stop();
  LiveStreams live;
  const auto stream = ExchangeStream::Start(*stub_, strand, live, Deaf());
  EXPECT_TRUE(strand.WaitForPost(ExchangeStream::kReadAhead));
  EXPECT_FALSE(strand.WaitForPost(ExchangeStream::kReadAhead + 1, absl::Milliseconds(100)));
  stream->Cancel();
  ExpectNone(live);
}

// The read that has just ended is under way still, as far as anybody can see.
TEST_F(ExchangeStreamTest, ACancelWhileAMessageIsOnItsWayToTheStrandEndsTheStream) {
  SlowStrand strand;
  strand.loop.Stop();
  LiveStreams live;
  std::promise<std::shared_ptr<ExchangeStream>> started;
  strand.on_post = [&](int number) {
    if (number == ExchangeStream::kReadAhead) started.get_future().get()->Cancel();
  };
  started.set_value(ExchangeStream::Start(*stub_, strand, live, Deaf()));
  ExpectNone(live);
}

TEST(LiveStreamsTest, TheLastOneIsWaitedFor) {
  LiveStreams live;
  live.Add();
  live.Add();
  std::promise<void> none;
  std::future<void> waited = none.get_future();
  std::thread thread([&] {
    live.WaitForNone();
    none.set_value();
  });
  live.Remove();
  EXPECT_EQ(waited.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  live.Remove();
  EXPECT_EQ(waited.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  thread.join();
}

// Whoever waits for a gradient that comes back to its pool may use the stream at the same time.
TEST_F(ExchangeStreamTest, WhatAMessageHoldsIsLetGoOutsideTheLock) {
  services::StrandLoop strand;
  LiveStreams live;
  std::shared_ptr<ExchangeStream> stream;
  std::thread other;
  std::promise<bool> used;  // by another thread while what the message holds is let go
  const std::string bytes(64, 'x');
  const auto let_go = [&](const std::string*) {
    auto asked = std::make_shared<std::promise<void>>();
    std::future<void> answered = asked->get_future();
    other = std::thread([&stream, asked] {
      stream->sending();
      asked->set_value();
    });
    used.set_value(answered.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
  };
  ExchangeStream::Handlers handlers;
  handlers.on_message = [](wire::Pieces) {};
  handlers.on_done = [&](const grpc::Status&) { strand.Stop(); };
  strand.Post([&] {
    stream = ExchangeStream::Start(*stub_, strand, live, handlers);
    v1::Frame frame;
    frame.set_step(1);
    const wire::OutgoingBytes payload{bytes, std::shared_ptr<const std::string>(&bytes, let_go)};
    stream->Send(wire::MakeByteBuffer(wire::EncodePrefix(frame, bytes.size()), {&payload, 1}));
  });
  std::thread thread([&] { strand.Run(); });
  std::future<bool> result = used.get_future();
  ASSERT_EQ(result.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_TRUE(result.get());
  other.join();
  strand.Post([&] { stream->Cancel(); });
  thread.join();
  live.WaitForNone();
}

}  // namespace
}  // namespace capstan::exchange
