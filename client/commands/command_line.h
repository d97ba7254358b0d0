// The command line of the program: sub-commands and their flags and arguments. It hides CLI11 from
// the files of the sub-commands, since CLI11's header takes longer to compile than such a file.
//
//   Command list = parent.Sub("list", "jobs, newest first");
//   list.Add("--limit", options->limit, "at most this many, default 100").Between(1, 1000);
//
// Targets hold their default when they are added. They are borrowed, and get their values during
// parsing. Use from one thread.
#ifndef CAPSTAN_CLIENT_COMMANDS_COMMAND_LINE_H_
#define CAPSTAN_CLIENT_COMMANDS_COMMAND_LINE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): theirs
class App;
class Option;
}  // namespace CLI

namespace capstan::client {

// A flag or an argument. The parser owns it.
class Flag {
 public:
  explicit Flag(CLI::Option* option) : option_(option) {}

  Flag Required();
  Flag OneOf(const std::vector<std::string>& values);
  Flag Between(int64_t min, int64_t max);  // both ends are allowed
  Flag Excludes(Flag other);
  Flag Needs(Flag other);
  Flag OrVariable(const std::string& name);  // of the environment, if no flag is given

 private:
  CLI::Option* option_;
};

// The program or one of its sub-commands. The parser owns it.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  Command Sub(const std::string& name, const std::string& help);
  void NeedsSub();  // it does nothing without a sub-command
  void Hide();      // from help and completion
  std::string name() const;

  // `names`: "-f,--follow"; without dashes, an argument. A vector takes all words that follow.
  Flag Add(const std::string& names, std::string& target, const std::string& help = "");
  Flag Add(const std::string& names, int& target, const std::string& help = "");
  Flag Add(const std::string& names, int64_t& target, const std::string& help = "");
  Flag Add(const std::string& names, std::optional<int>& target, const std::string& help = "");
  Flag Add(const std::string& names, std::optional<double>& target, const std::string& help = "");
  Flag Add(const std::string& names, std::optional<std::string>& target,
           const std::string& help = "");
  Flag Add(const std::string& names, std::vector<std::string>& target,
           const std::string& help = "");
  Flag Add(const std::string& names, const std::function<void(int)>& take, const std::string& help);
  Flag AddSwitch(const std::string& names, bool& target, const std::string& help);
  // Takes one value each time it is given, so the arguments that follow stay arguments.
  Flag AddRepeated(const std::string& names, std::vector<std::string>& target,
                   const std::string& placeholder, const std::string& help);

  // `callback` is called if the command was given, after all its values are set.
  void WhenGiven(std::function<void()> callback);

 private:
  CLI::App* app_;
};

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_COMMANDS_COMMAND_LINE_H_
