// The simulated network: connections between hosts. Messages travel as the bytes that gRPC would
// carry.
//
// A connection keeps order and loses nothing until it breaks, as a stream does; what is under way
// then is lost. One with faults may, besides, hold back, repeat, reorder and damage whole messages
// behind its Hello, as the proxy of the integration tests does. A cut, in one direction or both,
// holds messages back until it heals; keepalive ends the connections that it outlasts.
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

namespace capstan::sim {

struct LinkFaults {
  absl::Duration min_delay = absl::Microseconds(50);
  absl::Duration max_delay = absl::Milliseconds(2);
  double slow = 0;     // share of messages with up to 300 ms more
  double repeat = 0;   // share of messages that come twice
  double corrupt = 0;  // share of large messages in whose last bytes a bit is flipped
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
  absl::Duration last_[2];   // by sender: the latest arrival so far
  absl::Duration fence_[2];  // nothing arrives before
};

class Network {
 public:
  Network(EventQueue& queue, Random& random) : queue_(queue), random_(random) {}

  // Borrows `faults`. The callbacks run as events of their own.
  std::shared_ptr<Connection> Open(const LinkFaults& faults, Connection::End client,
                                   Connection::End server);
  // Nothing comes from `from` to `to` before `until`.
  void Cut(int from, int to, absl::Duration until);
  void Heal() { cuts_.clear(); }
  // All connections between these hosts break.
  void BreakAll(int a, int b);

 private:
  friend class Connection;
  absl::Duration CutUntil(int from, int to) const {
    const auto cut = cuts_.find({from, to});
    return cut == cuts_.end() ? absl::ZeroDuration() : cut->second;
  }
  void Watch(const std::shared_ptr<Connection>& connection);

  EventQueue& queue_;
  Random& random_;
  std::map<std::pair<int, int>, absl::Duration> cuts_;
  std::vector<std::weak_ptr<Connection>> connections_;
};

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_NETWORK_H_
