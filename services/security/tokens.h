// Bearer tokens: a process proves its identity with one; a server knows only their SHA-256.
//
// tokens.json, which `capstan certs` writes and an operator edits to revoke a token:
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

inline constexpr absl::string_view kTokenPrefix = "capstan_";  // so that leak scanners recognize it

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

// InvalidArgument, with `file`: not JSON, an unknown or missing key, or a repeated hash.
absl::StatusOr<std::vector<TokenEntry>> ParseTokens(absl::string_view file, absl::string_view text);
std::string FormatTokens(const std::vector<TokenEntry>& entries);
// The token in a file that holds one. InvalidArgument, with `file`: not one line of 16 to 256 of
// A-Z, a-z, 0-9, '_', '-' and '.'.
absl::StatusOr<std::string> ParseToken(absl::string_view file, absl::string_view text);

// A change of a token file takes effect at most this long after it.
inline constexpr absl::Duration kTokensFresh = absl::Milliseconds(20);

// The tokens of tokens.json. Looks at the file before a use, unless it did so less than kTokensFresh
// ago, and reads it again if it has changed. While the new contents cannot be read, the earlier
// tokens stay valid and a log line says so. They also stay valid while the disk hangs (FileLook).
// Thread-safe.
class TokenTable {
 public:
  // Returns the errors of ReadSecretFile and ParseTokens. Waits for the disk.
  static absl::StatusOr<std::unique_ptr<TokenTable>> Open(const std::string& path);

  // The owner of a token if it is known and not expired at `now`.
  std::optional<Identity> Find(absl::string_view token, absl::Time now);

 private:
  struct State;
  explicit TokenTable(std::shared_ptr<State> state);

  const std::shared_ptr<State> state_;  // shared with a look that hangs
  FileLook look_;
};

// This process's own token, from its file. Read again when the file has changed, like a TokenTable.
// Thread-safe.
class TokenFile {
 public:
  // Returns the errors of ReadSecretFile and ParseToken. Waits for the disk.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(const std::string& path);

  // The newest token that could be read.
  std::string Get();

 private:
  struct State;
  explicit TokenFile(std::shared_ptr<State> state);

  const std::shared_ptr<State> state_;
  FileLook look_;
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_SECURITY_TOKENS_H_
