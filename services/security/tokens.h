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

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "services/security/file_look.h"
#include "services/security/role.h"

namespace capstan::services {

inline constexpr absl::string_view kTokenPrefix = "capstan_";  // so that scanners of leaks know it

struct TokenEntry {
  std::string sha256;  // of the token's bytes, 64 lower-case hexadecimal digits
  Identity identity;
  absl::Time expires;  // on the wall clock
};

// 32 random bytes of the system as text: kTokenPrefix and 43 characters of base64url.
std::string MakeToken();
// 16 random bytes of the system.
inline constexpr size_t kResumeKeyBytes = 16;
std::string MakeResumeKey();
// 64 lower-case hexadecimal digits.
std::string HashToken(absl::string_view token);

// InvalidArgument, with `file`: not JSON, an unknown or missing key, a hash that stands twice.
absl::StatusOr<std::vector<TokenEntry>> ParseTokens(absl::string_view file, absl::string_view text);
std::string FormatTokens(const std::vector<TokenEntry>& entries);
// What a file of one token holds. InvalidArgument, with `file`: not 16 to 256 of A-Z, a-z, 0-9,
// '_', '-' and '.', one line.
absl::StatusOr<std::string> ParseToken(absl::string_view file, absl::string_view text);

// The tokens of tokens.json. Looks at the file before each use and reads it again when it has
// changed. While what is there cannot be read, the tokens of before stay valid and a log line says
// so; so they do while its disk hangs: FileLook. Thread-safe.
class TokenTable {
 public:
  // What ReadSecretFile and ParseTokens say. Waits for the disk.
  static absl::StatusOr<std::unique_ptr<TokenTable>> Open(const std::string& path);

  // The owner of a token that is known and not expired at `now`.
  std::optional<Identity> Find(absl::string_view token, absl::Time now);

 private:
  struct State;
  explicit TokenTable(std::shared_ptr<State> state);

  const std::shared_ptr<State> state_;  // and that of a look which hangs
  FileLook look_;
};

// This process's own token, from its file; read again when that has changed, like a TokenTable.
// Thread-safe.
class TokenFile {
 public:
  // What ReadSecretFile and ParseToken say. Waits for the disk.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(const std::string& path);

  // The newest that could be read.
  std::string Get();

 private:
  struct State;
  explicit TokenFile(std::shared_ptr<State> state);

  const std::shared_ptr<State> state_;
  FileLook look_;
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_SECURITY_TOKENS_H_
