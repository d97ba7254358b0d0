#include "client/commands/completion.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/job_name.h"
#include "client/job_source.h"
#include "client/text/job_json.h"

namespace capstan::client {
namespace {

// The script runs these when the key is pressed, and waits for at most a second.
constexpr char kAskJobs[] = "capstan list -o name --limit 1000 --timeout 1s 2>/dev/null";
constexpr char kAskNodes[] = "capstan node list -o name --timeout 1s 2>/dev/null";
constexpr char kAskContexts[] = "capstan context list -o name 2>/dev/null";
constexpr char kContextCommand[] = "context";

// What may follow at one place of the command line.
struct Candidates {
  std::set<std::string> words;
  bool jobs = false;
  bool nodes = false;
  bool contexts = false;
  bool files = false;

  void Add(const Candidates& other) {
    words.insert(other.words.begin(), other.words.end());
    jobs |= other.jobs;
    nodes |= other.nodes;
    contexts |= other.contexts;
    files |= other.files;
  }
};

std::set<std::string> StateNames() {
  std::set<std::string> names;
  for (int state = common::v1::JobState_MIN; state <= common::v1::JobState_MAX; ++state) {
    if (!common::v1::JobState_IsValid(state) || state == common::v1::JOB_STATE_UNSPECIFIED)
      continue;
    names.insert(StateName(static_cast<common::v1::JobState>(state)));
  }
  return names;
}

// The values of a flag or an argument. Its type may list them ("TEXT:{bash,zsh}"); else its name
// says what they are.
Candidates ValuesOf(const CLI::Option& option, bool of_contexts) {
  Candidates out;
  const std::string type = option.get_type_name();
  const size_t open = type.find('{');
  const std::string name =
      option.get_lnames().empty() ? option.get_name(/*positional=*/true) : option.get_lnames()[0];
  if (open != std::string::npos) {
    const std::string values = type.substr(open + 1, type.find('}') - open - 1);
    out.words = absl::StrSplit(values, ',');
  } else if (name == "example") {
    const std::vector<std::string> examples = ExampleNames();
    out.words.insert(examples.begin(), examples.end());
  } else if (name == "state" || name == "for") {
    out.words = StateNames();
  } else if (name == "JOB") {
    out.jobs = true;
  } else if (name == "node" || name == "NODE") {
    out.nodes = true;
  } else if (name == "context" || (name == "NAME" && of_contexts)) {
    out.contexts = true;
  } else if (option.nonpositional()) {
    out.files = absl::StartsWith(type, "TEXT");
  } else {
    out.files = name == "FILE" || name == "FOLDER" || name == "DIR" || name == "STATE_DIR";
  }
  return out;
}

std::vector<std::string> NamesOf(const CLI::Option& option) {
  std::vector<std::string> out;
  for (const std::string& name : option.get_lnames()) out.push_back("--" + name);
  for (const std::string& name : option.get_snames()) out.push_back("-" + name);
  return out;
}

std::vector<const CLI::App*> CommandsOf(const CLI::App& app) {
  std::vector<const CLI::App*> out;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (!command->get_group().empty()) out.push_back(command);  // an empty group: hidden
  }
  return out;
}

// A command and all commands below it.
std::vector<const CLI::App*> Tree(const CLI::App& app) {
  std::vector<const CLI::App*> out = {&app};
  for (const CLI::App* command : CommandsOf(app)) {
    for (const CLI::App* below : Tree(*command)) out.push_back(below);
  }
  return out;
}

std::vector<std::string> FlagsOf(const std::vector<const CLI::App*>& commands) {
  std::set<std::string> out;
  for (const CLI::App* command : commands) {
    for (const CLI::Option* option : command->get_options()) {
      for (std::string& name : NamesOf(*option)) out.insert(std::move(name));
    }
  }
  return {out.begin(), out.end()};
}

// The words after a command that are not flags: its sub-commands and arguments.
Candidates WordsOf(const CLI::App& command) {
  Candidates out;
  for (const CLI::App* below : Tree(command)) {
    for (const CLI::App* next : CommandsOf(*below)) out.words.insert(next->get_name());
    for (const CLI::Option* option : below->get_options()) {
      if (option->get_positional()) {
        out.Add(ValuesOf(*option, command.get_name() == kContextCommand));
      }
    }
  }
  return out;
}

// ---- bash; zsh uses it through bashcompinit ----

std::string Assignments(const Candidates& candidates) {
  std::vector<std::string> asks;
  if (candidates.jobs) asks.push_back("jobs");
  if (candidates.nodes) asks.push_back("nodes");
  if (candidates.contexts) asks.push_back("contexts");
  if (candidates.files) asks.push_back("files");
  return absl::StrCat("list='", absl::StrJoin(candidates.words, " "), "'; asks='",
                      absl::StrJoin(asks, " "), "'");
}

// A case for each flag of `commands` that takes a value: "list:-s|list:--state) ... ;;".
std::string ValueCases(const std::string& command, const std::vector<const CLI::App*>& commands) {
  std::string out;
  std::set<std::string> seen;
  for (const CLI::App* app : commands) {
    for (const CLI::Option* option : app->get_options()) {
      if (option->get_items_expected_max() == 0) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : NamesOf(*option)) {
        if (seen.insert(name).second) patterns.push_back(absl::StrCat(command, ":", name));
      }
      if (patterns.empty()) continue;
      absl::StrAppend(&out, "    ", absl::StrJoin(patterns, "|"), ") ",
                      Assignments(ValuesOf(*option, false)), " ;;\n");
    }
  }
  return out;
}

