// One stream of a shard, with owners that are slower than its peer.
#include "exchange/transport/server_stream.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "exchange/wire/frame_codec.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "param_store/exchange_service.h"
#include "services/channel/channel.h"
#include "services/files/files.h"
#include "services/server/server.h"

namespace capstan::param_store {
namespace {

namespace core = exchange::shard;

// Deals with its first message while it is being given the second, as its strand may.
class SlowOwner final : public exchange::StreamOwner, public exchange::JobDirectory {
 public:
  std::shared_ptr<exchange::StreamOwner> FindJob(absl::string_view) override {
    return {std::shared_ptr<void>(), this};
  }
  void OnHello(std::shared_ptr<exchange::ServerStream>, v1::Hello) override {}
  void OnMessage(std::shared_ptr<exchange::ServerStream> stream,
                 std::shared_ptr<grpc::ByteBuffer>) override {
    MutexLock lock(mu_);
    if (++given_ != 2) {
      changed_.NotifyAll();
      return;
    }
    mu_.Unlock();
    stream->Handled();
    mu_.Lock();
    const absl::Time end = absl::Now() + absl::Milliseconds(300);  // for what must not come
    while (given_ == 2 && absl::Now() < end) changed_.WaitWithTimeout(mu_, end - absl::Now());
    overtaken_ = given_ > 2;
  }
  void OnWeightsTaken(core::StreamId, int64_t) override {}
  void OnEnd(core::StreamId) override {}

  bool WaitFor(int messages) {
    const absl::Time end = absl::Now() + absl::Seconds(20);
    MutexLock lock(mu_);
    while (given_ < messages && absl::Now() < end) changed_.WaitWithTimeout(mu_, end - absl::Now());
    return given_ >= messages;
  }
  bool overtaken() {
    MutexLock lock(mu_);
    return overtaken_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int given_ ABSL_GUARDED_BY(mu_) = 0;
  bool overtaken_ ABSL_GUARDED_BY(mu_) = false;
};

// Its peer is gone before it has dealt with the Hello.
class SlowGreeter final : public exchange::StreamOwner, public exchange::JobDirectory {
 public:
  explicit SlowGreeter(grpc::ClientContext& peer) : peer_(peer) {}

  std::shared_ptr<exchange::StreamOwner> FindJob(absl::string_view) override {
    return {std::shared_ptr<void>(), this};
  }
  void OnHello(std::shared_ptr<exchange::ServerStream>, v1::Hello) override {
    peer_.TryCancel();
    overtaken_ = WaitForEnd(absl::Milliseconds(300));  // for what must not come
  }
  void OnMessage(std::shared_ptr<exchange::ServerStream>,
                 std::shared_ptr<grpc::ByteBuffer>) override {}
  void OnWeightsTaken(core::StreamId, int64_t) override {}
  void OnEnd(core::StreamId) override {
    MutexLock lock(mu_);
    ended_ = true;
    changed_.NotifyAll();
  }

  bool WaitForEnd(absl::Duration limit) {
    const absl::Time end = absl::Now() + limit;
    MutexLock lock(mu_);
    while (!ended_ && absl::Now() < end) changed_.WaitWithTimeout(mu_, end - absl::Now());
    return ended_;
  }
  bool overtaken() const { return overtaken_; }

 private:
  grpc::ClientContext& peer_;
  std::atomic<bool> overtaken_{false};
  Mutex mu_;
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

// Sends weights that its peer does not read.
class Publisher final : public exchange::StreamOwner, public exchange::JobDirectory {
 public:
  std::shared_ptr<exchange::StreamOwner> FindJob(absl::string_view) override {
    return {std::shared_ptr<void>(), this};
  }
  void OnHello(std::shared_ptr<exchange::ServerStream> stream, v1::Hello) override {
    const std::string bytes(size_t{32} << 20, 'x');  // more than any window of a connection
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer weights(&slice, 1);
    for (const int64_t version : {1, 2}) stream->Send(weights, version, /*last=*/true);
    MutexLock lock(mu_);
    writing_ = stream->writing().version;
    changed_.NotifyAll();
  }
  void OnMessage(std::shared_ptr<exchange::ServerStream>,
                 std::shared_ptr<grpc::ByteBuffer>) override {}
  void OnWeightsTaken(core::StreamId, int64_t version) override {
    MutexLock lock(mu_);
    taken_.push_back(version);
  }
  void OnEnd(core::StreamId) override {}

