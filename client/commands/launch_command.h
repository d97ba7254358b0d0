// `capstan launch` and the hidden `launch-node` and `launch-batch`; see commands.h.
#ifndef CAPSTAN_CLIENT_COMMANDS_LAUNCH_COMMAND_H_
#define CAPSTAN_CLIENT_COMMANDS_LAUNCH_COMMAND_H_

#include "client/commands/command.h"

namespace capstan::client {

void AddLaunch(Command parent, Action& slot);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_COMMANDS_LAUNCH_COMMAND_H_
