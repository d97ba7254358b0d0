// Counts how often payload bytes are copied between two tasks' ExchangeClients and two real shards,
// all in this process: at most once on each side, and never into a protobuf message.
//
// There are two independent measures. The counters of exchange/wire must be told by all code
// that copies a payload. And this process sees its own large allocations: a protobuf message keeps
// `bytes` in a std::string, while gRPC's slices come from malloc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "exchange/transport/exchange_client.h"
#include "exchange/wire/frame_codec.h"
#include "param_store/exchange_service.h"
#include "param_store/param_store.h"
#include "services/files/files.h"
#include "services/server/server.h"
#include "services/sync/mutex.h"
#include "training/spec/resolve.h"

namespace {

// Here no chunk is that large, and every frame except the smallest is.
constexpr size_t kLargeBytes = size_t{64} << 10;
std::atomic<bool> g_count_large{false};
std::atomic<int64_t> g_large_allocations{0};

void* Allocate(size_t size) {
  if (size >= kLargeBytes && g_count_large.load(std::memory_order_relaxed)) ++g_large_allocations;
  void* const memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return Allocate(size); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return Allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace capstan::tests {
namespace {

namespace spec = training::spec;
namespace wire = exchange::wire;
using exchange::CompleteWeights;
using exchange::ExchangeClient;

constexpr absl::Duration kLimit = absl::Seconds(60);
constexpr char kJob[] = "copies-1";
constexpr int kShards = 2;
constexpr int kRanks = 2;
constexpr int64_t kStreams = 3;  // of a rank: two for data, one to the lead
constexpr int64_t kSteps = 60;
// All buffers exist by this version, and streams share memory if they ever do.
constexpr int64_t kSteady = 20;

// 129068 floats, 8 samples a step, 4 lanes.
job::v1::ResolvedSpec MakeSpec(const std::string& storage) {
  job::v1::JobSpec s;
  s.set_version(1);
  s.set_name("copies");
  s.mutable_resources()->set_num_workers(kRanks);
  s.mutable_resources()->set_num_shards(kShards);
  s.mutable_resources()->set_lanes(4);
  s.mutable_model()->set_name("lenet_d2l");
  s.mutable_data()->set_format("synthetic_digits");
  s.mutable_kvstore()->set_type("dist_sync");
  s.mutable_training()->set_max_steps(kSteps);
  s.mutable_training()->set_global_batch_size(8);
  s.mutable_training()->mutable_optimizer()->set_name("sgd");
  s.mutable_training()->mutable_optimizer()->set_learning_rate(0.5);
  common::v1::DatasetInfo info;
  info.set_train_samples(8 * 2 * kSteps);
  info.set_test_samples(10);
  info.set_channels(1);
  info.set_height(28);
  info.set_width(28);
  info.set_num_classes(10);
  auto resolved = spec::Resolve(s, info, {.job_id = kJob, .storage_path = storage});
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return *std::move(resolved);
}

// The parameter: whether the streams share memory.
class CopiesTest : public ::testing::TestWithParam<bool> {
 protected:
  struct Shard {
    std::unique_ptr<param_store::ParamStore> store;
    std::unique_ptr<param_store::ExchangeService> service;
    std::unique_ptr<services::Server> server;
  };
  struct Rank {
    std::unique_ptr<ExchangeClient> client;
    std::unique_ptr<exchange::BufferPool> gradients;
    std::vector<float> last;  // the newest complete weights
    int64_t version = -1;
    int64_t shared_streams = 0;
    bool stop = false;
  };

  void SetUp() override {
    folder_ = *services::MakePrivateDir("copies");
    const job::v1::ResolvedSpec resolved = MakeSpec(folder_);
    layout_.emplace(*spec::MakeLayout(resolved));
    digest_ = spec::Digest(resolved.SerializeAsString());
    StartShards(resolved);
    strand_thread_ = std::thread([this] { strand_.Run(); });
  }
  void TearDown() override {
    OnStrand([this] {
      for (Rank& rank : ranks_) rank.client.reset();
    });
    strand_.Stop();
    strand_thread_.join();
    for (Shard& shard : shards_) {
      shard.store->Shutdown();
      shard.server->Shutdown();
    }
    EXPECT_EQ(services::RemoveTree("/tmp", folder_), absl::OkStatus());
  }

  void StartShards(const job::v1::ResolvedSpec& resolved) {
    const training::Placement placement = *spec::MakePlacement(resolved);
    node::v1::ConnectResponse order;
    node::v1::StartLineage& start = *order.mutable_start_lineage();
    start.set_job_id(kJob);
    start.set_resolved_spec(resolved.SerializeAsString());
    start.set_spec_digest(digest_);
    common::v1::View& view = *start.mutable_view();
    view.set_job_id(kJob);
    view.set_lineage(1);
    view.set_generation(1);
    for (const int rank : {0, 0, 1, 1}) view.add_lane_owners(rank);
    for (const int rank : {0, 1}) view.add_workers()->set_rank(rank);
    route_.lineage = 1;
    for (int i = 0; i < kShards; ++i) {
      Shard shard;
      shard.store = std::make_unique<param_store::ParamStore>(
          param_store::ParamStoreOptions{.shared_memory = GetParam()});
      shard.service = std::make_unique<param_store::ExchangeService>(*shard.store);
      services::ServerOptions options;
      options.listen = *services::ParseEndpoint(absl::StrCat("unix:", folder_, "/s", i, ".sock"));
      options.max_receive_bytes = services::kExchangeMaxReceiveBytes;
      options.drain_timeout = absl::Seconds(1);
      auto server = services::Server::Start(
          options,
          {{param_store::v1::ParamStoreService::service_full_name(), shard.service.get()}});
      ASSERT_TRUE(server.ok()) << server.status();
      shard.server = *std::move(server);
      const training::ChunkRun run = placement.Run(i);
      route_.shards.push_back({.node = absl::StrCat("s", i),
                               .address = options.listen.ToString(),
                               .first_chunk = run.first_chunk,
                               .chunk_count = run.chunk_count});
      common::v1::ShardRoute& route = *view.add_shards();
      route.set_index(i);
      route.set_address(options.listen.ToString());
      route.set_first_chunk(run.first_chunk);
      route.set_chunk_count(run.chunk_count);
      shards_.push_back(std::move(shard));
    }
    for (int i = 0; i < kShards; ++i) {
      start.set_shard(i);
      shards_[i].store->OnMessage(order);
    }
  }

  // From here on, both ranks train by themselves with invented gradients.
  void StartRanks() {
    OnStrand([this] {
      for (int r = 0; r < kRanks; ++r) {
        exchange::ExchangeClientOptions options;
        options.core.job_id = kJob;
        options.core.spec_digest = digest_;
        options.core.rank = r;
        exchange::ExchangeCallbacks callbacks;
        callbacks.on_weights = [this, r](const CompleteWeights& w) { OnWeights(r, w); };
        callbacks.on_failed = [](const absl::Status& status) { ADD_FAILURE() << status; };
        ranks_[r].gradients = std::make_unique<exchange::BufferPool>(layout_->total_floats());
        ranks_[r].client =
            std::make_unique<ExchangeClient>(*layout_, options, strand_, std::move(callbacks));
        EXPECT_EQ(ranks_[r].client->Open(route_), absl::OkStatus());
      }
    });
  }
  void OnWeights(int r, const CompleteWeights& weights) {
    Rank& rank = ranks_[r];
    rank.shared_streams = rank.client->stats().shared_streams;
    if (GetParam() && weights.version == kSteady && rank.shared_streams < kStreams) {
      strand_.PostAfter(absl::Milliseconds(1), [this, r, weights] { OnWeights(r, weights); });
      return;
    }
    // The steady state; nothing is written to files yet.
    if (r == 0 && weights.version == kSteady) g_count_large = true;
    if (r == 0 && weights.version == kSteps - 2) g_count_large = false;
    if (weights.stop) {
      rank.last.assign(weights.weights->span().begin(), weights.weights->span().end());
    } else {
      const std::shared_ptr<exchange::FloatBuffer> gradient = rank.gradients->Lend();
      for (int64_t i = 0; i < gradient->size(); ++i) {
        gradient->data()[i] = 0x1p-12f * static_cast<float>((i + r + weights.version) % 97);
      }
      const training::LaneBlock block{2 * r, 2};
      rank.client->Push(weights.version, block, gradient);
      rank.client->SendSeal(weights.version, block, {4, 1.0, 2});
    }
    MutexLock lock(mu_);
    rank.version = weights.version;
    rank.stop = weights.stop;
    changed_.NotifyAll();
  }
  bool WaitForTheEnd() {
    const absl::Time end = absl::Now() + kLimit;
    MutexLock lock(mu_);
    while (!ranks_[0].stop || !ranks_[1].stop) {
      if (changed_.WaitWithTimeout(mu_, end - absl::Now())) return false;
    }
    return true;
  }
  void OnStrand(std::function<void()> function) {
    bool done = false;
    strand_.Post([&] {
      function();
      MutexLock lock(mu_);
      done = true;
      changed_.NotifyAll();
    });
    MutexLock lock(mu_);
    while (!done) changed_.Wait(mu_);
  }

  std::string folder_, digest_;
  std::optional<training::FlatLayout> layout_;
  exchange::Route route_;
  std::vector<Shard> shards_;
  services::StrandLoop strand_;
  std::thread strand_thread_;
  Mutex mu_;
  CondVar changed_;
  Rank ranks_[kRanks];
};

TEST_P(CopiesTest, APayloadByteIsCopiedAtMostOnceOnEachSideAndNeverIntoAMessage) {
  const wire::CopyCount before = wire::GetCopyCount();
  StartRanks();
  ASSERT_TRUE(WaitForTheEnd()) << "versions " << ranks_[0].version << " and " << ranks_[1].version;
  exchange::ExchangeStats stats[kRanks];
  OnStrand([&] {
    for (int r = 0; r < kRanks; ++r) stats[r] = ranks_[r].client->stats();
  });
  const wire::CopyCount after = wire::GetCopyCount();
  EXPECT_EQ(ranks_[0].last, ranks_[1].last);
  for (const Rank& rank : ranks_) EXPECT_EQ(rank.shared_streams, GetParam() ? kStreams : 0);

  const int64_t model_bytes = 4 * layout_->total_floats();
  int64_t pushed = 0, pulled = 0, copied_by_tasks = 0;
  for (const exchange::ExchangeStats& s : stats) {
    EXPECT_EQ(s.retries, 0);
    EXPECT_EQ(s.sent_payload_bytes, kSteps * model_bytes);
    EXPECT_EQ(s.received_payload_bytes, (kSteps + 1) * model_bytes);
    pushed += s.sent_payload_bytes;
    pulled += s.received_payload_bytes;
    copied_by_tasks += s.copied_bytes;
  }
  const int64_t copied = after.copied_bytes - before.copied_bytes;
  const int64_t copied_by_shards = copied - copied_by_tasks;
  std::printf(
      "per byte pushed: %.3f copies by shards; per byte pulled: %.3f copies by tasks; "
      "per byte exchanged: %.3f\n",
      static_cast<double>(copied_by_shards) / static_cast<double>(pushed),
      static_cast<double>(copied_by_tasks) / static_cast<double>(pulled),
      static_cast<double>(copied) / static_cast<double>(pushed + pulled));
  // Each byte was put into a message once and taken out once, and both were counted here.
  EXPECT_EQ(after.exchanged_bytes - before.exchanged_bytes, 2 * (pushed + pulled));
  // A task copies what it receives into the version's buffer, and copies nothing that it sends. A
  // shard may copy what it receives into a sum, and copies nothing that it sends.
  EXPECT_EQ(copied_by_tasks, pulled);
  EXPECT_LE(copied_by_shards, pushed);

  EXPECT_FALSE(g_count_large);
  EXPECT_EQ(g_large_allocations, 0);
}

INSTANTIATE_TEST_SUITE_P(, CopiesTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "SharedMemory" : "Grpc"; });

// Tests the measure itself: a payload inside a message is detected.
TEST(LargeAllocationTest, APayloadInAMessageIsSeen) {
  g_large_allocations = 0;
  g_count_large = true;
  param_store::v1::ExchangeRequest request;
  const std::string payload(2 * kLargeBytes, 'x');
  request.mutable_frame()->set_payload(payload);
  g_count_large = false;
  EXPECT_EQ(g_large_allocations, 2);
  g_large_allocations = 0;
}

// Decodes a frame that a protobuf writer has written.
TEST(DecodedFrameTest, ThePayloadStaysOutsideTheMessage) {
  param_store::v1::ExchangeRequest request;
  request.mutable_frame()->set_payload(std::string(4096, 'x'));
  param_store::v1::ExchangeResponse response;
  response.mutable_weights()->set_payload(std::string(4096, 'y'));
  const std::string request_bytes = request.SerializeAsString();
  const std::string response_bytes = response.SerializeAsString();
  const absl::string_view request_piece = request_bytes, response_piece = response_bytes;
  const auto frame = wire::DecodeRequest({&request_piece, 1});
  const auto weights = wire::DecodeResponse({&response_piece, 1});
  ASSERT_TRUE(frame.ok() && weights.ok());
  EXPECT_TRUE(frame->message.frame().payload().empty());
  EXPECT_TRUE(weights->message.weights().payload().empty());
  // They are views of the received bytes.
  ASSERT_EQ(frame->payload.size(), 1u);
  EXPECT_EQ(frame->payload[0].data(), request_bytes.data() + request_bytes.size() - 4096);
  ASSERT_EQ(weights->payload.size(), 1u);
  EXPECT_EQ(weights->payload[0].data(), response_bytes.data() + response_bytes.size() - 4096);
}

}  // namespace
}  // namespace capstan::tests
