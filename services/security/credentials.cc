#include "services/security/credentials.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/security/auth_metadata_processor.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_certificate_verifier.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "services/files/files.h"
#include "services/grpc_init/grpc_init.h"
#include "services/logging/log.h"
#include "services/security/certificates.h"
#include "services/security/secret_file.h"
#include "services/security/tokens.h"
#include "services/sync/hand_over.h"
#include "services/sync/mutex.h"

namespace capstan::services {
namespace {

namespace tls = grpc::experimental;

constexpr char kHealthPrefix[] = "/grpc.health.v1.Health/";
constexpr char kBadToken[] = "capstan: token missing, invalid or expired";

absl::Status WithFlag(absl::string_view flag, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(flag, ": ", status.message()));
}

std::shared_ptr<tls::CertificateProviderInterface> Watch(const Security& security) {
  return std::make_shared<tls::FileWatcherCertificateProvider>(security.tls_key, security.tls_cert,
                                                               security.tls_ca, kRereadSeconds);
}

absl::string_view View(const grpc::string_ref& text) { return {text.data(), text.size()}; }

// The identity that the peer's certificate names.
std::optional<Identity> CertificateOf(const grpc::AuthContext& context) {
  const std::vector<grpc::string_ref> names = context.FindPropertyValues("x509_common_name");
  if (names.empty()) return std::nullopt;
  for (const grpc::string_ref& uri : context.FindPropertyValues("peer_uri")) {
    if (const absl::StatusOr<Role> role = ParseRoleUri(View(uri)); role.ok()) {
      return Identity{*role, std::string(View(names[0]))};
    }
  }
  return std::nullopt;
}

// Sees the headers of every call to a TLS port before its body is read. Does not block, so gRPC
// runs it in its own threads.
class CallChecker : public grpc::AuthMetadataProcessor {
 public:
  CallChecker(ServiceRoles roles, std::unique_ptr<TokenTable> tokens)
      : roles_(std::move(roles)), tokens_(std::move(tokens)) {
    HandOver(this);
  }
  ~CallChecker() override { TakeOver(this); }  // in a gRPC thread if a call was the last owner

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                       OutputMetadata*) override {
    const Reaction reaction(this);
    const auto path_entry = metadata.find(":path");
    const absl::string_view path =
        path_entry == metadata.end() ? absl::string_view() : View(path_entry->second);
    if (absl::StartsWith(path, kHealthPrefix)) return grpc::Status::OK;
    const std::optional<Identity> certificate = CertificateOf(*context);
    const auto token_entry = metadata.find("authorization");
    absl::string_view token =
        token_entry == metadata.end() ? absl::string_view() : View(token_entry->second);
    std::optional<Identity> owner;
    if (tokens_ != nullptr && metadata.count("authorization") == 1 &&
        absl::ConsumePrefix(&token, "Bearer ")) {
      owner = tokens_->Find(token, absl::Now());
    }
    if (!owner.has_value()) return Refuse(grpc::StatusCode::UNAUTHENTICATED, path, kBadToken);
    if (!certificate.has_value() || *certificate != *owner) {
      const std::string whose = certificate.has_value() ? absl::StrCat(RoleName(certificate->role),
                                                                       " ", certificate->name)
                                                        : "nobody in Capstan";
      return Refuse(grpc::StatusCode::UNAUTHENTICATED, path,
                    absl::StrCat("capstan: the token is of ", RoleName(owner->role), " ",
                                 owner->name, ", the certificate of ", whose));
    }
    absl::string_view service = path;
    absl::ConsumePrefix(&service, "/");
    service = service.substr(0, service.rfind('/'));
    const auto entry = roles_.find(std::string(service));
    if (entry == roles_.end()) return grpc::Status::OK;  // unknown service; gRPC reports it
    if (std::find(entry->second.begin(), entry->second.end(), owner->role) != entry->second.end()) {
      return grpc::Status::OK;
    }
    return Refuse(grpc::StatusCode::PERMISSION_DENIED, path,
                  absl::StrCat("role ", RoleName(owner->role), " may not call ",
                               path.substr(path.rfind('/') + 1)));
  }

 private:
  static grpc::Status Refuse(grpc::StatusCode code, absl::string_view path,
                             const std::string& message) {
    Log(kWarning, "call_refused").Limit(message).Kv("path", path).Kv("reason", message);
    return {code, message};
  }

  const ServiceRoles roles_;
  const std::unique_ptr<TokenTable> tokens_;  // null: only health is served
};

// Checks the host name, as gRPC does by default, and then the role.
class ServerVerifier : public tls::ExternalCertificateVerifier {
 public:
  explicit ServerVerifier(std::optional<Role> role) : role_(role) {}

  bool Verify(tls::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> callback, grpc::Status* status) override {
    // Verify answers at once, so it never keeps `callback`.
    if (!host_name_.Verify(request, std::move(callback), status)) return false;
    if (!status->ok()) return true;
    for (const grpc::string_ref& uri : request->uri_names()) {
      const absl::StatusOr<Role> role = ParseRoleUri(View(uri));
      if (role.ok() && (role_.has_value() ? *role == *role_ : Serves(*role))) return true;
    }
    *status = {grpc::StatusCode::UNAUTHENTICATED,
               absl::StrCat("the server's certificate does not have the role ",
                            role_.has_value() ? RoleName(*role_) : "of a service")};
    return true;
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}

