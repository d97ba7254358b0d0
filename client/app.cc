#include "client/app.h"

#include <CLI/CLI.hpp>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/completion.h"
#include "client/console.h"
#include "client/data_command.h"
#include "client/exit_codes.h"
#include "client/run_command.h"
#include "client/validate_command.h"
#include "services/tuning/tuning.h"
#include "services/version/version.h"
#include "training/spec/nearest.h"

namespace capstan::client {
namespace {

struct Flags {
  std::string output = "table";
  bool json = false;
  bool quiet = false;
  bool verbose = false;
  bool no_color = false;
  bool no_input = false;
};

Console MakeConsole(const Flags& flags) {
  Console console = Console::Detect(flags.no_color);
  console.json = flags.json || flags.output == "json";
  console.quiet = flags.quiet;
  console.verbose = flags.verbose;
  return console;
}

void AddGlobalFlags(CLI::App& app, Flags& flags) {
  app.add_option("-o,--output", flags.output, "table | json")
      ->check(CLI::IsMember({"table", "json"}));
  app.add_flag("--json", flags.json, "the same as -o json");
  app.add_flag("-q,--quiet", flags.quiet, "results and errors only");
  app.add_flag("-v,--verbose", flags.verbose, "what the services say, too");
  app.add_flag("--no-color", flags.no_color, "no colours (also NO_COLOR, TERM=dumb)");
  app.add_flag("--no-input", flags.no_input, "never ask");
}

// FILE, --example NAME and --set KEY=VALUE.
void AddJobSource(CLI::App& command, JobSource& source) {
  auto* file = command.add_option("FILE", source.file, "the job file, or - for standard input");
  auto* example = command.add_option("--example", source.example,
                                     "an example that comes with capstan instead of a file");
  file->excludes(example);
  // allow_extra_args(false): a vector option would take the FILE behind it as a second value.
  command.add_option("--set", source.sets, "replaces a value of the file: training.epochs=3")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
}

ExitCode NeedSource(const JobSource& source, const Console& console) {
  if (!source.file.empty() || !source.example.empty()) return kExitDone;
  console.Err("capstan: a job file is needed: FILE, - for standard input, or --example NAME\n");
  return kExitUsage;
}

ExitCode PrintVersion(const Console& console) {
  if (console.json) {
    const nlohmann::ordered_json out = {{"version", std::string(capstan::Version())},
                                        {"revision", std::string(capstan::Revision())},
                                        {"compiler", std::string(capstan::Compiler())}};
    console.Out(out.dump() + "\n");
  } else {
    console.Out(absl::StrCat("capstan ", capstan::Version(), " (", capstan::Revision(), ", ",
                             capstan::Compiler(), ")\n"));
  }
  return kExitDone;
}

// The nearest of our sub-commands, or "".
std::string Suggestion(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return training::spec::Nearest(word, names);
}

}  // namespace

int Main(int argc, char** argv) {
  services::TuneProcess();
  Flags flags;
  JobSource run_source;
  ValidateOptions validate;
  DataGetOptions data_get;
  std::string shell;
  int keep = 0;
  std::function<ExitCode(const Console&)> action;

  CLI::App app("Capstan trains neural networks, data-parallel, on every device you have.",
               "capstan");
  app.fallthrough();  // global flags work behind the sub-command too
  app.require_subcommand(0, 1);
  app.set_help_flag("-h,--help", "this help");
  bool version_flag = false;
  app.add_flag("--version", version_flag, "print the version");
  AddGlobalFlags(app, flags);

  CLI::App* run = app.add_subcommand(
      "run", "train a job here: coordinator, shards and workers in this process tree");
  AddJobSource(*run, run_source);
  run->callback([&] {
    action = [&](const Console& console) {
      const ExitCode code = NeedSource(run_source, console);
      return code != kExitDone ? code : Run({run_source}, console);
    };
  });
  CLI::App* check =
      app.add_subcommand("validate", "check a job file and print its plan; nothing is started");
  AddJobSource(*check, validate.source);
  check->add_flag("--show-defaults", validate.show_defaults,
                  "print the file with every default filled in");
  check->callback([&] {
    action = [&](const Console& console) {
      const ExitCode code = NeedSource(validate.source, console);
      return code != kExitDone ? code : Validate(validate, console);
    };
  });
  CLI::App* data = app.add_subcommand("data", "data sets");
  data->require_subcommand(1);
  CLI::App* get = data->add_subcommand("get", "download a data set and check it");
  get->add_option("NAME", data_get.name, "fashion-mnist")->required();
  get->add_option("--out", data_get.folder, "folder for the files (default: ./data/NAME)");
  get->add_option("--url", data_get.base_url, "another place that has the same files")
      ->envname("CAPSTAN_DATA_URL");
  get->add_option("--timeout", data_get.timeout_seconds, "seconds for each file, default 300")
      ->check(CLI::Range(1, 86400));
  get->callback(
      [&] { action = [&](const Console& console) { return DataGet(data_get, console); }; });
  CLI::App* clean = app.add_subcommand("clean", "remove old runs from ./capstan-out");
  clean->add_option("--keep", keep, "how many of the newest stay, default 0")
      ->check(CLI::Range(0, 1000000));
  clean->callback([&] { action = [&](const Console& console) { return Clean(keep, console); }; });
  CLI::App* version = app.add_subcommand("version", "print the version");
  version->callback([&] { action = PrintVersion; });
  CLI::App* completion = app.add_subcommand("completion", "print the completion script of a shell");
  completion->add_option("SHELL", shell, "bash | zsh | fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->callback([&] {
    action = [&](const Console& console) {
      console.Out(CompletionScript(app, shell));
      return kExitDone;
    };
  });
  for (CLI::App* command : app.get_subcommands({})) command->fallthrough();
  get->fallthrough();

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ExtrasError& e) {
    // CLI11's own codes are our job outcomes, so every parse error becomes a usage error here.
    const std::vector<std::string> rest = app.remaining();
    std::cerr << "capstan: unknown "
              << (!rest.empty() && rest[0][0] == '-' ? "flag '" : "command or argument '")
              << (rest.empty() ? e.what() : rest[0]) << "'";
    const std::string near = rest.empty() ? "" : Suggestion(app, rest[0]);
    std::cerr << (near.empty() ? "" : " (did you mean '" + near + "'?)")
              << "; see capstan --help\n";
    return kExitUsage;
  } catch (const CLI::ParseError& e) {
    std::cerr << "capstan: " << e.what() << "; see capstan --help\n";
    return kExitUsage;
  }
  const Console console = MakeConsole(flags);
  if (version_flag) return PrintVersion(console);
  if (!action) {
    std::cout << app.help();
    return argc == 1 ? kExitDone : kExitUsage;
  }
  return action(console);
}

}  // namespace capstan::client
