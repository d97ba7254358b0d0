// One step's exchange as a task sees it: gradients of one lane out and weights of the next version
// in, with one worker and one shard, over a Unix socket inside one process.
//
// The time includes checksums and messages of the task, the shard's checks, sum, update and
// checksums, the transfer in both directions, the check, and the one copy into the task's buffer.
// It excludes the gradient. Bytes per second count both directions.
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "exchange/transport/exchange_stream.h"
#include "exchange/wire/byte_buffer.h"
#include "exchange/wire/frame_codec.h"
#include "grpcpp/channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "param_store/exchange_service.h"
#include "param_store/param_store.h"
#include "services/channel/channel.h"
#include "services/check/check.h"
#include "services/files/files.h"
#include "services/logging/log.h"
#include "services/server/server.h"
#include "services/tuning/tuning.h"
#include "training/codec/crc32c.h"
#include "training/spec/resolve.h"

namespace capstan::param_store {
namespace {

namespace wire = exchange::wire;

job::v1::ResolvedSpec MakeSpec(const std::string& model, const std::string& folder) {
  job::v1::JobSpec s;
  s.set_version(1);
  s.set_name("bench");
  s.mutable_resources()->set_num_workers(1);
  s.mutable_resources()->set_num_shards(1);
  s.mutable_resources()->set_lanes(1);
  s.mutable_model()->set_name(model);
  s.mutable_data()->set_format("synthetic_digits");
  s.mutable_kvstore()->set_type("dist_sync");
  s.mutable_training()->set_max_steps(100000000);
  s.mutable_training()->set_epochs(1000000);
  s.mutable_training()->set_global_batch_size(60000);
  s.mutable_training()->mutable_optimizer()->set_name("sgd");
  s.mutable_training()->mutable_optimizer()->set_learning_rate(1e-6);
  common::v1::DatasetInfo info;
  info.set_train_samples(60000);
  info.set_test_samples(0);
  info.set_channels(1);
  info.set_height(28);
  info.set_width(28);
  info.set_num_classes(10);
  auto spec = training::spec::Resolve(s, info, {.job_id = "bench-1", .storage_path = folder});
  if (!spec.ok()) std::fprintf(stderr, "%s\n", spec.status().ToString().c_str());
  CAPSTAN_CHECK(spec.ok());
  return *std::move(spec);
}

void BM_Exchange(benchmark::State& state, const std::string& model, bool shared_memory) {
  services::SetLogLevel(services::kError);
  const std::string folder = *services::MakePrivateDir("capstan-bench");
  const job::v1::ResolvedSpec spec = MakeSpec(model, folder);
  const training::FlatLayout layout = *training::spec::MakeLayout(spec);
  const std::string bytes = spec.SerializeAsString();

  ParamStore store({.shared_memory = shared_memory});
  ExchangeService service(store);
  services::ServerOptions options;
  options.listen = *services::ParseEndpoint(absl::StrCat("unix:", folder, "/s.sock"));
  options.max_receive_bytes = services::kExchangeMaxReceiveBytes;
  auto server =
      *services::Server::Start(options, {{v1::ParamStoreService::service_full_name(), &service}});
  server->AddDrainHook("streams", [&] { store.Shutdown(); });
  node::v1::ConnectResponse order;
  node::v1::StartLineage& start = *order.mutable_start_lineage();
  start.set_job_id("bench-1");
  start.set_resolved_spec(bytes);
  start.set_spec_digest(training::spec::Digest(bytes));
  start.mutable_view()->set_lineage(1);
  start.mutable_view()->set_generation(1);
  start.mutable_view()->add_lane_owners(0);
  start.mutable_view()->add_workers();
  start.mutable_view()->add_shards()->set_chunk_count(layout.chunk_count());
  store.OnMessage(order);

  services::ChannelOptions dial;
  dial.peer = options.listen;
  dial.retry = false;
  dial.max_receive_bytes = services::kExchangeMaxReceiveBytes;
  grpc::GenericStub stub(*services::MakeChannel(dial));
  services::StrandLoop strand;  // this thread runs it
  exchange::LiveStreams live;
  std::shared_ptr<exchange::ExchangeStream> stream;

  const std::vector<float> gradient(layout.total_floats(), 1e-3f);
  std::vector<float> weights(layout.total_floats());
  const auto frames = training::FramesOf(layout, {0, layout.chunk_count()});
  int64_t step = -1;  // the last complete step
  int32_t missing = layout.chunk_count();
  const auto push = [&] {
    for (const training::ChunkRun& run : frames) {
      v1::Frame frame;
      frame.set_step(step);
      frame.set_lane_count(1);
      frame.set_first_chunk(run.first_chunk);
      const training::FlatRange range = training::RangeOf(layout, run);
      const char* const base = reinterpret_cast<const char*>(gradient.data());
      for (int32_t c = run.first_chunk; c < run.end(); ++c) {
        const training::FlatRange chunk = layout.ChunkRange(c);
        frame.add_crc32c(training::Crc32c(base + chunk.offset * 4, chunk.size * 4));
      }
      const wire::OutgoingBytes payload{
          absl::string_view(base + range.offset * 4, range.size * 4),
          std::shared_ptr<const void>(gradient.data(), [](const void*) {})};
      stream->Send(wire::MakeByteBuffer(wire::EncodePrefix(frame, payload.bytes.size(), 1),
                                        absl::MakeConstSpan(&payload, 1)));
    }
    v1::ExchangeRequest request;
    v1::StepSeal& seal = *request.mutable_seal();
    seal.set_step(step);
    seal.set_lane_count(1);
    seal.set_samples(60000);
    stream->Send(wire::MakeByteBuffer(request, 1));
  };
  const auto on_message = [&](wire::Pieces message) {
    auto decoded = *wire::DecodeResponse(message);
    if (!decoded.message.has_weights()) return;
    wire::PayloadReader reader(decoded.payload);
    std::vector<absl::string_view> chunk;
    for (int i = 0; i < decoded.message.weights().crc32c_size(); ++i) {
      const auto range = layout.ChunkRange(decoded.message.weights().first_chunk() + i);
      CAPSTAN_CHECK(reader.Next(range.size * 4, &chunk));
      CAPSTAN_CHECK(wire::Crc32cOf(chunk) == decoded.message.weights().crc32c(i));
      wire::CopyFloats(chunk, absl::MakeSpan(weights.data() + range.offset, range.size));
      --missing;
    }
    if (missing > 0) return;
    missing = layout.chunk_count();
    ++step;
    if (!state.KeepRunning()) {
      stream->Cancel();
      return;
    }
    push();
  };
  strand.Post([&] {
    stream = exchange::ExchangeStream::Start(stub, strand, live,
                                             {on_message, [&](const grpc::Status& s) {
                                                if (s.error_code() != grpc::StatusCode::CANCELLED)
                                                  state.SkipWithError(s.error_message().c_str());
                                                strand.Stop();
                                              }});
    v1::ExchangeRequest request;
    v1::Hello& hello = *request.mutable_hello();
    hello.set_job_id("bench-1");
    hello.set_spec_digest(start.spec_digest());
    hello.set_lineage(1);
    hello.set_kind(v1::STREAM_KIND_DATA);
    hello.set_have_version(-1);
    hello.set_speaks(wire::kSpeaks);
    stream->Send(wire::MakeByteBuffer(request, 1));
  });
  const wire::CopyCount before = wire::GetCopyCount();
  strand.Run();
  const wire::CopyCount after = wire::GetCopyCount();
  live.WaitForNone();
  stream.reset();
  server->Shutdown();
  state.SetBytesProcessed(2 * step * layout.total_floats() * 4);
  // Each byte is counted when it is put into a message and when it is read from one.
  state.counters["copies_per_byte_and_side"] =
      static_cast<double>(after.copied_bytes - before.copied_bytes) /
      static_cast<double>(after.exchanged_bytes - before.exchanged_bytes);
  CAPSTAN_CHECK(services::RemoveTree("/tmp", folder).ok());
}

BENCHMARK_CAPTURE(BM_Exchange, lenet_240KB_grpc, std::string("lenet"), false)->UseRealTime();
BENCHMARK_CAPTURE(BM_Exchange, lenet_240KB_shared, std::string("lenet"), true)->UseRealTime();
BENCHMARK_CAPTURE(BM_Exchange, lenet_d2l_516KB_grpc, std::string("lenet_d2l"), false)
    ->UseRealTime();
BENCHMARK_CAPTURE(BM_Exchange, lenet_d2l_516KB_shared, std::string("lenet_d2l"), true)
    ->UseRealTime();
BENCHMARK_CAPTURE(BM_Exchange, resnet18_43MB_grpc, std::string("resnet18_v1"), false)
    ->UseRealTime();
BENCHMARK_CAPTURE(BM_Exchange, resnet18_43MB_shared, std::string("resnet18_v1"), true)
    ->UseRealTime();

}  // namespace
}  // namespace capstan::param_store

int main(int argc, char** argv) {
  capstan::services::TuneProcess();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
