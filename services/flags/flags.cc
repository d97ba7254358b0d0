#include "services/flags/flags.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "services/http/http_server.h"
#include "services/logging/log.h"
#include "services/version/version.h"

namespace capstan::services {
namespace {

// The form that ParseFlagDuration reads.
std::string DurationText(absl::Duration duration) { return absl::FormatDuration(duration); }

absl::Status Prefixed(const absl::Status& status, absl::string_view flag) {
  return absl::Status(status.code(), absl::StrCat("--", flag, ": ", status.message()));
}

}  // namespace

std::string FlagVariable(absl::string_view name) {
  return absl::StrCat("CAPSTAN_", absl::AsciiStrToUpper(absl::StrReplaceAll(name, {{"-", "_"}})));
}

absl::StatusOr<absl::Duration> ParseFlagDuration(absl::string_view text) {
  absl::Duration duration;
  double days = 0;
  absl::string_view number = text;
  if (absl::ConsumeSuffix(&number, "d") && absl::SimpleAtod(number, &days)) {
    duration = days * absl::Hours(24);
  } else if (text == "0" || !absl::ParseDuration(text, &duration)) {  // "0" lacks its unit
    duration = absl::InfiniteDuration();
  }
  if (duration < absl::ZeroDuration() || duration == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("got '", text, "', want a duration such as 500ms, 30s, 5m, 4h or 7d"));
  }
  return duration;
}

struct FlagSet::Impl {
  struct Entry {
    std::string left;  // "--lease DURATION"
    std::string help;
    std::string right;  // "default 5s, variable CAPSTAN_LEASE"
  };
  using Setter = std::function<absl::Status(const std::vector<std::string>&)>;

  // Adds a flag with values. CLI11 collects the texts (from the command line, else from the
  // variable). Our setter parses them, so that every message is our own.
  void AddOption(absl::string_view name, absl::string_view placeholder, absl::string_view help,
                 const std::string& default_text, const std::string& unit, bool many,
                 const Setter& setter) {
    CLI::Option* const option = app.add_option_function<std::vector<std::string>>(
        absl::StrCat("--", name),
        [this, name = std::string(name), setter](const std::vector<std::string>& values) {
          const absl::Status status = setter(values);
          if (!status.ok() && error.ok()) error = Prefixed(status, name);
        });
    // One value per occurrence, so that a list does not take the next word of the command line.
    option->type_size(1)->expected(1)->allow_extra_args(false)->envname(FlagVariable(name));
    option->multi_option_policy(many ? CLI::MultiOptionPolicy::TakeAll
                                     : CLI::MultiOptionPolicy::TakeLast);
    entries.push_back({absl::StrCat("--", name, " ", placeholder), std::string(help),
                       Right(name, default_text, unit)});
  }
  static std::string Right(absl::string_view name, const std::string& default_text,
                           const std::string& unit) {
    return absl::StrCat("default ", default_text.empty() ? "none" : default_text,
                        unit.empty() ? "" : absl::StrCat(", unit ", unit), ", variable ",
                        FlagVariable(name));
  }

  CLI::App app;
  std::string binary;
  std::string description;
  std::vector<Entry> entries;
  absl::Status error;
};

FlagSet::FlagSet(absl::string_view binary, absl::string_view description)
    : impl_(std::make_unique<Impl>()) {
  impl_->binary = std::string(binary);
  impl_->description = std::string(description);
  impl_->app.name(impl_->binary);
  impl_->app.set_version_flag("--version",
                              absl::StrCat(binary, " ", Version(), " (", Revision(), ")"));
  impl_->app.allow_windows_style_options(false);
}

FlagSet::~FlagSet() = default;

void FlagSet::AddString(absl::string_view name, std::string& target, absl::string_view placeholder,
                        absl::string_view help) {
  impl_->AddOption(name, placeholder, help, target, "", /*many=*/false,
                   [&target](const std::vector<std::string>& values) {
                     target = values.back();
                     return absl::OkStatus();
                   });
}

