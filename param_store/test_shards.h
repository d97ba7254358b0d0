// Whole shards behind real gRPC servers on Unix sockets, and the plain loop that they are compared
// with: for the tests of this folder.
#ifndef CAPSTAN_PARAM_STORE_TEST_SHARDS_H_
#define CAPSTAN_PARAM_STORE_TEST_SHARDS_H_

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "capstan/param_store/v1/param_store.grpc.pb.h"
#include "exchange/wire/frame_codec.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "param_store/exchange_service.h"
#include "param_store/param_store.h"
#include "services/channel/channel.h"
#include "services/check/check.h"
#include "services/clock/clock.h"
#include "services/files/files.h"
#include "services/metrics/registry.h"
#include "services/server/server.h"
#include "training/codec/crc32c.h"
#include "training/spec/resolve.h"

namespace capstan::param_store {

using training::FlatRange;
using training::LaneBlock;
namespace spec = training::spec;

inline constexpr int kLanes = 4;
inline constexpr int64_t kSteps = 5;  // of 8, 8, 4 | 8, 8 samples
inline constexpr float kRate = 0.25f, kMomentum = 0.5f, kDecay = 0.125f;

inline job::v1::ResolvedSpec MakeSpec(int shards, const std::string& storage,
                                      int64_t checkpoint_every = 0,
                                      const std::string& job_id = "t-1", int64_t steps = kSteps) {
  job::v1::JobSpec s;
  s.set_version(1);
  s.set_name("t");
  s.mutable_resources()->set_num_workers(2);
  s.mutable_resources()->set_num_shards(shards);
  s.mutable_resources()->set_lanes(kLanes);
  s.mutable_model()->set_name("lenet");
  s.mutable_data()->set_format("synthetic_digits");
  s.mutable_data()->set_train_samples(20);
  s.mutable_data()->set_test_samples(10);
  s.mutable_kvstore()->set_type("dist_sync");
  s.mutable_training()->set_max_steps(steps);
  s.mutable_training()->set_global_batch_size(8);
  s.mutable_training()->set_seed(7);
  auto* const optimizer = s.mutable_training()->mutable_optimizer();
  optimizer->set_name("sgd");
  optimizer->set_learning_rate(kRate);
  optimizer->set_momentum(kMomentum);
  optimizer->set_weight_decay(kDecay);
  if (checkpoint_every > 0) {
    s.mutable_checkpoint()->mutable_every()->set_steps(checkpoint_every);
  }
  common::v1::DatasetInfo info;
  info.set_train_samples(20);
  info.set_test_samples(10);
  info.set_channels(1);
  info.set_height(28);
  info.set_width(28);
  info.set_num_classes(10);
  auto resolved = spec::Resolve(s, info, {.job_id = job_id, .storage_path = storage});
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return *std::move(resolved);
}

// The gradient of a lane: numbers of very different size, so that the order of sums shows.
inline std::vector<float> Gradient(int64_t step, int lane, int64_t floats) {
  std::vector<float> g(floats);
  uint64_t state = 1000003u * static_cast<uint64_t>(step) + static_cast<uint64_t>(lane) + 1;
  for (float& value : g) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const int exponent = static_cast<int>(state >> 60) - 12;
    value =
        std::ldexp(static_cast<float>(static_cast<int32_t>(state >> 32)) / 2147483648.0f, exponent);
  }
  return g;
}

inline std::vector<float> Sum(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> sum(a.size());
  for (size_t i = 0; i < a.size(); ++i) sum[i] = a[i] + b[i];
  return sum;
}

// PyTorch's SGD, as a loop.
inline void Update(std::vector<float>& w, std::vector<float>& v,
                   const std::vector<float>& gradient) {
  for (size_t i = 0; i < w.size(); ++i) {
    const float g = gradient[i] + kDecay * w[i];
    v[i] = kMomentum * v[i] + g;
    w[i] = w[i] - kRate * v[i];
  }
}

using Stream = grpc::ClientReaderWriter<v1::ExchangeRequest, v1::ExchangeResponse>;

// One stream of a worker; blocking.
struct Call {
  grpc::ClientContext context;
  std::unique_ptr<Stream> stream;
  std::vector<v1::FrameAck> acks;  // that came before weights

  ~Call() {
    if (stream != nullptr) context.TryCancel();
  }
};

class Shards : public testing::TestWithParam<int> {
 protected:
  struct Shard {
    std::unique_ptr<ParamStore> store;
    std::unique_ptr<ExchangeService> service;
    std::unique_ptr<services::Server> server;
    std::unique_ptr<v1::ParamStoreService::Stub> stub;
  };

