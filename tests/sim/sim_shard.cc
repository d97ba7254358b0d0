#include "tests/sim/sim_shard.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "capstan/param_store/v1/param_store.pb.h"
#include "exchange/shard/shard_messages.h"
#include "exchange/wire/frame_codec.h"
#include "param_store/weight_messages.h"
#include "services/check/check.h"
#include "services/check/mutant.h"
#include "training/chunks/placement.h"
#include "training/codec/manifest.h"
#include "training/codec/sha256.h"
#include "training/init/init.h"
#include "training/optim/trust_rule.h"
#include "training/spec/lead_messages.h"
#include "training/spec/resolve.h"
#include "training/spec/validate.h"

namespace capstan::sim {
namespace {

namespace core = exchange::shard;
namespace v1 = param_store::v1;

template <class View>
std::vector<int32_t> RanksOf(const View& view) {
  std::vector<int32_t> ranks;
  for (const auto& worker : view.workers()) ranks.push_back(worker.rank());
  return ranks;
}

}  // namespace

SimShard::~SimShard() {
  if (lead_ != nullptr) lead_->Close(0);
  for (const auto& entry : streams_) entry.second.connection->Close(1);
}

void SimShard::OnStartLineage(const node::v1::StartLineage& message) {
  const auto& route = message.view().shards(message.shard());
  if (core_ != nullptr && core_->plan().spec_digest == message.spec_digest() &&
      core_->plan().shard != message.shard() && message.view().lineage() > core_->lineage()) {
    OnEndJob();  // it has another number, like JobFor in param_store/param_store.cc
  }
  lead_address_ = message.view().shards(0).address();
  if (core_ == nullptr) {
    auto spec = training::spec::ParseResolved(message.resolved_spec(), message.spec_digest());
    CAPSTAN_CHECK(spec.ok());
    spec_ = *std::move(spec);
    optimizer_ = *training::spec::MakeOptimizer(spec_);
    const training::FlatLayout layout = *training::spec::MakeLayout(spec_);
    core::ShardPlan plan{.job_id = message.job_id(),
                         .spec_digest = message.spec_digest(),
                         .shard = message.shard(),
                         .total_steps = spec_.total_steps(),
                         .evaluate_every_steps = spec_.evaluate_every_steps(),
                         .layout = layout,
                         .samples = *training::spec::MakeSamplePlan(spec_),
                         .evaluation = *training::spec::MakeEvalPlan(spec_),
                         .schedule = *training::spec::MakeSchedule(spec_),
                         .dynamic_loss_scale = training::spec::DynamicLossScale(spec_),
                         .clip_norm = training::spec::ClipNorm(spec_),
                         .pieces = training::PiecesFor(*optimizer_, layout),
                         .asynchronous = training::spec::IsAsynchronous(spec_.spec()),
                         .max_staleness = training::spec::MaxStaleness(spec_),
                         .gradient_format = training::spec::GradientFormatOf(spec_),
                         .replicas = training::spec::WorkersUpdate(spec_.spec()),
                         .checkpoint_every_steps = spec_.checkpoint_every_steps()};
    core_ = std::make_unique<core::ShardCore>(std::move(plan));
    storage_ = std::make_unique<param_store::ShardStorage>(
        core_->plan().layout, *optimizer_,
        param_store::ShardStorage::Options{.format = core_->plan().gradient_format,
                                           .replicas = core_->plan().replicas});
  } else if (core_->plan().spec_digest != message.spec_digest() ||
             core_->plan().shard != message.shard()) {
    return;  // likewise
  }
  core::StartLineage event;
  event.lineage = message.view().lineage();
  event.generation = message.view().generation();
  event.num_shards = message.view().shards_size();
  event.run = {route.first_chunk(), route.chunk_count()};
  event.workers = RanksOf(message.view());
  event.lane_owners.assign(message.view().lane_owners().begin(),
                           message.view().lane_owners().end());
  event.base_manifest = message.base_manifest();
  event.orders = *training::spec::ReadOrders(message.orders());
  Do(event);
}

void SimShard::OnViewChange(const node::v1::ViewChange& message) {
  if (core_ == nullptr) return;
  core::ViewChange event;
  event.lineage = message.view().lineage();
  event.generation = message.view().generation();
  event.workers = RanksOf(message.view());
  event.lane_owners.assign(message.view().lane_owners().begin(),
                           message.view().lane_owners().end());
  Do(event);
}

void SimShard::OnGiveOrders(const node::v1::GiveOrders& message) {
  if (core_ == nullptr) return;
  Do(core::GiveOrders{message.lineage(), *training::spec::ReadOrders(message.orders())});
}

void SimShard::OnFilesTaken(const node::v1::FilesTaken& message) {
  if (core_ != nullptr) Do(core::FilesTaken{message.lineage(), message.step()});
}

void SimShard::OnEndJob() {
  if (core_ == nullptr) return;
  Do(core::EndJob{});
  storage_.reset();
  core_.reset();
}

int64_t SimShard::OpenStream() {
  streams_[next_stream_] = {};
  return next_stream_++;
}

void SimShard::SetConnection(int64_t stream, std::shared_ptr<Connection> connection) {
  streams_.at(stream).connection = std::move(connection);
}

void SimShard::CloseStream(int64_t stream) {
  if (streams_.erase(stream) > 0 && core_ != nullptr) Do(core::StreamClosed{stream});
}

void SimShard::OnBytes(int64_t id, const std::string& bytes) {
  const auto stream = streams_.find(id);
  if (stream == streams_.end()) return;
  if (core_ == nullptr) {  // no such job here, so the task tries again
    const auto connection = std::move(stream->second.connection);
    streams_.erase(stream);
    return connection->Close(1, absl::UnavailableError("no such job here"));
  }
  // Cut at a random place, because pieces may begin and end anywhere.
  const size_t cut = static_cast<size_t>(random_.Below(static_cast<int64_t>(bytes.size()) + 1));
  const std::vector<absl::string_view> pieces = {absl::string_view(bytes).substr(0, cut),
                                                 absl::string_view(bytes).substr(cut)};
  auto decoded = exchange::wire::DecodeRequest(pieces);
  // The check covers the lineage, so it is a second fence. Both mutants must switch it off.
  const bool checked = !CAPSTAN_MUTANT("no_header_check") && !CAPSTAN_MUTANT("no_fence");
  if (!decoded.ok() || (checked && !decoded->Intact(core_->lineage()))) return EndStream(id);
  const v1::ExchangeRequest& message = decoded->message;
  switch (message.message_case()) {
    case v1::ExchangeRequest::kHello:
      if (stream->second.greeted) return;
      stream->second.greeted = true;
      return Do(core::StreamOpened{id, message.hello().kind(), message.hello().spec_digest(),
                                   message.hello().lineage(), message.hello().index(),
                                   message.hello().have_version()});
    case v1::ExchangeRequest::kSeal: {
      const auto& seal = message.seal();
      return Do(core::SealArrived{id,
                                  seal.step(),
                                  {seal.first_lane(), seal.lane_count()},
                                  {seal.samples(), seal.loss_sum(), seal.correct()},
                                  seal.staleness()});
    }
    case v1::ExchangeRequest::kSkip:
      return Do(core::SkipArrived{id, message.skip().step(), message.skip().lane()});
    case v1::ExchangeRequest::kWanted:
      return Do(core::WeightsAskedFor{id, message.wanted().step(), message.wanted().lane()});
    case v1::ExchangeRequest::kPart:
      return Do(core::ReadPart(id, message.part()));
    case v1::ExchangeRequest::kShown:
      return Do(core::ShownArrived{id, message.shown().version()});
    case v1::ExchangeRequest::kEvaluation: {
      const auto& part = message.evaluation();
      return Do(core::EvaluationArrived{
          id, part.version(), part.block(), {part.samples(), part.loss_sum(), part.correct()}});
    }
    case v1::ExchangeRequest::kFrame: {
      const v1::Frame& frame = message.frame();
      core::FrameArrived event{id,
                               frame.step(),
                               {frame.first_lane(), frame.lane_count()},
                               frame.first_chunk(),
                               frame.crc32c_size(),
                               decoded->payload_bytes,
                               {},
                               next_payload_++};
      if (core_->CheckShape(event.first_chunk, event.chunk_count, event.payload_bytes).ok()) {
        const std::vector<uint32_t> crcs(frame.crc32c().begin(), frame.crc32c().end());
        event.intact = storage_->Verify(event.first_chunk, crcs, decoded->payload);
      }
      std::string& payload = payloads_[event.payload];
      for (const absl::string_view piece : decoded->payload)
        payload.append(piece.data(), piece.size());
      Do(event);
      payloads_.clear();
      return;
    }
    case v1::ExchangeRequest::MESSAGE_NOT_SET:
      CAPSTAN_CHECK(false);
  }
}

// Ends the stream as DATA_LOSS does. The other end opens a new one.
void SimShard::EndStream(int64_t id) {
  const auto stream = streams_.find(id);
  const auto connection = std::move(stream->second.connection);
  streams_.erase(stream);
  connection->Close(1, absl::DataLossError("a damaged message"));
  Do(core::StreamClosed{id});
}

std::optional<node::v1::ShardState> SimShard::State() const {
  if (core_ == nullptr || core_->lineage() == 0) return std::nullopt;
  return core_->State(queue_.now());
}

void SimShard::Do(const core::Event& event) {
  const core::Effects effects = core_->Step(event, queue_.now());
  ++in_steps_;  // an effect may cause another event
  for (const core::Effect& effect : effects) CarryOut(effect);
  // As ShardJob: whoever asks for sums later than in the step that makes them is a bug.
  if (--in_steps_ == 0 && storage_ != nullptr) storage_->ForgetSums();
  if (core_ == nullptr) return;
  const absl::Duration due = core_->NextDeadline();
  if (due < tick_at_) {
    tick_at_ = due;
    process_.At(due, [this, due] {
      if (tick_at_ == due) Tick();
    });
  }
}

void SimShard::Tick() {
  tick_at_ = absl::InfiniteDuration();
  if (core_ != nullptr) Do(core::Tick{});
}

void SimShard::OnLeadBytes(int64_t lineage, const std::string& bytes) {
  if (core_ == nullptr) return;
  const std::vector<absl::string_view> pieces = {bytes};
  const auto decoded = exchange::wire::DecodeResponse(pieces);
  const bool checked = !CAPSTAN_MUTANT("no_header_check");
  if (!decoded.ok() || (checked && !decoded->Intact(lineage))) {
    if (lead_ != nullptr) lead_->Break();
    return;
  }
  const v1::ExchangeResponse& message = decoded->message;
  if (message.has_hello()) Do(core::LeadOpened{lineage});
  if (message.has_decision()) Do(core::ReadDecision(lineage, message.decision()));
}

void SimShard::SendWeights(const core::SendWeights& send) {
  const auto stream = streams_.find(send.stream);
  if (stream == streams_.end()) return;
  stream->second.weights.clear();
  const param_store::VersionWeights* const weights = storage_->Find(send.version);
  CAPSTAN_CHECK(weights != nullptr);
  const training::FlatLayout& layout = core_->plan().layout;
  const int64_t max_payload =
      hooks_.small_frames ? 4 * layout.chunk_floats() : training::kDefaultMaxFramePayloadBytes;
  const auto frames = training::FramesOf(layout, storage_->run(), max_payload);
  for (const training::ChunkRun& run : frames) {
    const std::vector<param_store::WeightMessage> messages = param_store::MakeWeightMessages(
        send, *storage_, *weights, run, core_->lineage(), max_payload);
    for (const param_store::WeightMessage& message : messages) {
      std::string bytes = message.prefix;
      for (const exchange::wire::OutgoingBytes& part : message.payload) {
        bytes.append(part.bytes.data(), part.bytes.size());
      }
      const bool last = &run == &frames.back() && &message == &messages.back();
      stream->second.weights.push_back({std::move(bytes), send.version, last});
    }
  }
  WriteOn(send.stream);
}

// Like ServerStream: writes one message at a time.
void SimShard::WriteOn(int64_t id) {
  for (;;) {
    const auto stream = streams_.find(id);
    if (stream == streams_.end() || stream->second.writing || stream->second.weights.empty())
      return;
    const Weights next = std::move(stream->second.weights.front());
    stream->second.weights.pop_front();
    Connection& connection = *stream->second.connection;
    connection.Send(1, next.bytes);
    const auto taken = [this, id, version = next.version, last = next.last] {
      const auto found = streams_.find(id);
      if (found == streams_.end() || core_ == nullptr) return;
      found->second.writing = false;
      if (last) Do(core::WeightsTaken{id, version});
    };
    const absl::Duration free = connection.FreeAt(1);
    if (free <= queue_.now()) {
      taken();
      continue;
    }
    stream->second.writing = true;
    process_.At(free, [this, id, taken] {
      taken();
      WriteOn(id);
    });
    return;
  }
}

void SimShard::CarryOut(const core::Effect& effect) {
  const auto reply = [this](int64_t stream, v1::ExchangeResponse message) {
    const auto found = streams_.find(stream);
    if (found == streams_.end()) return;
    exchange::wire::SetCheck(&message, core_->lineage());
    found->second.connection->Send(1, message.SerializeAsString(), message.has_hello());
  };
  if (const auto* e = std::get_if<core::LoadBase>(&effect)) {
    process_.After(random_.Between(absl::Milliseconds(1), absl::Milliseconds(20)),
                   [this, load = *e] { LoadBase(load); });
  } else if (const auto* e = std::get_if<core::SendHelloReply>(&effect)) {
    v1::ExchangeResponse message;
    message.mutable_hello()->set_lineage(e->lineage);
    message.mutable_hello()->set_version(e->version);
    reply(e->stream, message);
  } else if (const auto* e = std::get_if<core::CloseStream>(&effect)) {
    const auto found = streams_.find(e->stream);
    if (found == streams_.end()) return;
    const auto connection = std::move(found->second.connection);
    streams_.erase(found);
    connection->Close(1, e->status);
  } else if (const auto* e = std::get_if<core::SendAck>(&effect)) {
    v1::ExchangeResponse message;
    v1::FrameAck& ack = *message.mutable_ack();
    ack.set_step(e->step);
    ack.set_first_lane(e->block.first_lane);
    ack.set_lane_count(e->block.lane_count);
    ack.set_first_chunk(e->first_chunk);
    for (const v1::FrameOutcome outcome : e->outcomes) {
      ack.add_outcomes(outcome == v1::FRAME_OUTCOME_CORRUPT ? v1::FRAME_OUTCOME_CORRUPT
                                                            : v1::FRAME_OUTCOME_COVERED);
    }
    reply(e->stream, message);
  } else if (const auto* e = std::get_if<core::FoldFrame>(&effect)) {
    const std::vector<absl::string_view> pieces = {payloads_.at(e->payload)};
    storage_->Fold(*e, pieces);
  } else if (const auto* e = std::get_if<core::ApplyFrame>(&effect)) {
    const std::vector<absl::string_view> pieces = {payloads_.at(e->payload)};
    storage_->ApplyFrame(*e, pieces);
  } else if (const auto* e = std::get_if<core::CheckRoots>(&effect)) {
    process_.After(absl::Microseconds(random_.Below(500)), [this, check = *e] {
      if (core_ == nullptr || core_->lineage() != check.lineage) return;
      Do(core::RootsChecked{check.lineage, check.step, storage_->CheckRoots(check)});
    });
  } else if (const auto* e = std::get_if<core::ApplyStep>(&effect)) {
    hooks_.decided(core_->lineage(), e->decision);
    storage_->Apply(e->decision, e->held_version);
    hooks_.published(core_->lineage(), e->decision.step + 1, storage_->current().floats->span(),
                     training::RangeOf(core_->plan().layout, storage_->run()).offset);
  } else if (const auto* e = std::get_if<core::SendWeights>(&effect)) {
    SendWeights(*e);
  } else if (const auto* e = std::get_if<core::DropWeights>(&effect)) {
    const auto found = streams_.find(e->stream);
    if (found != streams_.end()) found->second.weights.clear();
  } else if (const auto* e = std::get_if<core::RetireVersion>(&effect)) {
    storage_->Retire(e->version);
  } else if (const auto* e = std::get_if<core::ConnectLead>(&effect)) {
    if (lead_ != nullptr) lead_->Close(0);
    const int64_t lineage = e->lineage;
    lead_ = hooks_.connect(
        lead_address_, [this, lineage](const std::string& bytes) { OnLeadBytes(lineage, bytes); },
        [this, lineage] {
          if (core_ != nullptr) Do(core::LeadClosed{lineage, absl::UnavailableError("broken")});
        });
    v1::ExchangeRequest message;
    v1::Hello& hello = *message.mutable_hello();
    hello.set_job_id(core_->plan().job_id);
    hello.set_spec_digest(core_->plan().spec_digest);
    hello.set_lineage(lineage);
    hello.set_kind(v1::STREAM_KIND_SHARD);
    hello.set_index(core_->plan().shard);
    hello.set_have_version(e->have_version);
    hello.set_speaks(exchange::wire::kSpeaks);
    exchange::wire::SetCheck(&message, lineage);
    lead_->Send(0, message.SerializeAsString(), /*in_order=*/true);
  } else if (std::holds_alternative<core::DropLead>(effect)) {
    if (lead_ != nullptr) lead_->Close(0);
    lead_.reset();
  } else if (const auto* e = std::get_if<core::SendPart>(&effect)) {
    v1::ExchangeRequest message;
    *message.mutable_part() = core::PartMessage(*e, core_->plan().shard);
    exchange::wire::SetCheck(&message, core_->lineage());
    if (lead_ != nullptr) lead_->Send(0, message.SerializeAsString());
  } else if (const auto* e = std::get_if<core::SendShown>(&effect)) {
    v1::ExchangeRequest message;
    message.mutable_shown()->set_version(e->version);
    exchange::wire::SetCheck(&message, core_->lineage());
    if (lead_ != nullptr) lead_->Send(0, message.SerializeAsString());
  } else if (const auto* e = std::get_if<core::SendDecision>(&effect)) {
    v1::ExchangeResponse message;
    *message.mutable_decision() = core::DecisionMessage(e->decision, e->held);
    reply(e->stream, message);
  } else if (const auto* e = std::get_if<core::WriteFiles>(&effect)) {
    WriteFiles(*e);
  } else if (std::holds_alternative<core::StateChanged>(effect)) {
    hooks_.changed();
  }
}

// ---- Files: a header of four numbers, weights of the shard's chunks, their state, their marks ----

void SimShard::WriteFiles(const core::WriteFiles& write) {
  const training::ChunkRun run = storage_->run();
  const int64_t header[4] = {write.lineage, write.version, run.first_chunk, run.chunk_count};
  std::string bytes(reinterpret_cast<const char*>(header), sizeof(header));
  const auto floats = storage_->current().floats->span();
  bytes.append(reinterpret_cast<const char*>(floats.data()), 4 * floats.size());
  const std::vector<float> state = storage_->Snapshot().state;
  bytes.append(reinterpret_cast<const char*>(state.data()), 4 * state.size());
  bytes.append(reinterpret_cast<const char*>(write.marks.data()), 8 * write.marks.size());
  const std::string name = absl::StrCat("shard-", core_->plan().shard, ".safetensors");
  const int64_t named = CAPSTAN_MUTANT("file_name_without_lineage") ? 1 : write.lineage;
  const std::string folder = absl::StrCat(spec_.storage_path(), "/", named, "-", write.version);
  const std::string path = absl::StrCat(folder, "/", name);
  const std::string temporary = absl::StrCat(folder, "/.", name, ".", host_, ".", ++temporaries_);
  core::FilesWritten done{write.lineage, write.version, {}, absl::OkStatus()};
  common::v1::FileInfo& info = done.files.emplace_back();
  info.set_name(name);
  info.set_size_bytes(static_cast<int64_t>(bytes.size()));
  training::Sha256 sha256;
  sha256.Update(bytes);
  const auto digest = sha256.Finish();
  info.set_sha256(std::string(digest.begin(), digest.end()));
  const auto later = [this] {
    return random_.Between(absl::Milliseconds(1), absl::Milliseconds(25));
  };
  process_.After(later(), [this, done, bytes, folder, path, temporary, later]() mutable {
    done.error = disk_.Write(host_, temporary, bytes);
    process_.After(later(), [this, done, folder, path, temporary]() mutable {
      if (done.error.ok() && !CAPSTAN_MUTANT("no_fsync")) {
        const absl::Status synced = disk_.Sync(temporary);
        if (!CAPSTAN_MUTANT("sync_error_ignored")) done.error = synced;
      }
      if (done.error.ok()) done.error = disk_.Rename(host_, temporary, path);
      if (done.error.ok() && !CAPSTAN_MUTANT("no_fsync")) disk_.SyncFolder(folder);
      if (!done.error.ok()) {
        disk_.Remove(temporary);
        done.files.clear();
      }
      if (core_ != nullptr) Do(done);
    });
  });
}

void SimShard::LoadBase(const core::LoadBase& load) {
  if (core_ == nullptr || core_->lineage() != load.lineage) return;
  core::BaseLoaded loaded;
  loaded.lineage = load.lineage;
  std::vector<float> state;
  const auto weights = ReadBase(load, &loaded, &state);
  if (weights.ok()) {
    storage_->Begin(load.run, loaded.version, *weights, std::move(state));
    hooks_.published(load.lineage, loaded.version, (*weights)->span(),
                     training::RangeOf(core_->plan().layout, load.run).offset);
  } else {
    loaded.reason = absl::IsNotFound(weights.status()) ? "DataMissing" : "CheckpointCorrupt";
    loaded.message = std::string(weights.status().message());
  }
  Do(loaded);
}

absl::StatusOr<std::shared_ptr<exchange::FloatBuffer>> SimShard::ReadBase(
    const core::LoadBase& load, core::BaseLoaded* loaded, std::vector<float>* state) {
  const training::FlatLayout& layout = core_->plan().layout;
  auto weights = param_store::ShardStorage::MakeBuffer(layout, load.run);
  const training::FlatRange range = training::RangeOf(layout, load.run);
  if (load.base_manifest.empty()) {
    training::InitRange(layout, training::spec::MakeInitOptions(spec_),
                        spec_.spec().training().seed(), range.offset, weights->span());
    return weights;
  }
  const int states = optimizer_->state_floats_per_weight();
  state->resize(static_cast<size_t>(states * range.size));
  const std::string path = load.base_manifest + "/manifest.json";
  const auto text = disk_.Read(path);
  if (!text.ok()) return text.status();
  const auto manifest = training::ParseManifest(path, *text);
  if (!manifest.ok()) return manifest.status();
  auto snapshot = training::spec::DecodeSnapshot(manifest->lead_snapshot);
  if (!snapshot.ok()) return snapshot.status();
  loaded->version = manifest->step;
  loaded->snapshot = *std::move(snapshot);
  std::set<int32_t> missing;
  for (int32_t chunk = load.run.first_chunk; chunk < load.run.end(); ++chunk) missing.insert(chunk);
  for (const training::ManifestFile& file : manifest->files) {
    if (!absl::StartsWith(file.name, "shard-")) continue;
    const auto bytes = disk_.Read(absl::StrCat(load.base_manifest, "/", file.name));
    if (!bytes.ok()) return bytes.status();
    training::Sha256 sha256;
    sha256.Update(*bytes);
    const auto digest = sha256.Finish();
    const std::string hex =
        absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), digest.size()});
    if (hex != file.sha256 && !CAPSTAN_MUTANT("no_checksum_on_restore"))
      return absl::DataLossError(absl::StrCat(file.name, ": sha256 differs"));
    int64_t header[4] = {};
    std::memcpy(header, bytes->data(), std::min(sizeof(header), bytes->size()));
    const training::ChunkRun run{static_cast<int32_t>(header[2]), static_cast<int32_t>(header[3])};
    int64_t offset = sizeof(header);
    int64_t state_offset = offset + 4 * training::RangeOf(layout, run).size;
    for (int64_t chunk = header[2]; chunk < header[2] + header[3]; ++chunk) {
      const training::FlatRange from = layout.ChunkRange(static_cast<int32_t>(chunk));
      if (offset + 4 * from.size > static_cast<int64_t>(bytes->size()))
        break;  // only with a mutant
      if (missing.erase(static_cast<int32_t>(chunk)) > 0) {
        const int64_t at = from.offset - range.offset;
        std::memcpy(weights->data() + at, bytes->data() + offset, 4 * from.size);
        if (states > 0) {
          std::memcpy(state->data() + states * at, bytes->data() + state_offset,
                      4 * states * from.size);
        }
      }
      offset += 4 * from.size;
      state_offset += 4 * states * from.size;
    }
    if (core_->plan().asynchronous) ReadMarks(load, header, *bytes, state_offset, loaded);
  }
  if (!missing.empty()) return absl::DataLossError(path + ": no file has all chunks");
  return weights;
}

// The marks of the file's chunks begin at `offset`.
void SimShard::ReadMarks(const core::LoadBase& load, const int64_t* header,
                         const std::string& bytes, int64_t offset, core::BaseLoaded* loaded) {
  const int64_t each = core::LaneMarks::SavedPerChunk(core_->plan().samples);
  loaded->marks.resize(load.run.chunk_count * each);
  for (int64_t chunk = header[2]; chunk < header[2] + header[3]; ++chunk, offset += 8 * each) {
    if (chunk < load.run.first_chunk || chunk >= load.run.end()) continue;
    if (offset + 8 * each > static_cast<int64_t>(bytes.size())) return;  // only with a mutant
    std::memcpy(loaded->marks.data() + (chunk - load.run.first_chunk) * each, bytes.data() + offset,
                8 * each);
  }
}

}  // namespace capstan::sim
