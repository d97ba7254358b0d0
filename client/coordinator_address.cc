#include "client/coordinator_address.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/context_store.h"
#include "services/files/files.h"
#include "services/flags/flags.h"

namespace capstan::client {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxConfigBytes = 64 * 1024;
const char* const kTlsKeys[] = {"tls_ca", "tls_cert", "tls_key", "token_file"};

bool HasTls(const ConfigValues& values) {
  return std::any_of(std::begin(kTlsKeys), std::end(kTlsKeys),
                     [&](const char* key) { return values.count(key) != 0; });
}
// Whether the values contain any part of a context.
bool HasContext(const ConfigValues& values) {
  return HasTls(values) || values.count("address") != 0 || values.count("insecure") != 0;
}
void DropTls(ConfigValues& values) {
  for (const char* key : kTlsKeys) values.erase(key);
}

absl::StatusOr<bool> ReadBool(const ConfigValue& found) {
  if (found.value == "true" || found.value == "1") return true;
  if (found.value == "false" || found.value == "0" || found.value.empty()) return false;
  return absl::InvalidArgumentError(
      absl::StrCat(found.origin, ": got '", found.value, "', want true or false"));
}

// The text of ./capstan.yaml, or why it is passed over. Anybody may have written a file in the
// folder where a person happens to be, or a file that a link there points to.
absl::StatusOr<std::string> ReadOwnFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (fd < 0 && errno == ELOOP) return absl::PermissionDeniedError("it is a symbolic link");
  if (fd < 0) return absl::PermissionDeniedError("it cannot be read");
  const absl::Cleanup close_it = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::PermissionDeniedError("it is not a regular file");
  }
  if (info.st_uid != geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrCat("it belongs to user ", info.st_uid, ", not to you"));
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::PermissionDeniedError("others may write it (chmod go-w)");
  }
  std::string text(kMaxConfigBytes + 1, 0);
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = read(fd, text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::PermissionDeniedError("it cannot be read");
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  if (size > kMaxConfigBytes) {
    return absl::PermissionDeniedError(absl::StrCat("more than ", kMaxConfigBytes, " bytes"));
  }
  text.resize(size);
  return text;
}

// Why ./capstan.yaml is not a whole context; empty: it is one.
std::string WhyNotWhole(const std::string& path, const ConfigValues& values) {
  const auto address = values.find("address");
  if (address == values.end()) return "it has no address";
  const auto insecure = values.find("insecure");
  const bool open = insecure != values.end() && *ReadBool(insecure->second);
  std::vector<std::string> missing;
  for (const char* key : kTlsKeys) {
    const auto found = values.find(key);
    if (found == values.end()) {
      missing.emplace_back(key);
      continue;
    }
    // The folder may come from anybody, say as an archive. It must not reach for the user's token.
    std::error_code error;
    const fs::path folder = fs::weakly_canonical(fs::absolute(path).parent_path(), error);
    const fs::path file = fs::weakly_canonical(found->second.value, error);
    const auto ends = std::mismatch(folder.begin(), folder.end(), file.begin(), file.end());
    if (error || ends.first != folder.end() || ends.second == file.end()) {
      return absl::StrCat(key, " names a file outside its folder");
    }
  }
  if (open || absl::StartsWith(address->second.value, "unix:") || missing.empty()) return "";
  return absl::StrCat("it has no ", absl::StrJoin(missing, ", "));
}

// The values of ./capstan.yaml if it applies; else nothing, and a note.
absl::StatusOr<ConfigValues> ReadWorking(const std::string& path, const ConfigValues& given,
                                         std::vector<std::string>& notes) {
  struct stat info;
  if (path.empty() || lstat(path.c_str(), &info) != 0) return ConfigValues();
  if (given.count("address") != 0) return ConfigValues();  // another address is given already
  const auto pass_over = [&](absl::string_view why) {
    notes.push_back(absl::StrCat(path, " is ignored: ", why,
                                 ". A file of the working directory counts only if it has "
                                 "address, authority and credentials"));
    return ConfigValues();
  };
  if (HasContext(given)) return pass_over("flags or variables set a part of the connection");
  const absl::StatusOr<std::string> text = ReadOwnFile(path);
  if (!text.ok()) return pass_over(text.status().message());
  absl::StatusOr<ConfigValues> values = ParseConfig(path, *text);
  if (!values.ok() || !HasContext(*values)) return values;
  if (values->count("insecure") != 0) {
    if (absl::StatusOr<bool> insecure = ReadBool((*values)["insecure"]); !insecure.ok()) {
      return insecure.status();
    }
  }
  if (const std::string why = WhyNotWhole(path, *values); !why.empty()) return pass_over(why);
  return values;
}

