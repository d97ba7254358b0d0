// Real servers and channels over TLS on loopback.
#include "services/security/credentials.h"

#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/codegen/client_unary_call.h"
#include "gtest/gtest.h"
#include "services/channel/channel.h"
#include "services/files/files.h"
#include "services/security/certificates.h"
#include "services/security/handshake.h"
#include "services/security/tokens.h"
#include "services/server/server.h"
#include "services/sync/mutex.h"

namespace capstan::services {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kService[] = "capstan.test.Echo";
constexpr char kMethod[] = "/capstan.test.Echo/Echo";

// Answers with its request and records the caller.
class EchoService : public grpc::Service {
 public:
  EchoService() {
    AddMethod(new grpc::internal::RpcServiceMethod(kMethod, grpc::internal::RpcMethod::NORMAL_RPC,
                                                   nullptr));
    MarkMethodCallback(
        0, new grpc::internal::CallbackUnaryHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
               [this](grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                      grpc::ByteBuffer* response) {
                 {
                   MutexLock lock(mu_);
                   caller_ = CallerOf(*context);
                   ++calls_;
                 }
                 *response = *request;
                 grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
                 reactor->Finish(grpc::Status::OK);
                 return reactor;
               }));
  }
  std::optional<Identity> caller() {
    MutexLock lock(mu_);
    return caller_;
  }
  int calls() {
    MutexLock lock(mu_);
    return calls_;
  }

 private:
  Mutex mu_;
  std::optional<Identity> caller_ ABSL_GUARDED_BY(mu_);
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
};

class CredentialsTest : public ::testing::Test {
 protected:
  CredentialsTest()
      : folder_(*MakePrivateDir("capstan-tls")),
        authority_(*MakeAuthority("test", absl::Now(), absl::Hours(1))) {
    Write("ca.crt", authority_.certificate);
    Write("tokens.json", FormatTokens({}));
    Make(Role::kCoordinator, "coordinator");
    Make(Role::kClient, "ann");
    Make(Role::kWorker, "node-a");
  }
  ~CredentialsTest() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }
  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(WriteFileAtomically(Path(name), text, {.mode = 0600, .sync = false}).ok());
    absl::SleepFor(kTokensFresh + absl::Milliseconds(1));  // from then on a change counts
  }
  // Makes NAME.crt, NAME.key and NAME.token.
  void Make(Role role, const std::string& name,
            const std::vector<std::string>& hosts = {"127.0.0.1"}) {
    const KeyPair pair = *IssueCertificate(
        authority_,
        {.identity = {role, name}, .hosts = hosts, .now = absl::Now(), .lifetime = absl::Hours(1)});
    Write(name + ".crt", pair.certificate);
    Write(name + ".key", pair.key);
    const std::string token = MakeToken();
    Write(name + ".token", token);
    tokens_[name] = {HashToken(token), {role, name}, absl::Now() + absl::Hours(1)};
    WriteTable();
  }
  void WriteTable() {
    std::vector<TokenEntry> entries;
    for (const auto& [name, entry] : tokens_) entries.push_back(entry);
    Write("tokens.json", FormatTokens(entries));
  }
  Security Of(const std::string& name, const std::string& token_of = "") const {
    return {.tls_cert = Path(name + ".crt"),
            .tls_key = Path(name + ".key"),
            .tls_ca = Path("ca.crt"),
            .token_file = Path((token_of.empty() ? name : token_of) + ".token"),
            .tokens = Path("tokens.json")};
  }
  void Start(const std::string& name = "coordinator") {
    auto server = Server::Start({.listen = *ParseEndpoint("127.0.0.1:0"), .security = Of(name)},
                                {{kService, &echo_, {Role::kClient, Role::kAdmin}}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    server_->SetReady(true);
  }
  std::shared_ptr<grpc::Channel> Dial(const Security& security,
                                      std::optional<Role> peer = Role::kCoordinator) {
    ChannelOptions options;
    options.peer = server_->endpoint();
    options.security = security;
    options.peer_role = peer;
    options.retry = false;
    options.own_connection = true;
    auto channel = MakeChannel(options);
    EXPECT_TRUE(channel.ok()) << channel.status();
    return *channel;
  }
  // Makes a call that does not wait for a connection.
  grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel,
                    const std::string& text = "hello") {
    const grpc::internal::RpcMethod rpc(kMethod, grpc::internal::RpcMethod::NORMAL_RPC, channel);
    const grpc::Slice slice(text);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    auto context = NewContext(absl::Seconds(20));
    context->set_wait_for_ready(false);
    return grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
        channel.get(), rpc, context.get(), request, &response);
  }
  static std::string Text(const grpc::Status& status) {
    return absl::StrCat(status.error_code(), " ", status.error_message());
  }

  const std::string folder_;
  const KeyPair authority_;
  std::map<std::string, TokenEntry> tokens_;
  EchoService echo_;
  std::unique_ptr<Server> server_;
};

