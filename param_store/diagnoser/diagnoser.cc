#include "param_store/diagnoser/diagnoser.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "capstan/param_store/v1/param_store.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "services/channel/channel.h"
#include "services/clock/clock.h"
#include "services/status/status.h"
#include "services/timestamp/timestamp.h"

namespace capstan::param_store {
namespace {

// A lost SYN is sent again after a second.
constexpr absl::Duration kReachTimeout = absl::Milliseconds(1500);
constexpr absl::Duration kWidthBudget = absl::Milliseconds(200);  // of one shard
constexpr absl::Duration kSlack = absl::Milliseconds(300);  // of the order's time, for the answer
constexpr absl::Duration kMaxTime = absl::Seconds(30);
constexpr int64_t kMaxBytesPerPeer = int64_t{8} << 20;
constexpr int64_t kFirstPayloadBytes = int64_t{64} << 10;
constexpr int64_t kMaxPayloadBytes = int64_t{1} << 20;
constexpr int kRoundTrips = 5;

}  // namespace

struct Diagnoser::Way {
  job::v1::PeerReport report;
  std::unique_ptr<v1::ParamStoreService::Stub> stub;
  grpc::ClientContext context;  // of the first call
  v1::MeasureRequest request;
  v1::MeasureResponse response;
  bool done = false;  // guarded by the diagnoser's lock
};

Diagnoser::~Diagnoser() { Stop(); }

void Diagnoser::Start(const node::v1::Diagnose& order) {
  const absl::Time asked_at = absl::Now();
  MutexLock lock(mu_);
  if (busy_ || stopping_) return;
  busy_ = true;
  if (thread_.joinable()) thread_.join();  // it has let go of the lock for good
  thread_ = std::thread([this, order, asked_at] { Run(order, asked_at); });
}

void Diagnoser::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    for (grpc::ClientContext* call : calls_) call->TryCancel();
  }
  if (thread_.joinable()) thread_.join();
}

void Diagnoser::Run(const node::v1::Diagnose& order, absl::Time asked_at) {
  const absl::Duration time =
      std::clamp(absl::Milliseconds(order.timeout_ms()) - kSlack, kSlack, kMaxTime);
  const absl::Duration until = MonotonicNow() + time;
  if (folders_ == nullptr || folders_->done()) {
    services::FolderReports folders(order.folders().begin(), order.folders().end());
    folders.insert(folders.end(), options_.folders.begin(), options_.folders.end());
    folders_ = std::make_unique<services::FolderCheck>(std::move(folders));
  }
  std::vector<std::unique_ptr<Way>> ways;
  for (const node::v1::Peer& peer : order.peers()) {
    ways.push_back(std::make_unique<Way>());
    ways.back()->report.set_node(peer.node());
    ways.back()->report.set_address(peer.address());
  }
  ReachAll(ways, std::min(kReachTimeout, time));
  int64_t left = std::count_if(ways.begin(), ways.end(),
                               [](const auto& way) { return way->report.code() == 0; });
  const int64_t max_bytes = std::min(order.bytes_per_peer(), kMaxBytesPerPeer);
  for (const auto& way : ways) {
    if (way->report.code() != 0) continue;
    Measure(*way, std::min(kWidthBudget, (until - MonotonicNow()) / left), until, max_bytes);
    --left;
  }

  node::v1::ConnectRequest answer;
  node::v1::DiagnosisResult& result = *answer.mutable_diagnosis_result();
  result.set_diagnosis_id(order.diagnosis_id());
  for (const auto& way : ways) *result.add_peers() = way->report;
  for (const job::v1::FolderReport& folder : folders_->Wait(until - MonotonicNow())) {
    *result.add_folders() = folder;
  }
  if (options_.devices) {
    for (const job::v1::DeviceReport& device : options_.devices()) *result.add_devices() = device;
  }
  ways.clear();  // channels are closed before anybody may think that this is over
  bool stopping = false;
  {
    MutexLock lock(mu_);
    stopping = stopping_;
  }
  if (!stopping) {
    SetTime(asked_at, result.mutable_asked_at());
    SetTime(absl::Now(), result.mutable_answered_at());
    options_.answer(std::move(answer));
  }
  MutexLock lock(mu_);
  busy_ = false;
}

