// The command line of the program: sub-commands and what stands behind them. What a sub-command's
// file sees of CLI11, whose header alone takes longer to compile than the rest of such a file.
//
//   Command list = parent.Sub("list", "jobs, newest first");
//   list.Add("--limit", options->limit, "at most so many, default 100").Between(1, 1000);
//
// Targets hold their default when they are added, are borrowed, and get their value while the
// command line is parsed. For one thread.
#ifndef CAPSTAN_CLIENT_COMMAND_LINE_H_
#define CAPSTAN_CLIENT_COMMAND_LINE_H_

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

// A flag or an argument that was added; the parser owns it.
class Flag {
 public:
  explicit Flag(CLI::Option* option) : option_(option) {}

  Flag Required();
  Flag OneOf(const std::vector<std::string>& values);
  Flag Between(int64_t min, int64_t max);  // both ends are allowed
  Flag Excludes(Flag other);
  Flag OrVariable(const std::string& name);  // of the environment, where the flag is not given

 private:
  CLI::Option* option_;
};

// The program or one of its sub-commands; the parser owns it.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  Command Sub(const std::string& name, const std::string& help);
  void NeedsSub();  // it does nothing by itself
  void Hide();      // from help and completion
  std::string name() const;

  // `names`: "-f,--follow"; without dashes an argument. A list takes every word that follows.
  Flag Add(const std::string& names, std::string& target, const std::string& help = "");
  Flag Add(const std::string& names, int& target, const std::string& help = "");
  Flag Add(const std::string& names, int64_t& target, const std::string& help = "");
  Flag Add(const std::string& names, std::optional<int>& target, const std::string& help = "");
  Flag Add(const std::string& names, std::optional<double>& target, const std::string& help = "");
  Flag Add(const std::string& names, std::vector<std::string>& target,
           const std::string& help = "");
  Flag Add(const std::string& names, const std::function<void(int)>& take, const std::string& help);
  Flag AddSwitch(const std::string& names, bool& target, const std::string& help);
  // One value each time it is given: it leaves the arguments behind it alone.
  Flag AddRepeated(const std::string& names, std::vector<std::string>& target,
                   const std::string& placeholder, const std::string& help);

  // Called when it was given, after all its values were read.
  void WhenGiven(std::function<void()> callback);

 private:
  CLI::App* app_;
};

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_COMMAND_LINE_H_