TEST_F(CredentialsTest, WhoMayCallIsKnownByItsCertificate) {
  Start();
  const auto channel = Dial(Of("ann"));
  const grpc::Status status = Call(channel);
  EXPECT_TRUE(status.ok()) << Text(status);
  EXPECT_EQ(echo_.caller(), (Identity{Role::kClient, "ann"}));
}

// Row 1 of the threat model.
TEST_F(CredentialsTest, WithoutTlsOrACertificateOfTheAuthorityNoHandlerRuns) {
  Start();
  EXPECT_EQ(Call(Dial({.insecure = true})).error_code(), grpc::StatusCode::UNAVAILABLE);

  grpc::SslCredentialsOptions no_certificate;
  no_certificate.pem_root_certs = authority_.certificate;
  EXPECT_EQ(Call(grpc::CreateChannel(server_->endpoint().ToString(),
                                     grpc::SslCredentials(no_certificate)))
                .error_code(),
            grpc::StatusCode::UNAVAILABLE);

  const KeyPair other = *MakeAuthority("other", absl::Now(), absl::Hours(1));
  const KeyPair forged = *IssueCertificate(
      other, {.identity = {Role::kClient, "ann"}, .now = absl::Now(), .lifetime = absl::Hours(1)});
  grpc::SslCredentialsOptions foreign;
  foreign.pem_root_certs = authority_.certificate;
  foreign.pem_cert_chain = forged.certificate;
  foreign.pem_private_key = forged.key;
  EXPECT_EQ(Call(grpc::CreateChannel(server_->endpoint().ToString(), grpc::SslCredentials(foreign)))
                .error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(echo_.calls(), 0);
}

// Row 2.
TEST_F(CredentialsTest, ATokenThatIsMissingForgedWithdrawnOrExpiredIsRefused) {
  Start();
  const std::string bad = "16 capstan: token missing, invalid or expired";
  grpc::SslCredentialsOptions no_token;
  no_token.pem_root_certs = authority_.certificate;
  no_token.pem_cert_chain = *ReadWholeFile(Path("ann.crt"), 1 << 20);
  no_token.pem_private_key = *ReadWholeFile(Path("ann.key"), 1 << 20);
  EXPECT_EQ(Text(Call(grpc::CreateChannel(server_->endpoint().ToString(),
                                          grpc::SslCredentials(no_token)))),
            bad);

  const auto channel = Dial(Of("ann"));
  EXPECT_TRUE(Call(channel).ok());
  const std::string token = *ReadWholeFile(Path("ann.token"), 1000);
  Write("ann.token", MakeToken());  // read again without a new channel
  EXPECT_EQ(Text(Call(channel)), bad);
  Write("ann.token", token);
  EXPECT_TRUE(Call(channel).ok());

  const TokenEntry entry = tokens_["ann"];
  tokens_["ann"].expires = absl::Now() - absl::Seconds(1);
  WriteTable();
  EXPECT_EQ(Text(Call(channel)), bad);
  tokens_.erase("ann");
  WriteTable();
  EXPECT_EQ(Text(Call(channel)), bad);
  tokens_["ann"] = entry;
  WriteTable();
  EXPECT_TRUE(Call(channel).ok());
  EXPECT_EQ(echo_.calls(), 3);
}

TEST_F(CredentialsTest, TokenAndCertificateMustBeTheSameOnes) {
  Start();
  Make(Role::kClient, "bob");
  EXPECT_EQ(Text(Call(Dial(Of("node-a", "ann")))),
            "16 capstan: the token is of client ann, the certificate of worker node-a");
  EXPECT_EQ(Text(Call(Dial(Of("bob", "ann")))),
            "16 capstan: the token is of client ann, the certificate of client bob");
  EXPECT_EQ(echo_.calls(), 0);
}

// Row 4.
TEST_F(CredentialsTest, ARoleCallsItsOwnServicesAlone) {
  Start();
  EXPECT_EQ(Text(Call(Dial(Of("node-a")))), "7 role worker may not call Echo");
  EXPECT_EQ(echo_.calls(), 0);
}

TEST_F(CredentialsTest, HealthAsksForACertificateAndNoToken) {
  Start();
  Write("ann.token", MakeToken());  // an unknown token
  grpc::health::v1::HealthCheckResponse response;
  auto context = NewContext(absl::Seconds(20));
  const grpc::Status status =
      grpc::health::v1::Health::NewStub(Dial(Of("ann")))->Check(context.get(), {}, &response);
  ASSERT_TRUE(status.ok()) << Text(status);
  EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVING);
}

