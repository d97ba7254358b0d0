// The real binary under a coordinator of this test: it registers, loads a job, reports, serves, and
// leaves in order on SIGTERM.
#include "param_store/service.h"

#include <signal.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "capstan/node/v1/node.grpc.pb.h"
#include "capstan/param_store/v1/param_store.grpc.pb.h"
#include "exchange/wire/frame_codec.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "param_store/config.h"
#include "services/channel/channel.h"
#include "services/files/files.h"
#include "services/process/process.h"
#include "services/security/tokens.h"
#include "services/server/server.h"
#include "services/sync/mutex.h"
#include "tests/support/http_get.h"
#include "training/spec/resolve.h"

namespace capstan::param_store {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLimit = absl::Seconds(30);  // far above what any wait below takes

job::v1::ResolvedSpec MakeSpec(const std::string& folder) {
  job::v1::JobSpec s;
  s.set_version(1);
  s.set_name("t");
  s.mutable_resources()->set_num_workers(2);
  s.mutable_model()->set_name("mlp");
  s.mutable_data()->set_format("synthetic_digits");
  s.mutable_training()->set_epochs(1);
  s.mutable_training()->set_global_batch_size(10);
  s.mutable_training()->mutable_optimizer()->set_name("sgd");
  s.mutable_training()->mutable_optimizer()->set_learning_rate(0.1);
  common::v1::DatasetInfo info;
  info.set_train_samples(60000);
  info.set_test_samples(10000);
  info.set_channels(1);
  info.set_height(28);
  info.set_width(28);
  info.set_num_classes(10);
  auto spec = training::spec::Resolve(s, info, {.job_id = "t-1", .storage_path = folder});
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *std::move(spec);
}

// One lineage of a job of two workers, whose only shard listens at `socket`.
node::v1::StartLineage MakeOrder(const std::string& folder, const std::string& socket) {
  const job::v1::ResolvedSpec spec = MakeSpec(folder);
  const std::string bytes = spec.SerializeAsString();
  node::v1::StartLineage order;
  order.set_job_id("t-1");
  order.set_resolved_spec(bytes);
  order.set_spec_digest(training::spec::Digest(bytes));
  common::v1::View& view = *order.mutable_view();
  view.set_job_id("t-1");
  view.set_lineage(1);
  view.set_generation(1);
  view.add_lane_owners(0);
  view.add_lane_owners(1);
  view.add_workers()->set_rank(0);
  view.add_workers()->set_rank(1);
  view.add_shards()->set_address(socket);
  view.mutable_shards(0)->set_chunk_count(training::spec::MakeLayout(spec)->chunk_count());
  return order;
}

// Answers Register, then orders one lineage; keeps the last state of the shard.
class OneJobCoordinator : public node::v1::NodeService::Service {
 public:
  // `hears_leaving`: is of a version that hands jobs over.
  OneJobCoordinator(node::v1::StartLineage order, bool hears_leaving)
      : order_(std::move(order)), hears_leaving_(hears_leaving) {}

  grpc::Status Connect(grpc::ServerContext*,
                       grpc::ServerReaderWriter<node::v1::ConnectResponse,
                                                node::v1::ConnectRequest>* stream) override {
    node::v1::ConnectRequest request;
    while (stream->Read(&request)) {
      if (request.has_register_()) {
        node::v1::ConnectResponse reply;
        reply.mutable_registered()->set_incarnation(5);
        reply.mutable_registered()->set_heartbeat_ms(50);
        reply.mutable_registered()->set_hears_leaving(hears_leaving_);
        stream->Write(reply);
        *reply.mutable_start_lineage() = order_;
        stream->Write(reply);
      }
      bool end = false;
      {
        MutexLock lock(mu_);
        end = request.has_heartbeat() && taken_;
      }
      if (end) {
        node::v1::ConnectResponse reply;
        reply.mutable_end_job()->set_job_id("t-1");
        stream->Write(reply);
      }
      MutexLock lock(mu_);
      if (request.has_register_()) register_ = request.register_();
      if (request.has_heartbeat()) leaving_ms_ = request.heartbeat().leaving_ms();
      if (request.has_heartbeat() && request.heartbeat().shards_size() > 0) {
        state_ = request.heartbeat().shards(0);
      }
      changed_.NotifyAll();
    }
    MutexLock lock(mu_);
    gone_ = true;
    changed_.NotifyAll();
    return grpc::Status::OK;
  }

