// ExchangeClient and a shard that have certificates of one authority.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "capstan/param_store/v1/param_store.grpc.pb.h"
#include "exchange/transport/exchange_client.h"
#include "exchange/wire/frame_codec.h"
#include "services/files/files.h"
#include "services/security/certificates.h"
#include "services/security/tokens.h"
#include "services/server/server.h"

namespace capstan::exchange {
namespace {

using services::Role;

constexpr absl::Duration kTlsLimit = absl::Seconds(20);

// Counts the Hellos that reach it.
class CountingShard final : public v1::ParamStoreService::Service {
 public:
  bool WaitForHello() {
    MutexLock lock(mu_);
    const absl::Time end = absl::Now() + kTlsLimit;
    while (hellos_ == 0 && absl::Now() < end) changed_.WaitWithTimeout(mu_, end - absl::Now());
    return hellos_ > 0;
  }
  int hellos() {
    MutexLock lock(mu_);
    return hellos_;
  }

 private:
  grpc::Status Exchange(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::ExchangeResponse, v1::ExchangeRequest>* stream) override {
    v1::ExchangeRequest request;
    while (stream->Read(&request)) {
      MutexLock lock(mu_);
      hellos_ += request.has_hello() ? 1 : 0;
      changed_.NotifyAll();
    }
    return grpc::Status::OK;
  }

  Mutex mu_;
  CondVar changed_;
  int hellos_ ABSL_GUARDED_BY(mu_) = 0;
};

class ExchangeTlsTest : public ::testing::Test {
 protected:
  ExchangeTlsTest()
      : folder_(*services::MakePrivateDir("exchange-tls")),
        authority_(*services::MakeAuthority("test", absl::Now(), absl::Hours(1))) {
    Write("ca.crt", authority_.certificate);
    Make(Role::kWorker, "node-a");
    Make(Role::kWorker, "node-b");
    Make(Role::kParamStore, "ps-0");
    Write("tokens.json", services::FormatTokens(tokens_));
    thread_ = std::thread([this] { strand_.Run(); });
  }
  ~ExchangeTlsTest() override {
    strand_.Stop();
    thread_.join();
    client_.reset();
    server_.reset();
    EXPECT_TRUE(services::RemoveTree("/tmp", folder_).ok());
  }

  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }
  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(
        services::WriteFileAtomically(Path(name), text, {.mode = 0600, .sync = false}).ok());
  }
  void Make(Role role, const std::string& name) {
    const services::KeyPair pair =
        *services::IssueCertificate(authority_, {.identity = {role, name},
                                                 .hosts = {"127.0.0.1"},
                                                 .now = absl::Now(),
                                                 .lifetime = absl::Hours(1)});
    Write(name + ".crt", pair.certificate);
    Write(name + ".key", pair.key);
    const std::string token = services::MakeToken();
    Write(name + ".token", token);
    tokens_.push_back({services::HashToken(token), {role, name}, absl::Now() + absl::Hours(1)});
  }
  services::Security Of(const std::string& name) const {
    return {.tls_cert = Path(name + ".crt"),
            .tls_key = Path(name + ".key"),
            .tls_ca = Path("ca.crt"),
            .token_file = Path(name + ".token"),
            .tokens = Path("tokens.json")};
  }
  // node-a opens a stream to a shard that has the certificate of `shard`.
  void Open(const std::string& shard, absl::Duration hello_timeout) {
    auto server = services::Server::Start(
        {.listen = *services::ParseEndpoint("127.0.0.1:0"),
         .security = Of(shard),
         .drain_timeout = absl::Milliseconds(200)},
        {{v1::ParamStoreService::service_full_name(), &shard_, {Role::kWorker}}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    server_->SetReady(true);
    ExchangeClientOptions options;
    options.core.job_id = "j1";
    options.security = Of("node-a");
    options.core.hello_timeout = hello_timeout;
    client_ = std::make_unique<ExchangeClient>(layout_, options, strand_, ExchangeCallbacks());
    strand_.Post([this] {
      Route route;
      route.lineage = 1;
      route.shards = {{"ps0", server_->endpoint().ToString(), 0, layout_.chunk_count()}};
      EXPECT_EQ(client_->Open(route), absl::OkStatus());
    });
  }
  // On the strand, until the second attempt has failed.
  void LookForRetries() {
    if (client_->stats().retries < 2) {
      strand_.PostAfter(absl::Milliseconds(10), [this] { LookForRetries(); });
      return;
    }
    MutexLock lock(mu_);
    retried_ = true;
    changed_.NotifyAll();
  }
  bool WaitForRetries() {
    strand_.Post([this] { LookForRetries(); });
    MutexLock lock(mu_);
    const absl::Time end = absl::Now() + kTlsLimit;
    while (!retried_ && absl::Now() < end) changed_.WaitWithTimeout(mu_, end - absl::Now());
    return retried_;
  }
  static training::FlatLayout OneChunk() {
    training::TensorSpec spec;
    spec.name = "fc.weight";
    spec.shape = {32};
    spec.fan_in = spec.fan_out = 1;
    return *training::FlatLayout::Create({spec});
  }

  const std::string folder_;
  const services::KeyPair authority_;
  std::vector<services::TokenEntry> tokens_;
  const training::FlatLayout layout_ = OneChunk();
  CountingShard shard_;
  std::unique_ptr<services::Server> server_;
  services::StrandLoop strand_;
  std::thread thread_;
  std::unique_ptr<ExchangeClient> client_;
  Mutex mu_;
  CondVar changed_;
  bool retried_ ABSL_GUARDED_BY(mu_) = false;
};

TEST_F(ExchangeTlsTest, AShardIsReached) {
  Open("ps-0", kTlsLimit);
  EXPECT_TRUE(shard_.WaitForHello());
}

// It would see the job's gradients, and make its weights.
TEST_F(ExchangeTlsTest, AWorkerCannotStandInForAShard) {
  Open("node-b", absl::Milliseconds(200));
  EXPECT_TRUE(WaitForRetries());
  EXPECT_EQ(shard_.hellos(), 0);
}

}  // namespace
}  // namespace capstan::exchange