// Row 14: a worker's certificate cannot impersonate the coordinator.
TEST_F(CredentialsTest, TheServersHostAndRoleAreChecked) {
  Start("node-a");
  EXPECT_EQ(Call(Dial(Of("ann"), Role::kCoordinator)).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Call(Dial(Of("ann"), Role::kWorker)).ok());
  Make(Role::kCoordinator, "elsewhere", {"10.1.2.3"});
  Start("elsewhere");
  EXPECT_EQ(Call(Dial(Of("ann"))).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(echo_.calls(), 1);
}

TEST_F(CredentialsTest, AnyServiceTellsItsHealthAndGetsNoTokenForIt) {
  const auto health = [&](const Security& security) {
    const auto stub = grpc::health::v1::Health::NewStub(Dial(security, std::nullopt));
    const auto context = NewContext(absl::Seconds(20));
    context->set_wait_for_ready(false);
    grpc::health::v1::HealthCheckResponse response;
    return stub->Check(context.get(), {}, &response).error_code();
  };
  Security without_token = Of("ann");
  without_token.token_file.clear();
  for (const char* server : {"coordinator", "node-a"}) {
    Start(server);
    EXPECT_EQ(health(without_token), grpc::StatusCode::OK) << server;
    // This channel sends no token even if there is one, so it may call nothing else.
    EXPECT_EQ(Call(Dial(Of("ann"), std::nullopt)).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  }
  Start("ann");  // a person's certificate is not valid for a server
  EXPECT_EQ(health(Of("ann")), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(echo_.calls(), 0);
}

TEST_F(CredentialsTest, CertificatesAreReadAgainWithoutARestart) {
  Start();
  EXPECT_TRUE(Call(Dial(Of("ann"))).ok());
  // The server gets a certificate for another host. New connections fail once it has read the
  // certificate.
  const std::string certificate = *ReadWholeFile(Path("coordinator.crt"), 1 << 20);
  const std::string key = *ReadWholeFile(Path("coordinator.key"), 1 << 20);
  const KeyPair other = *IssueCertificate(authority_, {.identity = {Role::kCoordinator, "c"},
                                                       .hosts = {"10.1.2.3"},
                                                       .now = absl::Now(),
                                                       .lifetime = absl::Hours(1)});
  Write("coordinator.key", other.key);
  Write("coordinator.crt", other.certificate);
  const auto until = [&](bool works) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (Call(Dial(Of("ann"))).ok() != works) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(100));
    }
    return true;
  };
  EXPECT_TRUE(until(false));
  Write("coordinator.key", key);
  Write("coordinator.crt", certificate);
  EXPECT_TRUE(until(true));
}

