// Links of the simulated network. Messages travel as the bytes that gRPC would carry.
//
// A Session (node to coordinator) keeps order and loses nothing until it breaks, as a stream does.
// An Exchange stream may, besides, hold back, repeat and reorder whole messages behind its Hello,
// as the proxy of the integration tests does.
#ifndef CAPSTAN_TESTS_SIM_NETWORK_H_
#define CAPSTAN_TESTS_SIM_NETWORK_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "tests/sim/event_queue.h"

namespace capstan::sim {

struct LinkFaults {
  absl::Duration min_delay = absl::Microseconds(50);
  absl::Duration max_delay = absl::Milliseconds(2);
  double slow = 0;    // share of messages with up to 300 ms more
  double repeat = 0;  // share of messages that come twice
  bool reorder = false;
};

// One direction of one connection. Dropping it, or `Break`, loses what is under way.
class Link : public std::enable_shared_from_this<Link> {
 public:
  Link(EventQueue& queue, Random& random, LinkFaults faults,
       std::function<void(const std::string&)> deliver)
      : queue_(queue), random_(random), faults_(faults), deliver_(std::move(deliver)) {}

  // `in_order`: neither overtakes nor is overtaken by what was sent before (Hello, HelloReply).
  void Send(std::string bytes, bool in_order = false) {
    if (broken_) return;
    const int copies = !in_order && random_.Chance(faults_.repeat) ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      absl::Duration at = queue_.now() + random_.Between(faults_.min_delay, faults_.max_delay);
      if (!in_order && random_.Chance(faults_.slow))
        at += random_.Between(absl::ZeroDuration(), absl::Milliseconds(300));
      if (!faults_.reorder || in_order) at = std::max(at, last_);
      at = std::max(at, fence_);
      last_ = std::max(last_, at);
      if (in_order) fence_ = at;
      queue_.At(at, [self = shared_from_this(), bytes] {
        if (!self->broken_) self->deliver_(bytes);
      });
    }
  }

  void Break() { broken_ = true; }
  bool broken() const { return broken_; }

 private:
  EventQueue& queue_;
  Random& random_;
  const LinkFaults faults_;
  const std::function<void(const std::string&)> deliver_;
  absl::Duration last_;   // the latest arrival so far
  absl::Duration fence_;  // nothing arrives before
  bool broken_ = false;
};

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_NETWORK_H_
