// Contexts: all settings for reaching one coordinator, by name. `capstan login` makes them.
//
//   current: prod
//   contexts:
//     prod:
//       address: coord.example:7070
//       tls_ca: /home/ann/prod/ca.crt
//       ...
//
// Only the owner can read the file (0600). It holds paths, never a secret.
#ifndef CAPSTAN_CLIENT_CONTEXT_STORE_H_
#define CAPSTAN_CLIENT_CONTEXT_STORE_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::client {

// A value and where it came from, for messages.
struct ConfigValue {
  std::string value;
  std::string origin;
};
// By key: address, timeout, tls_ca, tls_cert, tls_key, token_file, insecure.
using ConfigValues = std::map<std::string, ConfigValue>;

const std::vector<std::string>& ConfigKeys();

// Reads a flat mapping of ConfigKeys from the text of the file `path`. Relative paths become
// relative to that file. InvalidArgument: names file, line and error.
absl::StatusOr<ConfigValues> ParseConfig(const std::string& path, const std::string& text);

struct Contexts {
  std::string current;  // empty: none
  std::map<std::string, ConfigValues> all;
};

// Valid: 1 to 63 characters of A-Z, a-z, 0-9, '.', '-' and '_', beginning with a letter or digit.
bool IsContextName(absl::string_view name);

// "prod, test" or "there is none", for messages about an unknown name.
std::string KnownContexts(const Contexts& contexts);

// A missing file gives no contexts. FailedPrecondition: the file is not private to this user.
// InvalidArgument: names file, line and error; also a context without an address, or a `current`
// that does not exist.
absl::StatusOr<Contexts> ReadContexts(const std::string& path);

// Reads the contexts, changes them and writes them atomically. Two calls at once wait for each
// other. Makes the folder (0700). If `change` fails, returns its error and writes nothing.
absl::Status ChangeContexts(const std::string& path,
                            const std::function<absl::Status(Contexts&)>& change);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_CONTEXT_STORE_H_