TEST_F(CredentialsTest, FilesThatCannotServeStopTheStart) {
  const auto why = [&](const Security& security) {
    return std::string(
        Server::Start({.listen = *ParseEndpoint("127.0.0.1:0"), .security = security},
                      {{kService, &echo_, {Role::kClient}}})
            .status()
            .message());
  };
  Security security = Of("coordinator");
  security.tokens = "";
  EXPECT_THAT(why(security), HasSubstr("--tokens is not given"));
  security = Of("coordinator");
  security.tls_ca = Path("none");
  EXPECT_THAT(why(security), HasSubstr("--tls-ca: open"));
  security = Of("coordinator");
  security.tls_key = Path("ann.key");
  EXPECT_THAT(why(security), HasSubstr("the key is not the certificate's"));
  security = Of("coordinator");
  ASSERT_EQ(chmod(security.tls_key.c_str(), 0644), 0);
  EXPECT_THAT(why(security), HasSubstr("--tls-key: "));
  EXPECT_THAT(why(security), HasSubstr("mode 0644"));
}

class HandshakeTest : public CredentialsTest {
 protected:
  Handshake Try(const Security& security, std::optional<Role> role = Role::kCoordinator,
                const std::string& host = "127.0.0.1") {
    HandshakeOptions options;
    options.peer = server_->endpoint();
    options.peer.host = host;
    options.security = security;
    options.role = role;
    options.timeout = absl::Seconds(20);
    return TryHandshake(options);
  }
  // Signed by another authority; NAME-ca.crt contains both authorities.
  Security Foreign(const std::string& name) {
    const KeyPair other = *MakeAuthority("other", absl::Now(), absl::Hours(1));
    const KeyPair pair = *IssueCertificate(
        other, {.identity = {Role::kClient, name}, .now = absl::Now(), .lifetime = absl::Hours(1)});
    Write(name + ".crt", pair.certificate);
    Write(name + ".key", pair.key);
    Write(name + "-ca.crt", authority_.certificate + other.certificate);
    Security security = Of(name);
    security.tls_ca = Path(name + "-ca.crt");
    return security;
  }
};

TEST_F(HandshakeTest, WhatFitsAnswers) {
  Start();
  const Handshake met = Try(Of("ann"));
  EXPECT_EQ(met.met, Met::kAnswers) << met.why;
  EXPECT_EQ(Try(Of("ann"), std::nullopt).met, Met::kAnswers);
}

TEST_F(HandshakeTest, TheServersNamesAreTold) {
  Make(Role::kCoordinator, "c", {"node-c", "10.1.2.3", "::1"});
  Start("c");
  const Handshake met = Try(Of("ann"));
  EXPECT_EQ(met.met, Met::kUnfit);
  EXPECT_EQ(met.why,
            "its certificate (of coordinator c) is for node-c, 10.1.2.3, ::1, not for 127.0.0.1; "
            "reach it by one of its names, or issue it one with --host 127.0.0.1");
}

TEST_F(HandshakeTest, AnAuthorityThatDidNotSignAndARoleThatDoesNotFitAreTold) {
  Start("node-a");
  EXPECT_EQ(Try(Of("ann")).why,
            "its certificate is of worker node-a, not of a coordinator; is this the right port?");
  EXPECT_EQ(Try(Of("ann"), std::nullopt).met, Met::kAnswers);
  Start();
  const KeyPair other = *MakeAuthority("other", absl::Now(), absl::Hours(1));
  Write("other-ca.crt", other.certificate);
  Security security = Of("ann");
  security.tls_ca = Path("other-ca.crt");
  const Handshake met = Try(security);
  EXPECT_EQ(met.met, Met::kUnfit);
  EXPECT_THAT(met.why,
              AllOf(HasSubstr("(of coordinator coordinator, for 127.0.0.1) is refused: self-signed "
                              "certificate in certificate chain"),
                    HasSubstr("--tls-ca " + security.tls_ca)));
}