std::string Bash(const CLI::App& app) {
  std::string out =
      "# bash completion for capstan: source <(capstan completion bash)\n_capstan() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  local command='' flags='' list='' asks='' i\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case ${COMP_WORDS[i]} in -*) ;; *) command=${COMP_WORDS[i]}; break ;; esac\n"
      "  done\n  case $command in\n";
  std::string values;
  for (const CLI::App* command : CommandsOf(app)) {
    std::vector<const CLI::App*> commands = Tree(*command);
    absl::StrAppend(&values, ValueCases(command->get_name(), commands));
    commands.push_back(&app);
    absl::StrAppend(&out, "    ", command->get_name(), ") flags='",
                    absl::StrJoin(FlagsOf(commands), " "), "'; ", Assignments(WordsOf(*command)),
                    " ;;\n");
  }
  Candidates first;
  for (const CLI::App* command : CommandsOf(app)) first.words.insert(command->get_name());
  absl::StrAppend(&out, "    *) flags='", absl::StrJoin(FlagsOf({&app}), " "), "'; ",
                  Assignments(first), " ;;\n  esac\n  case $command:$prev in\n", values,
                  ValueCases("*", {&app}), "  esac\n");
  absl::StrAppend(&out,
                  "  if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\")); "
                  "return; fi\n"
                  "  case $asks in *jobs*) list+=\" $(",
                  kAskJobs, ") ", kLastJob,
                  "\" ;; esac\n"
                  "  case $asks in *nodes*) list+=\" $(",
                  kAskNodes,
                  ")\" ;; esac\n"
                  "  case $asks in *contexts*) list+=\" $(",
                  kAskContexts,
                  ")\" ;; esac\n"
                  "  COMPREPLY=($(compgen -W \"$list\" -- \"$cur\"))\n"
                  "  case $asks in *files*) local IFS=$'\\n'; COMPREPLY+=($(compgen -f -- "
                  "\"$cur\")) ;; esac\n"
                  "}\ncomplete -o filenames -F _capstan capstan\n");
  return out;
}

std::string Zsh(const CLI::App& app) {
  return "#compdef capstan\n# zsh completion for capstan: source <(capstan completion zsh)\n"
         "autoload -U +X bashcompinit && bashcompinit\n" +
         Bash(app);
}

// ---- fish ----

std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

// " -a '...'", and " -F" if files are allowed.
std::string FishValues(const Candidates& candidates) {
  std::vector<std::string> parts(candidates.words.begin(), candidates.words.end());
  if (candidates.jobs) {
    parts.push_back(absl::StrCat("(", kAskJobs, ")"));
    parts.emplace_back(kLastJob);
  }
  if (candidates.nodes) parts.push_back(absl::StrCat("(", kAskNodes, ")"));
  if (candidates.contexts) parts.push_back(absl::StrCat("(", kAskContexts, ")"));
  return absl::StrCat(parts.empty() ? "" : " -a " + Quoted(absl::StrJoin(parts, " ")),
                      candidates.files ? " -F" : "");
}

// The flags of one command, each with its values.
std::string FishFlags(const CLI::App& command, const std::string& condition) {
  std::string out;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->nonpositional()) continue;
    absl::StrAppend(&out, "complete -c capstan", condition);
    for (const std::string& name : option->get_lnames()) absl::StrAppend(&out, " -l ", name);
    for (const std::string& name : option->get_snames()) absl::StrAppend(&out, " -s ", name);
    if (option->get_items_expected_max() > 0) {
      absl::StrAppend(&out, " -r", FishValues(ValuesOf(*option, false)));
    }
    absl::StrAppend(&out, " -d ", Quoted(option->get_description()), "\n");
  }
  return out;
}

std::string Fish(const CLI::App& app) {
  std::string out =
      "# fish completion for capstan: capstan completion fish | source\ncomplete -c capstan -f\n";
  std::vector<std::string> names;
  for (const CLI::App* command : CommandsOf(app)) names.push_back(command->get_name());
  absl::StrAppend(&out, FishFlags(app, ""));
  for (const CLI::App* command : CommandsOf(app)) {
    absl::StrAppend(&out, "complete -c capstan -n 'not __fish_seen_subcommand_from ",
                    absl::StrJoin(names, " "), "' -a ", command->get_name(), " -d ",
                    Quoted(command->get_description()), "\n");
    const std::string condition =
        absl::StrCat(" -n '__fish_seen_subcommand_from ", command->get_name(), "'");
    for (const CLI::App* below : Tree(*command)) {
      absl::StrAppend(&out, FishFlags(*below, condition));
    }
    if (const std::string values = FishValues(WordsOf(*command)); !values.empty()) {
      absl::StrAppend(&out, "complete -c capstan", condition, values, "\n");
    }
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
