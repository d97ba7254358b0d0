#include "tests/support/exchange_proxy.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "capstan/param_store/v1/param_store.grpc.pb.h"
#include "exchange/wire/byte_buffer.h"
#include "exchange/wire/frame_codec.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "services/channel/channel.h"
#include "services/clock/clock.h"
#include "services/server/server.h"
#include "services/sync/mutex.h"

namespace capstan::tests {
namespace {

namespace v1 = param_store::v1;
namespace wire = exchange::wire;

constexpr char kMethod[] = "/capstan.param_store.v1.ParamStoreService/Exchange";

enum Direction { kRequest = 0, kResponse = 1 };

// The relevant facts in a message's header.
struct Header {
  bool decodable = false;
  bool hello = false;  // or HelloReply
  bool frame = false;  // or WeightFrame
  bool corrupt_ack = false;
  size_t payload_bytes = 0;
};

Header Inspect(Direction direction, const grpc::ByteBuffer& message) {
  Header header;
  const auto bytes = wire::ReceivedBytes::From(message);
  if (!bytes.ok()) return header;
  if (direction == kRequest) {
    const auto decoded = wire::DecodeRequest(bytes->pieces());
    if (!decoded.ok()) return header;
    header.hello = decoded->message.has_hello();
    header.frame = decoded->message.has_frame();
    header.payload_bytes = decoded->payload_bytes;
  } else {
    const auto decoded = wire::DecodeResponse(bytes->pieces());
    if (!decoded.ok()) return header;
    header.hello = decoded->message.has_hello();
    header.frame = decoded->message.has_weights();
    header.payload_bytes = decoded->payload_bytes;
    for (const int outcome : decoded->message.ack().outcomes()) {
      header.corrupt_ack |= outcome == v1::FRAME_OUTCOME_CORRUPT;
    }
  }
  header.decodable = true;
  return header;
}

// A copy of the message with one bit flipped among `count` bytes from `first` on. A negative
// `first` counts from the end.
grpc::ByteBuffer FlipBit(const grpc::ByteBuffer& message, int64_t first, size_t count,
                         uint64_t draw) {
  std::vector<grpc::Slice> slices;
  (void)message.Dump(&slices);  // Inspect has already opened it
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  const uint64_t bit = draw % (8 * count);
  const size_t begin = first < 0 ? bytes.size() - static_cast<size_t>(-first) : first;
  bytes[begin + bit / 8] ^= static_cast<char>(1 << bit % 8);
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

struct Message {
  grpc::ByteBuffer bytes;
  int64_t index = 0;  // number in its stream and direction
  bool repeat = false;
};

class Stream;

// Shared by the streams of a proxy: faults, counters, and the thread that passes messages on when
// they are due.
class Hub {
 private:
  struct Due {
    std::shared_ptr<Stream> stream;
    Direction direction;
    Message message;
  };
  using DueTime = std::pair<absl::Duration, int64_t>;  // the time, and the order of scheduling

 public:
  explicit Hub(const ProxyOptions& options) : seed_(options.seed), faults_(options.faults) {
    MutexLock lock(mu_);
    DrawBreakLocked();
  }
  void Start() {
    thread_ = std::thread([this] { Run(); });
  }
  // Stops passing messages on.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_) {
    {
      MutexLock lock(mu_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
    std::map<DueTime, Due> dropped;  // freed after the lock is released
    MutexLock lock(mu_);
    dropped.swap(due_);
  }

  const ProxyFaults& faults() const { return faults_; }
  uint64_t seed() const { return seed_; }

  // Schedules `message` to be passed on after `delay`.
  void Schedule(absl::Duration delay, std::shared_ptr<Stream> stream, Direction direction,
                Message message) ABSL_LOCKS_EXCLUDED(mu_);

  template <typename Change>
  void Count(Change change) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    change(counters_);
  }
  ProxyCounters counters() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return counters_;
  }
  // Whether the stream of this message breaks here.
  bool Breaks() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (faults_.messages_per_break == 0 || --until_break_ > 0) return false;
    DrawBreakLocked();
    return true;
  }

