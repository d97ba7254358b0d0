// Makes completion scripts from the definition of the command line.
#ifndef CAPSTAN_CLIENT_COMMANDS_COMPLETION_H_
#define CAPSTAN_CLIENT_COMMANDS_COMPLETION_H_

#include <CLI/CLI.hpp>
#include <string>

namespace capstan::client {

// `shell` is bash, zsh or fish. The script completes sub-commands, flags and values: examples,
// states and files, and the ids of jobs, nodes and contexts, for which it calls the program.
std::string CompletionScript(const CLI::App& app, const std::string& shell);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_COMMANDS_COMPLETION_H_
