// How the two ends of a gRPC stream find out that they are on one host, and come to a Pipe.
//
// A param_store opens a Door: a Unix socket with an abstract name, which no other host or network
// namespace has. With each stream it sends an invitation, the name and a secret of the stream. A
// peer that finds the name shows the secret and gets the memory of a pipe. Where it does not find
// the name, or anything fails, the stream goes on by itself.
//
//   Dial                                        Door
//   secret, a socket to wake its side     ->
//                                         <-    memory, a socket to wake the shard's side
//   "mapped"                              ->    Guest::OnPipe
//
// Both sides ask the kernel that the other one is a process of the same user.
#ifndef CAPSTAN_EXCHANGE_SHARED_DOOR_H_
#define CAPSTAN_EXCHANGE_SHARED_DOOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "exchange/shared/fd.h"
#include "exchange/shared/pipe.h"
#include "services/sync/mutex.h"

namespace capstan::exchange::shared {

// A stream that was invited. Called on the door's thread.
class Guest {
 public:
  virtual ~Guest() = default;
  // Of the pipe for it. nullopt: the stream has ended, or does not share memory.
  virtual std::optional<int64_t> RingBytes() = 0;
  // The peer has mapped it.
  virtual void OnPipe(std::shared_ptr<Pipe> pipe) = 0;
};

// Thread-safe.
class Door {
 public:
  static constexpr absl::Duration kVisitTimeout = absl::Seconds(5);  // of one step of a visitor

  static absl::StatusOr<std::unique_ptr<Door>> Open();
  ~Door();  // waits for the thread

  // Can be used once, while the guest lives. Empty: this host has no random numbers.
  std::string Invite(std::weak_ptr<Guest> guest) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Visitor {
    Fd socket;
    absl::Duration until;
    std::shared_ptr<Guest> guest;  // once it has shown its secret
    std::shared_ptr<Pipe> pipe;
  };

  Door(Fd socket, Fd stop, std::string name);
  void Run();
  // False: no descriptor is free.
  bool Accept(std::vector<Visitor>& visitors);
  // False: this visitor is finished.
  bool Serve(Visitor& visitor) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Welcome(Visitor& visitor, Received& shown) ABSL_LOCKS_EXCLUDED(mu_);

  const Fd socket_, stop_;
  const std::string name_;
  Mutex mu_;
  std::map<std::string, std::weak_ptr<Guest>> guests_ ABSL_GUARDED_BY(mu_);  // by secret
  std::thread thread_;
};

// The other end. For one thread; never waits.
class Dial {
 public:
  static constexpr absl::Duration kTimeout = absl::Seconds(5);  // after which a caller gives up

  // NotFound: no such name here. ResourceExhausted: too many wait at the door; start again.
  static absl::StatusOr<Dial> Start(absl::string_view invitation);
  // NotFound: not yet.
  absl::StatusOr<std::shared_ptr<Pipe>> Try();

 private:
  Dial(Fd socket, Fd wait) : socket_(std::move(socket)), wait_(std::move(wait)) {}
  Fd socket_, wait_;
};

}  // namespace capstan::exchange::shared

#endif  // CAPSTAN_EXCHANGE_SHARED_DOOR_H_
