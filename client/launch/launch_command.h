// `capstan launch` and the hidden `capstan launch-node`; see commands.h.
#ifndef CAPSTAN_CLIENT_LAUNCH_LAUNCH_COMMAND_H_
#define CAPSTAN_CLIENT_LAUNCH_LAUNCH_COMMAND_H_

#include "client/command.h"

namespace capstan::client {

void AddLaunch(Command parent, Action& slot);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_LAUNCH_LAUNCH_COMMAND_H_
