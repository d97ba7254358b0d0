// `capstan context` and `capstan login`: store how to reach a coordinator.
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/context_store.h"
#include "client/text/job_view.h"
#include "client/text/text_table.h"
#include "services/proto_json/proto_json.h"

namespace capstan::client {
namespace {

namespace fs = std::filesystem;

using services::Dump;

absl::StatusOr<std::string> ContextsPath() {
  std::string path = FindConfigPlaces().contexts;
  if (!path.empty()) return path;
  return absl::InvalidArgumentError("contexts need HOME or XDG_CONFIG_HOME");
}

std::string ValueOf(const ConfigValues& values, const std::string& key) {
  const auto found = values.find(key);
  return found == values.end() ? "" : found->second.value;
}

// How the connection is secured.
std::string SecurityOf(const ConfigValues& values) {
  if (absl::StartsWith(ValueOf(values, "address"), "unix:")) return "socket";
  return ValueOf(values, "insecure") == "true" ? "plaintext" : "TLS";
}

ExitCode UnknownContext(const std::string& name, const Contexts& contexts, const Console& console) {
  console.Err(
      absl::StrCat("capstan: no context '", Printable(name), "'; ", KnownContexts(contexts), "\n"));
  return kExitUsage;
}

// Notes the variables that override the stored context, for people who wonder why it has no effect.
void NoteVariables(const Console& console) {
  for (const char* name : {"CAPSTAN_CONTEXT", "CAPSTAN_ADDRESS"}) {
    if (!VariableOf(name).value_or("").empty()) {
      console.Note(absl::StrCat(name, " is set and overrides the current context\n"));
    }
  }
}

nlohmann::json ContextJson(const std::string& name, const ConfigValues& values, bool current) {
  nlohmann::json out = {{"name", name}, {"current", current}};
  for (const std::string& key : ConfigKeys()) out[key] = ValueOf(values, key);
  out["insecure"] = ValueOf(values, "insecure") == "true";
  return out;
}

ExitCode ListContexts(const Contexts& contexts, const Console& console) {
  if (console.json()) {
    nlohmann::json all = nlohmann::json::array();
    for (const auto& [name, values] : contexts.all) {
      all.push_back(ContextJson(name, values, name == contexts.current));
    }
    console.Out(Dump(all) + "\n");
  } else if (console.output == Output::kName) {
    for (const auto& entry : contexts.all) console.Out(entry.first + "\n");
  } else if (contexts.all.empty()) {
    console.Note("no contexts: capstan login ADDRESS makes one\n");
  } else {
    TextTable table({"CURRENT", "CONTEXT", "ADDRESS", "SECURITY"});
    for (const auto& [name, values] : contexts.all) {
      table.Add({name == contexts.current ? "*" : "", name, ValueOf(values, "address"),
                 SecurityOf(values)});
    }
    console.Out(table.Text(console.stdout_tty ? console.width : 0));
  }
  return kExitDone;
}

ExitCode ShowContext(const std::string& asked, const Contexts& contexts, const Console& console) {
  const std::string& name = asked.empty() ? contexts.current : asked;
  if (name.empty()) {
    console.Err("capstan: no context is current; capstan context use NAME\n");
    return kExitUsage;
  }
  const auto found = contexts.all.find(name);
  if (found == contexts.all.end()) return UnknownContext(name, contexts, console);
  if (console.json()) {
    console.Out(Dump(ContextJson(name, found->second, name == contexts.current)) + "\n");
    return kExitDone;
  }
  TextTable table({"context", name});
  for (const std::string& key : ConfigKeys()) {
    const std::string value = ValueOf(found->second, key);
    if (!value.empty()) table.Add({key, value});
  }
  console.Out(table.Text(0));
  return kExitDone;
}

ExitCode UseContext(const std::string& name, const Console& console) {
  const absl::StatusOr<std::string> path = ContextsPath();
  if (!path.ok()) return Report(path.status(), console);
  std::optional<Contexts> unknown;
  std::string address;
  const absl::Status status = ChangeContexts(*path, [&](Contexts& contexts) {
    const auto found = contexts.all.find(name);
    if (found == contexts.all.end()) {
      unknown = contexts;
      return absl::NotFoundError(name);
    }
    contexts.current = name;
    address = ValueOf(found->second, "address");
    return absl::OkStatus();
  });
  if (unknown.has_value()) return UnknownContext(name, *unknown, console);
  if (!status.ok()) return Report(status, console);
  console.Out(absl::StrCat(name, "  ", address, "\n"));
  NoteVariables(console);
  return kExitDone;
}

ExitCode DeleteContext(const std::string& name, const Console& console) {
  const absl::StatusOr<std::string> path = ContextsPath();
  if (!path.ok()) return Report(path.status(), console);
  std::optional<Contexts> unknown;
  bool was_current = false;
  const absl::Status status = ChangeContexts(*path, [&](Contexts& contexts) {
    if (contexts.all.erase(name) == 0) {
      unknown = contexts;
      return absl::NotFoundError(name);
    }
    was_current = contexts.current == name;
    if (was_current) contexts.current.clear();
    return absl::OkStatus();
  });
  if (unknown.has_value()) return UnknownContext(name, *unknown, console);
  if (!status.ok()) return Report(status, console);
  console.Out(absl::StrCat(name, "  deleted\n"));
  if (was_current) console.Note("no context is current now; capstan context use NAME\n");
  console.Note("its certificate and token files were not deleted\n");
  return kExitDone;
}

struct LoginOptions {
  std::string address;
  std::string name;
  std::string credentials;  // folder of `certs issue`
};

// A valid context name made from the host.
std::string ContextNameOf(const services::Endpoint& address) {
  std::string name = address.is_unix() ? "local" : address.host;
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '-') c = '-';
  }
  return IsContextName(name) ? name : "default";
}