  void StartAll(int count, int64_t lineage = 1, const std::string& base = "") {
    if (folder_.empty()) folder_ = *services::MakePrivateDir("capstan-shards");
    lineage_ = lineage;
    base_ = base;
    resolved_ = MakeSpec(count, folder_, checkpoint_every_, "t-1", steps_);
    bytes_ = resolved_.SerializeAsString();
    digest_ = spec::Digest(bytes_);
    layout_.emplace(*spec::MakeLayout(resolved_));
    const auto placement = *spec::MakePlacement(resolved_);
    common::v1::View view;
    view.set_job_id("t-1");
    view.set_lineage(lineage);
    view.set_generation(lineage);
    for (const int rank : {0, 0, 1, 1}) view.add_lane_owners(rank);
    for (const int rank : {0, 1}) view.add_workers()->set_rank(rank);
    for (int i = 0; i < count; ++i) {
      Shard shard;
      shard.store = std::make_unique<ParamStore>(ParamStoreOptions{
          .metrics = i == 0 ? &metrics_ : nullptr, .stuck_after = stuck_after_, .on_state = [this] {
            MutexLock lock(mu_);
            changed_.NotifyAll();
          }});
      shard.service = std::make_unique<ExchangeService>(*shard.store, hello_timeout_);
      services::ServerOptions options;
      options.listen =
          *services::ParseEndpoint(absl::StrCat("unix:", folder_, "/s", lineage, "-", i, ".sock"));
      options.max_receive_bytes = services::kExchangeMaxReceiveBytes;
      auto server = services::Server::Start(
          options, {{v1::ParamStoreService::service_full_name(), shard.service.get()}});
      ASSERT_TRUE(server.ok()) << server.status();
      shard.server = *std::move(server);
      shard.server->AddDrainHook("streams", [store = shard.store.get()] { store->Shutdown(); });
      services::ChannelOptions channel;
      channel.peer = options.listen;
      channel.retry = false;
      shard.stub = v1::ParamStoreService::NewStub(*services::MakeChannel(channel));
      common::v1::ShardRoute* const route = view.add_shards();
      route->set_index(i);
      route->set_address(options.listen.ToString());
      route->set_first_chunk(placement.Run(i).first_chunk);
      route->set_chunk_count(placement.Run(i).chunk_count);
      runs_.push_back(placement.Run(i));
      shards_.push_back(std::move(shard));
    }
    view_ = view;
    // The lead comes last: the others dial it until it knows the job.
    for (int i = count - 1; i >= 0; --i) Begin(i);
  }
  void Begin(int shard) {
    node::v1::ConnectResponse order;
    node::v1::StartLineage& start = *order.mutable_start_lineage();
    start.set_job_id(resolved_.job_id());
    start.set_shard(shard);
    start.set_resolved_spec(bytes_);
    start.set_spec_digest(digest_);
    *start.mutable_view() = view_;
    start.set_base_manifest(base_);
    shards_[shard].store->OnMessage(order);
  }
  void End(int shard, const std::string& job_id) {
    node::v1::ConnectResponse order;
    order.mutable_end_job()->set_job_id(job_id);
    shards_[shard].store->OnMessage(order);
  }
  void StopAll() {
    calls_.clear();
    for (Shard& shard : shards_) shard.server->Shutdown();
    shards_.clear();
    runs_.clear();
  }
  void TearDown() override {
    StopAll();
    EXPECT_TRUE(services::RemoveTree("/tmp", folder_).ok());
  }

  node::v1::ShardState State(int shard) { return shards_[shard].store->MakeHeartbeat().shards(0); }
  template <typename Is>
  bool WaitFor(int shard, Is is) {
    const absl::Duration until = MonotonicNow() + absl::Seconds(20);
    MutexLock lock(mu_);
    while (!is(State(shard))) {
      if (MonotonicNow() > until) return false;
      changed_.WaitWithTimeout(mu_, absl::Milliseconds(20));
    }
    return true;
  }

  // With its check.
  bool Write(Call& call, v1::ExchangeRequest request) {
    exchange::wire::SetCheck(&request, lineage_);
    return call.stream->Write(request);
  }