 private:
  static bool Serves(Role role) {
    return role == Role::kCoordinator || role == Role::kParamStore || role == Role::kWorker;
  }

  const std::optional<Role> role_;
  tls::HostNameCertificateVerifier host_name_;
};

// Puts the token into the headers of a call. gRPC calls it only on TLS connections.
class TokenPlugin : public grpc::MetadataCredentialsPlugin {
 public:
  explicit TokenPlugin(std::unique_ptr<TokenFile> file) : file_(std::move(file)) { HandOver(this); }
  ~TokenPlugin() override { TakeOver(this); }

  bool IsBlocking() const override { return false; }
  const char* GetType() const override { return "capstan-token"; }
  grpc::string DebugString() override { return "capstan-token"; }
  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    const Reaction reaction(this);
    metadata->emplace("authorization", absl::StrCat("Bearer ", file_->Get()));
    return grpc::Status::OK;
  }

 private:
  const std::unique_ptr<TokenFile> file_;
};

}  // namespace

absl::Status CheckTlsFiles(const Security& security) {
  KeepMemoryPrivate();
  KeyPair pair;
  absl::StatusOr<std::string> text = ReadWholeFile(security.tls_cert, kMaxSecretBytes);
  if (!text.ok()) return WithFlag("--tls-cert", text.status());
  pair.certificate = *std::move(text);
  text = ReadSecretFile(security.tls_key);
  if (!text.ok()) return WithFlag("--tls-key", text.status());
  pair.key = *std::move(text);
  text = ReadWholeFile(security.tls_ca, kMaxSecretBytes);
  if (!text.ok()) return WithFlag("--tls-ca", text.status());
  if (absl::Status status = CheckKeyPair(pair, *text, absl::Now()); !status.ok()) {
    return WithFlag(absl::StrCat("--tls-cert ", security.tls_cert), status);
  }
  if (absl::StatusOr<Identity> identity = IdentityOf(pair.certificate); !identity.ok()) {
    return WithFlag(absl::StrCat("--tls-cert ", security.tls_cert), identity.status());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const Security& security, const ServiceRoles& roles) {
  KeepGrpcInitialised();
  if (security.insecure) return grpc::InsecureServerCredentials();
  if (absl::Status status = CheckTlsFiles(security); !status.ok()) return status;
  std::unique_ptr<TokenTable> tokens;
  if (!roles.empty()) {
    if (security.tokens.empty()) {
      return absl::FailedPreconditionError(
          "--tokens is not given: the tokens.json of `capstan certs init`, which lists the allowed "
          "callers");
    }
    auto opened = TokenTable::Open(security.tokens);
    if (!opened.ok()) return WithFlag("--tokens", opened.status());
    tokens = *std::move(opened);
  }
  tls::TlsServerCredentialsOptions options(Watch(security));
  // Both must be requested. Otherwise gRPC 1.51 has no certificate at all and every handshake
  // fails.
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  std::shared_ptr<grpc::ServerCredentials> credentials = tls::TlsServerCredentials(options);
  if (credentials == nullptr) return absl::InvalidArgumentError("TLS: gRPC takes no credentials");
  credentials->SetAuthMetadataProcessor(std::make_shared<CallChecker>(roles, std::move(tokens)));
  return credentials;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const Security& security, std::optional<Role> peer) {
  KeepGrpcInitialised();
  if (security.insecure) return grpc::InsecureChannelCredentials();
  static Mutex mu;
  static auto& made = *new std::map<std::vector<std::string>,
                                    std::shared_ptr<grpc::ChannelCredentials>>();  // never freed
  const std::vector<std::string> key = {security.tls_cert, security.tls_key, security.tls_ca,
                                        security.token_file,
                                        std::string(peer.has_value() ? RoleName(*peer) : "any")};
  MutexLock lock(mu);
  std::shared_ptr<grpc::ChannelCredentials>& credentials = made[key];
  if (credentials != nullptr) return credentials;
  if (absl::Status status = CheckTlsFiles(security); !status.ok()) return status;
  std::unique_ptr<TokenFile> token;
  if (peer.has_value()) {
    auto opened = TokenFile::Open(security.token_file);
    if (!opened.ok()) return WithFlag("--token-file", opened.status());
    token = *std::move(opened);
  }
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(Watch(security));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_certificate_verifier(tls::ExternalCertificateVerifier::Create<ServerVerifier>(peer));
  credentials = tls::TlsCredentials(options);
  if (token != nullptr) {
    credentials = grpc::CompositeChannelCredentials(
        credentials,
        grpc::MetadataCredentialsFromPlugin(std::make_unique<TokenPlugin>(std::move(token))));
  }
  return credentials;
}

std::optional<Identity> CallerOf(const grpc::ServerContextBase& context) {
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  if (auth == nullptr) return std::nullopt;
  return CertificateOf(*auth);
}

}  // namespace capstan::services
