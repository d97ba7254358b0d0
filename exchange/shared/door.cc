#include "exchange/shared/door.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/clock/clock.h"
#include "services/descriptors/descriptors.h"
#include "services/logging/log.h"

namespace capstan::exchange::shared {
namespace {

using services::Log;

constexpr size_t kSecretBytes = 16;
constexpr size_t kMostVisitors = 64;
constexpr absl::Duration kAcceptRetry = absl::Milliseconds(100);
constexpr absl::string_view kPrefix = "capstan-";  // of all doors
constexpr absl::string_view kMapped = "mapped";
constexpr absl::string_view kWelcome = "welcome";

absl::StatusOr<std::string> RandomHex() {
  char bytes[kSecretBytes];
  if (getrandom(bytes, sizeof(bytes), 0) != static_cast<ssize_t>(sizeof(bytes))) {
    return LastError("getrandom");
  }
  return absl::BytesToHexString({bytes, sizeof(bytes)});
}

// An abstract name: its first byte is 0.
struct Address {
  sockaddr_un at = {};
  socklen_t size = 0;
};
absl::StatusOr<Address> AddressOf(absl::string_view name) {
  Address address;
  if (name.empty() || name.size() + 1 > sizeof(address.at.sun_path)) {
    return absl::InvalidArgumentError("a name that no door has");
  }
  address.at.sun_family = AF_UNIX;
  std::memcpy(address.at.sun_path + 1, name.data(), name.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Fd NewSocket() { return Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

}  // namespace

Door::Door(Fd socket, Fd stop, std::string name)
    : socket_(std::move(socket)),
      stop_(std::move(stop)),
      name_(std::move(name)),
      thread_([this] { Run(); }) {}

absl::StatusOr<std::unique_ptr<Door>> Door::Open() {
  auto random = RandomHex();
  if (!random.ok()) return random.status();
  std::string name = absl::StrCat(kPrefix, *random);
  const auto address = AddressOf(name);
  Fd socket = NewSocket();
  if (!socket) return LastError("socket");
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address->at), address->size) != 0) {
    return LastError("bind");
  }
  if (listen(socket.get(), kMostVisitors) != 0) return LastError("listen");
  Fd stop(eventfd(0, EFD_CLOEXEC));
  if (!stop) return LastError("eventfd");
  return std::unique_ptr<Door>(new Door(std::move(socket), std::move(stop), std::move(name)));
}

Door::~Door() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

std::string Door::Invite(std::weak_ptr<Guest> guest) {
  const auto secret = RandomHex();
  if (!secret.ok()) return "";
  MutexLock lock(mu_);
  std::erase_if(guests_, [](const auto& entry) { return entry.second.expired(); });
  guests_.emplace(*secret, std::move(guest));
  return absl::StrCat(name_, " ", *secret);
}

void Door::Run() {
  std::vector<Visitor> visitors;
  std::vector<pollfd> waits;
  absl::Duration accepts_from = absl::ZeroDuration();
  for (;;) {
    waits.clear();
    waits.push_back({stop_.get(), POLLIN, 0});
    absl::Duration until = absl::InfiniteDuration();
    // Those who come while there are too many wait in the socket's queue. Those who come while no
    // descriptor is free are sent away, and their streams stay on gRPC.
    const bool accepts = MonotonicNow() >= accepts_from;
    if (!accepts) until = accepts_from;
    waits.push_back({accepts && visitors.size() < kMostVisitors ? socket_.get() : -1, POLLIN, 0});
    for (const Visitor& visitor : visitors) {
      waits.push_back({visitor.socket.get(), POLLIN, 0});
      until = std::min(until, visitor.until);
    }
    const timespec time = absl::ToTimespec(std::max(until - MonotonicNow(), absl::ZeroDuration()));
    ppoll(waits.data(), waits.size(), until == absl::InfiniteDuration() ? nullptr : &time, nullptr);
    if (waits[0].revents != 0) return;
    const absl::Duration now = MonotonicNow();
    size_t i = 2;
    std::erase_if(visitors, [&](Visitor& visitor) {
      const bool spoke = waits[i++].revents != 0;
      return spoke ? !Serve(visitor) : visitor.until <= now;
    });
    if (waits[1].revents != 0 && !Accept(visitors)) accepts_from = now + kAcceptRetry;
  }
}

bool Door::Accept(std::vector<Visitor>& visitors) {
  Fd socket(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
  if (services::IsInReserve(socket.get())) return false;
  if (const absl::Status user = CheckSameUser(socket.get()); !user.ok()) {
    Log(services::kWarning, "shared_memory_refused").Kv("status", user).Limit("shared_memory");
    return true;
  }
  visitors.push_back({std::move(socket), MonotonicNow() + kVisitTimeout, nullptr, nullptr});
  return true;
}

bool Door::Serve(Visitor& visitor) {
  auto shown = ReceiveFds(visitor.socket.get());
  if (absl::IsNotFound(shown.status())) return true;
  absl::Status status = shown.status();
  if (status.ok() && shown->bytes.empty()) return false;  // gone; its stream goes on by itself
  if (status.ok() && visitor.pipe != nullptr) {
    if (shown->bytes == kMapped) visitor.guest->OnPipe(std::move(visitor.pipe));
    return false;
  }
  if (status.ok()) status = Welcome(visitor, *shown);
  if (status.ok()) {
    visitor.until = MonotonicNow() + kVisitTimeout;
    return true;
  }
  Log(services::kWarning, "shared_memory_refused").Kv("status", status).Limit("shared_memory");
  return false;
}

absl::Status Door::Welcome(Visitor& visitor, Received& shown) {
  if (shown.fds.size() != 1) return absl::InvalidArgumentError("a visitor without a socket");
  {
    MutexLock lock(mu_);
    const auto guest = guests_.find(shown.bytes);
    if (guest == guests_.end()) return absl::PermissionDeniedError("a secret of no stream");
    visitor.guest = guest->second.lock();
    guests_.erase(guest);
  }
  std::optional<int64_t> ring_bytes;
  if (visitor.guest != nullptr) ring_bytes = visitor.guest->RingBytes();
  if (!ring_bytes.has_value()) return absl::NotFoundError("the stream has ended");
  auto pipe = Pipe::Create(*ring_bytes);
  if (!pipe.ok()) return pipe.status();
  auto wakes = MakeWakePair();
  if (!wakes.ok()) return wakes.status();
  // These two stay as long as the pipe.
  if (services::IsInReserve(shown.fds[0].get()) || services::IsInReserve(wakes->wait.get())) {
    return absl::ResourceExhaustedError("no descriptor is free for shared memory");
  }
  (*pipe)->SetWakes(std::move(shown.fds[0]), std::move(wakes->wait));
  visitor.pipe = *std::move(pipe);
  const Fd memory = std::move(visitor.pipe->memory());
  return SendFds(visitor.socket.get(), kWelcome, {memory.get(), wakes->wake.get()});
}

absl::StatusOr<Dial> Dial::Start(absl::string_view invitation) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(invitation, ' ');
  const auto address = AddressOf(parts.first);
  if (!address.ok()) return address.status();
  // No other program's socket is connected to.
  if (!absl::StartsWith(parts.first, kPrefix) || parts.second.empty()) {
    return absl::InvalidArgumentError("the shard's invitation is none");
  }
  Fd socket = NewSocket();
  if (!socket) return LastError("socket");
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address->at), address->size) != 0) {
    if (errno == ECONNREFUSED) return absl::NotFoundError("the shard's door is not on this host");
    if (errno == EAGAIN) return absl::ResourceExhaustedError("too many wait at the shard's door");
    return LastError("connect");
  }
  if (absl::Status user = CheckSameUser(socket.get()); !user.ok()) return user;
  auto wakes = MakeWakePair();
  if (!wakes.ok()) return wakes.status();
  const absl::Status sent = SendFds(socket.get(), parts.second, {wakes->wake.get()});
  if (!sent.ok()) return sent;
  return Dial(std::move(socket), std::move(wakes->wait));
}

absl::StatusOr<std::shared_ptr<Pipe>> Dial::Try() {
  auto received = ReceiveFds(socket_.get());
  if (!received.ok()) return received.status();
  if (received->bytes != kWelcome || received->fds.size() != 2) {
    return absl::FailedPreconditionError("the shard's door refused");
  }
  auto pipe = Pipe::Map(received->fds[0]);
  if (!pipe.ok()) return pipe.status();
  (*pipe)->SetWakes(std::move(received->fds[1]), std::move(wait_));
  if (absl::Status sent = SendFds(socket_.get(), kMapped, {}); !sent.ok()) return sent;
  return pipe;
}

}  // namespace capstan::exchange::shared