  // Adds a stream and returns its number. -1: no more streams are accepted.
  int64_t Add(const std::shared_ptr<Stream>& stream) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (closing_) return -1;
    const int64_t number = counters_.streams++;
    streams_[number] = stream;
    return number;
  }
  void Remove(int64_t number) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    streams_.erase(number);
  }
  // Accepts no more streams. Returns the present ones.
  std::vector<std::shared_ptr<Stream>> Close() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    closing_ = true;
    std::vector<std::shared_ptr<Stream>> streams;
    for (const auto& entry : streams_) {
      if (auto stream = entry.second.lock()) streams.push_back(std::move(stream));
    }
    return streams;
  }

  // Counts calls to the shard that gRPC still works on.
  void AddCall() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    ++calls_;
  }
  void RemoveCall() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    --calls_;
    changed_.NotifyAll();
  }
  void WaitForNoCall() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    while (calls_ > 0) changed_.Wait(mu_);
  }

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void DrawBreakLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (faults_.messages_per_break == 0) return;
    until_break_ = 1 + static_cast<int64_t>(
                           random_() % (2 * static_cast<uint64_t>(faults_.messages_per_break)));
  }

  const uint64_t seed_;
  const ProxyFaults faults_;
  Mutex mu_;
  CondVar changed_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mu_){seed_};
  int64_t until_break_ ABSL_GUARDED_BY(mu_) = 0;
  ProxyCounters counters_ ABSL_GUARDED_BY(mu_);
  std::map<DueTime, Due> due_ ABSL_GUARDED_BY(mu_);
  int64_t scheduled_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<int64_t, std::weak_ptr<Stream>> streams_ ABSL_GUARDED_BY(mu_);
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// One stream of a caller, and the stream to the shard behind it.
//
// Threads: gRPC's callbacks and the hub's thread. Lock order: stream, then hub. Lives until gRPC is
// done with both sides and no message refers to it.
class Stream final : public std::enable_shared_from_this<Stream> {
 public:
  static grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Start(
      std::shared_ptr<Hub> hub, grpc::GenericStub& stub) {
    auto stream = std::make_shared<Stream>(std::move(hub));
    stream->caller_self_ = stream;
    stream->caller_.Begin();
    stream->number_ = stream->hub_->Add(stream);
    if (stream->number_ < 0) {
      stream->End({grpc::StatusCode::UNAVAILABLE, "proxy: it ends"});
    } else {
      stream->shard_self_ = stream;
      stream->hub_->AddCall();
      stream->shard_.Start(stub);
    }
    return &stream->caller_;
  }

  explicit Stream(std::shared_ptr<Hub> hub) : hub_(std::move(hub)), caller_(*this), shard_(*this) {}

