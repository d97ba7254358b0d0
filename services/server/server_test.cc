// Tests Server and channel together: a real server on a Unix socket, and a real client.
#include "services/server/server.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/codegen/client_unary_call.h"
#include "gtest/gtest.h"
#include "services/channel/channel.h"
#include "services/metrics/registry.h"
#include "services/metrics/rpc_metrics.h"
#include "services/status/status.h"
#include "services/sync/mutex.h"
#include "services/version/version.h"

namespace capstan::services {
namespace {

using ::grpc::health::v1::Health;
using ::grpc::health::v1::HealthCheckRequest;
using ::grpc::health::v1::HealthCheckResponse;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kEchoName[] = "capstan.test.Echo";
constexpr char kEchoMethod[] = "/capstan.test.Echo/Echo";

// Echo answers with its request, on raw bytes, without a .proto.
class EchoService : public grpc::Service {
 public:
  EchoService() {
    AddMethod(new grpc::internal::RpcServiceMethod(kEchoMethod,
                                                   grpc::internal::RpcMethod::NORMAL_RPC, nullptr));
    MarkMethodCallback(
        0, new grpc::internal::CallbackUnaryHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
               [this](grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                      grpc::ByteBuffer* response) {
                 {
                   MutexLock lock(mu_);
                   time_left_ = TimeLeft(*context);
                 }
                 *response = *request;
                 grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
                 reactor->Finish(grpc::Status::OK);
                 return reactor;
               }));
  }
  absl::Duration time_left() {  // of the last Echo
    MutexLock lock(mu_);
    return time_left_;
  }

