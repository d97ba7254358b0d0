// Keeps the gRPC library initialised until the process ends.
//
// When the last server or channel of a process goes, gRPC 1.51 shuts its library down and joins its
// threads, one of which may sit in a backup poll of 10 s: the destructor of a Server then blocks
// that long, once in a few runs. A reference that is never given back avoids it.
#ifndef CAPSTAN_SERVICES_GRPC_INIT_GRPC_INIT_H_
#define CAPSTAN_SERVICES_GRPC_INIT_GRPC_INIT_H_

#include "grpc/grpc.h"

namespace capstan::services {

// Idempotent, thread-safe. Called by Server::Start and MakeChannel; whoever makes a grpc::Server or
// channel by other means calls it first.
inline void KeepGrpcInitialised() {
  static const bool once = (grpc_init(), true);
  static_cast<void>(once);
}

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_GRPC_INIT_GRPC_INIT_H_
