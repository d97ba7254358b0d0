#include "client/commands/command_line.h"

#include <CLI/CLI.hpp>
#include <utility>

namespace capstan::client {

Flag Flag::Required() { return Flag(option_->required()); }

Flag Flag::OneOf(const std::vector<std::string>& values) {
  return Flag(option_->check(CLI::IsMember(values)));
}

Flag Flag::Between(int64_t min, int64_t max) { return Flag(option_->check(CLI::Range(min, max))); }

Flag Flag::Excludes(Flag other) { return Flag(option_->excludes(other.option_)); }

Flag Flag::Needs(Flag other) { return Flag(option_->needs(other.option_)); }

Flag Flag::OrVariable(const std::string& name) { return Flag(option_->envname(name)); }

Command Command::Sub(const std::string& name, const std::string& help) {
  return Command(app_->add_subcommand(name, help));
}

void Command::NeedsSub() { app_->require_subcommand(1); }

void Command::Hide() { app_->group(""); }

std::string Command::name() const { return app_->get_name(); }

Flag Command::Add(const std::string& names, std::string& target, const std::string& help) {
  return Flag(app_->add_option(names, target, help));
}

Flag Command::Add(const std::string& names, int& target, const std::string& help) {
  return Flag(app_->add_option(names, target, help));
}

Flag Command::Add(const std::string& names, int64_t& target, const std::string& help) {
  return Flag(app_->add_option(names, target, help));
}

Flag Command::Add(const std::string& names, std::optional<int>& target, const std::string& help) {
  return Flag(app_->add_option(names, target, help));
}

Flag Command::Add(const std::string& names, std::optional<double>& target,
                  const std::string& help) {
  return Flag(app_->add_option(names, target, help));
}

Flag Command::Add(const std::string& names, std::optional<std::string>& target,
                  const std::string& help) {
  return Flag(app_->add_option(names, target, help));
}

Flag Command::Add(const std::string& names, std::vector<std::string>& target,
                  const std::string& help) {
  return Flag(app_->add_option(names, target, help));
}

Flag Command::Add(const std::string& names, const std::function<void(int)>& take,
                  const std::string& help) {
  return Flag(app_->add_option_function<int>(names, take, help));
}

Flag Command::AddSwitch(const std::string& names, bool& target, const std::string& help) {
  return Flag(app_->add_flag(names, target, help));
}

Flag Command::AddRepeated(const std::string& names, std::vector<std::string>& target,
                          const std::string& placeholder, const std::string& help) {
  // allow_extra_args(false): otherwise a vector option takes the words that follow as values.
  CLI::Option* option = app_->add_option(names, target, help)
                            ->expected(1)
                            ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
                            ->allow_extra_args(false);
  if (!placeholder.empty()) option->type_name(placeholder);
  return Flag(option);
}

void Command::WhenGiven(std::function<void()> callback) { app_->callback(std::move(callback)); }

}  // namespace capstan::client