void Diagnoser::ReachAll(std::vector<std::unique_ptr<Way>>& ways, absl::Duration limit) {
  const auto fail = [](Way& way, const absl::Status& status) {
    way.report.set_code(static_cast<int32_t>(status.code()));
    way.report.set_message(std::string(status.message()));
  };
  for (const auto& way : ways) {
    services::ChannelOptions options;
    options.security = options_.security;
    options.peer_role = services::Role::kParamStore;
    options.retry = false;
    options.own_connection = true;  // one that is open already would hide a port that is closed now
    auto peer = services::ParseEndpoint(way->report.address());
    if (!peer.ok()) {
      fail(*way, peer.status());
      continue;
    }
    options.peer = *std::move(peer);
    auto channel = services::MakeChannel(options);
    if (!channel.ok()) {
      fail(*way, channel.status());
      continue;
    }
    way->stub = v1::ParamStoreService::NewStub(*std::move(channel));
    services::SetTimeout(way->context, limit);
    way->context.set_wait_for_ready(false);  // why there is no connection is what we want to know
    {
      MutexLock lock(mu_);
      calls_.insert(&way->context);
      if (stopping_) way->context.TryCancel();
    }
    Way* const called = way.get();
    called->stub->async()->Measure(&called->context, &called->request, &called->response,
                                   [this, called, fail](const grpc::Status& status) {
                                     MutexLock lock(mu_);
                                     if (!status.ok())
                                       fail(*called, services::FromGrpcStatus(status));
                                     called->done = true;
                                     calls_.erase(&called->context);
                                     changed_.NotifyAll();
                                   });
  }
  MutexLock lock(mu_);
  for (const auto& way : ways) {
    while (way->stub != nullptr && !way->done) changed_.Wait(mu_);  // the call has a deadline
  }
}

bool Diagnoser::Call(Way& way, int64_t payload_bytes, absl::Duration until, absl::Duration* took) {
  const absl::Duration begun = MonotonicNow();
  if (begun >= until) return false;
  const auto context = services::NewContext(until - begun);
  {
    MutexLock lock(mu_);
    if (stopping_) return false;
    calls_.insert(context.get());
  }
  way.request.mutable_payload()->resize(static_cast<size_t>(payload_bytes));
  const bool ok = way.stub->Measure(context.get(), way.request, &way.response).ok();
  *took = MonotonicNow() - begun;
  MutexLock lock(mu_);
  calls_.erase(context.get());
  return ok;
}

void Diagnoser::Measure(Way& way, absl::Duration budget, absl::Duration until, int64_t max_bytes) {
  const absl::Duration enough = MonotonicNow() + budget;
  absl::Duration took;
  absl::Duration round_trip = absl::InfiniteDuration();
  for (int i = 0; i < kRoundTrips && (i == 0 || MonotonicNow() < enough); ++i) {
    if (!Call(way, 0, until, &took)) break;
    round_trip = std::min(round_trip, took);
  }
  if (round_trip == absl::InfiniteDuration()) return;
  way.report.set_round_trip_seconds(absl::ToDoubleSeconds(round_trip));
  // Larger and larger, so that a slow way is not filled for seconds; the best counts, as the others
  // stood in somebody's way.
  double best = 0;
  int64_t bytes = kFirstPayloadBytes;
  for (int64_t sent = 0; sent + bytes <= max_bytes && MonotonicNow() < enough;) {
    if (!Call(way, bytes, until, &took)) break;
    sent += bytes;
    // What the payload added; at least a tenth, since no round trip is like the other.
    const absl::Duration moving = std::max(took - round_trip, took / 10);
    best = std::max(best, static_cast<double>(bytes) / absl::ToDoubleSeconds(moving));
    if (MonotonicNow() + 2 * took > enough) break;
    bytes = std::min(2 * bytes, kMaxPayloadBytes);
  }
  if (best > 0) way.report.set_bytes_per_second(best);
}

}  // namespace capstan::param_store
