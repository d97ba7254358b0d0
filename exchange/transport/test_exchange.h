// A small real server on a Unix socket, for tests of ExchangeClient. It is written with the
// generated protobuf code, so that the bytes are those of any protobuf reader and writer.
#ifndef CAPSTAN_EXCHANGE_TRANSPORT_TEST_EXCHANGE_H_
#define CAPSTAN_EXCHANGE_TRANSPORT_TEST_EXCHANGE_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "capstan/param_store/v1/param_store.grpc.pb.h"
#include "exchange/transport/exchange_client.h"
#include "exchange/wire/frame_codec.h"
#include "services/server/server.h"
#include "services/sync/mutex.h"
#include "training/codec/crc32c.h"

namespace capstan::exchange {

namespace v1 = param_store::v1;

inline constexpr absl::Duration kLimit = absl::Seconds(20);
inline constexpr char kDigest[] = "0123456789abcdef0123456789abcdef";

inline training::FlatLayout FiveChunks() {
  training::TensorSpec spec;
  spec.name = "fc.weight";
  spec.shape = {4 * training::kSmallChunkFloats + 32};
  spec.fan_in = spec.fan_out = 1;
  auto layout = training::FlatLayout::Create({spec});
  EXPECT_TRUE(layout.ok() && layout->chunk_count() == 5);
  return *std::move(layout);
}

// What a shard of the double does wrong, each a countdown.
struct Faults {
  int call_frames_corrupt = 0;   // answers CORRUPT
  int call_corrupt_later = 0;    // the same of the next stream
  int break_after_frame = 0;     // ends the stream with UNAVAILABLE behind a frame
  int64_t stop_at = -1;          // this version and later ones say that they are the last; no fault
  int send_corrupt_weights = 0;  // a wrong checksum
  int send_weights_twice = 0;    // each frame repeated
  int send_odd_weights = 0;      // before the others: of these chunks, with so many bytes
  training::ChunkRun odd_run;
  size_t odd_bytes = 0;
  int damage_weight_keys = 0;                       // a version that is not that of the check
  int32_t chunks_together = 1;                      // of a frame of weights; no fault
  int silent = 0;                                   // says nothing to a Hello
  int wrong_lineage = 0;                            // in the answer to a Hello
  int weights_first = 0;                            // before that answer
  bool no_checks = false;                           // speaks as before there were checks
  absl::StatusCode refuse = absl::StatusCode::kOk;  // answer to Hello
};

// Holds chunks of a run; adds one worker's root: version s + 1 = version s - gradient.
class FakeShard final : public v1::ParamStoreService::Service {
 public:
  FakeShard(const training::FlatLayout& layout, training::ChunkRun run)
      : layout_(layout), run_(run) {
    weights_.assign(layout.total_floats(), 100.0f);
  }

  void Set(Faults faults) {
    MutexLock lock(mu_);
    faults_ = faults;
  }
  // The lineage that is served from now on, with fresh weights.
  void StartLineage(int64_t lineage, float value) {
    MutexLock lock(mu_);
    lineage_ = lineage;
    version_ = 0;
    weights_.assign(layout_.total_floats(), value);
    chunks_.clear();
  }
  // Weights that differ from each other: each is its own place.
  void NumberWeights() {
    MutexLock lock(mu_);
    for (size_t i = 0; i < weights_.size(); ++i) weights_[i] = static_cast<float>(i);
  }
  // Frames whose sum was wrong: called corrupt.
  int wrong_sums() {
    MutexLock lock(mu_);
    return wrong_sums_;
  }
  std::vector<v1::Hello> hellos() {
    MutexLock lock(mu_);
    return hellos_;
  }
  // "frame <chunk>", "seal <step>", "evaluation <block>" with the kind of the stream, as they came.
  std::vector<std::string> log() {
    MutexLock lock(mu_);
    return log_;
  }
  int Count(const std::string& line) {
    MutexLock lock(mu_);
    return static_cast<int>(std::count(log_.begin(), log_.end(), line));
  }
  // Frames of the step that came with this chunk first; negative: all of the step.
  int CountFrames(int64_t step, const training::LaneBlock& block, int32_t first_chunk = -1) {
    MutexLock lock(mu_);
    return static_cast<int>(std::count_if(said_.begin(), said_.end(), [&](const auto& message) {
      const v1::Frame& frame = message.frame();
      return message.has_frame() && frame.step() == step &&
             frame.first_lane() == block.first_lane && frame.lane_count() == block.lane_count &&
             (first_chunk < 0 || frame.first_chunk() == first_chunk);
    }));
  }
  // All messages but the Hello, without payloads.
  std::vector<v1::ExchangeRequest> said() {
    MutexLock lock(mu_);
    return said_;
  }
  bool WaitForLog(const std::string& line, absl::Duration limit = kLimit) {
    MutexLock lock(mu_);
    const absl::Time end = absl::Now() + limit;
    while (std::find(log_.begin(), log_.end(), line) == log_.end()) {
      if (absl::Now() > end) return false;
      changed_.WaitWithTimeout(mu_, absl::Milliseconds(200));
    }
    return true;
  }

