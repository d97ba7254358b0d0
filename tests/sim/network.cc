#include "tests/sim/network.h"

#include <algorithm>
#include <utility>

namespace capstan::sim {
namespace {

constexpr absl::Duration kKeepalive = absl::Milliseconds(600);
constexpr absl::Duration kTell = absl::Microseconds(50);

}  // namespace

void Connection::Send(int side, const std::string& bytes, bool in_order) {
  if (!open_) return;
  Random& random = network_.random_;
  EventQueue& queue = network_.queue_;
  absl::Duration sent = queue.now();
  if (const auto link = network_.links_.find(host(1 - side)); link != network_.links_.end()) {
    sent = std::max(sent, link->second.free_at) +
           absl::Seconds(static_cast<double>(bytes.size()) / link->second.bytes_per_second);
    link->second.free_at = sent;
  }
  const int copies = !in_order && random.Chance(faults_.repeat) ? 2 : 1;
  const int64_t number = ++sent_[side];
  network_.NoteIfHeld(host(side), host(1 - side));
  for (int i = 0; i < copies; ++i) {
    absl::Duration at = std::max(sent, network_.CutUntil(host(side), host(1 - side))) +
                        random.Between(faults_.min_delay, faults_.max_delay);
    const bool slow = !in_order && random.Chance(faults_.slow);
    if (slow) at += random.Between(absl::ZeroDuration(), absl::Milliseconds(300));
    if (!faults_.reorder || in_order) at = std::max(at, last_[side]);
    at = std::max(at, fence_[side]);
    last_[side] = std::max(last_[side], at);
    if (in_order) fence_[side] = at;
    std::string copy = bytes;
    const bool damaged = copy.size() > 4000 && random.Chance(faults_.corrupt);
    if (damaged)
      copy[copy.size() - 1 - random.Below(2000)] ^= static_cast<char>(1 << random.Below(8));
    if (faults_.corrupt_headers > 0 && !in_order && random.Chance(faults_.corrupt_headers))
      copy[random.Below(std::min<int64_t>(copy.size(), 60))] ^=
          static_cast<char>(1 << random.Below(8));
    queue.At(at, [self = shared_from_this(), side, number, slow, damaged, again = i > 0,
                  copy = std::move(copy)] {
      if (!self->open_) return;
      Effects& effects = self->network_.effects_;
      if (slow) effects.Saw(FaultClass::kSlow);
      if (again) effects.Saw(FaultClass::kRepeat);
      if (damaged) effects.Saw(FaultClass::kCorrupt);
      if (number < self->delivered_[side]) effects.Saw(FaultClass::kReorder);
      self->delivered_[side] = std::max(self->delivered_[side], number);
      self->ends_[1 - side].receive(copy);
    });
  }
}

absl::Duration Connection::FreeAt(int side) const {
  const auto link = network_.links_.find(host(1 - side));
  return link == network_.links_.end() ? network_.queue_.now() : link->second.free_at;
}

void Connection::Close(int side, absl::Status status) {
  if (!open_) return;
  open_ = false;
  status_ = std::move(status);
  network_.queue_.After(kTell, ends_[1 - side].closed);
}

void Connection::Break() {
  if (!open_) return;
  open_ = false;
  status_ = absl::UnavailableError("broken");
  for (const End& end : ends_) network_.queue_.After(kTell, end.closed);
}

std::shared_ptr<Connection> Network::Open(const LinkFaults& faults, Connection::End client,
                                          Connection::End server) {
  std::shared_ptr<Connection> connection(
      new Connection(*this, faults, std::move(client), std::move(server)));
  connections_.erase(std::remove_if(connections_.begin(), connections_.end(),
                                    [](const auto& weak) {
                                      const auto strong = weak.lock();
                                      return strong == nullptr || !strong->open();
                                    }),
                     connections_.end());
  connections_.push_back(connection);
  Watch(connection);
  return connection;
}

// Keepalive: a long cut ends the connection.
void Network::Watch(const std::shared_ptr<Connection>& connection) {
  const int a = connection->host(0), b = connection->host(1);
  if (std::max(CutUntil(a, b), CutUntil(b, a)) <= queue_.now()) return;
  queue_.After(kKeepalive, [this, a, b, weak = std::weak_ptr<Connection>(connection)] {
    const auto strong = weak.lock();
    if (strong != nullptr && std::max(CutUntil(a, b), CutUntil(b, a)) > queue_.now())
      strong->Break();
  });
}

void Network::NoteIfHeld(int from, int to) {
  const auto cut = cuts_.find({from, to});
  if (cut != cuts_.end() && cut->second.until > queue_.now()) effects_.Saw(cut->second.what);
}

void Network::Cut(int from, int to, absl::Duration until, FaultClass what) {
  Held& cut = cuts_[{from, to}];
  if (until > cut.until) cut = {until, what};
  for (const auto& weak : connections_) {
    const auto strong = weak.lock();
    if (strong == nullptr || !strong->open()) continue;
    const int a = strong->host(0), b = strong->host(1);
    if ((a == from && b == to) || (a == to && b == from)) Watch(strong);
  }
}

int Network::BreakAll(int a, int b) {
  int broken = 0;
  for (const auto& weak : std::vector<std::weak_ptr<Connection>>(connections_)) {
    const auto strong = weak.lock();
    if (strong == nullptr || !strong->open()) continue;
    const int x = strong->host(0), y = strong->host(1);
    if ((x != a || y != b) && (x != b || y != a)) continue;
    strong->Break();
    ++broken;
  }
  return broken;
}

}  // namespace capstan::sim
