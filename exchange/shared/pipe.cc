#include "exchange/shared/pipe.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/check/check.h"

namespace capstan::exchange::shared {
namespace {

constexpr int64_t kLeastRingBytes = int64_t{512} << 10;
constexpr int64_t kMostRingBytes = int64_t{4} << 20;
static_assert(kMostRingBytes > static_cast<int64_t>(RingBytes(wire::kMaxMessageBytes)));
constexpr size_t kHeaderBytes = 4096;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr unsigned kNoExec = 0x8;  // MFD_NOEXEC_SEAL, of kernels from 6.3 on
constexpr int kMostAtOnce = 4;     // messages that one Run handles

Fd NewMemory() {
  constexpr char kName[] = "capstan-exchange";
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  Fd memory(memfd_create(kName, kFlags | kNoExec));
  return memory || errno != EINVAL ? std::move(memory) : Fd(memfd_create(kName, kFlags));
}

}  // namespace

int64_t RingBytesFor(int64_t version_bytes) {
  const int64_t bytes = std::clamp(4 * version_bytes, kLeastRingBytes, kMostRingBytes);
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
}

// The first page. Of two values, [0] is the shard's, or of what the shard writes.
struct Pipe::Shared {
  RingControl rings[2];
  // Messages that were sent on the stream, plus 1. 0: the side does not send in the pipe yet.
  alignas(64) std::atomic<int64_t> began[2] = {0, 0};
  alignas(64) std::atomic<uint32_t> asleep[2] = {0, 0};
};

Pipe::Pipe(Shared* shared, size_t size_bytes, int side)
    : shared_(shared),
      size_bytes_(size_bytes),
      side_(side),
      writer_(shared->rings[side],
              {reinterpret_cast<char*>(shared) + kHeaderBytes +
                   static_cast<size_t>(side) * ((size_bytes - kHeaderBytes) / 2),
               (size_bytes - kHeaderBytes) / 2}),
      reader_(shared->rings[1 - side],
              {reinterpret_cast<char*>(shared) + kHeaderBytes +
                   static_cast<size_t>(1 - side) * ((size_bytes - kHeaderBytes) / 2),
               (size_bytes - kHeaderBytes) / 2}) {}

Pipe::~Pipe() { munmap(shared_, size_bytes_); }

absl::StatusOr<std::shared_ptr<Pipe>> Pipe::Make(const Fd& memory, size_t size_bytes, int side) {
  static_assert(sizeof(Shared) <= kHeaderBytes);
  void* const at = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (at == MAP_FAILED) return LastError("mmap");
  // The memory is zero at first, which is what a new Shared is.
  auto* const shared = side == 0 ? new (at) Shared : static_cast<Shared*>(at);
  return std::shared_ptr<Pipe>(new Pipe(shared, size_bytes, side));
}

absl::StatusOr<std::shared_ptr<Pipe>> Pipe::Create(int64_t ring_bytes) {
  CAPSTAN_CHECK(std::has_single_bit(static_cast<uint64_t>(ring_bytes)));
  Fd memory = NewMemory();
  if (!memory) return LastError("memfd_create");
  const int64_t size = static_cast<int64_t>(kHeaderBytes) + 2 * ring_bytes;
  // Takes all pages now: a page that cannot be had later would end the process by SIGBUS.
  if (fallocate(memory.get(), 0, 0, size) != 0) return LastError("fallocate");
  if (fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0) return LastError("F_ADD_SEALS");
  auto pipe = Make(memory, static_cast<size_t>(size), 0);
  if (pipe.ok()) (*pipe)->memory_ = std::move(memory);
  return pipe;
}

absl::StatusOr<std::shared_ptr<Pipe>> Pipe::Map(const Fd& memory) {
  // Without the seals, a peer that cuts the file would end this process by SIGBUS.
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  struct stat file = {};
  if (seals < 0 || fstat(memory.get(), &file) != 0) return LastError("shared memory");
  const int64_t ring = (file.st_size - static_cast<int64_t>(kHeaderBytes)) / 2;
  if ((seals & kSeals) != kSeals || ring < kLeastRingBytes || ring > kMostRingBytes ||
      !std::has_single_bit(static_cast<uint64_t>(ring)) ||
      file.st_size != static_cast<int64_t>(kHeaderBytes) + 2 * ring) {
    return absl::FailedPreconditionError(
        absl::StrCat("the shared memory is not a pipe's: ", file.st_size, " bytes, seals ", seals));
  }
  return Make(memory, static_cast<size_t>(file.st_size), 1);
}

void Pipe::WakePeer() {
  if (shared_->asleep[1 - side_].load(std::memory_order_seq_cst) != 0) Wake(wake_peer_);
}

void Pipe::BeginSending(int64_t sent_on_stream) {
  CAPSTAN_CHECK(!sending_);
  sending_ = true;
  shared_->began[side_].store(sent_on_stream + 1, std::memory_order_seq_cst);
  WakePeer();
}

RingResult Pipe::Write(wire::Pieces message) {
  CAPSTAN_CHECK(sending_);
  waits_for_ = 0;
  const RingResult result = writer_.Write(message);
  if (result == RingResult::kDone) WakePeer();
  if (result == RingResult::kNothing) waits_for_ = wire::TotalBytes(message);
  if (result == RingResult::kTooLong) broken_ = "a message that is longer than the ring";
  if (result == RingResult::kBroken) broken_ = "an impossible counter";
  return result;
}

bool Pipe::MayRead() const {
  const int64_t began = shared_->began[1 - side_].load(std::memory_order_seq_cst);
  return began > 0 && handled_on_stream_ >= began - 1;
}

bool Pipe::Ready() {
  if (closed_) return false;
  if (broken_ != nullptr) return true;
  if (!peer_began_ && shared_->began[1 - side_].load(std::memory_order_seq_cst) > 0) return true;
  if (waits_for_ > 0 && writer_.HasRoom(waits_for_) != RingResult::kNothing) return true;
  return reader_.Ready() && MayRead();
}

void Pipe::Break(absl::string_view what) {
  closed_ = true;
  handlers_.on_broken(absl::DataLossError(absl::StrCat("shared memory: ", what)));
}

bool Pipe::ReadOne() {
  if (closed_ || !MayRead()) return false;
  const RingResult result = reader_.Front(&pieces_);
  if (result == RingResult::kBroken) Break("an impossible counter or length");
  if (result != RingResult::kDone) return false;
  handlers_.on_message(pieces_);
  if (reader_.Pop()) WakePeer();
  return true;
}

void Pipe::Drain() {
  // A peer that goes on writing does not keep the strand.
  const uint64_t end = reader_.read() + (size_bytes_ - kHeaderBytes) / 2;
  while (reader_.read() < end && ReadOne()) {
  }
}

void Pipe::Run() {
  if (broken_ != nullptr) return Break(broken_);
  if (!peer_began_ && shared_->began[1 - side_].load(std::memory_order_seq_cst) > 0) {
    peer_began_ = true;
    handlers_.on_peer_began();
  }
  if (!closed_ && waits_for_ > 0 && writer_.HasRoom(waits_for_) != RingResult::kNothing) {
    waits_for_ = 0;
    handlers_.on_room();
  }
  for (int i = 0; i < kMostAtOnce && ReadOne(); ++i) {
  }
}

// A peer that is gone leaves the descriptor readable; the end of the stream follows.
void Pipe::OnWakeFd() {
  if (!TakeWakes(wait_)) wait_ = Fd();
}

void Pipe::SetAsleep(bool asleep) {
  shared_->asleep[side_].store(asleep ? 1 : 0, std::memory_order_seq_cst);
}

}  // namespace capstan::exchange::shared
