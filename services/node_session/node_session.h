// A node's side of NodeService.Connect: dials the coordinator, registers, sends heartbeats, hands
// on what it says, and dials again for ever when the stream ends.
//
// One thread of its own. All callbacks are called on it, one at a time, with no lock held; they may
// call Notify and Send but must not wait for long, since heartbeats leave from the same thread.
// Registration is repeated on every stream with a key that the session draws once, so that a
// process which has kept its memory is known again, and no other is taken for it
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
  absl::Duration goodbye_timeout = absl::Seconds(1);    // of Stop, until the stream is cancelled
  size_t max_queued = 4096;                             // messages that Send keeps
};

class NodeSession {
 public:
  struct Callbacks {
    // The state of this node as it is now. Called when a heartbeat is about to leave.
    std::function<node::v1::Heartbeat()> make_heartbeat;
    // Every message but Registered and SetLogLevel, which is carried out here.
    std::function<void(const node::v1::ConnectResponse&)> on_message;
    // Optional. After each registration.
    std::function<void(const node::v1::Registered&)> on_registered;
    // Optional. A stream ended, or could not be opened; it will be opened again. AlreadyExists:
    // another live node has this name; InvalidArgument: the coordinator refuses the registration.
    std::function<void(const absl::Status&)> on_lost;
  };

  NodeSession(NodeSessionOptions options, Callbacks callbacks);
  // Stops.
  ~NodeSession();
  NodeSession(const NodeSession&) = delete;
  NodeSession& operator=(const NodeSession&) = delete;

  // Starts the thread. Once.
  void Start();
  // Says goodbye and waits for the thread, at most goodbye_timeout and the callback under way. No
  // callback runs afterwards. Not from a callback. Repeatable.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // A state has changed: sends a heartbeat at once. Many calls may become one heartbeat. Any
  // thread.
  void Notify() ABSL_LOCKS_EXCLUDED(mu_);
  // Sends a message other than Register and Heartbeat, in order; kept over a lost stream until it
  // has left. Any thread. ResourceExhausted: max_queued.
  absl::Status Send(node::v1::ConnectRequest message) ABSL_LOCKS_EXCLUDED(mu_);

  bool registered() const ABSL_LOCKS_EXCLUDED(mu_);
  int64_t incarnation() const ABSL_LOCKS_EXCLUDED(mu_);  // 0: never registered

 private:
  class Stream;

  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // One stream from dialling to its end; true where it got as far as Registered.
  bool RunStream(absl::Status* end) ABSL_LOCKS_EXCLUDED(mu_);

  const NodeSessionOptions options_;
  const Callbacks callbacks_;
  const std::unique_ptr<node::v1::NodeService::Stub> stub_;
  const std::string resume_key_;  // in no log line
  std::thread thread_;            // of Start and Stop alone

  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool notified_ ABSL_GUARDED_BY(mu_) = false;
  bool registered_ ABSL_GUARDED_BY(mu_) = false;
  int64_t incarnation_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<node::v1::ConnectRequest> queue_ ABSL_GUARDED_BY(mu_);
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_NODE_SESSION_NODE_SESSION_H_
