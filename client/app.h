// The command line: sub-commands, flags and exit codes. See section 4 of docs/interface.md.
#ifndef CAPSTAN_CLIENT_APP_H_
#define CAPSTAN_CLIENT_APP_H_

namespace capstan::client {

// Parses the arguments, runs the command and returns the process's exit code. Never throws.
int Main(int argc, char** argv);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_APP_H_
