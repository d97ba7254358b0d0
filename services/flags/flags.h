// Flags of a service. Each can also be given as an environment variable CAPSTAN_<FLAG>; the flag
// wins. --help prints default, unit and variable of each. Every error of the command line has exit
// code 2.
//
//   CommonFlags common; absl::Duration lease = absl::Seconds(5);
//   FlagSet flags("capstan_coordinator", "Admits, places and watches training jobs.");
//   flags.AddCommon(common, "127.0.0.1:7070", "127.0.0.1:7071");
//   flags.AddDuration("lease", lease, "how long a silent node keeps its place", absl::Seconds(1),
//                     absl::Minutes(10));
//   if (const std::optional<int> exit_code = flags.Parse(argc, argv)) return *exit_code;
//
// Targets hold their defaults when they are added, and must live until Parse returns. Not
// thread-safe.
#ifndef CAPSTAN_SERVICES_FLAGS_FLAGS_H_
#define CAPSTAN_SERVICES_FLAGS_FLAGS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "services/endpoint/endpoint.h"

namespace capstan::services {

struct CommonFlags {
  std::string listen;                   // --listen
  std::string http;                     // --http; "off" for none
  std::vector<std::string> http_hosts;  // --http-host: additional names of that port
  // --open-metrics: /metrics, and /sd of the coordinator, need no token even off loopback.
  bool open_metrics = false;
  std::string advertise;     // --advertise; empty: the listen address
  std::string interface;     // --interface; empty: none
  std::string admin_socket;  // --admin-socket; empty: none
  Security security;         // --insecure, --tls-cert, --tls-key, --tls-ca, --token-file
  std::string log_level = "info";

  // Sets the log level, parses --listen and --http and checks the security of both.
  // InvalidArgument, FailedPrecondition, Unimplemented: the message names the flag.
  struct Resolved {
    Endpoint listen;
    std::optional<Endpoint> http;
  };
  absl::StatusOr<Resolved> Apply() const;

  // The address that a service listening at `bound` tells others: --advertise, else the address of
  // --interface with the port of `bound`, else `bound`. FailedPrecondition: others cannot connect
  // to this address (0.0.0.0).
  absl::StatusOr<std::string> Advertised(const Endpoint& bound) const;
};

class FlagSet {
 public:
  FlagSet(absl::string_view binary, absl::string_view description);
  ~FlagSet();
  FlagSet(const FlagSet&) = delete;
  FlagSet& operator=(const FlagSet&) = delete;

  // Names have no leading dashes. `placeholder` stands for the value in --help: ADDR:PORT, FILE, N.
  void AddString(absl::string_view name, std::string& target, absl::string_view placeholder,
                 absl::string_view help);
  // A comma-separated list; the flag may be repeated. A given flag replaces the default.
  void AddList(absl::string_view name, std::vector<std::string>& target,
               absl::string_view placeholder, absl::string_view help);
  void AddBool(absl::string_view name, bool& target, absl::string_view help);
  // `unit` is e.g. "bytes". Both `min` and `max` are allowed values.
  void AddInt(absl::string_view name, int64_t& target, absl::string_view unit,
              absl::string_view help, int64_t min, int64_t max);
  // Values are written as 500ms, 30s, 5m, 4h, 7d.
  void AddDuration(absl::string_view name, absl::Duration& target, absl::string_view help,
                   absl::Duration min, absl::Duration max);
  // Adds the flags of all services, with these defaults of --listen and --http.
  void AddCommon(CommonFlags& flags, absl::string_view listen, absl::string_view http);
  // Adds --advertise and --interface, for a service that others dial at the address it tells them.
  void AddAdvertise(CommonFlags& flags);
  // Adds --admin-socket.
  void AddAdminSocket(CommonFlags& flags);

  // nullopt: continue. Otherwise the exit code: 0 after --help or --version (on standard output), 2
  // after an error (on standard error).
  std::optional<int> Parse(int argc, const char* const* argv);
  // The same without output and exit code, for tests. InvalidArgument with the message; Cancelled:
  // --help or --version, with the text as its message.
  absl::Status TryParse(int argc, const char* const* argv);

  std::string Help() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

// "listen" -> "CAPSTAN_LISTEN", "log-level" -> "CAPSTAN_LOG_LEVEL".
std::string FlagVariable(absl::string_view name);

// 500ms, 30s, 5m, 4h, 7d; a fraction is allowed. InvalidArgument: no unit, negative, not finite.
absl::StatusOr<absl::Duration> ParseFlagDuration(absl::string_view text);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_FLAGS_FLAGS_H_
