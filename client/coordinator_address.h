// Which coordinator a command calls, and with which credentials, by flags, variables and one
// context.
#ifndef CAPSTAN_CLIENT_COORDINATOR_ADDRESS_H_
#define CAPSTAN_CLIENT_COORDINATOR_ADDRESS_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/endpoint/endpoint.h"

namespace capstan::client {

// As given on the command line. A field that is not set was not given.
struct ConnectFlags {
  std::optional<std::string> context;  // name of a stored context
  std::optional<std::string> address;
  std::optional<std::string> timeout;  // "30s"
  std::optional<std::string> tls_ca;
  std::optional<std::string> tls_cert;
  std::optional<std::string> tls_key;
  std::optional<std::string> token_file;
  bool insecure = false;
};

struct Connection {
  services::Endpoint address;
  services::Security security;
  absl::Duration timeout;          // of one call, and for the first answer of the coordinator
  std::vector<std::string> notes;  // files that were passed over, and why, as notes to the person
  // True if a flag, a variable or a file says something about the connection. False: the address is
  // only the default.
  bool configured = true;
};

inline constexpr char kDefaultAddress[] = "127.0.0.1:7070";
inline constexpr absl::Duration kDefaultTimeout = absl::Seconds(30);

// Where settings may be stored. Empty: there is no such place.
struct ConfigPlaces {
  std::string working;             // ./capstan.yaml
  std::string contexts;            // $XDG_CONFIG_HOME/capstan/contexts.yaml (or ~/.config/...)
  std::vector<std::string> files;  // config.yaml beside `contexts`, /etc/capstan/config.yaml
};
ConfigPlaces FindConfigPlaces();

using Variables = std::function<std::optional<std::string>(const std::string&)>;

// Flags and variables (CAPSTAN_ADDRESS, CAPSTAN_TIMEOUT, CAPSTAN_TLS_CA, CAPSTAN_TLS_CERT,
// CAPSTAN_TLS_KEY, CAPSTAN_TOKEN_FILE, CAPSTAN_INSECURE=1) apply value by value. All values that
// they do not set come from one context in one file: address, authority and credentials of two
// files are never combined. --context or CAPSTAN_CONTEXT names the context. Otherwise it is the
// first of
//   1. `working`, if this user owns the file, others cannot write it, it is a whole context, it
//      names only files beneath its folder, and no flag or variable sets a part of it; else it is
//      passed over with a note;
//   2. the current context in `contexts`;
//   3. the first of `files` that sets more than a timeout.
// A file is a flat YAML mapping of the flags' names with underscores. Relative paths in it are
// relative to the file. A missing file is passed over.
// InvalidArgument: names the flag, variable or file and key, and the error.
absl::StatusOr<Connection> FindCoordinator(const ConnectFlags& flags, const ConfigPlaces& places,
                                           const Variables& variable);

// The same with this process's variables and FindConfigPlaces().
absl::StatusOr<Connection> FindCoordinator(const ConnectFlags& flags);

// The value of an environment variable. Null if it is not set.
std::optional<std::string> VariableOf(const std::string& name);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_COORDINATOR_ADDRESS_H_