// The one context that applies, and a timeout if an earlier place sets one.
absl::StatusOr<ConfigValues> FindBase(const std::string& name, const std::string& origin,
                                      const ConfigPlaces& places, const ConfigValues& given,
                                      std::vector<std::string>& notes) {
  if (!name.empty()) {
    const absl::StatusOr<Contexts> contexts = ReadContexts(places.contexts);
    if (!contexts.ok()) return absl::InvalidArgumentError(contexts.status().message());
    const auto found = contexts->all.find(name);
    if (found != contexts->all.end()) return found->second;
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": no context '", name, "'; ", KnownContexts(*contexts)));
  }
  absl::StatusOr<ConfigValues> values = ReadWorking(places.working, given, notes);
  if (!values.ok() || HasContext(*values)) return values;
  if (!places.contexts.empty()) {
    const absl::StatusOr<Contexts> contexts = ReadContexts(places.contexts);
    if (!contexts.ok()) return absl::InvalidArgumentError(contexts.status().message());
    if (!contexts->current.empty()) {
      for (const auto& entry : contexts->all.at(contexts->current)) values->insert(entry);
      return values;
    }
  }
  for (const std::string& file : places.files) {
    std::error_code error;
    if (!fs::exists(file, error)) continue;
    const absl::StatusOr<std::string> text = services::ReadWholeFile(file, kMaxConfigBytes);
    if (!text.ok()) return absl::InvalidArgumentError(text.status().message());
    const absl::StatusOr<ConfigValues> next = ParseConfig(file, *text);
    if (!next.ok()) return next.status();
    for (const auto& entry : *next) values->insert(entry);  // an earlier file had a timeout at most
    if (!HasContext(*next)) continue;
    if (next->count("address") == 0 && given.count("address") == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          file,
          ": has no address; address, authority and credentials are one context, in one file"));
    }
    break;
  }
  return values;
}

}  // namespace

std::optional<std::string> VariableOf(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

ConfigPlaces FindConfigPlaces() {
  ConfigPlaces places;
  places.working = "capstan.yaml";
  const char* const xdg = std::getenv("XDG_CONFIG_HOME");
  const char* const home = std::getenv("HOME");
  std::string folder;
  if (xdg != nullptr && *xdg == '/') {
    folder = absl::StrCat(xdg, "/capstan");
  } else if (home != nullptr && *home == '/') {
    folder = absl::StrCat(home, "/.config/capstan");
  }
  if (!folder.empty()) {
    places.contexts = folder + "/contexts.yaml";
    places.files.push_back(folder + "/config.yaml");
  }
  places.files.push_back("/etc/capstan/config.yaml");
  return places;
}

absl::StatusOr<Connection> FindCoordinator(const ConnectFlags& flags, const ConfigPlaces& places,
                                           const Variables& variable) {
  ConfigValues values;
  const auto flag = [&](const std::string& key, const std::string& name,
                        const std::optional<std::string>& value) {
    if (value.has_value()) values.insert({key, {*value, "--" + name}});
  };
  flag("address", "address", flags.address);
  flag("timeout", "timeout", flags.timeout);
  flag("tls_ca", "tls-ca", flags.tls_ca);
  flag("tls_cert", "tls-cert", flags.tls_cert);
  flag("tls_key", "tls-key", flags.tls_key);
  flag("token_file", "token-file", flags.token_file);
  if (flags.insecure) flag("insecure", "insecure", "true");
  for (const std::string& key : ConfigKeys()) {
    const std::string name = services::FlagVariable(key);
    const std::optional<std::string> value = variable(name);
    if (value.has_value() && !value->empty()) values.insert({key, {*value, name}});
  }

  const std::string context =
      flags.context.has_value() ? *flags.context : variable("CAPSTAN_CONTEXT").value_or("");
  Connection out;
  absl::StatusOr<ConfigValues> base =
      FindBase(context, flags.context.has_value() ? "--context" : "CAPSTAN_CONTEXT", places, values,
               out.notes);
  if (!base.ok()) return base.status();
  // Plaintext on request needs no TLS files, and given TLS files turn plaintext off.
  if (const auto insecure = values.find("insecure"); insecure != values.end()) {
    const absl::StatusOr<bool> asked = ReadBool(insecure->second);
    if (!asked.ok()) return asked.status();
    if (*asked) DropTls(*base);
  }
  if (HasTls(values)) base->erase("insecure");
  for (const auto& entry : *base) values.insert(entry);
  out.configured = HasContext(values);
  values.insert({"address", {kDefaultAddress, "--address"}});

  out.timeout = kDefaultTimeout;
  const auto address = services::ParseEndpoint(values["address"].value);
  if (!address.ok() || (!address->is_unix() && address->port == 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(values["address"].origin, ": ",
                     address.ok() ? "a port is needed" : std::string(address.status().message())));
  }
  out.address = *address;
  if (values.count("timeout") != 0) {
    const auto timeout = services::ParseFlagDuration(values["timeout"].value);
    if (!timeout.ok() || *timeout <= absl::ZeroDuration()) {
      return absl::InvalidArgumentError(absl::StrCat(
          values["timeout"].origin, ": ",
          timeout.ok() ? "want more than 0" : std::string(timeout.status().message())));
    }
    out.timeout = *timeout;
  }
  const auto insecure = ReadBool(values["insecure"]);
  if (!insecure.ok()) return insecure.status();
  out.security.insecure = *insecure;
  out.security.tls_ca = values["tls_ca"].value;
  out.security.tls_cert = values["tls_cert"].value;
  out.security.tls_key = values["tls_key"].value;
  out.security.token_file = values["token_file"].value;
  return out;
}

absl::StatusOr<Connection> FindCoordinator(const ConnectFlags& flags) {
  return FindCoordinator(flags, FindConfigPlaces(), VariableOf);
}

}  // namespace capstan::client
