// The command line: sub-commands, flags, exit codes. docs/interface.md section 4.
#ifndef CAPSTAN_CLIENT_APP_H_
#define CAPSTAN_CLIENT_APP_H_

namespace capstan::client {

// Parses and carries out; returns the process's exit code. Never throws.
int Main(int argc, char** argv);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_APP_H_
