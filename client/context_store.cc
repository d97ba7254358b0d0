#include "client/context_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/files/files.h"
#include "services/security/secret_file.h"
#include "training/spec/nearest.h"

namespace capstan::client {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxContextsBytes = 256 * 1024;

bool IsPathKey(const std::string& key) {
  return key != "address" && key != "timeout" && key != "insecure";
}

absl::StatusOr<YAML::Node> ParseYaml(const std::string& path, const std::string& text) {
  try {
    return YAML::Load(text);
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(path, ":", e.mark.line + 1, ": ", e.msg));
  }
}

absl::StatusOr<ConfigValues> ReadMapping(const std::string& path, const YAML::Node& root) {
  ConfigValues values;
  if (root.IsNull()) return values;
  if (!root.IsMap()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": want key: value lines"));
  }
  for (const auto& entry : root) {
    const std::string place = absl::StrCat(path, ":", entry.first.Mark().line + 1);
    const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
    const std::vector<std::string>& keys = ConfigKeys();
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
    if (IsPathKey(key) && !value.empty() && value[0] != '/') {
      value = (fs::absolute(path).parent_path() / value).lexically_normal().string();
    }
    values.insert({key, {value, absl::StrCat(place, ": ", key)}});
  }
  return values;
}

std::string FormatContexts(const Contexts& contexts) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  if (!contexts.current.empty()) out << YAML::Key << "current" << YAML::Value << contexts.current;
  out << YAML::Key << "contexts" << YAML::Value << YAML::BeginMap;
  for (const auto& [name, values] : contexts.all) {
    out << YAML::Key << name << YAML::Value << YAML::BeginMap;
    for (const auto& [key, found] : values) {
      out << YAML::Key << key << YAML::Value << found.value;
    }
    out << YAML::EndMap;
  }
  out << YAML::EndMap << YAML::EndMap;
  return absl::StrCat("# Written by `capstan login` and `capstan context`.\n", out.c_str(), "\n");
}

}  // namespace

const std::vector<std::string>& ConfigKeys() {
  static const auto& keys = *new std::vector<std::string>{
      "address", "timeout", "tls_ca", "tls_cert", "tls_key", "token_file", "insecure"};
  return keys;
}

absl::StatusOr<ConfigValues> ParseConfig(const std::string& path, const std::string& text) {
  const absl::StatusOr<YAML::Node> root = ParseYaml(path, text);
  if (!root.ok()) return root.status();
  return ReadMapping(path, *root);
}

bool IsContextName(absl::string_view name) {
  if (name.empty() || name.size() > 63) return false;
  return absl::ascii_isalnum(static_cast<unsigned char>(name[0])) &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' ||
                  c == '_';
         });
}

std::string KnownContexts(const Contexts& contexts) {
  if (contexts.all.empty()) return "there are none; capstan login makes one";
  return absl::StrCat("there are: ",
                      absl::StrJoin(contexts.all, ", ", [](std::string* out, const auto& entry) {
                        out->append(entry.first);
                      }));
}

absl::StatusOr<Contexts> ReadContexts(const std::string& path) {
  Contexts out;
  const absl::StatusOr<std::string> text = services::ReadSecretFile(path, kMaxContextsBytes);
  if (absl::IsNotFound(text.status())) return out;
  if (!text.ok()) return text.status();
  const absl::StatusOr<YAML::Node> root = ParseYaml(path, *text);
  if (!root.ok()) return root.status();
  if (root->IsNull()) return out;
  const auto wrong = [&path](const YAML::Node& at, const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(path, ":", at.Mark().line + 1, ": ", what));
  };
  if (!root->IsMap()) return wrong(*root, "want 'current' and 'contexts'");
  for (const auto& entry : *root) {
    const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
    if (key == "current" && entry.second.IsScalar()) {
      out.current = entry.second.Scalar();
    } else if (key == "contexts" && entry.second.IsMap()) {
      for (const auto& context : entry.second) {
        const std::string name = context.first.IsScalar() ? context.first.Scalar() : "";
        if (!IsContextName(name)) return wrong(context.first, "this is not a name of a context");
        absl::StatusOr<ConfigValues> values = ReadMapping(path, context.second);
        if (!values.ok()) return values.status();
        if (values->count("address") == 0) {
          return wrong(context.first, absl::StrCat("context ", name, " has no address"));
        }
        out.all[name] = *std::move(values);
      }
    } else if (!(key == "contexts" && entry.second.IsNull())) {
      return wrong(entry.first, "want 'current' and 'contexts'");
    }
  }
  if (!out.current.empty() && out.all.count(out.current) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the current context '", out.current,
                                                   "' does not exist; capstan context use NAME"));
  }
  return out;
}

absl::Status ChangeContexts(const std::string& path,
                            const std::function<absl::Status(Contexts&)>& change) {
  const std::string folder = fs::path(path).parent_path().string();
  if (absl::Status status = services::EnsureDir(folder, 0700); !status.ok()) return status;
  // The lock is on the folder, because the file is replaced when it changes.
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return services::ErrnoStatus(errno, "open", folder);
  const absl::Cleanup unlock = [fd] { close(fd); };
  if (flock(fd, LOCK_EX) != 0) return services::ErrnoStatus(errno, "flock", folder);
  absl::StatusOr<Contexts> contexts = ReadContexts(path);
  if (!contexts.ok()) return contexts.status();
  if (absl::Status status = change(*contexts); !status.ok()) return status;
  return services::WriteFileAtomically(path, FormatContexts(*contexts), {.mode = 0600});
}

}  // namespace capstan::client
