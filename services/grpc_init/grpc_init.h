// What gRPC needs once per process: to stay initialised, and its own messages as log lines of ours.
//
// When the last server or channel of a process goes, gRPC 1.51 shuts its library down and joins its
// threads, one of which may sit in a backup poll of 10 s: the destructor of a Server then blocks
// that long, once in a few runs. A reference that is never given back avoids it. Its messages
// become `event=grpc at=FILE:LINE message=...`, at most one per place in 10 s, since a hostile peer
// can cause any number of them.
#ifndef CAPSTAN_SERVICES_GRPC_INIT_GRPC_INIT_H_
#define CAPSTAN_SERVICES_GRPC_INIT_GRPC_INIT_H_

namespace capstan::services {

// Idempotent, thread-safe. Called by Server::Start and MakeChannel; whoever makes a grpc::Server or
// channel by other means calls it first.
void KeepGrpcInitialised();

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_GRPC_INIT_GRPC_INIT_H_