void FlagSet::AddList(absl::string_view name, std::vector<std::string>& target,
                      absl::string_view placeholder, absl::string_view help) {
  impl_->AddOption(name, placeholder, help, absl::StrJoin(target, ","), "", /*many=*/true,
                   [&target](const std::vector<std::string>& values) {
                     std::vector<std::string> list;
                     for (const std::string& value : values) {
                       for (const absl::string_view part : absl::StrSplit(value, ',')) {
                         if (part.empty()) {
                           return absl::InvalidArgumentError(
                               absl::StrCat("got '", value, "', which has an empty element"));
                         }
                         list.emplace_back(part);
                       }
                     }
                     target = std::move(list);
                     return absl::OkStatus();
                   });
}

void FlagSet::AddBool(absl::string_view name, bool& target, absl::string_view help) {
  impl_->app.add_flag(absl::StrCat("--", name), target)->envname(FlagVariable(name));
  impl_->entries.push_back({absl::StrCat("--", name), std::string(help),
                            Impl::Right(name, target ? "true" : "false", "")});
}

void FlagSet::AddInt(absl::string_view name, int64_t& target, absl::string_view unit,
                     absl::string_view help, int64_t min, int64_t max) {
  impl_->AddOption(name, "N", absl::StrCat(help, "; ", min, " to ", max), absl::StrCat(target),
                   std::string(unit), /*many=*/false,
                   [&target, min, max](const std::vector<std::string>& values) {
                     int64_t value = 0;
                     if (!absl::SimpleAtoi(values.back(), &value) || value < min || value > max) {
                       return absl::InvalidArgumentError(absl::StrCat(
                           "got '", values.back(), "', want a number from ", min, " to ", max));
                     }
                     target = value;
                     return absl::OkStatus();
                   });
}

void FlagSet::AddDuration(absl::string_view name, absl::Duration& target, absl::string_view help,
                          absl::Duration min, absl::Duration max) {
  impl_->AddOption(
      name, "DURATION", absl::StrCat(help, "; ", DurationText(min), " to ", DurationText(max)),
      DurationText(target), "ms, s, m, h or d", /*many=*/false,
      [&target, min, max](const std::vector<std::string>& values) {
        const absl::StatusOr<absl::Duration> value = ParseFlagDuration(values.back());
        if (!value.ok()) return value.status();
        if (*value < min || *value > max) {
          return absl::InvalidArgumentError(absl::StrCat(
              "got ", values.back(), ", want ", DurationText(min), " to ", DurationText(max)));
        }
        target = *value;
        return absl::OkStatus();
      });
}

void FlagSet::AddCommon(CommonFlags& flags, absl::string_view listen, absl::string_view http) {
  flags.listen = std::string(listen);
  flags.http = std::string(http);
  AddString("listen", flags.listen, "ADDR:PORT|unix:PATH",
            "where gRPC listens; port 0 chooses one");
  AddString("http", flags.http, "ADDR:PORT|off",
            "where /metrics, /healthz and /readyz are served; port 0 chooses one");
  AddList("http-host", flags.http_hosts, "NAME",
          "more host names that plain HTTP answers to, besides addresses and local names");
  AddBool("open-metrics", flags.open_metrics,
          "/metrics and the coordinator's /sd require no token, even off loopback");
  AddString("tls-cert", flags.security.tls_cert, "FILE", "certificate, PEM");
  AddString("tls-key", flags.security.tls_key, "FILE", "its key, PEM");
  AddString("tls-ca", flags.security.tls_ca, "FILE",
            "authorities that may sign the certificates of peers, PEM");
  AddString("token-file", flags.security.token_file, "FILE",
            "file with the token that this process sends in its calls");
  AddString("tokens", flags.security.tokens, "FILE",
            "tokens.json of `capstan certs`: tokens of the accepted callers");
  AddBool("insecure", flags.security.insecure,
          "plaintext on TCP, for everybody who reaches the port");
  AddString("log-level", flags.log_level, "debug|info|warning|error",
            "lines below this level are dropped");
}