  // The version being written once the Hello was dealt with; -1: it was not.
  int64_t WaitForWriting() {
    const absl::Time end = absl::Now() + absl::Seconds(20);
    MutexLock lock(mu_);
    while (writing_ < 0 && absl::Now() < end) changed_.WaitWithTimeout(mu_, end - absl::Now());
    return writing_;
  }
  std::vector<int64_t> taken() {
    MutexLock lock(mu_);
    return taken_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int64_t writing_ ABSL_GUARDED_BY(mu_) = -1;
  std::vector<int64_t> taken_ ABSL_GUARDED_BY(mu_);
};

// Its weights are taken before it has dealt with the Hello. It answers each message with others.
class QuickPublisher final : public exchange::StreamOwner, public exchange::JobDirectory {
 public:
  std::shared_ptr<exchange::StreamOwner> FindJob(absl::string_view) override {
    return {std::shared_ptr<void>(), this};
  }
  void OnHello(std::shared_ptr<exchange::ServerStream> stream, v1::Hello) override {
    const grpc::Slice slice("weights");
    stream->Send(grpc::ByteBuffer(&slice, 1), 7, /*last=*/true);
    const absl::Time end = absl::Now() + absl::Seconds(20);
    while (stream->writing().taken_messages == 0 && absl::Now() < end) {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  void OnMessage(std::shared_ptr<exchange::ServerStream> stream,
                 std::shared_ptr<grpc::ByteBuffer>) override {
    const grpc::Slice slice("weights");
    stream->Send(grpc::ByteBuffer(&slice, 1), 8, /*last=*/true);
    stream->Handled();
  }
  void OnWeightsTaken(core::StreamId, int64_t version) override {
    MutexLock lock(mu_);
    taken_ = version;
    changed_.NotifyAll();
  }
  void OnEnd(core::StreamId) override {}

  bool WaitForTaken(int64_t version) {
    const absl::Time end = absl::Now() + absl::Seconds(20);
    MutexLock lock(mu_);
    while (taken_ != version && absl::Now() < end) changed_.WaitWithTimeout(mu_, end - absl::Now());
    return taken_ == version;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int64_t taken_ ABSL_GUARDED_BY(mu_) = -1;
};

// The same in shared memory: the peer has mapped it before the owner has dealt with the Hello.
class QuickSharer final : public exchange::StreamOwner, public exchange::JobDirectory {
 public:
  std::shared_ptr<exchange::StreamOwner> FindJob(absl::string_view) override {
    return {std::shared_ptr<void>(), this};
  }
  void OnHello(std::shared_ptr<exchange::ServerStream> stream, v1::Hello) override {
    auto pipe = exchange::shared::Pipe::Create(exchange::shared::RingBytesFor(0));
    auto wakes = exchange::shared::MakeWakePair();
    if (!pipe.ok() || !wakes.ok()) return;
    (*pipe)->SetWakes(std::move(wakes->wake), std::move(wakes->wait));
    if (!stream->UsePipe(
            *pipe, [](exchange::wire::Pieces) {}, [](const absl::Status&) {}))
      return;
    const grpc::Slice slice("weights");
    stream->Send(grpc::ByteBuffer(&slice, 1), 7, /*last=*/true);
  }
  void OnMessage(std::shared_ptr<exchange::ServerStream> stream,
                 std::shared_ptr<grpc::ByteBuffer>) override {
    stream->Handled();
  }
  void OnWeightsTaken(core::StreamId, int64_t version) override { taken_ = version; }
  void OnEnd(core::StreamId) override {}

  int64_t taken() const { return taken_; }

 private:
  std::atomic<int64_t> taken_ = -1;
};

class ServerStreamTest : public testing::Test {
 protected:
  void Serve(exchange::JobDirectory& directory) {
    service_.emplace(directory);
    services::ServerOptions options;
    options.listen = *services::ParseEndpoint(absl::StrCat("unix:", folder_, "/s.sock"));
    options.drain_timeout = absl::Milliseconds(200);
    auto server = services::Server::Start(
        options, {{v1::ParamStoreService::service_full_name(), &*service_}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    services::ChannelOptions channel;
    channel.peer = options.listen;
    stub_ = v1::ParamStoreService::NewStub(*services::MakeChannel(channel));
  }
  void TearDown() override {
    if (server_ != nullptr) server_->Shutdown();
    EXPECT_TRUE(services::RemoveTree("/tmp", folder_).ok());
  }
  static v1::ExchangeRequest Hello() {
    v1::ExchangeRequest hello;
    hello.mutable_hello()->set_job_id("t-1");
    hello.mutable_hello()->set_kind(v1::STREAM_KIND_DATA);
    hello.mutable_hello()->set_speaks(exchange::wire::kSpeaks);
    exchange::wire::SetCheck(&hello, 0);
    return hello;
  }

  const std::string folder_ = *services::MakePrivateDir("stream-test");
  std::optional<ExchangeService> service_;
  std::unique_ptr<services::Server> server_;
  std::unique_ptr<v1::ParamStoreService::Stub> stub_;
};

TEST_F(ServerStreamTest, NoMessageOvertakesTheOneBeforeItOnItsWayToTheStrand) {
  SlowOwner owner;
  Serve(owner);
  grpc::ClientContext context;
  services::SetTimeout(context, absl::Seconds(60));
  const auto stream = stub_->Exchange(&context);
  const v1::ExchangeRequest hello = Hello();
  v1::ExchangeRequest seal;
  seal.mutable_seal()->set_step(1);
  ASSERT_TRUE(stream->Write(hello));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(stream->Write(seal));
  EXPECT_TRUE(owner.WaitFor(3));
  EXPECT_FALSE(owner.overtaken());
  context.TryCancel();
  stream->Finish();
  server_->Shutdown();
}

// Else the owner would keep a dead stream for ever.
TEST_F(ServerStreamTest, TheEndOfAStreamDoesNotOvertakeItsHello) {
  grpc::ClientContext context;
  services::SetTimeout(context, absl::Seconds(60));
  SlowGreeter owner(context);
  Serve(owner);
  const auto stream = stub_->Exchange(&context);
  stream->Write(Hello());  // which may see the cancel already
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(owner.WaitForEnd(absl::Seconds(20)));
  server_->Shutdown();
  EXPECT_FALSE(owner.overtaken());
}

// A reader that is gone has not taken the version that was under way to it.
TEST_F(ServerStreamTest, AWriteThatFailsIsNoneThatWasTaken) {
  Publisher owner;
  Serve(owner);
  grpc::ClientContext context;
  services::SetTimeout(context, absl::Seconds(60));
  const auto stream = stub_->Exchange(&context);
  ASSERT_TRUE(stream->Write(Hello()));
  EXPECT_EQ(owner.WaitForWriting(), 1);
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  server_->Shutdown();  // all of its calls are over
  EXPECT_TRUE(owner.taken().empty());
}

// Else the owner would wait for ever, and send this stream nothing else.
TEST_F(ServerStreamTest, WeightsThatAreTakenDuringTheHelloAreTaken) {
  QuickPublisher owner;
  Serve(owner);
  grpc::ClientContext context;
  services::SetTimeout(context, absl::Seconds(60));
  const auto stream = stub_->Exchange(&context);
  ASSERT_TRUE(stream->Write(Hello()));
  EXPECT_TRUE(owner.WaitForTaken(7));
  v1::ExchangeRequest seal;
  seal.mutable_seal()->set_step(1);
  ASSERT_TRUE(stream->Write(seal));
  EXPECT_TRUE(owner.WaitForTaken(8)) << "as usual, after the Hello";
  context.TryCancel();
  stream->Finish();
  server_->Shutdown();
}

TEST_F(ServerStreamTest, WeightsThatAPipeTakesDuringTheHelloAreTaken) {
  QuickSharer owner;
  Serve(owner);
  grpc::ClientContext context;
  services::SetTimeout(context, absl::Seconds(60));
  const auto stream = stub_->Exchange(&context);
  ASSERT_TRUE(stream->Write(Hello()));
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (owner.taken() != 7 && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(owner.taken(), 7);
  context.TryCancel();
  stream->Finish();
  server_->Shutdown();
}

}  // namespace
}  // namespace capstan::param_store
