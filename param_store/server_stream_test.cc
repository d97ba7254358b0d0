// One stream of a shard, with an owner that is slower than its peer.
#include "param_store/server_stream.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "param_store/exchange_service.h"
#include "services/channel/channel.h"
#include "services/files/files.h"
#include "services/server/server.h"

namespace capstan::param_store {
namespace {

// Deals with its first message while it is being given the second, as its strand may.
class SlowOwner final : public StreamOwner, public JobDirectory {
 public:
  std::shared_ptr<StreamOwner> FindJob(absl::string_view) override {
    return {std::shared_ptr<void>(), this};
  }
  void OnHello(std::shared_ptr<ServerStream>, v1::Hello) override {}
  void OnMessage(std::shared_ptr<ServerStream> stream, std::shared_ptr<grpc::ByteBuffer>) override {
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

TEST(ServerStreamTest, NoMessageOvertakesTheOneBeforeItOnItsWayToTheStrand) {
  const std::string folder = *services::MakePrivateDir("stream-test");
  SlowOwner owner;
  ExchangeService service(owner);
  services::ServerOptions options;
  options.listen = *services::ParseEndpoint(absl::StrCat("unix:", folder, "/s.sock"));
  options.drain_timeout = absl::Milliseconds(200);
  auto server =
      services::Server::Start(options, {{v1::ParamStoreService::service_full_name(), &service}});
  ASSERT_TRUE(server.ok()) << server.status();
  services::ChannelOptions channel;
  channel.peer = options.listen;
  const auto stub = v1::ParamStoreService::NewStub(*services::MakeChannel(channel));
  grpc::ClientContext context;
  services::SetTimeout(context, absl::Seconds(60));
  const auto stream = stub->Exchange(&context);
  v1::ExchangeRequest hello, seal;
  hello.mutable_hello()->set_job_id("t-1");
  hello.mutable_hello()->set_kind(v1::STREAM_KIND_DATA);
  seal.mutable_seal()->set_step(1);
  ASSERT_TRUE(stream->Write(hello));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(stream->Write(seal));
  EXPECT_TRUE(owner.WaitFor(3));
  EXPECT_FALSE(owner.overtaken());
  context.TryCancel();
  stream->Finish();
  (*server)->Shutdown();
  EXPECT_TRUE(services::RemoveTree("/tmp", folder).ok());
}

}  // namespace
}  // namespace capstan::param_store