  // Passes a message on now.
  void Deliver(Direction direction, Message message) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    --ways_[direction].waiting;
    DeliverLocked(direction, std::move(message));
    GoOnLocked();
  }

  // Ends both sides. Nothing more is passed on.
  void End(const grpc::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      MutexLock lock(mu_);
      EndLocked(status);
      GoOnLocked();
    }
    shard_.Cancel();
  }

 private:
  // The side of the proxy's caller.
  class Caller final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
   public:
    explicit Caller(Stream& stream) : stream_(stream) {}
    void Begin() { StartRead(&incoming_); }
    void OnReadDone(bool ok) override {
      if (!ok) return stream_.RequestsEnded();
      grpc::ByteBuffer message;
      message.Swap(&incoming_);
      if (stream_.Arrived(kRequest, message)) StartRead(&incoming_);
    }
    void OnWriteDone(bool ok) override { stream_.Written(kResponse, ok); }
    void OnCancel() override {
      stream_.End({grpc::StatusCode::CANCELLED, "proxy: the caller has cancelled"});
    }
    void OnDone() override {
      stream_.hub_->Remove(stream_.number_);
      const std::shared_ptr<Stream> self = std::move(stream_.caller_self_);
    }

   private:
    Stream& stream_;
    grpc::ByteBuffer incoming_;
  };

  // The side of the shard.
  class Shard final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
   public:
    explicit Shard(Stream& stream) : stream_(stream) {}
    void Start(grpc::GenericStub& stub) {
      context_.set_wait_for_ready(true);
      stub.PrepareBidiStreamingCall(&context_, kMethod, {}, this);
      AddHold();  // writes come from other threads, so OnDone waits until no more will come
      StartRead(&incoming_);
      StartCall();
    }
    void Cancel() { context_.TryCancel(); }
    void OnReadDone(bool ok) override {
      if (!ok) {
        stream_.ResponsesEnded();
        RemoveHold();
        return;
      }
      grpc::ByteBuffer message;
      message.Swap(&incoming_);
      (void)stream_.Arrived(kResponse, message);
      StartRead(&incoming_);  // reads to the end, even if nothing is passed on
    }
    void OnWriteDone(bool ok) override { stream_.Written(kRequest, ok); }
    void OnDone(const grpc::Status& status) override {
      const std::shared_ptr<Hub> hub = stream_.hub_;
      stream_.ShardDone(status);
      std::shared_ptr<Stream> self = std::move(stream_.shard_self_);
      self.reset();
      hub->RemoveCall();
    }

   private:
    Stream& stream_;
    grpc::ClientContext context_;
    grpc::ByteBuffer incoming_;
  };

  struct Way {
    int64_t arrived = 0;
    int64_t newest = -1;                    // highest index passed on
    int64_t waiting = 0;                    // messages that are not due yet
    std::deque<grpc::ByteBuffer> outgoing;  // the front is being written if `writing`
    bool writing = false;
  };

  // False: nothing more should be read.
  bool Arrived(Direction direction, const grpc::ByteBuffer& bytes) ABSL_LOCKS_EXCLUDED(mu_);
  void DeliverLocked(Direction direction, Message message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndLocked(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void Written(Direction direction, bool ok) ABSL_LOCKS_EXCLUDED(mu_) {
    std::deque<grpc::ByteBuffer> done;  // freed after the lock is released
    MutexLock lock(mu_);
    Way& way = ways_[direction];
    way.writing = false;
    if (ok) {
      done.push_back(std::move(way.outgoing.front()));
      way.outgoing.pop_front();
    } else {
      done.swap(way.outgoing);  // that side ends next
    }
    GoOnLocked();
  }
  void RequestsEnded() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    requests_ended_ = true;
    GoOnLocked();
  }
  void ResponsesEnded() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    shard_closed_ = true;
  }
  void ShardDone(const grpc::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    shard_done_ = true;
    shard_status_ = status;
    GoOnLocked();
  }
  // Starts whatever can start: writes, the end of the requests, the end of the stream.
  void GoOnLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Way& requests = ways_[kRequest];
    Way& responses = ways_[kResponse];
    if (!ended_ && !shard_closed_ && !requests.writing) {
      if (!requests.outgoing.empty()) {
        requests.writing = true;
        shard_.StartWrite(&requests.outgoing.front());
      } else if (requests_ended_ && requests.waiting == 0 && !half_closed_) {
        half_closed_ = true;
        shard_.StartWritesDone();
      }
    }
    if (finished_ || responses.writing) return;
    if (!ended_ && !responses.outgoing.empty()) {
      responses.writing = true;
      caller_.StartWrite(&responses.outgoing.front());
    } else if (!ended_ && shard_done_ && responses.waiting == 0) {
      EndLocked(shard_status_);
      if (!shard_status_.ok()) hub_->Count([](ProxyCounters& c) { ++c.refused; });
    }
    if (ended_) {
      finished_ = true;
      caller_.Finish(end_status_);
    }
  }

  const std::shared_ptr<Hub> hub_;
  Caller caller_;
  Shard shard_;
  std::shared_ptr<Stream> caller_self_, shard_self_;  // until that side's OnDone
  int64_t number_ = -1;

  Mutex mu_;
  Way ways_[2] ABSL_GUARDED_BY(mu_);
  bool requests_ended_ ABSL_GUARDED_BY(mu_) = false;  // by the caller
  bool half_closed_ ABSL_GUARDED_BY(mu_) = false;     // and this was passed on
  bool shard_closed_ ABSL_GUARDED_BY(mu_) = false;    // no write to the shard may start
  bool shard_done_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status shard_status_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;     // nothing more is passed on
  bool finished_ ABSL_GUARDED_BY(mu_) = false;  // and the caller was told
  grpc::Status end_status_ ABSL_GUARDED_BY(mu_);
};

void Hub::Schedule(absl::Duration delay, std::shared_ptr<Stream> stream, Direction direction,
                   Message message) {
  MutexLock lock(mu_);
  if (delay > absl::Milliseconds(1)) ++counters_.delayed;
  const DueTime key(MonotonicNow() + delay, scheduled_++);
  due_.emplace(key, Due{std::move(stream), direction, std::move(message)});
  if (due_.begin()->first == key) changed_.NotifyAll();
}

