// Completion scripts, made from the command line's own description.
#ifndef CAPSTAN_CLIENT_COMPLETION_H_
#define CAPSTAN_CLIENT_COMPLETION_H_

#include <CLI/CLI.hpp>
#include <string>

namespace capstan::client {

// `shell` is bash, zsh or fish. Completes sub-commands, flags and their values: ids of jobs, nodes
// and contexts, which the script asks the program for, examples, states, files.
std::string CompletionScript(const CLI::App& app, const std::string& shell);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_COMPLETION_H_
