// Messages between two processes of one host through memory that both have mapped: a ring for each
// direction. It takes over from a gRPC stream while that runs; the stream remains, and its end is
// the end of the pipe.
//
// The change-over loses and reorders nothing. Either side first sends on the stream. Once it sends
// in the pipe it says how many messages it has sent on the stream before (BeginSending); the other
// side reads the pipe once it has handled that many. The shard begins when the peer has mapped the
// memory, and the peer begins when it sees that the shard has. So if either gives up before, both
// go on with the stream.
//
// A pipe is a source of its side's strand. Whoever writes wakes the other side's strand, by a socket,
// if that strand sleeps.
//
// What a hostile peer can do: fill the rings with nonsense, which ends the stream; change bytes
// while they are read, which gives wrong sums; wake this strand without need. It cannot shrink the
// memory, which is sealed. It can give pages of it back to the system, which ends this process if
// there is no memory for new ones. Only a process of the same user gets that far (door.h).
//
// Threads: Create, Map and SetWakes on any one thread; all else on the strand.
#ifndef CAPSTAN_EXCHANGE_SHARED_PIPE_H_
#define CAPSTAN_EXCHANGE_SHARED_PIPE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "exchange/shared/fd.h"
#include "exchange/shared/ring.h"
#include "exchange/wire/frame_codec.h"
#include "services/strand/strand.h"

namespace capstan::exchange::shared {

// Bytes of a ring of a DATA stream, within 512 KiB and 4 MiB: enough for any message of a job whose
// versions have so many, with the optimizer's state where workers update; also of gradients that
// are longer once they are encoded.
int64_t RingBytesFor(int64_t version_bytes);
// Of a stream that has messages of any length, such as the parts of a large shard.
inline constexpr int64_t kRingBytesForAny = int64_t{2} << 20;
static_assert(kRingBytesForAny >= static_cast<int64_t>(RingBytes(wire::kMaxMessageBytes)));

class Pipe final : public services::StrandSource {
 public:
  // Called on the strand. None may be null.
  struct Handlers {
    // A message; the pieces are valid during the call.
    std::function<void(wire::Pieces)> on_message;
    // The peer's first BeginSending: this side may begin, too.
    std::function<void()> on_peer_began;
    // There is room for what Write had none for.
    std::function<void()> on_room;
    // The peer wrote what cannot be; nothing more is read.
    std::function<void(const absl::Status&)> on_broken;
  };

  // The shard's side, with new memory. `ring_bytes`: a power of two.
  static absl::StatusOr<std::shared_ptr<Pipe>> Create(int64_t ring_bytes);
  // The peer's side of memory that was received. FailedPrecondition: it is not sealed, or not a
  // pipe's.
  static absl::StatusOr<std::shared_ptr<Pipe>> Map(const Fd& memory);
  ~Pipe() override;

  // Of Create. Moved out once the peer has it: the mapping stays.
  Fd& memory() { return memory_; }
  // How the other side is woken, and where it wakes this one. Before Open.
  void SetWakes(Fd wake_peer, Fd wait) {
    wake_peer_ = std::move(wake_peer);
    wait_ = std::move(wait);
  }
  // Before the strand runs it.
  void Open(Handlers handlers) { handlers_ = std::move(handlers); }

  // So many messages were sent on the stream; all others come in the pipe.
  void BeginSending(int64_t sent_on_stream);
  bool sending() const { return sending_; }
  // So many messages of the stream have been handled.
  void SetHandledOnStream(int64_t count) { handled_on_stream_ = count; }
  // kNothing: there is no room; on_room follows. kTooLong, kBroken: on_broken follows.
  RingResult Write(wire::Pieces message);
  // Handles what is there now, as Run does but all of it, and at most one ring of it.
  void Drain();
  // No handler is called any more.
  void Close() { closed_ = true; }

  bool Ready() override;
  void Run() override;
  void SetAsleep(bool asleep) override;
  int wake_fd() const override { return wait_.get(); }
  void OnWakeFd() override;

 private:
  struct Shared;

  Pipe(Shared* shared, size_t size_bytes, int side);
  static absl::StatusOr<std::shared_ptr<Pipe>> Make(const Fd& memory, size_t size_bytes, int side);
  bool MayRead() const;
  bool ReadOne();
  void Break(absl::string_view what);
  void WakePeer();

  Fd memory_, wake_peer_, wait_;
  Shared* const shared_;
  const size_t size_bytes_;
  const int side_;  // 0: the shard's
  RingWriter writer_;
  RingReader reader_;
  Handlers handlers_;
  std::vector<absl::string_view> pieces_;
  bool closed_ = false;
  bool sending_ = false;
  bool peer_began_ = false;
  size_t waits_for_ = 0;          // bytes of the message that had no room; 0: none
  const char* broken_ = nullptr;  // what Write found
  int64_t handled_on_stream_ = 0;
};

}  // namespace capstan::exchange::shared

#endif  // CAPSTAN_EXCHANGE_SHARED_PIPE_H_
