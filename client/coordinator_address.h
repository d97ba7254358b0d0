// Which coordinator a command speaks to, and with what: flags, then variables, then one context.
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

// As given on the command line; not set: not given.
struct ConnectFlags {
  std::optional<std::string> context;  // name of a stored one
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
  absl::Duration timeout;          // of one call, and until the coordinator answers at all
  std::vector<std::string> notes;  // files that were passed over, and why; for a person
  // A flag, a variable or a file says something of the connection; else the address is a mere
  // default.
  bool configured = true;
};

inline constexpr char kDefaultAddress[] = "127.0.0.1:7070";
inline constexpr absl::Duration kDefaultTimeout = absl::Seconds(30);

// Files that may say it; empty: there is no such place.
struct ConfigPlaces {
  std::string working;             // ./capstan.yaml
  std::string contexts;            // $XDG_CONFIG_HOME/capstan/contexts.yaml (or ~/.config/...)
  std::vector<std::string> files;  // config.yaml beside it, /etc/capstan/config.yaml
};
ConfigPlaces FindConfigPlaces();

using Variables = std::function<std::optional<std::string>(const std::string&)>;

// Flags and variables (CAPSTAN_ADDRESS, CAPSTAN_TIMEOUT, CAPSTAN_TLS_CA, CAPSTAN_TLS_CERT,
// CAPSTAN_TLS_KEY, CAPSTAN_TOKEN_FILE, CAPSTAN_INSECURE=1) count value by value. What they leave
// open is of one context, from one place: address, authority and credentials are never put together
// from two files. It is the one that --context or CAPSTAN_CONTEXT names, else the first of
//   1. `working`, where it is a file of this user's that others cannot write, is whole, names only
//      files beneath its folder, and no flag or variable has a part of it; else it is passed over
//      with a note;
//   2. the current one in `contexts`;
//   3. the first of `files` that says more than a timeout.
// A file is a flat YAML mapping of the flags' names with underscores; relative paths in it are
// relative to the file. A file that is not there is passed over.
// InvalidArgument: names the flag, variable or file and key, and what is wrong with it.
absl::StatusOr<Connection> FindCoordinator(const ConnectFlags& flags, const ConfigPlaces& places,
                                           const Variables& variable);

// The same with this process's variables and FindConfigPlaces().
absl::StatusOr<Connection> FindCoordinator(const ConnectFlags& flags);

// Null where it is not set.
std::optional<std::string> VariableOf(const std::string& name);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_COORDINATOR_ADDRESS_H_