  // Until the shard knows the job, as a task does. damaged >= 0: the version whose sums were wrong.
  Call& Open(int shard, v1::StreamKind kind, int rank, int64_t have = -1, int64_t lineage = 0,
             int64_t damaged = -1) {
    if (lineage == 0) lineage = lineage_;
    for (int attempt = 0;; ++attempt) {
      auto call = std::make_unique<Call>();
      call->context.set_wait_for_ready(true);
      services::SetTimeout(call->context, absl::Seconds(60));
      call->stream = shards_[shard].stub->Exchange(&call->context);
      v1::ExchangeRequest request;
      v1::Hello& hello = *request.mutable_hello();
      hello.set_job_id(resolved_.job_id());
      hello.set_spec_digest(digest_);
      hello.set_lineage(lineage);
      hello.set_kind(kind);
      hello.set_index(rank);
      hello.set_have_version(have);
      if (damaged >= 0) hello.set_damaged_version(damaged);
      hello.set_speaks(exchange::wire::kSpeaks);
      EXPECT_TRUE(Write(*call, request));
      v1::ExchangeResponse response;
      if (call->stream->Read(&response)) {
        EXPECT_TRUE(response.has_hello());
        EXPECT_EQ(response.hello().lineage(), lineage);
        EXPECT_EQ(response.hello().speaks(), exchange::wire::kSpeaks);
        calls_.push_back(std::move(call));
        return *calls_.back();
      }
      const grpc::Status status = call->stream->Finish();
      call->stream.reset();
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
      CAPSTAN_CHECK(attempt < 1000);
    }
  }

  void Push(Call& call, int shard, int64_t step, LaneBlock block, const std::vector<float>& values,
            bool damage = false) {
    for (const training::ChunkRun& run :
         training::FramesOf(*layout_, runs_[shard], /*max_payload_bytes=*/64 << 10)) {
      v1::ExchangeRequest request;
      v1::Frame& frame = *request.mutable_frame();
      frame.set_step(step);
      frame.set_first_lane(block.first_lane);
      frame.set_lane_count(block.lane_count);
      frame.set_first_chunk(run.first_chunk);
      for (int32_t chunk = run.first_chunk; chunk < run.end(); ++chunk) {
        const FlatRange range = layout_->ChunkRange(chunk);
        const char* const bytes = reinterpret_cast<const char*>(values.data() + range.offset);
        frame.add_crc32c(training::Crc32c(bytes, range.size * 4));
        frame.mutable_payload()->append(bytes, range.size * 4);
      }
      if (damage) frame.mutable_payload()->at(5) ^= 1;
      ASSERT_TRUE(Write(call, request));
    }
  }
  void Seal(Call& call, int64_t step, LaneBlock block) {
    v1::ExchangeRequest request;
    v1::StepSeal& seal = *request.mutable_seal();
    seal.set_step(step);
    seal.set_first_lane(block.first_lane);
    seal.set_lane_count(block.lane_count);
    seal.set_samples(block.lane_count * (step % 3 == 2 ? 1 : 2));
    seal.set_loss_sum(0.5 * seal.samples());
    seal.set_correct(block.lane_count);
    ASSERT_TRUE(Write(call, request));
  }
  // Reads a whole version of one shard into `flat`.
  void Pull(Call& call, int shard, int64_t version, std::vector<float>& flat, bool* stop = nullptr,
            bool* evaluate = nullptr) {
    int32_t chunks = 0;
    v1::ExchangeResponse response;
    while (chunks < runs_[shard].chunk_count) {
      ASSERT_TRUE(call.stream->Read(&response)) << call.stream->Finish().error_message();
      if (response.has_ack()) {
        call.acks.push_back(response.ack());
        continue;
      }
      ASSERT_TRUE(response.has_weights());
      const v1::WeightFrame& frame = response.weights();
      ASSERT_EQ(frame.version(), version);
      if (stop != nullptr) *stop = frame.stop();
      if (evaluate != nullptr) *evaluate = frame.evaluate();
      const char* at = frame.payload().data();
      for (int i = 0; i < frame.crc32c_size(); ++i) {
        const FlatRange range = layout_->ChunkRange(frame.first_chunk() + i);
        ASSERT_EQ(training::Crc32c(at, range.size * 4), frame.crc32c(i));
        std::memcpy(flat.data() + range.offset, at, range.size * 4);
        at += range.size * 4;
      }
      ASSERT_EQ(at, frame.payload().data() + frame.payload().size());
      chunks += frame.crc32c_size();
    }
  }

  services::MetricsRegistry registry_{"param_store"};
  ShardMetrics metrics_{registry_};
  int64_t checkpoint_every_ = 0;
  int64_t steps_ = kSteps;
  absl::Duration stuck_after_ = kStuckAfter;
  absl::Duration hello_timeout_ = exchange::ServerStream::kHelloTimeout;
  int64_t lineage_ = 0;
  std::string folder_, bytes_, digest_, base_;
  job::v1::ResolvedSpec resolved_;
  common::v1::View view_;
  std::optional<training::FlatLayout> layout_;
  std::vector<training::ChunkRun> runs_;
  std::vector<Shard> shards_;
  std::vector<std::unique_ptr<Call>> calls_;
  Mutex mu_;
  CondVar changed_;
};

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_TEST_SHARDS_H_
