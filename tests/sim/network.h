// The simulated network: connections between hosts. Messages travel as the bytes that gRPC would
// carry.
//
// Like a stream, a connection keeps the order of its messages and loses none until it breaks.
// Messages in flight are then lost. A connection with faults may also delay, repeat, reorder and
// damage whole messages after its Hello, as the proxy of the integration tests does. A cut, in one
// direction or both, holds messages back until it heals. Keepalive ends connections if the cut
// lasts longer. A host with a limited bandwidth receives one message after the other, each in the
// time that its size takes.
#ifndef CAPSTAN_TESTS_SIM_NETWORK_H_
#define CAPSTAN_TESTS_SIM_NETWORK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/fault_class.h"

namespace capstan::sim {

struct LinkFaults {
  absl::Duration min_delay = absl::Microseconds(50);
  absl::Duration max_delay = absl::Milliseconds(2);
  double slow = 0;             // share of messages that are up to 300 ms late
  double repeat = 0;           // share of messages that come twice
  double corrupt = 0;          // share of large messages with a flipped bit in the last bytes
  double corrupt_headers = 0;  // share of messages with a flipped bit in the first bytes
  bool reorder = false;
};

class Network;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct End {
    int host = 0;
    std::function<void(const std::string&)> receive;
    std::function<void()> closed;  // the other end or the network has closed it
  };

  // `side` is 0 for the end that opened it and 1 for the other. With `in_order` (Hello, HelloReply)
  // earlier messages arrive before this one, and later ones after it.
  void Send(int side, const std::string& bytes, bool in_order = false);
  // `side` closes the connection. The other end is told, and finds `status`.
  void Close(int side, absl::Status status = absl::CancelledError("closed"));
  // The network ends the connection. Both ends are told.
  void Break();
  // When the last message that `side` has sent so far leaves it.
  absl::Duration FreeAt(int side) const;
  bool open() const { return open_; }
  // Why the connection ended. OK while it is open.
  const absl::Status& status() const { return status_; }
  int host(int side) const { return ends_[side].host; }

 private:
  friend class Network;
  Connection(Network& network, const LinkFaults& faults, End client, End server)
      : network_(network), faults_(faults), ends_{std::move(client), std::move(server)} {}

  Network& network_;
  const LinkFaults& faults_;  // as they are at the time of sending
  const End ends_[2];
  bool open_ = true;
  absl::Status status_;
  absl::Duration last_[2];         // by sender: the latest arrival so far
  absl::Duration fence_[2];        // by sender: no message arrives earlier
  int64_t sent_[2] = {0, 0};       // by sender: how many messages
  int64_t delivered_[2] = {0, 0};  // by sender: number of the last message that has arrived
};

class Network {
 public:
  // Borrows all three.
  Network(EventQueue& queue, Random& random, Effects& effects)
      : queue_(queue), random_(random), effects_(effects) {}

  // Borrows `faults`. The callbacks run as events of their own.
  std::shared_ptr<Connection> Open(const LinkFaults& faults, Connection::End client,
                                   Connection::End server);
  // No message of `from` reaches `to` before `until`. `what` is kCut or kOneWayCut.
  void Cut(int from, int to, absl::Duration until, FaultClass what);
  void Heal() {
    cuts_.clear();
    links_.clear();
  }
  // Limits what `host` receives. Above 0.
  void SetBandwidth(int host, double bytes_per_second) {
    links_[host].bytes_per_second = bytes_per_second;
  }
  // Breaks all connections between these hosts. Returns their number.
  int BreakAll(int a, int b);

 private:
  friend class Connection;
  absl::Duration CutUntil(int from, int to) const {
    const auto cut = cuts_.find({from, to});
    return cut == cuts_.end() ? absl::ZeroDuration() : cut->second.until;
  }
  void Watch(const std::shared_ptr<Connection>& connection);
  // A message leaves `from` for `to` now. Counts it if a cut holds it back.
  void NoteIfHeld(int from, int to);

  struct Held {
    absl::Duration until;
    FaultClass what = FaultClass::kCut;
  };

  struct Link {
    double bytes_per_second = 0;
    absl::Duration free_at;  // when everything sent so far has passed
  };

  EventQueue& queue_;
  Random& random_;
  Effects& effects_;
  std::map<std::pair<int, int>, Held> cuts_;
  std::map<int, Link> links_;  // by receiving host, if its bandwidth is limited
  std::vector<std::weak_ptr<Connection>> connections_;
};

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_NETWORK_H_