// Takes the files of `certs issue client` or `admin`, except where a flag names another file.
absl::Status TakeFolder(const std::string& folder, ConnectFlags& flags) {
  std::error_code error;
  for (const std::string role : {"client", "admin"}) {
    const std::string stem = (fs::path(folder) / role).string();
    if (!fs::exists(stem + ".crt", error)) continue;
    const auto take = [](std::optional<std::string>& flag, const std::string& path) {
      if (!flag.has_value()) flag = path;
    };
    take(flags.tls_ca, (fs::path(folder) / "ca.crt").string());
    take(flags.tls_cert, stem + ".crt");
    take(flags.tls_key, stem + ".key");
    take(flags.token_file, stem + ".token");
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--credentials ", folder, ": holds no client.crt and no admin.crt of capstan certs issue"));
}

// Tries and stores only the values given now, by flags or variables.
ExitCode Login(const LoginOptions& options, const Context& context) {
  const Console& console = context.console;
  const absl::StatusOr<std::string> path = ContextsPath();
  if (!path.ok()) return Report(path.status(), console);
  ConnectFlags flags = context.connect;
  if (flags.address.has_value() || flags.context.has_value()) {
    return RefuseFlag(flags.address.has_value() ? "--address" : "--context",
                      "login takes the address as its argument", console);
  }
  flags.context = "";
  flags.address = options.address;
  if (!options.credentials.empty()) {
    if (absl::Status status = TakeFolder(options.credentials, flags); !status.ok()) {
      return Report(status, console);
    }
  }
  for (std::optional<std::string>* file :
       {&flags.tls_ca, &flags.tls_cert, &flags.tls_key, &flags.token_file}) {
    if (file->has_value()) *file = fs::absolute(**file).lexically_normal().string();
  }
  absl::StatusOr<Connection> connection = FindCoordinator(flags, ConfigPlaces(), VariableOf);
  if (!connection.ok()) return Report(connection.status(), console);
  const std::string name = options.name.empty() ? ContextNameOf(connection->address) : options.name;
  if (!IsContextName(name)) {
    return Report(absl::InvalidArgumentError(
                      "--name: want 1 to 63 of A-Z, a-z, 0-9, '.', '-' and '_', a letter or digit "
                      "first"),
                  console);
  }
  // Make a call that needs the token, because a connection alone only proves the certificates.
  const ExitCode checked = WithConnection(*connection, console, [&](JobClient& client) {
    job::v1::ListJobsRequest request;
    request.set_limit(1);
    return Report(client.Call(&JobClient::Stub::ListJobs, request).status(), console);
  });
  if (checked != kExitDone) {
    console.Note("nothing was stored\n");
    return checked;
  }
  ConfigValues values;
  const auto keep = [&values](const std::string& key, const std::string& value) {
    if (!value.empty()) values[key] = {value, ""};
  };
  const services::Security& security = connection->security;
  keep("address", connection->address.ToString());
  keep("insecure", security.insecure ? "true" : "");
  for (const auto& [key, value] :
       {std::pair("tls_ca", security.tls_ca), std::pair("tls_cert", security.tls_cert),
        std::pair("tls_key", security.tls_key), std::pair("token_file", security.token_file)}) {
    keep(key, value.empty() ? "" : fs::absolute(value).lexically_normal().string());
  }
  keep("timeout", flags.timeout.value_or(""));
  const absl::Status status = ChangeContexts(*path, [&](Contexts& contexts) {
    contexts.all[name] = values;
    contexts.current = name;
    return absl::OkStatus();
  });
  if (!status.ok()) return Report(status, console);
  console.Out(absl::StrCat(name, "  ", connection->address.ToString(), "\n"));
  console.Note(absl::StrCat("stored in ", *path, ", and now the current context\n"));
  NoteVariables(console);
  return kExitDone;
}

ExitCode WithContexts(const Console& console,
                      const std::function<ExitCode(const Contexts&)>& body) {
  const absl::StatusOr<std::string> path = ContextsPath();
  if (!path.ok()) return Report(path.status(), console);
  const absl::StatusOr<Contexts> contexts = ReadContexts(*path);
  if (!contexts.ok()) return Report(contexts.status(), console);
  return body(*contexts);
}

}  // namespace

