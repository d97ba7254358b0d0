// Setup that gRPC needs once per process: it stays initialised, and its messages become our log
// lines.
//
// When the last server or channel of a process is gone, gRPC 1.51 shuts its library down and joins
// its threads. One of them may sit in a backup poll of 10 s, so once in a few runs the destructor
// of a Server blocks that long. A reference that is never released avoids this. gRPC's messages
// become `event=grpc at=FILE:LINE message=...`, at most one per place in 10 s, because a hostile
// peer can cause any number of them.
#ifndef CAPSTAN_SERVICES_GRPC_INIT_GRPC_INIT_H_
#define CAPSTAN_SERVICES_GRPC_INIT_GRPC_INIT_H_

namespace capstan::services {

// Idempotent, thread-safe. Server::Start and MakeChannel call it. Code that makes a grpc::Server or
// channel by other means must call it first.
void KeepGrpcInitialised();

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_GRPC_INIT_GRPC_INIT_H_
