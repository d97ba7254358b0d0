// The simulated network: connections between hosts. Messages travel as the bytes that gRPC would
// carry.
//
// A connection keeps order and loses nothing until it breaks, as a stream does; what is under way
// then is lost. One with faults may, besides, hold back, repeat, reorder and damage whole messages
// behind its Hello, as the proxy of the integration tests does. A cut, in one direction or both,
// holds messages back until it heals; keepalive ends the connections that it outlasts. What comes to
// a host with a bandwidth comes one message after the other, each in its time.
#ifndef CAPSTAN_TESTS_SIM_NETWORK_H_
#define CAPSTAN_TESTS_SIM_NETWORK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/fault_class.h"

namespace capstan::sim {

struct LinkFaults {
  absl::Duration min_delay = absl::Microseconds(50);
  absl::Duration max_delay = absl::Milliseconds(2);
  double slow = 0;             // share of messages with up to 300 ms more
  double repeat = 0;           // share of messages that come twice
  double corrupt = 0;          // share of large messages in whose last bytes a bit is flipped
  double corrupt_headers = 0;  // share of messages in whose first bytes one is; none without it
  bool reorder = false;
};

class Network;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct End {
    int host = 0;
    std::function<void(const std::string&)> receive;
    std::function<void()> closed;  // by the other end or the network
  };

  // `side` is 0 for who opened it, 1 for the other. `in_order`: neither overtakes nor is overtaken
  // by what was sent before (Hello, HelloReply).
  void Send(int side, const std::string& bytes, bool in_order = false);
  // That end closes it; the other one is told.
  void Close(int side);
  // The network ends it; both are told.
  void Break();
  // When what `side` has sent so far has left it.
  absl::Duration FreeAt(int side) const;
  bool open() const { return open_; }
  int host(int side) const { return ends_[side].host; }

 private:
  friend class Network;
  Connection(Network& network, const LinkFaults& faults, End client, End server)
      : network_(network), faults_(faults), ends_{std::move(client), std::move(server)} {}

  Network& network_;
  const LinkFaults& faults_;  // as they are at the time of sending
  const End ends_[2];
  bool open_ = true;
  absl::Duration last_[2];         // by sender: the latest arrival so far
  absl::Duration fence_[2];        // nothing arrives before
  int64_t sent_[2] = {0, 0};       // messages, by sender
  int64_t delivered_[2] = {0, 0};  // by sender: the latest of them that has arrived
};

class Network {
 public:
  // Borrows all three.
  Network(EventQueue& queue, Random& random, Effects& effects)
      : queue_(queue), random_(random), effects_(effects) {}

  // Borrows `faults`. The callbacks run as events of their own.
  std::shared_ptr<Connection> Open(const LinkFaults& faults, Connection::End client,
                                   Connection::End server);
  // Nothing comes from `from` to `to` before `until`; `what` is kCut or kOneWayCut.
  void Cut(int from, int to, absl::Duration until, FaultClass what);
  void Heal() {
    cuts_.clear();
    links_.clear();
  }
  // Of all that comes to `host`; above 0.
  void SetBandwidth(int host, double bytes_per_second) {
    links_[host].bytes_per_second = bytes_per_second;
  }
  // All connections between these hosts break; how many.
  int BreakAll(int a, int b);

 private:
  friend class Connection;
  absl::Duration CutUntil(int from, int to) const {
    const auto cut = cuts_.find({from, to});
    return cut == cuts_.end() ? absl::ZeroDuration() : cut->second.until;
  }
  void Watch(const std::shared_ptr<Connection>& connection);
  // A message from `from` to `to` leaves now: counts it if a cut holds it back.
  void NoteIfHeld(int from, int to);

  struct Held {
    absl::Duration until;
    FaultClass what = FaultClass::kCut;
  };

  struct Link {
    double bytes_per_second = 0;
    absl::Duration free_at;  // what was sent so far is through
  };

  EventQueue& queue_;
  Random& random_;
  Effects& effects_;
  std::map<std::pair<int, int>, Held> cuts_;
  std::map<int, Link> links_;  // by receiving host, with a bandwidth
  std::vector<std::weak_ptr<Connection>> connections_;
};

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_NETWORK_H_