void Hub::Run() {
  MutexLock lock(mu_);
  while (!stopping_) {
    const absl::Duration now = MonotonicNow();
    if (due_.empty()) {
      changed_.Wait(mu_);
    } else if (due_.begin()->first.first > now) {
      changed_.WaitWithTimeout(mu_, due_.begin()->first.first - now);
    } else {
      auto node = due_.extract(due_.begin());
      mu_.Unlock();
      Due& due = node.mapped();
      due.stream->Deliver(due.direction, std::move(due.message));
      due.stream.reset();
      mu_.Lock();
    }
  }
}

bool Stream::Arrived(Direction direction, const grpc::ByteBuffer& bytes) {
  const Header header = Inspect(direction, bytes);
  const bool breaks = !header.hello && hub_->Breaks();
  const ProxyFaults& faults = hub_->faults();
  {
    MutexLock lock(mu_);
    if (ended_) return false;
    Message message;
    message.index = ways_[direction].arrived++;
    std::seed_seq seed{static_cast<uint32_t>(hub_->seed()),
                       static_cast<uint32_t>(hub_->seed() >> 32), static_cast<uint32_t>(number_),
                       static_cast<uint32_t>(direction), static_cast<uint32_t>(message.index)};
    std::mt19937_64 random(seed);
    const auto share = [&random] { return static_cast<double>(random() >> 11) * 0x1p-53; };
    const absl::Duration delay = share() * faults.max_delay;
    const absl::Duration repeat_delay = share() * faults.max_delay;
    const bool repeat = share() < faults.repeat && !header.hello;
    const uint64_t bit = random();
    const bool flip = share() < faults.flip && header.frame && header.payload_bytes > 0 && !breaks;
    const bool flip_header = share() < faults.flip_header && !header.hello && !breaks && !flip;
    hub_->Count([&](ProxyCounters& c) {
      ++(direction == kRequest ? c.requests : c.responses);
      if (header.frame) ++(direction == kRequest ? c.frames : c.weights);
      if (flip) ++(direction == kRequest ? c.flipped_frames : c.flipped_weights);
      c.flipped_headers += flip_header;
      c.corrupt_acks += header.corrupt_ack;
      c.undecodable += !header.decodable;
      c.late_hellos += header.hello != (message.index == 0);
      c.broken += breaks;
      c.lost += breaks;
      c.repeated += repeat && !breaks;
    });
    if (!breaks) {
      // The copy of a repeated message keeps its right bytes, so it may make up for the first.
      if (repeat) {
        ++ways_[direction].waiting;
        hub_->Schedule(repeat_delay, shared_from_this(), direction,
                       {bytes, message.index, /*repeat=*/true});
      }
      const auto payload_bytes = static_cast<int64_t>(header.payload_bytes);
      message.bytes = bytes;
      if (flip) message.bytes = FlipBit(bytes, -payload_bytes, header.payload_bytes, bit);
      if (flip_header) {
        message.bytes = FlipBit(bytes, 0, bytes.Length() - header.payload_bytes, bit);
      }
      if (header.hello || faults.max_delay <= absl::ZeroDuration()) {
        DeliverLocked(direction, std::move(message));
        GoOnLocked();
      } else {
        ++ways_[direction].waiting;
        hub_->Schedule(delay, shared_from_this(), direction, std::move(message));
      }
      return true;
    }
  }
  End({grpc::StatusCode::UNAVAILABLE, "proxy: the stream breaks"});
  return false;
}

void Stream::DeliverLocked(Direction direction, Message message) {
  Way& way = ways_[direction];
  if (ended_ || (direction == kRequest && (shard_closed_ || half_closed_))) {
    if (!message.repeat) hub_->Count([](ProxyCounters& c) { ++c.lost; });
    return;
  }
  if (!message.repeat && message.index < way.newest) {
    hub_->Count([](ProxyCounters& c) { ++c.overtaken; });
  }
  way.newest = std::max(way.newest, message.index);
  way.outgoing.push_back(std::move(message.bytes));
}

void Stream::EndLocked(const grpc::Status& status) {
  if (ended_) return;
  ended_ = true;
  end_status_ = status;
  for (Way& way : ways_) {
    const size_t kept = way.writing ? 1 : 0;
    const int64_t lost = static_cast<int64_t>(way.outgoing.size() - kept);
    way.outgoing.resize(kept);
    hub_->Count([lost](ProxyCounters& c) { c.lost += lost; });
  }
}

