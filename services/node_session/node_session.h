// A node's side of NodeService.Connect: dials the coordinator, registers, sends heartbeats,
// delivers the coordinator's messages, and dials again whenever the stream ends.
//
// Has one thread. It calls all callbacks, one at a time and with no lock held. Callbacks may call
// Notify and Send but must not wait for long, because the same thread sends heartbeats. Each stream
// begins with a registration that repeats a key, which the session draws once. So a process that
// kept its memory is recognized, and no other is taken for it
// (docs/decisions/2026-11-23-resume-keys.md).
#ifndef CAPSTAN_SERVICES_NODE_SESSION_NODE_SESSION_H_
#define CAPSTAN_SERVICES_NODE_SESSION_NODE_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "capstan/node/v1/node.grpc.pb.h"
#include "services/sync/mutex.h"

namespace capstan::services {

struct NodeSessionOptions {
  std::shared_ptr<grpc::ChannelInterface> channel;  // to the coordinator, with keepalive
  node::v1::Register registration;  // last_incarnation and resume_key are filled in here
  absl::Duration initial_backoff = absl::Milliseconds(50);  // before dialling again; doubled,
  absl::Duration max_backoff = absl::Seconds(2);        // +-20 %, back to the first once registered
  absl::Duration register_timeout = absl::Seconds(10);  // from dialling to Registered
  absl::Duration goodbye_timeout = absl::Seconds(1);    // of Stop; then the stream is cancelled
  size_t max_queued = 4096;                             // messages from Send
};

class NodeSession {
 public:
  struct Callbacks {
    // The current state of this node. Called when a heartbeat is about to be sent.
    std::function<node::v1::Heartbeat()> make_heartbeat;
    // Gets every message except Registered and SetLogLevel. The session itself carries out
    // SetLogLevel.
    std::function<void(const node::v1::ConnectResponse&)> on_message;
    // Optional. Called after each registration.
    std::function<void(const node::v1::Registered&)> on_registered;
    // Optional. Called when a stream ended or could not be opened; it will be opened again.
    // AlreadyExists: another live node has this name; InvalidArgument: the coordinator refuses the
    // registration.
    std::function<void(const absl::Status&)> on_lost;
  };

  NodeSession(NodeSessionOptions options, Callbacks callbacks);
  // Calls Stop.
  ~NodeSession();
  NodeSession(const NodeSession&) = delete;
  NodeSession& operator=(const NodeSession&) = delete;

  // Starts the thread. Call it once.
  void Start();
  // Says goodbye and waits for the thread, for at most goodbye_timeout plus the running callback.
  // No callback runs afterwards. Must not be called from a callback. Repeatable.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // Tells the session that a state has changed, so that it sends a heartbeat at once. Several calls
  // may become one heartbeat. Any thread may call it.
  void Notify() ABSL_LOCKS_EXCLUDED(mu_);
  // Sends a message other than Register and Heartbeat, in order. The message is kept across lost
  // streams until it is sent. Any thread may call it. ResourceExhausted: max_queued messages are
  // waiting.
  absl::Status Send(node::v1::ConnectRequest message) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Stream;

  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // Runs one stream from dialling to its end. Returns true if it got as far as Registered.
  bool RunStream(absl::Status* end) ABSL_LOCKS_EXCLUDED(mu_);

  const NodeSessionOptions options_;
  const Callbacks callbacks_;
  const std::unique_ptr<node::v1::NodeService::Stub> stub_;
  const std::string resume_key_;  // must not be logged
  std::thread thread_;            // only used by Start and Stop
  int64_t incarnation_ = 0;       // only used by the thread; 0: never registered

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool notified_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<node::v1::ConnectRequest> queue_ ABSL_GUARDED_BY(mu_);
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_NODE_SESSION_NODE_SESSION_H_