void FlagSet::AddAdvertise(CommonFlags& flags) {
  AddString("advertise", flags.advertise, "ADDR:PORT|unix:PATH",
            "the address that others are given, if not that of --listen");
  AddString("interface", flags.interface, "IFNAME",
            "network interface whose address others are given, if --advertise is not set");
}

void FlagSet::AddAdminSocket(CommonFlags& flags) {
  AddString("admin-socket", flags.admin_socket, "PATH", "Unix socket for reflection and channelz");
}

absl::StatusOr<CommonFlags::Resolved> CommonFlags::Apply() const {
  const absl::StatusOr<LogLevel> level = ParseLogLevel(log_level);
  if (!level.ok()) return Prefixed(level.status(), "log-level");
  SetLogLevel(*level);
  Resolved resolved;
  absl::StatusOr<Endpoint> endpoint = ParseEndpoint(listen);
  if (!endpoint.ok()) return Prefixed(endpoint.status(), "listen");
  resolved.listen = *std::move(endpoint);
  if (absl::Status status = CheckListenSecurity(resolved.listen, security); !status.ok()) {
    return Prefixed(status, "listen");
  }
  absl::StatusOr<std::optional<Endpoint>> http_endpoint = ParseHttpEndpoint(http);
  if (!http_endpoint.ok()) return Prefixed(http_endpoint.status(), "http");
  resolved.http = *std::move(http_endpoint);
  if (!advertise.empty()) {
    const absl::StatusOr<Endpoint> told = ParseEndpoint(advertise);
    if (!told.ok()) return Prefixed(told.status(), "advertise");
    if (!interface.empty()) {
      return absl::InvalidArgumentError("--advertise and --interface exclude each other");
    }
  }
  return resolved;
}

absl::StatusOr<std::string> CommonFlags::Advertised(const Endpoint& bound) const {
  if (!advertise.empty()) return advertise;
  Endpoint told = bound;
  if (!interface.empty() && !bound.is_unix()) {
    absl::StatusOr<std::string> address = InterfaceAddress(interface);
    if (!address.ok()) return Prefixed(address.status(), "interface");
    told.host = *std::move(address);
  }
  if (!told.is_unix() && IsWildcard(told.host)) {
    return absl::FailedPreconditionError(
        absl::StrCat("--listen ", bound.ToString(),
                     " is not an address that others can call: give --advertise or --interface"));
  }
  return told.ToString();
}

absl::Status FlagSet::TryParse(int argc, const char* const* argv) {
  impl_->error = absl::OkStatus();
  try {
    impl_->app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return absl::CancelledError(Help());
  } catch (const CLI::CallForVersion& version) {
    return absl::CancelledError(absl::StrCat(version.what(), "\n"));
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  return impl_->error;
}

std::optional<int> FlagSet::Parse(int argc, const char* const* argv) {
  const absl::Status status = TryParse(argc, argv);
  if (status.ok()) return std::nullopt;
  const std::string text(status.message());
  if (absl::IsCancelled(status)) {
    std::fputs(text.c_str(), stdout);
    return 0;
  }
  std::fprintf(stderr, "%s: %s\nRun %s --help for the flags.\n", impl_->binary.c_str(),
               text.c_str(), impl_->binary.c_str());
  return 2;
}

std::string FlagSet::Help() const {
  std::string text = absl::StrCat(impl_->description, "\n\nUsage: ", impl_->binary, " [flags]\n\n");
  for (const Impl::Entry& entry : impl_->entries) {
    absl::StrAppend(&text, "  ", entry.left, "\n      ", entry.help, "\n      ", entry.right, "\n");
  }
  absl::StrAppend(&text, "  -h, --help\n      this text\n  --version\n      version and revision\n",
                  "\nA flag wins over its variable.\n");
  return text;
}

}  // namespace capstan::services
