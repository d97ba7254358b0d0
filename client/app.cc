#include "client/app.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/commands/completion.h"
#include "client/commands/launch_command.h"
#include "client/console.h"
#include "client/text/exit_codes.h"
#include "services/proto_json/proto_json.h"
#include "services/tuning/tuning.h"
#include "services/version/version.h"
#include "training/spec/nearest.h"

namespace capstan::client {
namespace {

using services::Dump;

struct Flags {
  std::string output = "table";
  bool json = false;
  bool quiet = false;
  bool verbose = false;
  bool no_color = false;
  bool no_input = false;
  ConnectFlags connect;
};

const std::map<std::string, Output> kOutputs = {{"table", Output::kTable}, {"wide", Output::kWide},
                                                {"json", Output::kJson},   {"yaml", Output::kYaml},
                                                {"name", Output::kName},   {"csv", Output::kCsv}};

Console MakeConsole(const Flags& flags) {
  Console console = Console::Detect(flags.no_color);
  console.output = flags.json ? Output::kJson : kOutputs.at(flags.output);
  console.quiet = flags.quiet;
  console.verbose = flags.verbose;
  console.may_ask = console.may_ask && !flags.no_input;
  return console;
}

void AddGlobalFlags(CLI::App& app, Flags& flags) {
  ConnectFlags& connect = flags.connect;
  app.add_option("--context", connect.context,
                 "a stored connection instead of the current one (CAPSTAN_CONTEXT)");
  app.add_option("--address", connect.address,
                 absl::StrCat("coordinator: HOST:PORT or unix:PATH, default ", kDefaultAddress,
                              " (CAPSTAN_ADDRESS, then a context or a configuration file)"));
  app.add_option(
      "--timeout", connect.timeout,
      "how long to wait for an answer: default 30s for each call (CAPSTAN_TIMEOUT), without "
      "end for the jobs of `wait` (exit code 101), 5m for the next byte of `data get`");
  app.add_flag("--insecure", connect.insecure, "allow plaintext TCP (CAPSTAN_INSECURE)");
  app.add_option("--tls-ca", connect.tls_ca,
                 "authorities that may sign the coordinator's certificate, PEM");
  app.add_option("--tls-cert", connect.tls_cert, "our certificate, PEM");
  app.add_option("--tls-key", connect.tls_key, "its key, PEM");
  app.add_option("--token-file", connect.token_file, "file with our token");
  app.add_option("-o,--output", flags.output, "table | wide | json | yaml | name | csv")
      ->check(CLI::IsMember({"table", "wide", "json", "yaml", "name", "csv"}));
  app.add_flag("--json", flags.json, "the same as -o json");
  app.add_flag("-q,--quiet", flags.quiet, "results and errors only");
  app.add_flag("-v,--verbose", flags.verbose, "also print the log of the services");
  app.add_flag("--no-color", flags.no_color, "no colours (also NO_COLOR, TERM=dumb)");
  app.add_flag("--no-input", flags.no_input, "never ask questions");
}

ExitCode PrintVersion(const Console& console) {
  if (console.json()) {
    console.Out(Dump({{"version", std::string(capstan::Version())},
                      {"revision", std::string(capstan::Revision())},
                      {"compiler", std::string(capstan::Compiler())}}) +
                "\n");
  } else {
    console.Out(absl::StrCat("capstan ", capstan::Version(), " (", capstan::Revision(), ", ",
                             capstan::Compiler(), ")\n"));
  }
  return kExitDone;
}

// The innermost subcommand given.
const CLI::App& Innermost(const CLI::App& app) {
  const std::vector<CLI::App*> given = app.get_subcommands();
  return given.empty() ? app : Innermost(*given.back());
}

// The closest word that is valid here, or "": a flag of the command or of the program, or the name
// of a command.
std::string Suggestion(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  const CLI::App& inner = Innermost(app);
  for (const CLI::App* where : {&inner, &app}) {
    for (const CLI::App* command : where->get_subcommands({})) names.push_back(command->get_name());
    for (const CLI::Option* option : where->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  }
  return training::spec::Nearest(word, names);
}

// Lets the program's flags also follow any sub-command, at any depth.
void LetFlagsFall(CLI::App& app) {
  app.fallthrough();
  for (CLI::App* command : app.get_subcommands({})) LetFlagsFall(*command);
}

void AddMeta(CLI::App& app, Action& slot) {
  Command program(&app);
  CarryOut(
      program.Sub("version", "print the version"), slot, {Output::kTable, Output::kJson},
      [](const Context& context) { return PrintVersion(context.console); }, kActsAlone);
  const auto shell = std::make_shared<std::string>();
  Command completion = program.Sub("completion", "print the completion script of a shell");
  completion.Add("SHELL", *shell, "bash | zsh | fish").Required().OneOf({"bash", "zsh", "fish"});
  CarryOut(
      completion, slot, {Output::kTable},
      [&app, shell](const Context& context) {
        context.console.Out(CompletionScript(app, *shell));
        return kExitDone;
      },
      kActsAlone);
}

// The verbs of a job. They also exist under `capstan job`.
void AddJobVerbs(Command parent, Action& slot) {
  AddSubmit(parent, slot);
  AddList(parent, slot);
  AddDescribe(parent, slot);
  AddWatch(parent, slot);
  AddLogs(parent, slot);
  AddMetrics(parent, slot);
  AddEvents(parent, slot);
  AddControl(parent, slot);
  AddVerify(parent, slot);
}

}  // namespace

void AddJobSource(Command command, JobSource& source) {
  Flag file = command.Add("FILE", source.file, "the job file, or - for standard input");
  file.Excludes(command.Add("--example", source.example,
                            "an example that comes with capstan instead of a file"));
  command.AddRepeated("--set", source.sets, "KEY=VALUE",
                      "replace a value of the file: training.epochs=3; null removes the key");
}

int Main(int argc, char** argv) {
  services::TuneProcess();
  Flags flags;
  Action action;

  CLI::App app("Capstan trains neural networks, data-parallel, on every device you have.",
               "capstan");
  app.require_subcommand(0, 1);
  app.set_help_flag("-h,--help", "this help");
  bool version_flag = false;
  app.add_flag("--version", version_flag, "print the version");
  AddGlobalFlags(app, flags);
  Command program(&app);
  AddRun(program, action);
  AddLaunch(program, action);
  AddValidate(program, action);
  AddJobVerbs(program, action);
  AddCheckpoint(program, action);
  AddAdmin(program, action);
  AddTop(program, action);
  AddShard(program, action);
  AddPage(program, action);
  AddDoctor(program, action);
  AddBackup(program, action);
  AddModel(program, action);
  AddPredict(program, action);
  AddBench(program, action);
  AddData(program, action);
  AddCerts(program, action);
  AddContexts(program, action);
  AddMeta(app, action);
  Command job = program.Sub("job", "the same: capstan job list is capstan list");
  job.NeedsSub();
  AddJobVerbs(job, action);
  LetFlagsFall(app);

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& e) {
    // CLI11's own codes are our job outcomes, so every parse error becomes a usage error here.
    const Console console;  // the flags are not known
    const std::vector<std::string> rest = app.remaining(/*recurse=*/true);
    if (rest.empty()) {
      console.Err(absl::StrCat("capstan: ", e.what(), "; see capstan --help\n"));
      return kExitUsage;
    }
    const std::string near = Suggestion(app, rest[0]);
    console.Err(absl::StrCat("capstan: unknown ",
                             rest[0][0] == '-' ? "flag '" : "command or argument '", rest[0], "'",
                             near.empty() ? "" : absl::StrCat(" (did you mean '", near, "'?)"),
                             "; see capstan --help\n"));
    return kExitUsage;
  }
  const Console console = MakeConsole(flags);
  if (flags.json && flags.output != "table" && flags.output != "json") {
    return RefuseFlag("--json", absl::StrCat("-o ", flags.output, " says otherwise"), console);
  }
  if (version_flag) return PrintVersion(console);
  if (!action) {
    std::cout << app.help();
    return argc == 1 ? kExitDone : kExitUsage;
  }
  return action({console, flags.connect});
}

}  // namespace capstan::client