  node::v1::Register WaitUntilReady() {
    const absl::Time until = absl::Now() + kLimit;
    MutexLock lock(mu_);
    while (!state_.ready() && absl::Now() < until) {
      changed_.WaitWithTimeout(mu_, absl::Milliseconds(100));
    }
    EXPECT_TRUE(state_.ready());
    EXPECT_EQ(state_.job_id(), "t-1");
    return register_;
  }
  bool WaitUntilGone() {
    const absl::Time until = absl::Now() + kLimit;
    MutexLock lock(mu_);
    while (!gone_ && absl::Now() < until) changed_.WaitWithTimeout(mu_, absl::Milliseconds(100));
    return gone_;
  }
  // What its heartbeats say of its leaving, once they do; 0: they do not.
  int32_t WaitUntilLeaving() {
    const absl::Time until = absl::Now() + kLimit;
    MutexLock lock(mu_);
    while (leaving_ms_ == 0 && !gone_ && absl::Now() < until) {
      changed_.WaitWithTimeout(mu_, absl::Milliseconds(100));
    }
    return leaving_ms_;
  }
  // The job goes on elsewhere: the shard is told to let go of it.
  void Take() {
    MutexLock lock(mu_);
    taken_ = true;
  }

 private:
  const node::v1::StartLineage order_;
  const bool hears_leaving_;
  Mutex mu_;
  CondVar changed_;
  node::v1::Register register_ ABSL_GUARDED_BY(mu_);
  node::v1::ShardState state_ ABSL_GUARDED_BY(mu_);
  int32_t leaving_ms_ ABSL_GUARDED_BY(mu_) = 0;
  bool taken_ ABSL_GUARDED_BY(mu_) = false;
  bool gone_ ABSL_GUARDED_BY(mu_) = false;
};

// SIGTERM to a shard whose coordinator answers in three ways.
class LeavingTest : public testing::Test {
 protected:
  void Start(bool hears_leaving, const char* hand_over) {
    folder_ = *services::MakePrivateDir("capstan-ps");
    const std::string socket = absl::StrCat("unix:", folder_, "/s.sock");
    const std::string address = absl::StrCat("unix:", folder_, "/c.sock");
    coordinator_ = std::make_unique<OneJobCoordinator>(MakeOrder(folder_, socket), hears_leaving);
    services::ServerOptions listen;
    listen.listen = *services::ParseEndpoint(address);
    auto server = services::Server::Start(
        listen, {{node::v1::NodeService::service_full_name(), coordinator_.get()}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    auto process = spawner_.Spawn({.binary = CAPSTAN_PARAM_STORE_BINARY,
                                   .args = {"--listen", socket, "--http", "off", "--coordinator",
                                            address, "--node", "ps0", "--hand-over", hand_over}});
    ASSERT_TRUE(process.ok()) << process.status();
    process_ = *std::move(process);
    coordinator_->WaitUntilReady();
  }
  void TearDown() override {
    process_.reset();
    server_->Shutdown();
    EXPECT_TRUE(services::RemoveTree("/tmp", folder_).ok());
  }
  void ExpectEnd() {
    const auto exit = process_->WaitFor(kLimit);
    ASSERT_TRUE(exit.has_value());
    EXPECT_TRUE(exit->success()) << exit->ToString();
    EXPECT_TRUE(coordinator_->WaitUntilGone());  // it said goodbye
  }

  std::string folder_;
  std::unique_ptr<OneJobCoordinator> coordinator_;
  std::unique_ptr<services::Server> server_;
  services::ProcessSpawner spawner_;
  std::unique_ptr<services::Process> process_;
};

TEST_F(LeavingTest, ItStaysUntilItsJobIsTaken) {
  Start(/*hears_leaving=*/true, "20m");  // far above kLimit
  process_->Kill(SIGTERM);
  const int32_t left = coordinator_->WaitUntilLeaving();
  EXPECT_GT(left, 19 * 60 * 1000);
  EXPECT_LE(left, 20 * 60 * 1000);
  EXPECT_FALSE(process_->WaitFor(absl::Milliseconds(300)).has_value());
  coordinator_->Take();
  ExpectEnd();
}

TEST_F(LeavingTest, ItGoesWhenItsTimeIsOver) {
  Start(/*hears_leaving=*/true, "200ms");
  process_->Kill(SIGTERM);
  EXPECT_GT(coordinator_->WaitUntilLeaving(), 0);
  ExpectEnd();
}

TEST_F(LeavingTest, ItGoesAtOnceWhereTheCoordinatorIsOfBefore) {
  Start(/*hears_leaving=*/false, "20m");
  process_->Kill(SIGTERM);
  ExpectEnd();
}

TEST_F(LeavingTest, ItGoesWhereNoCoordinatorAnswers) {
  Start(/*hears_leaving=*/true, "20m");
  server_->Shutdown();
  process_->Kill(SIGTERM);
  const auto exit = process_->WaitFor(kLimit);
  ASSERT_TRUE(exit.has_value());
  EXPECT_TRUE(exit->success()) << exit->ToString();
}

TEST_F(LeavingTest, ASecondSignalEndsItAtOnce) {
  Start(/*hears_leaving=*/true, "20m");
  process_->Kill(SIGTERM);
  EXPECT_GT(coordinator_->WaitUntilLeaving(), 0);
  process_->Kill(SIGTERM);
  const auto exit = process_->WaitFor(kLimit);
  ASSERT_TRUE(exit.has_value());
  EXPECT_EQ(exit->code, 128 + SIGTERM);
}

TEST(ServiceTest, ServesAJobAndLeavesInOrderOnSigterm) {
  const std::string folder = *services::MakePrivateDir("capstan-ps");
  const std::string socket = absl::StrCat("unix:", folder, "/s.sock");
  const node::v1::StartLineage order = MakeOrder(folder, socket);
  OneJobCoordinator coordinator(order, /*hears_leaving=*/false);
  services::ServerOptions listen;
  listen.listen = *services::ParseEndpoint(absl::StrCat("unix:", folder, "/c.sock"));
  auto server =
      services::Server::Start(listen, {{node::v1::NodeService::service_full_name(), &coordinator}});
  ASSERT_TRUE(server.ok()) << server.status();

  Mutex mu;
  CondVar changed;
  std::string said;
  services::ProcessSpawner spawner;
  auto process =
      spawner.Spawn({.binary = CAPSTAN_PARAM_STORE_BINARY,
                     .args = {"--listen", socket, "--http", "off", "--coordinator",
                              absl::StrCat("unix:", folder, "/c.sock"), "--node", "ps0",
                              "--admin-socket", absl::StrCat(folder, "/a.sock")},
                     .on_line = [&](services::OutputStream stream, absl::string_view line) {
                       if (stream != services::OutputStream::kStdout) return;
                       MutexLock lock(mu);
                       absl::StrAppend(&said, line, "\n");
                       changed.NotifyAll();
                     }});
  ASSERT_TRUE(process.ok()) << process.status();

  const node::v1::Register registered = coordinator.WaitUntilReady();
  EXPECT_EQ(registered.name(), "ps0");
  EXPECT_EQ(registered.role(), common::v1::ROLE_PARAM_STORE);
  EXPECT_EQ(registered.data_address(), socket);
  EXPECT_EQ(registered.pid(), (*process)->pid());
  {
    MutexLock lock(mu);
    while (!absl::StrContains(said, "\n")) changed.Wait(mu);
    EXPECT_EQ(said, absl::StrCat("event=listening grpc=", socket, " http=off\n"));
  }

  services::ChannelOptions dial;
  dial.peer = *services::ParseEndpoint(absl::StrCat("unix:", folder, "/a.sock"));
  {
    auto admin = v1::ParamStoreService::NewStub(*services::MakeChannel(dial));
    grpc::ClientContext context;
    services::SetTimeout(context, kLimit);
    v1::MeasureRequest request;
    request.set_payload("12345");
    v1::MeasureResponse response;
    EXPECT_TRUE(admin->Measure(&context, request, &response).ok());
    EXPECT_EQ(response.received_bytes(), 5);
  }
  dial.peer = *services::ParseEndpoint(socket);
  auto stub = v1::ParamStoreService::NewStub(*services::MakeChannel(dial));
  grpc::ClientContext context;
  services::SetTimeout(context, kLimit);
  auto stream = stub->Exchange(&context);
  v1::ExchangeRequest request;
  v1::Hello& hello = *request.mutable_hello();
  hello.set_job_id("t-1");
  hello.set_spec_digest(order.spec_digest());
  hello.set_lineage(1);
  hello.set_kind(v1::STREAM_KIND_DATA);
  hello.set_have_version(-1);
  hello.set_speaks(exchange::wire::kSpeaks);
  exchange::wire::SetCheck(&request, 1);
  ASSERT_TRUE(stream->Write(request));
  v1::ExchangeResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.hello().version(), 0);
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_TRUE(response.has_weights());

  (*process)->Kill(SIGTERM);
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(coordinator.WaitUntilGone());  // it said goodbye
  const auto exit = (*process)->WaitFor(kLimit);
  ASSERT_TRUE(exit.has_value());
  EXPECT_TRUE(exit->success()) << exit->ToString();
  (*server)->Shutdown();
  EXPECT_TRUE(services::RemoveTree("/tmp", folder).ok());
}

// What names jobs is said to whom a token lets in, or to everybody by choice.
TEST(ServiceTest, OffLoopbackMetricsWantATokenUnlessTheyAreOpened) {
  const std::string folder = *services::MakePrivateDir("capstan-ps");
  const std::string token = services::MakeToken();
  Config config;
  config.common.listen = absl::StrCat("unix:", folder, "/s.sock");
  config.common.http = "0.0.0.0:0";
  config.common.security.insecure = true;  // plain HTTP off loopback
  config.common.security.tokens = absl::StrCat(folder, "/tokens.json");
  config.coordinator = absl::StrCat("unix:", folder, "/c.sock");
  config.node = "ps0";
  ASSERT_TRUE(
      services::WriteFileAtomically(config.common.security.tokens,
                                    services::FormatTokens({{services::HashToken(token),
                                                             {services::Role::kClient, "ann"},
                                                             absl::Now() + absl::Hours(1)}}),
                                    {.mode = 0600, .sync = false})
          .ok());
  for (const bool open : {false, true}) {
    config.common.open_metrics = open;
    ASSERT_EQ(config.Check(), absl::OkStatus());
    const auto service = Service::Start(config);
    ASSERT_TRUE(service.ok()) << service.status();
    const std::string addresses = (*service)->Addresses();
    const std::string without = tests::HttpGet(addresses, "/metrics");
    EXPECT_THAT(without, HasSubstr(open ? " 200 " : " 401 "));
    EXPECT_EQ(absl::StrContains(without, "capstan_build_info"), open);
    EXPECT_THAT(tests::HttpGet(addresses, "/metrics", token), HasSubstr("capstan_build_info"));
    EXPECT_THAT(tests::HttpGet(addresses, "/healthz"), HasSubstr(" 200 "));
  }
  EXPECT_TRUE(services::RemoveTree("/tmp", folder).ok());
}

struct BadFlags {
  const char* name;
  Config config;
  const char* message;
};

Config With(std::string listen, std::string coordinator, std::string node) {
  Config config;
  config.common.listen = std::move(listen);
  config.common.http = "off";
  config.coordinator = std::move(coordinator);
  config.node = std::move(node);
  return config;
}

TEST(ConfigTest, BadValuesNameTheirFlag) {
  BadFlags cases[] = {
      {"no node", With("unix:/tmp/x/s.sock", "unix:/tmp/x/c.sock", ""), "--node: got ''"},
      {"node in capitals", With("unix:/tmp/x/s.sock", "unix:/tmp/x/c.sock", "PS0"), "--node"},
      {"no coordinator", With("unix:/tmp/x/s.sock", "", "ps0"), "--coordinator"},
      {"plaintext coordinator", With("unix:/tmp/x/s.sock", "127.0.0.1:7070", "ps0"),
       "127.0.0.1:7070"},
      {"bad listen", With("nowhere", "unix:/tmp/x/c.sock", "ps0"), "--listen"},
  };
  for (BadFlags& bad : cases) {
    SCOPED_TRACE(bad.name);
    const absl::Status status = bad.config.Check();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
  }
  EXPECT_TRUE(With("unix:/tmp/x/s.sock", "unix:/tmp/x/c.sock", "ps0").Check().ok());
}

}  // namespace
}  // namespace capstan::param_store