  using Stream = grpc::ServerReaderWriter<v1::ExchangeResponse, v1::ExchangeRequest>;
  grpc::Status Exchange(grpc::ServerContext*, Stream* stream) override {
    v1::ExchangeRequest request;
    if (!stream->Read(&request) || !request.has_hello()) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "no Hello"};
    }
    const v1::Hello hello = request.hello();
    MutexLock lock(mu_);
    hellos_.push_back(hello);
    changed_.NotifyAll();
    if (faults_.refuse != absl::StatusCode::kOk) {
      return {static_cast<grpc::StatusCode>(faults_.refuse), "refused by the test"};
    }
    if (hello.lineage() < lineage_) return {grpc::StatusCode::FAILED_PRECONDITION, "old lineage"};
    if (hello.lineage() > lineage_) return {grpc::StatusCode::UNAVAILABLE, "not told yet"};
    if (faults_.call_corrupt_later > 0) {
      faults_.call_frames_corrupt = std::exchange(faults_.call_corrupt_later, 0);
    }
    if (faults_.silent > 0) {
      --faults_.silent;
      mu_.Unlock();
      while (stream->Read(&request)) {
      }
      mu_.Lock();
      return grpc::Status::OK;
    }
    if (faults_.weights_first > 0) {
      --faults_.weights_first;
      SendWeights(stream);
    }
    v1::ExchangeResponse reply;
    reply.mutable_hello()->set_lineage(lineage_ + (faults_.wrong_lineage > 0 ? 7 : 0));
    faults_.wrong_lineage -= faults_.wrong_lineage > 0 ? 1 : 0;
    reply.mutable_hello()->set_version(version_);
    if (!faults_.no_checks) {
      reply.mutable_hello()->set_speaks(wire::kSpeaks);
      wire::SetCheck(&reply, 0);
    }
    stream->Write(reply);
    if (hello.kind() == v1::STREAM_KIND_DATA && hello.have_version() < version_) {
      SendWeights(stream);
    }
    for (;;) {
      mu_.Unlock();
      const bool more = stream->Read(&request);
      mu_.Lock();
      if (!more) return grpc::Status::OK;
      if (hello.lineage() != lineage_) return {grpc::StatusCode::FAILED_PRECONDITION, "old"};
      if (!Handle(hello, request, stream)) return {grpc::StatusCode::UNAVAILABLE, "broken"};
      changed_.NotifyAll();
    }
  }

 private:
  bool Handle(const v1::Hello& hello, const v1::ExchangeRequest& request, Stream* stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const std::string kind = hello.kind() == v1::STREAM_KIND_CONTROL ? " control" : " data";
    said_.push_back(request);
    if (request.has_frame()) said_.back().mutable_frame()->clear_payload();
    if (request.has_seal()) log_.push_back(absl::StrCat("seal ", request.seal().step(), kind));
    if (request.has_evaluation()) {
      log_.push_back(absl::StrCat("evaluation ", request.evaluation().block(), kind));
    }
    if (!request.has_frame()) return true;
    const v1::Frame& frame = request.frame();
    log_.push_back(absl::StrCat("frame ", frame.first_chunk(), kind));
    const std::string bytes_of_request = request.SerializeAsString();
    const absl::string_view piece = bytes_of_request;
    const auto decoded = wire::DecodeRequest({&piece, 1});
    EXPECT_TRUE(decoded.ok() && decoded->Intact(lineage_));
    bool wrong = false;
    const char* at = frame.payload().data();
    for (int i = 0; i < frame.crc32c_size(); ++i) {
      const training::FlatRange part = layout_.ChunkRange(frame.first_chunk() + i);
      wrong = wrong || training::Crc32c(at, 4 * part.size) != frame.crc32c(i);
      at += 4 * part.size;
    }
    if (wrong) ++wrong_sums_;
    if (wrong || faults_.call_frames_corrupt > 0) {
      faults_.call_frames_corrupt -= wrong ? 0 : 1;
      v1::ExchangeResponse response;
      v1::FrameAck* ack = response.mutable_ack();
      ack->set_step(frame.step());
      ack->set_first_lane(frame.first_lane());
      ack->set_lane_count(frame.lane_count());
      ack->set_first_chunk(frame.first_chunk());
      for (int i = 0; i < frame.crc32c_size(); ++i) ack->add_outcomes(v1::FRAME_OUTCOME_CORRUPT);
      wire::SetCheck(&response, lineage_);
      stream->Write(response);
      return true;
    }
    if (faults_.break_after_frame > 0 && --faults_.break_after_frame == 0) return false;
    if (frame.step() != version_) return true;
    const training::FlatRange range = RangeOf(layout_, {frame.first_chunk(), frame.crc32c_size()});
    EXPECT_EQ(frame.payload().size(), 4u * range.size);
    const char* bytes = frame.payload().data();
    for (int i = 0; i < frame.crc32c_size(); ++i) {
      const int32_t chunk = frame.first_chunk() + i;
      const training::FlatRange part = layout_.ChunkRange(chunk);
      EXPECT_EQ(training::Crc32c(bytes, 4 * part.size), frame.crc32c(i));
      const auto* gradient = reinterpret_cast<const float*>(bytes);
      bytes += 4 * part.size;
      if (!chunks_.insert(chunk).second) continue;
      for (int64_t k = 0; k < part.size; ++k) weights_[part.offset + k] -= gradient[k];
    }
    if (static_cast<int32_t>(chunks_.size()) == run_.chunk_count) {
      chunks_.clear();
      ++version_;
      SendWeights(stream);
    }
    return true;
  }

  void SendWeights(Stream* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (faults_.send_odd_weights > 0) {
      --faults_.send_odd_weights;
      v1::ExchangeResponse odd;
      odd.mutable_weights()->set_version(version_);
      odd.mutable_weights()->set_first_chunk(faults_.odd_run.first_chunk);
      for (int i = 0; i < faults_.odd_run.chunk_count; ++i) odd.mutable_weights()->add_crc32c(0);
      odd.mutable_weights()->set_payload(std::string(faults_.odd_bytes, '\0'));
      wire::SetCheck(&odd, lineage_);
      stream->Write(odd);
    }
    for (int32_t first = run_.first_chunk; first < run_.end(); first += faults_.chunks_together) {
      const int32_t end = std::min(run_.end(), first + faults_.chunks_together);
      const training::FlatRange range = RangeOf(layout_, {first, end - first});
      v1::ExchangeResponse response;
      v1::WeightFrame* frame = response.mutable_weights();
      frame->set_version(version_);
      frame->set_stop(faults_.stop_at >= 0 && version_ >= faults_.stop_at);
      frame->set_first_chunk(first);
      frame->set_payload(weights_.data() + range.offset, 4 * range.size);
      for (int32_t chunk = first; chunk < end; ++chunk) {
        const training::FlatRange part = layout_.ChunkRange(chunk);
        uint32_t crc = training::Crc32c(weights_.data() + part.offset, 4 * part.size);
        if (faults_.send_corrupt_weights > 0) {
          --faults_.send_corrupt_weights;
          crc ^= 1;
        }
        frame->add_crc32c(crc);
      }
      wire::SetCheck(&response, lineage_);
      if (faults_.damage_weight_keys > 0) {
        --faults_.damage_weight_keys;
        frame->set_version(frame->version() + 1);
      }
      stream->Write(response);
      if (faults_.send_weights_twice > 0) stream->Write(response);
    }
  }

  const training::FlatLayout& layout_;
  const training::ChunkRun run_;
  Mutex mu_;
  CondVar changed_;
  Faults faults_ ABSL_GUARDED_BY(mu_);
  int64_t lineage_ ABSL_GUARDED_BY(mu_) = 1;
  int64_t version_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<float> weights_ ABSL_GUARDED_BY(mu_);
  std::set<int32_t> chunks_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::Hello> hellos_ ABSL_GUARDED_BY(mu_);
  int wrong_sums_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::string> log_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::ExchangeRequest> said_ ABSL_GUARDED_BY(mu_);
};

class ExchangeClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/exchange_test_XXXXXX";
    ASSERT_NE(mkdtemp(path), nullptr);
    folder_ = path;
    thread_ = std::thread([this] { strand_.Run(); });
  }
  void TearDown() override {
    OnStrand([this] { client_.reset(); });
    strand_.Stop();
    thread_.join();
    for (auto& server : servers_) {
      if (server != nullptr) server->Shutdown();
    }
    servers_.clear();
    ASSERT_EQ(system(("rm -rf " + folder_).c_str()), 0);
  }

  // Two shards hold chunks {0,1} and {2,3,4}; one holds them all.
  void MakeShards(int count) {
    for (int i = 0; i < count; ++i) {
      ShardAddress address;
      address.node = absl::StrCat("ps", i);
      address.address = absl::StrCat("unix:", folder_, "/s", i, ".sock");
      address.first_chunk = i == 0 ? 0 : 2;
      address.chunk_count = count == 1 ? 5 : (i == 0 ? 2 : 3);
      route_.shards.push_back(address);
      shards_.push_back(std::make_unique<FakeShard>(
          layout_, training::ChunkRun{address.first_chunk, address.chunk_count}));
      servers_.emplace_back();
    }
    route_.lineage = 1;
  }
  void StartServer(int i) {
    services::ServerOptions options;
    options.listen = *services::ParseEndpoint(route_.shards[i].address);
    options.max_receive_bytes = wire::kMaxMessageBytes;
    options.drain_timeout = absl::Milliseconds(200);
    auto server = services::Server::Start(
        options, {{v1::ParamStoreService::service_full_name(), shards_[i].get()}});
    ASSERT_TRUE(server.ok()) << server.status();
    servers_[i] = *std::move(server);
    servers_[i]->SetReady(true);
  }
  // Payloads of up to so many whole chunks.
  void MakeClient(int32_t chunks_together = 1, absl::Duration hello_timeout = kLimit) {
    ExchangeClientOptions options = options_;
    options.core.hello_timeout = hello_timeout;
    options.core.job_id = "j1";
    options.core.spec_digest = kDigest;
    options.core.rank = 3;
    options.core.max_payload_bytes = chunks_together * 4 * training::kSmallChunkFloats;
    ExchangeCallbacks callbacks;
    callbacks.on_weights = [this](const CompleteWeights& weights) {
      MutexLock lock(mu_);
      weights_.push_back(weights);
      changed_.NotifyAll();
    };
    callbacks.on_failed = [this](const absl::Status& status) {
      MutexLock lock(mu_);
      failure_ = status;
      ++failures_;
      changed_.NotifyAll();
    };
    OnStrand(
        [&] { client_ = std::make_unique<ExchangeClient>(layout_, options, strand_, callbacks); });
  }
  void Start(int shards) {
    MakeShards(shards);
    for (int i = 0; i < shards; ++i) StartServer(i);
    MakeClient();
  }
  void OnStrand(std::function<void()> function) {
    Mutex mu;
    CondVar cv;
    bool done = false;
    strand_.Post([&] {
      function();
      MutexLock lock(mu);
      done = true;
      cv.NotifyAll();
    });
    MutexLock lock(mu);
    while (!done) cv.Wait(mu);
  }
  void Open(int64_t lineage = 1) {
    OnStrand([&] {
      route_.lineage = lineage;
      EXPECT_EQ(client_->Open(route_), absl::OkStatus());
    });
  }
  void Push(int64_t step, float value) {
    OnStrand([&] {
      std::shared_ptr<FloatBuffer> gradient = gradients_.Lend();
      std::fill(gradient->span().begin(), gradient->span().end(), value);
      client_->Push(step, training::LaneBlock{0, 2}, gradient);
      client_->SendSeal(step, training::LaneBlock{0, 2}, {8, 1.5, 3});
    });
  }
  // The version, once it is there; its first and last weight.
  std::vector<float> Wait(int64_t version, int64_t lineage = 1) {
    MutexLock lock(mu_);
    const absl::Time end = absl::Now() + kLimit;
    while (absl::Now() < end) {
      for (const CompleteWeights& w : weights_) {
        if (w.version != version || w.lineage != lineage) continue;
        return {w.weights->span().front(), w.weights->span()[layout_.total_floats() - 1]};
      }
      changed_.WaitWithTimeout(mu_, absl::Milliseconds(200));
    }
    return {};
  }
  absl::Status WaitForFailure() {
    MutexLock lock(mu_);
    const absl::Time end = absl::Now() + kLimit;
    while (failure_.ok() && absl::Now() < end) {
      changed_.WaitWithTimeout(mu_, absl::Milliseconds(200));
    }
    return failure_;
  }
  ExchangeStats Stats() {
    ExchangeStats stats;
    OnStrand([&] { stats = client_->stats(); });
    return stats;
  }
  // Until `done` holds, asked on the strand; false after the limit.
  bool Until(std::function<bool()> done) {
    const absl::Time end = absl::Now() + kLimit;
    bool held = false;
    while (!held && absl::Now() < end) {
      OnStrand([&] { held = done(); });
      if (!held) {
        MutexLock lock(mu_);
        changed_.WaitWithTimeout(mu_, absl::Milliseconds(5));
      }
    }
    return held;
  }

  const training::FlatLayout layout_ = FiveChunks();
  std::string folder_;
  Route route_;
  std::vector<std::unique_ptr<FakeShard>> shards_;
  std::vector<std::unique_ptr<services::Server>> servers_;
  ExchangeClientOptions options_;  // what MakeClient does not set
  services::StrandLoop strand_;
  std::thread thread_;
  BufferPool gradients_{layout_.total_floats()};
  std::unique_ptr<ExchangeClient> client_;
  Mutex mu_;
  CondVar changed_;
  std::vector<CompleteWeights> weights_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  int failures_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace capstan::exchange

#endif  // CAPSTAN_EXCHANGE_TRANSPORT_TEST_EXCHANGE_H_
