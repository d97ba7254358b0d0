#include "client/completion.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace capstan::client {
namespace {

// Behind `context use` and the like stand names that only the command itself knows.
constexpr char kContextCommand[] = "context";
constexpr char kContextNames[] = "\" $(capstan context list -o name 2>/dev/null)\"";

std::vector<std::string> FlagsOf(const CLI::App& app) {
  std::vector<std::string> out;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) out.push_back("--" + name);
    for (const std::string& name : option->get_snames()) out.push_back("-" + name);
  }
  return out;
}

std::vector<std::string> CommandsOf(const CLI::App& app) {
  std::vector<std::string> out;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (!command->get_group().empty()) out.push_back(command->get_name());  // none: hidden
  }
  return out;
}

std::string Words(const CLI::App& app, const CLI::App& root) {
  std::vector<std::string> words = CommandsOf(app);
  for (std::string& flag : FlagsOf(app)) words.push_back(std::move(flag));
  if (&app != &root) {
    for (const CLI::App* command : app.get_subcommands({})) {
      for (std::string& flag : FlagsOf(*command)) words.push_back(std::move(flag));
    }
    for (std::string& flag : FlagsOf(root)) words.push_back(std::move(flag));
  }
  return absl::StrJoin(words, " ");
}

// One case per sub-command: `words` for what follows it, else file names.
std::string Bash(const CLI::App& app) {
  std::string out =
      "# bash completion for capstan: source <(capstan completion bash)\n_capstan() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} command='' words i\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case ${COMP_WORDS[i]} in -*) ;; *) command=${COMP_WORDS[i]}; break ;; esac\n"
      "  done\n  case $command in\n";
  for (const CLI::App* command : app.get_subcommands({})) {
    absl::StrAppend(&out, "    ", command->get_name(), ") words='", Words(*command, app), "'",
                    command->get_name() == kContextCommand ? kContextNames : "", " ;;\n");
  }
  absl::StrAppend(&out, "    *) words='", Words(app, app), "' ;;\n  esac\n");
  out +=
      "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
      "  [[ ${#COMPREPLY[@]} -gt 0 || -z $command ]] || mapfile -t COMPREPLY < <(compgen -f -- "
      "\"$cur\")\n"
      "}\ncomplete -o filenames -F _capstan capstan\n";
  return out;
}

std::string Zsh(const CLI::App& app) {
  return "#compdef capstan\n# zsh completion for capstan: source <(capstan completion zsh)\n"
         "autoload -U +X bashcompinit && bashcompinit\n" +
         Bash(app);
}

std::string Fish(const CLI::App& app) {
  std::string out =
      "# fish completion for capstan: capstan completion fish | source\ncomplete -c capstan -f\n";
  const std::string commands = absl::StrJoin(CommandsOf(app), " ");
  const auto quoted = [](const std::string& text) {
    return absl::StrReplaceAll(text, {{"'", "\\'"}});
  };
  for (const CLI::App* command : app.get_subcommands({})) {
    absl::StrAppend(&out, "complete -c capstan -n 'not __fish_seen_subcommand_from ", commands,
                    "' -a ", command->get_name(), " -d '", quoted(command->get_description()),
                    "'\n");
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        absl::StrAppend(&out, "complete -c capstan -n '__fish_seen_subcommand_from ",
                        command->get_name(), "' -l ", name, " -d '",
                        quoted(option->get_description()), "'\n");
      }
    }
    absl::StrAppend(&out, "complete -c capstan -n '__fish_seen_subcommand_from ",
                    command->get_name(),
                    command->get_name() == kContextCommand
                        ? "' -a '(capstan context list -o name 2>/dev/null)'\n"
                        : "' -F\n");
  }
  return out;
}

}  // namespace

std::string CompletionScript(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return Bash(app);
  if (shell == "zsh") return Zsh(app);
  return Fish(app);
}

}  // namespace capstan::client
