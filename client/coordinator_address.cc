#include "client/coordinator_address.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/files/files.h"
#include "services/flags/flags.h"
#include "training/spec/nearest.h"

namespace capstan::client {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxConfigBytes = 64 * 1024;
const char* const kKeys[] = {"address", "timeout",    "tls_ca",  "tls_cert",
                             "tls_key", "token_file", "insecure"};

// A value and where it came from, for messages.
struct Found {
  std::string value;
  std::string origin;
};
using Values = std::map<std::string, Found>;  // by key of the file

bool IsPath(const std::string& key) {
  return key != "address" && key != "timeout" && key != "insecure";
}

absl::Status ReadFile(const std::string& path, Values& values) {
  std::error_code error;
  if (!fs::exists(path, error)) return absl::OkStatus();
  const absl::StatusOr<std::string> text = services::ReadWholeFile(path, kMaxConfigBytes);
  if (!text.ok()) return absl::InvalidArgumentError(text.status().message());
  YAML::Node root;
  try {
    root = YAML::Load(*text);
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(path, ":", e.mark.line + 1, ": ", e.msg));
  }
  if (root.IsNull()) return absl::OkStatus();
  if (!root.IsMap())
    return absl::InvalidArgumentError(absl::StrCat(path, ": want key: value lines"));
  for (const auto& entry : root) {
    const std::string place = absl::StrCat(path, ":", entry.first.Mark().line + 1);
    const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
    const std::vector<std::string> keys(std::begin(kKeys), std::end(kKeys));
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      const std::string near = training::spec::Nearest(key, keys);
      return absl::InvalidArgumentError(
          absl::StrCat(place, ": unknown key '", key, "'",
                       near.empty() ? "; there are: " + absl::StrJoin(keys, ", ")
                                    : " (did you mean '" + near + "'?)"));
    }
    if (!entry.second.IsScalar()) {
      return absl::InvalidArgumentError(absl::StrCat(place, ": '", key, "' wants one value"));
    }
    std::string value = entry.second.Scalar();
    if (IsPath(key) && !value.empty() && value[0] != '/') {
      value = (fs::absolute(path).parent_path() / value).lexically_normal().string();
    }
    values.insert({key, {value, absl::StrCat(place, ": ", key)}});  // an earlier file wins
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ReadBool(const Found& found) {
  if (found.value == "true" || found.value == "1") return true;
  if (found.value == "false" || found.value == "0" || found.value.empty()) return false;
  return absl::InvalidArgumentError(
      absl::StrCat(found.origin, ": got '", found.value, "', want true or false"));
}

}  // namespace

std::vector<std::string> ConfigFiles() {
  std::vector<std::string> files = {"capstan.yaml"};
  const char* const xdg = std::getenv("XDG_CONFIG_HOME");
  const char* const home = std::getenv("HOME");
  if (xdg != nullptr && *xdg == '/') {
    files.push_back(absl::StrCat(xdg, "/capstan/config.yaml"));
  } else if (home != nullptr && *home == '/') {
    files.push_back(absl::StrCat(home, "/.config/capstan/config.yaml"));
  }
  files.push_back("/etc/capstan/config.yaml");
  return files;
}

absl::StatusOr<Connection> FindCoordinator(
    const ConnectFlags& flags, const std::vector<std::string>& files,
    const std::function<std::optional<std::string>(const std::string&)>& variable) {
  Values values;
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
  for (const std::string key : kKeys) {
    const std::string name = services::FlagVariable(key);
    const std::optional<std::string> value = variable(name);
    if (value.has_value() && !value->empty()) values.insert({key, {*value, name}});
  }
  for (const std::string& file : files) {
    if (absl::Status status = ReadFile(file, values); !status.ok()) return status;
  }
  values.insert({"address", {kDefaultAddress, "--address"}});

  Connection out;
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
  return FindCoordinator(flags, ConfigFiles(), [](const std::string& name) {
    const char* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
}

}  // namespace capstan::client