 private:
  Mutex mu_;
  absl::Duration time_left_ ABSL_GUARDED_BY(mu_);
};

grpc::ByteBuffer Bytes(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

class ServerTest : public ::testing::Test {
 protected:
  ServerTest() {
    char folder[] = "/tmp/capstan-server-XXXXXX";
    folder_ = mkdtemp(folder);
    unix_ = *ParseEndpoint(absl::StrCat("unix:", folder_, "/s"));
  }
  ~ServerTest() override {
    server_.reset();
    unlink(absl::StrCat(folder_, "/s").c_str());
    // Also proves that nothing else was left in the folder.
    EXPECT_EQ(rmdir(folder_.c_str()), 0) << std::strerror(errno);
  }
  void Start(ServerOptions options) {
    auto server = Server::Start(std::move(options), {{kEchoName, &echo_}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::shared_ptr<grpc::Channel> Channel(ChannelOptions options = {}) {
    options.peer = server_ != nullptr ? server_->endpoint() : unix_;
    options.security.insecure = true;
    options.own_connection = true;
    return *MakeChannel(options);
  }
  grpc::Status Call(const char* method, const std::string& text, grpc::ClientContext& context,
                    std::string* answer = nullptr,
                    std::shared_ptr<grpc::Channel> channel = nullptr) {
    if (channel == nullptr) channel = Channel();
    const grpc::internal::RpcMethod rpc(method, grpc::internal::RpcMethod::NORMAL_RPC, channel);
    grpc::ByteBuffer response;
    const grpc::Status status =
        grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
            channel.get(), rpc, &context, Bytes(text), &response);
    if (answer != nullptr) {
      grpc::Slice slice;
      if (response.DumpToSingleSlice(&slice).ok()) {
        answer->assign(reinterpret_cast<const char*>(slice.begin()), slice.size());
      }
    }
    return status;
  }
  // 0 for an unknown name, else the ServingStatus.
  int HealthOf(const std::string& name) {
    HealthCheckRequest request;
    request.set_service(name);
    HealthCheckResponse response;
    auto context = NewContext(absl::Seconds(20));
    const grpc::Status status =
        Health::NewStub(Channel())->Check(context.get(), request, &response);
    if (status.error_code() == grpc::StatusCode::NOT_FOUND) return 0;
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.status();
  }

  std::string folder_;
  Endpoint unix_;
  EchoService echo_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, HealthHasLivenessReadinessAndApiNames) {
  Start({.listen = unix_});
  EXPECT_EQ(HealthOf("liveness"), HealthCheckResponse::SERVING);
  for (const char* name : {"", "readiness", kEchoName}) {
    EXPECT_EQ(HealthOf(name), HealthCheckResponse::NOT_SERVING) << name;
  }
  server_->SetReady(true);
  for (const char* name : {"", "readiness", kEchoName}) {
    EXPECT_EQ(HealthOf(name), HealthCheckResponse::SERVING) << name;
  }
  server_->SetServing(kEchoName, false);
  EXPECT_EQ(HealthOf(kEchoName), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(HealthOf("capstan.no.Such"), 0);
}

TEST_F(ServerTest, HealthAloneIsServedToo) {
  auto server = Server::Start({.listen = unix_}, {});
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  server_->SetReady(true);
  EXPECT_EQ(HealthOf("readiness"), HealthCheckResponse::SERVING);
  grpc::ClientContext context;
  EXPECT_EQ(Call("/no.such.Service/Method", "x", context).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(ServerTest, AnUnknownCallIsAnsweredWithTheVersion) {
  Start({.listen = unix_});
  for (const char* method : {"/capstan.test.Echo/NoSuch", "/no.such.Service/Method"}) {
    const auto context = NewContext(absl::Seconds(20));
    const grpc::Status status = Call(method, "x", *context);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << method;
    EXPECT_EQ(status.error_message(), absl::StrCat("this service is of version ", Version(),
                                                   " and does not know the call"));
  }
}

TEST_F(ServerTest, SeveralServersWithHealthAloneStartInOneProcess) {
  for (int i = 0; i < 2; ++i) {
    ServerOptions options;
    options.listen = unix_;
    options.admin_socket = unix_.path + ".admin";
    auto server = Server::Start(options, {});
    ASSERT_TRUE(server.ok()) << server.status();
    (*server)->Shutdown();
  }
}

TEST_F(ServerTest, CallCarriesItsDeadline) {
  Start({.listen = unix_});
  auto context = NewContext(absl::Seconds(30));
  std::string answer;
  const grpc::Status status = Call(kEchoMethod, "hello", *context, &answer);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(answer, "hello");
  EXPECT_GT(echo_.time_left(), absl::Seconds(1));
  EXPECT_LE(echo_.time_left(), absl::Seconds(31));  // the wire rounds a timeout up
}

TEST_F(ServerTest, CompressedMessagesAreRefused) {
  Start({.listen = unix_});
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    auto context = NewContext(absl::Seconds(20));
    context->set_compression_algorithm(algorithm);
    const grpc::Status status = Call(kEchoMethod, std::string(100'000, 'a'), *context);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
    EXPECT_THAT(status.error_message(), HasSubstr("is disabled"));
  }
}

TEST_F(ServerTest, OversizedMessageAndMetadataAreRefused) {
  Start({.listen = unix_, .max_receive_bytes = kExchangeMaxReceiveBytes});
  auto fits = NewContext(absl::Seconds(20));
  EXPECT_TRUE(Call(kEchoMethod, std::string(1024 * 1024 + 65536, 'a'), *fits).ok());
  auto large = NewContext(absl::Seconds(20));
  EXPECT_EQ(Call(kEchoMethod, std::string(1024 * 1024 + 65537, 'a'), *large).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  auto metadata = NewContext(absl::Seconds(20));
  metadata->AddMetadata("x", std::string(20'000, 'a'));
  EXPECT_EQ(Call(kEchoMethod, "a", *metadata).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(ServerTest, SecondListenerOnAUnixPathIsRefusedUntilTheFirstIsGone) {
  Start({.listen = unix_});
  EchoService other;
  const auto second = Server::Start({.listen = unix_}, {{kEchoName, &other}});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(unix_.ToString()));
  auto context = NewContext(absl::Seconds(20));
  EXPECT_TRUE(Call(kEchoMethod, "a", *context).ok());  // the first server still has its socket
  server_->Shutdown();
  Start({.listen = unix_});
}

TEST_F(ServerTest, RpcMetricsCountByMethodAndCode) {
  MetricsRegistry metrics("coordinator");
  RpcMetrics rpc(metrics, {});
  rpc.AddMethod(kEchoName, "Echo", "unary");
  Start({.listen = unix_, .max_receive_bytes = 100, .interceptors = {[&rpc] {
                                                      return rpc.MakeInterceptorFactory();
                                                    }}});
  for (int i = 0; i < 2; ++i) {
    auto context = NewContext(absl::Seconds(20));
    EXPECT_TRUE(Call(kEchoMethod, "a", *context).ok());
  }
  auto missing = NewContext(absl::Seconds(20));
  EXPECT_EQ(Call("/capstan.test.Echo/NoSuch", "a", *missing).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(HealthOf("no.such"), 0);
  server_->Shutdown();  // afterwards all calls are counted
  const std::string text = metrics.Scrape();
  const auto has = [&text](const std::string& line) { EXPECT_THAT(text, HasSubstr(line)); };
  has("grpc_server_started_total{grpc_method=\"Echo\",grpc_service=\"capstan.test.Echo\","
      "grpc_type=\"unary\"} 2\n");
  has("grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Echo\","
      "grpc_service=\"capstan.test.Echo\",grpc_type=\"unary\"} 2\n");
  has("grpc_server_handling_seconds_count{grpc_method=\"Echo\","
      "grpc_service=\"capstan.test.Echo\",grpc_type=\"unary\"} 2\n");
  has("grpc_server_handled_total{grpc_code=\"NotFound\",grpc_method=\"Check\","
      "grpc_service=\"grpc.health.v1.Health\",grpc_type=\"unary\"} 1\n");
  EXPECT_THAT(text, ::testing::Not(HasSubstr("NoSuch")));
}

// Bytes of a ServerReflectionRequest{list_services: ""} (field 7), and the answer.
grpc::Status ListServices(const std::shared_ptr<grpc::Channel>& channel, std::string* answer) {
  const grpc::internal::RpcMethod rpc(
      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
      grpc::internal::RpcMethod::BIDI_STREAMING, channel);
  auto context = NewContext(absl::Seconds(20));
  std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream(
      grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
          channel.get(), rpc, context.get()));
  stream->Write(Bytes(std::string("\x3a\x00", 2)));
  stream->WritesDone();
  grpc::ByteBuffer response;
  grpc::Slice slice;
  if (stream->Read(&response) && response.DumpToSingleSlice(&slice).ok()) {
    answer->assign(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  while (stream->Read(&response)) {
  }
  return stream->Finish();
}

// Both plug-ins register themselves for every server of the process. The public server must not
// have them.
TEST_F(ServerTest, ReflectionAndChannelzAreOnTheAdminSocketAlone) {
  const std::string admin_path = absl::StrCat(folder_, "/admin");
  Start({.listen = unix_, .admin_socket = admin_path});
  server_->SetReady(true);
  const char* const channelz = "/grpc.channelz.v1.Channelz/GetServers";
  std::string answer;
  EXPECT_EQ(ListServices(Channel(), &answer).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  auto context = NewContext(absl::Seconds(20));
  EXPECT_EQ(Call(channelz, "", *context).error_code(), grpc::StatusCode::UNIMPLEMENTED);

  const auto admin = *MakeChannel({.peer = *ParseEndpoint(absl::StrCat("unix:", admin_path))});
  const grpc::Status listed = ListServices(admin, &answer);
  EXPECT_TRUE(listed.ok()) << listed.error_message();
  EXPECT_THAT(answer, HasSubstr(kEchoName));
  auto servers_context = NewContext(absl::Seconds(20));
  std::string servers;
  EXPECT_TRUE(Call(channelz, "", *servers_context, &servers, admin).ok());
  EXPECT_FALSE(servers.empty());
  auto echo_context = NewContext(absl::Seconds(20));
  EXPECT_TRUE(Call(kEchoMethod, "a", *echo_context, &answer, admin).ok());
  EXPECT_EQ(answer, "a");
}

// The socket file of a killed server must not prevent the next one from starting.
TEST_F(ServerTest, StaleSocketIsTakenOver) {
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, unix_.path.c_str());
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  close(fd);
  close(creat(absl::StrCat(unix_.path, ".lock").c_str(), 0600));
  Start({.listen = unix_});
  auto context = NewContext(absl::Seconds(20));
  EXPECT_TRUE(Call(kEchoMethod, "a", *context).ok());
}

TEST_F(ServerTest, TcpNeedsInsecureAndASecondStartNamesTheAddress) {
  const Endpoint any_port = *ParseEndpoint("127.0.0.1:0");
  EchoService other;
  EXPECT_EQ(Server::Start({.listen = any_port}, {{kEchoName, &other}}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  Start({.listen = any_port, .security = {.insecure = true}});
  ASSERT_GT(server_->endpoint().port, 0);
  auto context = NewContext(absl::Seconds(20));
  EXPECT_TRUE(Call(kEchoMethod, "a", *context).ok());
  const auto second = Server::Start({.listen = server_->endpoint(), .security = {.insecure = true}},
                                    {{kEchoName, &other}});
  EXPECT_EQ(second.status().message(),
            absl::StrCat("listen on ", server_->endpoint().ToString(), ": Address already in use"));
}

TEST_F(ServerTest, OpenFolderIsRefused) {
  chmod(folder_.c_str(), 0755);
  const auto server = Server::Start({.listen = unix_}, {{kEchoName, &echo_}});
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("mode 0755"));
}

TEST_F(ServerTest, ShutdownRunsItsStepsInOrderAndEndsHeldCalls) {
  Start({.listen = unix_, .drain_timeout = absl::Milliseconds(50)});
  server_->SetReady(true);
  // A call that would never end by itself. It sees the end of readiness before it is cancelled.
  auto watch_context = NewContext(absl::Seconds(30));
  auto stub = Health::NewStub(Channel());
  HealthCheckRequest request;
  request.set_service("readiness");
  auto watch = stub->Watch(watch_context.get(), request);
  HealthCheckResponse seen;
  ASSERT_TRUE(watch->Read(&seen));
  EXPECT_EQ(seen.status(), HealthCheckResponse::SERVING);
  std::vector<std::string> order;
  server_->AddStopHook("snapshot", [&order] { order.push_back("snapshot"); });
  server_->AddStopHook("files", [&order] { order.push_back("files"); });
  server_->AddDrainHook("streams", [&order] { order.push_back("streams"); });
  server_->Shutdown();
  server_->Shutdown();  // has no further effect

  EXPECT_THAT(order, ElementsAre("streams", "snapshot", "files"));
  std::vector<std::string> steps;
  for (const Server::Step& step : server_->shutdown_steps()) steps.push_back(step.name);
  EXPECT_THAT(steps, ElementsAre("health", "streams", "drain", "snapshot", "files"));
  EXPECT_GE(server_->shutdown_steps()[2].took, absl::Milliseconds(50));
  ASSERT_TRUE(watch->Read(&seen));
  EXPECT_EQ(seen.status(), HealthCheckResponse::NOT_SERVING);
  EXPECT_FALSE(watch->Read(&seen));
  EXPECT_FALSE(watch->Finish().ok());
}

// A control call made while the peer restarts waits for it, far shorter than the default back-off
// of seconds.
TEST_F(ServerTest, CallWaitsForARestartedServer) {
  Start({.listen = unix_});
  auto channel = Channel();
  auto before = NewContext(absl::Seconds(20));
  EXPECT_TRUE(Call(kEchoMethod, "a", *before, nullptr, channel).ok());
  server_->Shutdown();
  auto during = NewContext(absl::Seconds(20));
  auto pending = std::async(std::launch::async,
                            [&] { return Call(kEchoMethod, "b", *during, nullptr, channel); });
  Start({.listen = unix_});
  const grpc::Status status = pending.get();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST(ServerArgsTest, AreTheMeasuredOnes) {
  const auto list = ServerChannelArgs({});
  const std::map<std::string, int> args(list.begin(), list.end());
  EXPECT_EQ(args.at("grpc.so_reuseport"), 0);
  EXPECT_EQ(args.at("grpc.keepalive_time_ms"), 10'000);
  EXPECT_EQ(args.at("grpc.keepalive_timeout_ms"), 5'000);
  EXPECT_EQ(args.at("grpc.server_handshake_timeout_ms"), 5'000);
  EXPECT_LT(args.at("grpc.http2.min_ping_interval_without_data_ms"), 10'000);
  EXPECT_EQ(args.at("grpc.max_concurrent_streams"), 100);
  EXPECT_EQ(args.at("grpc.max_metadata_size"), 16 * 1024);
}

TEST(ChannelArgsTest, AreTheMeasuredOnes) {
  const auto ints = [](const ChannelOptions& options) {
    const grpc::ChannelArguments made = MakeChannelArguments(options);
    const grpc_channel_args list = made.c_channel_args();
    std::map<std::string, int> found;
    for (size_t i = 0; i < list.num_args; ++i) {
      if (list.args[i].type == GRPC_ARG_INTEGER)
        found[list.args[i].key] = list.args[i].value.integer;
    }
    return found;
  };
  const auto args = ints({.max_receive_bytes = 123});
  EXPECT_EQ(args.at("grpc.keepalive_time_ms"), 10'000);
  EXPECT_EQ(args.at("grpc.keepalive_timeout_ms"), 5'000);
  EXPECT_EQ(args.at("grpc.keepalive_permit_without_calls"), 1);
  EXPECT_EQ(args.at("grpc.initial_reconnect_backoff_ms"), 50);
  EXPECT_EQ(args.at("grpc.max_reconnect_backoff_ms"), 2'000);
  EXPECT_EQ(args.at("grpc.max_receive_message_length"), 123);
  EXPECT_EQ(args.at("grpc.enable_retries"), 1);
  EXPECT_EQ(args.count("grpc.use_local_subchannel_pool"), 0u);
  EXPECT_EQ(ints({.retry = false, .own_connection = true}).at("grpc.use_local_subchannel_pool"), 1);
  EXPECT_EQ(ints({.retry = false}).at("grpc.enable_retries"), 0);
  EXPECT_EQ(ServiceConfigJson({}),
            R"({"methodConfig":[{"name":[{}],"waitForReady":true,"retryPolicy":{"maxAttempts":5,)"
            R"("initialBackoff":"0.050s","maxBackoff":"2.000s","backoffMultiplier":2,)"
            R"("retryableStatusCodes":["UNAVAILABLE"]}}],)"
            R"("retryThrottling":{"maxTokens":10,"tokenRatio":0.1}})");
}

}  // namespace
}  // namespace capstan::services
