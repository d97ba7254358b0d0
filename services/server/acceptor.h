// The listening sockets of a gRPC server on TCP. They leave some descriptors free, so that files of
// journals, checkpoints and certificates can be opened even in a flood of connections. gRPC's own
// accept uses all descriptors, and once there are none left it never accepts again.
//
// A connection whose descriptor lies in the reserve (services/descriptors) is closed at once; its
// client tries again.
//
// Internal to services/server. Thread-safe after Start.
#ifndef CAPSTAN_SERVICES_SERVER_ACCEPTOR_H_
#define CAPSTAN_SERVICES_SERVER_ACCEPTOR_H_

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/server_builder.h"
#include "services/endpoint/endpoint.h"

namespace capstan::services {

class Acceptor {
 public:
  using Target = grpc::experimental::ExternalConnectionAcceptor;

  // Binds every address of the endpoint's host. Port 0 chooses one port for all. FailedPrecondition
  // / InvalidArgument: an address cannot be bound, with the system's message.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Listen(const Endpoint& endpoint);
  ~Acceptor();  // Stop()
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  int port() const { return port_; }
  // Accepts connections from now on, for `target`'s server, which must have started. A connection
  // ends if its peer does not acknowledge data for `user_timeout`.
  void Start(std::unique_ptr<Target> target, absl::Duration user_timeout);
  // Closes the listening sockets. Existing connections stay.
  void Stop();

 private:
  Acceptor() = default;
  void Run(int user_timeout_ms);
  void Take(int listener, int user_timeout_ms);

  std::vector<int> listeners_;
  int wake_[2] = {-1, -1};  // a pipe; closing it ends the thread
  int port_ = 0;
  std::unique_ptr<Target> target_;
  std::thread thread_;
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_SERVER_ACCEPTOR_H_
