// Contexts: by name, all that one coordinator is reached with. `capstan login` makes them.
//
//   current: prod
//   contexts:
//     prod:
//       address: coord.example:7070
//       tls_ca: /home/ann/prod/ca.crt
//       ...
//
// The file is its owner's alone (0600) and holds paths, never a secret.
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

// Reads a flat mapping of ConfigKeys from the text of the file `path`; relative paths become
// relative to that file. InvalidArgument: file, line, and what is wrong.
absl::StatusOr<ConfigValues> ParseConfig(const std::string& path, const std::string& text);

struct Contexts {
  std::string current;  // empty: none
  std::map<std::string, ConfigValues> all;
};

// 1 to 63 of A-Z, a-z, 0-9, '.', '-' and '_', a letter or digit first.
bool IsContextName(absl::string_view name);

// "prod, test" or "there is none": for messages about a name that is not known.
std::string KnownContexts(const Contexts& contexts);

// A file that is not there has none. FailedPrecondition: it is not this user's alone.
// InvalidArgument: file, line, and what is wrong; a context without an address, a `current` that is
// not there.
absl::StatusOr<Contexts> ReadContexts(const std::string& path);

// Reads, changes and writes, whole or not at all; two at once wait for each other. Makes the folder
// (0700). What `change` returns where that is an error, and nothing is written.
absl::Status ChangeContexts(const std::string& path,
                            const std::function<absl::Status(Contexts&)>& change);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_CONTEXT_STORE_H_
