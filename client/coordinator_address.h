// Which coordinator a command speaks to, and how: flags, then variables, then configuration files.
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
  absl::Duration timeout;  // of one call, and until the coordinator answers at all
};

inline constexpr char kDefaultAddress[] = "127.0.0.1:7070";
inline constexpr absl::Duration kDefaultTimeout = absl::Seconds(30);

// ./capstan.yaml, $XDG_CONFIG_HOME/capstan/config.yaml (or ~/.config/...), /etc/capstan/config.yaml.
std::vector<std::string> ConfigFiles();

// Each value from the first that has it: the flag, its variable (CAPSTAN_ADDRESS, CAPSTAN_TIMEOUT,
// CAPSTAN_TLS_CA, CAPSTAN_TLS_CERT, CAPSTAN_TLS_KEY, CAPSTAN_TOKEN_FILE, CAPSTAN_INSECURE=1), then
// `files` in their order; a file that is not there is passed over. A file is a flat YAML mapping of
// the flags' names with underscores; relative paths in it are relative to the file.
// InvalidArgument: names the flag, variable or file and key, and what is wrong with it.
absl::StatusOr<Connection> FindCoordinator(
    const ConnectFlags& flags, const std::vector<std::string>& files,
    const std::function<std::optional<std::string>(const std::string&)>& variable);

// The same with this process's variables and ConfigFiles().
absl::StatusOr<Connection> FindCoordinator(const ConnectFlags& flags);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_COORDINATOR_ADDRESS_H_
