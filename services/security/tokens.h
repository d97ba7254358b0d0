// Bearer tokens: a process proves who it is with one, a server knows their SHA-256 alone.
//
// tokens.json, which `capstan certs` writes and the operator edits to take a token away:
//   {"version": 1, "tokens": [{"sha256": "<64 hex digits>", "role": "worker", "name": "node-a",
//                              "expires": "2027-11-21T09:14:03Z"}]}
#ifndef CAPSTAN_SERVICES_SECURITY_TOKENS_H_
#define CAPSTAN_SERVICES_SECURITY_TOKENS_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "services/security/role.h"
#include "services/security/secret_file.h"
#include "services/sync/mutex.h"

namespace capstan::services {

inline constexpr absl::string_view kTokenPrefix = "capstan_";  // so that scanners of leaks know it

struct TokenEntry {
  std::string sha256;  // of the token's bytes, 64 lower-case hexadecimal digits
  Identity identity;
  absl::Time expires;  // on the wall clock
};

// 32 random bytes of the system as text: kTokenPrefix and 43 characters of base64url.
std::string MakeToken();
// 64 lower-case hexadecimal digits.
std::string HashToken(absl::string_view token);

// InvalidArgument, with `file`: not JSON, an unknown or missing key, a hash that stands twice.
absl::StatusOr<std::vector<TokenEntry>> ParseTokens(absl::string_view file, absl::string_view text);
std::string FormatTokens(const std::vector<TokenEntry>& entries);
// What a file of one token holds. InvalidArgument, with `file`: not 16 to 256 of A-Z, a-z, 0-9,
// '_', '-' and '.', one line.
absl::StatusOr<std::string> ParseToken(absl::string_view file, absl::string_view text);

// The tokens of tokens.json. Looks at the file before each use and reads it again when it has
// changed; while what is there cannot be read, the tokens of before stay valid and a log line says
// so. Thread-safe.
class TokenTable {
 public:
  // What ReadSecretFile and ParseTokens say.
  static absl::StatusOr<std::unique_ptr<TokenTable>> Open(const std::string& path);

  // The owner of a token that is known and not expired at `now`.
  std::optional<Identity> Find(absl::string_view token, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit TokenTable(std::string path) : path_(std::move(path)) {}
  absl::Status ReadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string path_;
  Mutex mu_;
  FileStamp stamp_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, TokenEntry> by_hash_ ABSL_GUARDED_BY(mu_);
};

// This process's own token, from its file; read again when that has changed. Thread-safe.
class TokenFile {
 public:
  // What ReadSecretFile and ParseToken say.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(const std::string& path);

  // The newest that could be read.
  std::string Get() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit TokenFile(std::string path) : path_(std::move(path)) {}
  absl::Status ReadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string path_;
  Mutex mu_;
  FileStamp stamp_ ABSL_GUARDED_BY(mu_);
  std::string token_ ABSL_GUARDED_BY(mu_);
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_SECURITY_TOKENS_H_