// Our own servers do not start with such a certificate, but it may expire while they run.
TEST_F(HandshakeTest, ACertificateOutOfItsTimeIsToldWithItsDates) {
  const absl::Time now = absl::FromUnixSeconds(absl::ToUnixSeconds(absl::Now()));
  struct Case {
    absl::Duration begins;
    std::string why;
  };
  for (const Case& of : {Case{-absl::Minutes(30), "certificate has expired"},
                         Case{absl::Minutes(20), "certificate is not yet valid"}}) {
    const KeyPair pair = *IssueCertificate(authority_, {.identity = {Role::kCoordinator, "c"},
                                                        .hosts = {"127.0.0.1"},
                                                        .now = now + of.begins,
                                                        .lifetime = absl::Minutes(10)});
    grpc::SslServerCredentialsOptions credentials;
    credentials.pem_key_cert_pairs.push_back({pair.key, pair.certificate});
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(credentials), &port);
    builder.RegisterService(&echo_);
    const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    ASSERT_NE(server, nullptr);
    const Validity valid = *ValidityOf(pair.certificate);
    HandshakeOptions options;
    options.peer = *ParseEndpoint(absl::StrCat("127.0.0.1:", port));
    options.security = Of("ann");
    options.role = Role::kCoordinator;
    options.timeout = absl::Seconds(20);
    const Handshake met = TryHandshake(options);
    EXPECT_EQ(met.met, Met::kUnfit);
    const auto text = [](absl::Time time) {
      return absl::FormatTime(absl::RFC3339_sec, time, absl::UTCTimeZone());
    };
    EXPECT_EQ(met.why,
              absl::StrCat("its certificate (of coordinator c, for 127.0.0.1) is refused: ", of.why,
                           "; it is valid from ", text(valid.from), " to ",
                           text(now + of.begins + absl::Minutes(10))));
  }
}

TEST_F(HandshakeTest, ACertificateThatTheServerDoesNotTakeIsOurs) {
  Start();
  const Security foreign = Foreign("bob");
  const Handshake met = Try(foreign);
  EXPECT_EQ(met.met, Met::kUnfit);
  EXPECT_THAT(met.why,
              HasSubstr("it does not accept our certificate --tls-cert " + foreign.tls_cert));
}

TEST_F(HandshakeTest, TlsAndPlaintextDoNotTakeEachOtherForAbsence) {
  Start();
  const Handshake plain = Try({.insecure = true});
  EXPECT_EQ(plain.met, Met::kUnfit);
  EXPECT_THAT(plain.why, HasSubstr("it speaks TLS; give --tls-ca"));
  auto server =
      Server::Start({.listen = *ParseEndpoint("127.0.0.1:0"), .security = {.insecure = true}}, {});
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  EXPECT_EQ(Try({.insecure = true}).met, Met::kAnswers);
  const Handshake tls = Try(Of("ann"));
  EXPECT_EQ(tls.met, Met::kUnfit);
  EXPECT_THAT(tls.why, HasSubstr("it does not speak TLS"));
}

TEST_F(HandshakeTest, WhoIsNotThereIsAbsentAtOnce) {
  Start();
  HandshakeOptions options;
  options.peer = server_->endpoint();
  options.security = Of("ann");
  options.timeout = absl::Seconds(20);
  server_.reset();
  const absl::Time begun = absl::Now();
  EXPECT_EQ(TryHandshake(options).met, Met::kAbsent);
  EXPECT_EQ(TryHandshake(options).why, "nothing listens there");
  options.peer = *ParseEndpoint("unix:" + Path("none.sock"));
  EXPECT_EQ(TryHandshake(options).met, Met::kAbsent);
  EXPECT_EQ(TryHandshake(options).why, "there is no such socket");
  EXPECT_LT(absl::Now() - begun, absl::Seconds(10));
}

}  // namespace
}  // namespace capstan::services
