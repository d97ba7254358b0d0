// Feeds any bytes to the parsers of identities: tokens.json, a token file, certificates, addresses,
// and headers of an HTTP request. The first byte chooses.
//
// Besides not crashing, what is accepted reads back the same after it is written, and an error is
// InvalidArgument.
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "services/check/check.h"
#include "services/endpoint/endpoint.h"
#include "services/http/http_server.h"
#include "services/security/certificates.h"
#include "services/security/role.h"
#include "services/security/tokens.h"

namespace {

namespace services = capstan::services;

void Tokens(absl::string_view text) {
  const auto entries = services::ParseTokens("t", text);
  if (!entries.ok()) {
    CAPSTAN_CHECK(absl::IsInvalidArgument(entries.status()));
    return;
  }
  const auto again = services::ParseTokens("t", services::FormatTokens(*entries));
  CAPSTAN_CHECK(again.ok() && again->size() == entries->size());
  for (size_t i = 0; i < entries->size(); ++i) {
    const services::TokenEntry& a = (*entries)[i];
    const services::TokenEntry& b = (*again)[i];
    CAPSTAN_CHECK(a.sha256 == b.sha256 && a.sha256.size() == 64 && a.identity == b.identity);
    CAPSTAN_CHECK(services::CheckIdentityName(a.identity.name).ok());
  }
}

void Token(absl::string_view text) {
  const auto token = services::ParseToken("t", text);
  if (token.ok()) {
    CAPSTAN_CHECK(token->size() >= 16 && token->size() <= 256);
    CAPSTAN_CHECK(*services::ParseToken("t", *token) == *token);
  } else {
    CAPSTAN_CHECK(absl::IsInvalidArgument(token.status()));
  }
}

void Certificate(absl::string_view pem) {
  const auto identity = services::IdentityOf(std::string(pem));
  // Another authority may give other names than `capstan certs` does, so any name passes here.
  if (identity.ok()) {
    CAPSTAN_CHECK(!identity->name.empty());
  } else {
    CAPSTAN_CHECK(absl::IsInvalidArgument(identity.status()));
  }
}

void Address(absl::string_view text) {
  const auto endpoint = services::ParseEndpoint(text);
  if (!endpoint.ok()) {
    CAPSTAN_CHECK(absl::IsInvalidArgument(endpoint.status()));
    return;
  }
  const auto again = services::ParseEndpoint(endpoint->ToString());
  CAPSTAN_CHECK(again.ok() && again->ToString() == endpoint->ToString());
}

void Headers(absl::string_view text) {
  services::HttpRequest request;
  request.headers = {{"authorization", std::string(text)}, {"cookie", std::string(text)}};
  const std::string token = services::BearerTokenOf(request);
  CAPSTAN_CHECK(token.empty() || absl::StrCat("Bearer ", token) == text);
  const std::string cookie = services::CookieOf(request, "capstan_token");
  CAPSTAN_CHECK(cookie.find(';') == std::string::npos);
  request.headers["cookie"] = absl::StrCat("capstan_token2=x; capstan_token=", cookie, " ;y");
  CAPSTAN_CHECK(services::CookieOf(request, "capstan_token") == cookie);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0:
      Tokens(rest);
      break;
    case 1:
      Certificate(rest);
      break;
    case 2:
      Address(rest);
      break;
    case 3:
      Token(rest);
      break;
    case 4:
      Headers(rest);
      break;
  }
  return 0;
}
