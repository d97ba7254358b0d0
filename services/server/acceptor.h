// The listening sockets of a gRPC server on TCP, so that connections never take the last
// descriptors: files of journals, checkpoints and certificates can be opened in a flood, too. gRPC's
// own accept takes all there are, and once there are none it never accepts again.
//
// A connection whose descriptor lies within DescriptorReserve() of the limit is closed at once; its
// client tries again. The kernel gives the lowest free number, so the number says how many are open.
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

// How many of `limit` descriptors no connection gets.
int DescriptorReserve(int limit);

class Acceptor {
 public:
  using Target = grpc::experimental::ExternalConnectionAcceptor;

  // Binds every address of the endpoint's host; port 0: one port for all. FailedPrecondition /
  // InvalidArgument: the address cannot be bound, with the system's words.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Listen(const Endpoint& endpoint);
  ~Acceptor();  // Stop()
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  int port() const { return port_; }
  // Accepts from now on, for `target`'s server, which has started. Data that a peer does not
  // acknowledge for `user_timeout` end its connection.
  void Start(std::unique_ptr<Target> target, absl::Duration user_timeout);
  // Closes the sockets; connections that are there stay.
  void Stop();

 private:
  Acceptor() = default;
  void Run(int user_timeout_ms);
  void Take(int listener, int user_timeout_ms);

  std::vector<int> listeners_;
  int wake_[2] = {-1, -1};  // a pipe: its end ends the thread
  int port_ = 0;
  std::unique_ptr<Target> target_;
  std::thread thread_;
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_SERVER_ACCEPTOR_H_