void AddContexts(Command parent, Action& slot) {
  Command context = parent.Sub("context", "stored connections to coordinators");
  context.NeedsSub();
  CarryOut(
      context.Sub("list", "all contexts, by name"), slot,
      {Output::kTable, Output::kJson, Output::kName},
      [](const Context& c) {
        return WithContexts(
            c.console, [&](const Contexts& contexts) { return ListContexts(contexts, c.console); });
      },
      kActsAlone);
  const auto name = std::make_shared<std::string>();
  Command show = context.Sub("show", "one context; without NAME the current one");
  show.Add("NAME", *name, "name of the context, as `login` stored it");
  CarryOut(
      show, slot, {Output::kTable, Output::kJson},
      [name](const Context& c) {
        return WithContexts(c.console, [&](const Contexts& contexts) {
          return ShowContext(*name, contexts, c.console);
        });
      },
      kActsAlone);
  Command use = context.Sub("use", "make a context the current one");
  use.Add("NAME", *name, "name of the context, as `login` stored it").Required();
  CarryOut(
      use, slot, {Output::kTable},
      [name](const Context& c) { return UseContext(*name, c.console); }, kActsAlone);
  Command remove = context.Sub("delete", "delete a context, but not the files that it names");
  remove.Add("NAME", *name, "name of the context, as `login` stored it").Required();
  CarryOut(
      remove, slot, {Output::kTable},
      [name](const Context& c) { return DeleteContext(*name, c.console); }, kActsAlone);

  const auto options = std::make_shared<LoginOptions>();
  Command login =
      parent.Sub("login", "check a connection, store it as a context and make it the current one");
  login.Add("ADDRESS", options->address, "HOST:PORT or unix:PATH of the coordinator").Required();
  login.Add("--name", options->name,
            "name of the context, default the host; replaces a context of that name");
  login.Add("--credentials", options->credentials,
            "folder of `certs issue client` or `admin`, instead of --tls-ca, --tls-cert, --tls-key "
            "and --token-file");
  CarryOut(login, slot, {Output::kTable},
           [options](const Context& c) { return Login(*options, c); });
}

}  // namespace capstan::client