class ProxyService final
    : public v1::ParamStoreService::WithRawCallbackMethod_Exchange<v1::ParamStoreService::Service> {
 public:
  ProxyService(std::shared_ptr<Hub> hub, std::shared_ptr<grpc::Channel> channel)
      : hub_(std::move(hub)), stub_(std::move(channel)) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Exchange(
      grpc::CallbackServerContext*) override {
    return Stream::Start(hub_, stub_);
  }

 private:
  const std::shared_ptr<Hub> hub_;
  grpc::GenericStub stub_;
};

}  // namespace

struct ExchangeProxy::Impl {
  std::shared_ptr<Hub> hub;  // the streams hold it, too, since gRPC releases them last
  std::unique_ptr<ProxyService> service;
  std::unique_ptr<services::Server> server;
};

absl::StatusOr<std::unique_ptr<ExchangeProxy>> ExchangeProxy::Start(const ProxyOptions& options) {
  services::ChannelOptions channel_options;
  channel_options.peer = options.target;
  channel_options.max_receive_bytes = wire::kMaxMessageBytes;
  channel_options.retry = false;
  channel_options.own_connection = true;
  auto channel = services::MakeChannel(channel_options);
  if (!channel.ok()) return channel.status();

  auto impl = std::make_unique<Impl>();
  impl->hub = std::make_shared<Hub>(options);
  impl->hub->Start();
  impl->service = std::make_unique<ProxyService>(impl->hub, *std::move(channel));
  services::ServerOptions server_options;
  server_options.listen = options.listen;
  server_options.max_receive_bytes = wire::kMaxMessageBytes;
  server_options.drain_timeout = absl::Seconds(1);
  auto server = services::Server::Start(
      server_options, {{v1::ParamStoreService::service_full_name(), impl->service.get()}});
  if (!server.ok()) {
    impl->hub->Stop();
    return server.status();
  }
  impl->server = *std::move(server);
  impl->server->SetReady(true);
  return std::unique_ptr<ExchangeProxy>(new ExchangeProxy(std::move(impl)));
}

ExchangeProxy::ExchangeProxy(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ExchangeProxy::~ExchangeProxy() {
  for (const auto& stream : impl_->hub->Close()) {
    stream->End({grpc::StatusCode::UNAVAILABLE, "proxy: it ends"});
  }
  impl_->server->Shutdown();
  impl_->hub->WaitForNoCall();
  impl_->hub->Stop();
}

ProxyCounters ExchangeProxy::counters() const { return impl_->hub->counters(); }

namespace {

struct CounterName {
  const char* name;
  int64_t ProxyCounters::*field;
};
constexpr CounterName kCounters[] = {
    {"streams", &ProxyCounters::streams},
    {"requests", &ProxyCounters::requests},
    {"responses", &ProxyCounters::responses},
    {"frames", &ProxyCounters::frames},
    {"weights", &ProxyCounters::weights},
    {"delayed", &ProxyCounters::delayed},
    {"repeated", &ProxyCounters::repeated},
    {"overtaken", &ProxyCounters::overtaken},
    {"broken", &ProxyCounters::broken},
    {"lost", &ProxyCounters::lost},
    {"flipped_frames", &ProxyCounters::flipped_frames},
    {"flipped_weights", &ProxyCounters::flipped_weights},
    {"flipped_headers", &ProxyCounters::flipped_headers},
    {"corrupt_acks", &ProxyCounters::corrupt_acks},
    {"undecodable", &ProxyCounters::undecodable},
    {"late_hellos", &ProxyCounters::late_hellos},
    {"refused", &ProxyCounters::refused},
};
static_assert(sizeof(ProxyCounters) == sizeof(int64_t) * std::size(kCounters));

}  // namespace

ProxyCounters& ProxyCounters::operator+=(const ProxyCounters& other) {
  for (const CounterName& counter : kCounters) this->*counter.field += other.*counter.field;
  return *this;
}

std::string ProxyCounters::ToString() const {
  std::string out;
  for (const CounterName& counter : kCounters) {
    absl::StrAppend(&out, out.empty() ? "" : " ", counter.name, "=", this->*counter.field);
  }
  return out;
}

}  // namespace capstan::tests
