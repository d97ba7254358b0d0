// Flags of a service: each also as an environment variable CAPSTAN_<FLAG>, flags winning; --help
// prints default, unit and variable of each; every error of the command line is exit code 2.
//
//   CommonFlags common; absl::Duration lease = absl::Seconds(5);
//   FlagSet flags("capstan_coordinator", "Admits, places and watches training jobs.");
//   flags.AddCommon(common, "127.0.0.1:7070", "127.0.0.1:7071");
//   flags.AddDuration("lease", lease, "how long a silent node keeps its place", absl::Seconds(1),
//                     absl::Minutes(10));
//   if (const std::optional<int> exit_code = flags.Parse(argc, argv)) return *exit_code;
//
// Targets hold their default when they are added and are borrowed until Parse returns. For one
// thread.
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
  std::string http;                     // --http; "off": none
  std::vector<std::string> http_hosts;  // --http-host: further names of that port
  // --open-metrics: /metrics, and /sd of the coordinator, ask nobody for a token, also off loopback.
  bool open_metrics = false;
  std::string advertise;     // --advertise; empty: where it listens
  std::string interface;     // --interface; empty: none
  std::string admin_socket;  // --admin-socket; empty: none
  Security security;         // --insecure, --tls-cert, --tls-key, --tls-ca, --token-file
  std::string log_level = "info";

  // Sets the log level, reads --listen and --http and checks the security of both.
  // InvalidArgument, FailedPrecondition, Unimplemented: with the flag's name.
  struct Resolved {
    Endpoint listen;
    std::optional<Endpoint> http;
  };
  absl::StatusOr<Resolved> Apply() const;

  // The address that others are told of a service that listens at `bound`: --advertise, else the
  // address of --interface with the port of `bound`, else `bound`. FailedPrecondition: none of them
  // is one that others can go to (0.0.0.0).
  absl::StatusOr<std::string> Advertised(const Endpoint& bound) const;
};

class FlagSet {
 public:
  FlagSet(absl::string_view binary, absl::string_view description);
  ~FlagSet();
  FlagSet(const FlagSet&) = delete;
  FlagSet& operator=(const FlagSet&) = delete;

  // Names without dashes in front. `placeholder` stands for the value in --help: ADDR:PORT, FILE,
  // N.
  void AddString(absl::string_view name, std::string& target, absl::string_view placeholder,
                 absl::string_view help);
  // Comma-separated, and the flag may be repeated; a given flag replaces the default.
  void AddList(absl::string_view name, std::vector<std::string>& target,
               absl::string_view placeholder, absl::string_view help);
  void AddBool(absl::string_view name, bool& target, absl::string_view help);
  // `unit` e.g. "bytes"; both ends are allowed.
  void AddInt(absl::string_view name, int64_t& target, absl::string_view unit,
              absl::string_view help, int64_t min, int64_t max);
  // Written 500ms, 30s, 5m, 4h, 7d.
  void AddDuration(absl::string_view name, absl::Duration& target, absl::string_view help,
                   absl::Duration min, absl::Duration max);
  // The flags that every service has, with these defaults of --listen and --http.
  void AddCommon(CommonFlags& flags, absl::string_view listen, absl::string_view http);

  // nullopt: go on. Otherwise the exit code: 0 after --help or --version (on standard output), 2
  // after an error (on standard error).
  std::optional<int> Parse(int argc, const char* const* argv);
  // The same without output and exit code, for tests. OK, or InvalidArgument with the sentence;
  // Cancelled: --help or --version, the text as the message.
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
