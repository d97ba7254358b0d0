#include "exchange/sender/core.h"

#include <algorithm>
#include <optional>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/check/check.h"
#include "services/check/mutant.h"
#include "training/codec/crc32c.h"

namespace capstan::exchange::sender {

using training::ChunkRun;
using training::FlatRange;
using training::LaneBlock;

namespace {

constexpr int kMaxCorruptFrames = 8;  // of one version on one stream; then the stream is cancelled
constexpr int64_t kFreeBuffers = 2;   // of weights, kept for the next versions

}  // namespace

absl::Status CheckRoute(const training::FlatLayout& layout, const Route& route) {
  int32_t next_chunk = 0;
  for (size_t i = 0; i < route.shards.size(); ++i) {
    const ShardAddress& shard = route.shards[i];
    if (shard.first_chunk != next_chunk || shard.chunk_count < 1 ||
        shard.chunk_count > layout.chunk_count() - next_chunk) {
      return absl::InvalidArgumentError(absl::StrCat("route of lineage ", route.lineage, ": shard ",
                                                     i, " has chunks [", shard.first_chunk, ",+",
                                                     shard.chunk_count, "), want them from ",
                                                     next_chunk, " on, of ", layout.chunk_count()));
    }
    next_chunk += shard.chunk_count;
  }
  if (next_chunk == layout.chunk_count()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("route of lineage ", route.lineage, ": ",
                                                 next_chunk, " chunks, want ",
                                                 layout.chunk_count()));
}

Core::Core(const training::FlatLayout& layout, CoreOptions options)
    : layout_(layout),
      options_(std::move(options)),
      gradients_(layout, options_.gradient_format),
      pool_(layout.total_floats(), kFreeBuffers),
      assembly_(layout, pool_),
      latest_(layout, pool_) {
  if (options_.optimizer != nullptr) replica_.emplace(layout, options_.optimizer);
}

Effects Core::Step(const Event& event, absl::Duration now) {
  CAPSTAN_CHECK(now >= now_);
  now_ = now;
  Effects out;
  std::visit([this, &out](const auto& e) { On(e, out); }, event);
  return out;
}

absl::Duration Core::NextDeadline() const {
  absl::Duration next = absl::InfiniteDuration();
  for (const Peer& peer : peers_) {
    if (peer.state == State::kOpening || peer.state == State::kBackingOff) {
      next = std::min(next, peer.due);
    }
  }
  return next;
}

// ---- Streams ----

void Core::On(const RouteGiven& e, Effects& out) {
  if (e.route.lineage == route_.lineage) return;
  CAPSTAN_CHECK(CheckRoute(layout_, e.route).ok());
  for (const Peer& peer : peers_) {
    if (peer.stream != 0) out.emplace_back(DropStream{peer.stream});
  }
  if (!CAPSTAN_MUTANT("retained_survives_lineage")) retained_.clear();
  seals_.clear();
  evaluations_.clear();
  stopped_ = false;
  route_ = e.route;
  if (!CAPSTAN_MUTANT("weights_survive_the_route")) {
    assembly_.Reset(route_.lineage);
    std::vector<ChunkRun> runs;
    for (const ShardAddress& shard : route_.shards) {
      runs.push_back({shard.first_chunk, shard.chunk_count});
    }
    latest_.Reset(route_.lineage, runs);
    if (replica_.has_value()) replica_->Reset();
  }
  peers_.clear();
  const auto add = [this](int32_t shard, v1::StreamKind kind) -> Peer& {
    Peer peer;
    peer.shard = shard;
    peer.kind = kind;
    peer.address = route_.shards[shard];
    peer.backoff = options_.min_backoff;
    return peers_.emplace_back(std::move(peer));
  };
  const auto shards = static_cast<int32_t>(route_.shards.size());
  for (int32_t shard = 0; shard < shards; ++shard) {
    Peer& peer = add(shard, v1::STREAM_KIND_DATA);
    peer.run = {peer.address.first_chunk, peer.address.chunk_count};
    peer.frames = gradients_.FramesOf(peer.run, options_.max_payload_bytes);
  }
  if (shards > 1) add(CAPSTAN_MUTANT("last_shard_leads") ? shards - 1 : 0, v1::STREAM_KIND_CONTROL);
  for (Peer& peer : peers_) Open(peer, out);
}

void Core::Enter(Peer& peer, State state) {
  peer.state = state;
  peer.since = now_;
}

void Core::Open(Peer& peer, Effects& out) {
  peer.stream = ++last_stream_;
  peer.cause = absl::OkStatus();
  peer.corrupt_frames = 0;
  if (options_.asynchronous && peer.kind == v1::STREAM_KIND_DATA) latest_.NewStream(peer.shard);
  peer.due = now_ + options_.hello_timeout;
  Enter(peer, State::kOpening);
  out.emplace_back(OpenStream{peer.stream, peer.shard, peer.kind});
  v1::ExchangeRequest request;
  v1::Hello* hello = request.mutable_hello();
  hello->set_job_id(options_.job_id);
  hello->set_spec_digest(options_.spec_digest);
  hello->set_lineage(route_.lineage);
  hello->set_kind(peer.kind);
  hello->set_index(options_.rank);
  hello->set_have_version(HaveVersion(peer) + (CAPSTAN_MUTANT("have_version_ahead") ? 1 : 0));
  hello->set_speaks(wire::kSpeaks);
  if (peer.damaged_version >= 0) hello->set_damaged_version(peer.damaged_version);
  peer.damaged_version = -1;
  Send(peer, std::move(request), out);
}

// Ends the stream for a reason of ours. StreamEnded follows.
void Core::Cancel(Peer& peer, absl::Status cause, Effects& out) {
  peer.cause = std::move(cause);
  Enter(peer, State::kEnding);
  out.emplace_back(CancelStream{peer.stream});
}

void Core::On(const StreamEnded& e, Effects& out) {
  Peer* const peer = Find(e.stream);
  if (peer == nullptr) return;
  absl::Status status = peer->state == State::kEnding ? peer->cause : e.status;
  if (status.ok()) status = absl::UnavailableError("the shard ended the stream");
  peer->stream = 0;
  peer->last_error = status;
  ++stats_.retries;
  out.emplace_back(NoteStreamEnd{peer->shard, peer->address.node, peer->kind, status, stopped_});
  bool old_view = status.code() == absl::StatusCode::kFailedPrecondition ||
                  status.code() == absl::StatusCode::kOutOfRange;
  const bool bug = status.code() == absl::StatusCode::kInvalidArgument ||
                   status.code() == absl::StatusCode::kUnimplemented ||
                   (old_view && CAPSTAN_MUTANT("an_old_view_fails"));
  if (CAPSTAN_MUTANT("every_end_waits_for_a_view")) old_view = true;
  if (!old_view && !bug) {
    peer->due =
        CAPSTAN_MUTANT("backs_off_for_ever") ? absl::InfiniteDuration() : now_ + peer->backoff;
    peer->backoff = std::min(2 * peer->backoff, options_.max_backoff);
    return Enter(*peer, State::kBackingOff);
  }
  Enter(*peer, State::kWaitsForView);
  if (!bug || std::exchange(failed_, true)) return;
  out.emplace_back(
      Fail{absl::Status(status.code(), absl::StrCat(Name(*peer), ": ", status.message()))});
}

void Core::On(const Tick&, Effects& out) {
  for (Peer& peer : peers_) {
    if (peer.due > now_) continue;
    if (peer.state == State::kBackingOff) {
      Open(peer, out);
    } else if (peer.state == State::kOpening) {
      Cancel(peer, absl::DeadlineExceededError("no HelloReply"), out);
    }
  }
}

// ---- Messages ----

void Core::On(const MessageArrived& e, Effects& out) {
  Peer* const peer = Find(e.stream);
  if (peer == nullptr || peer->state == State::kEnding) return;
  stats_.received_wire_bytes += static_cast<int64_t>(wire::TotalBytes(e.bytes));
  auto decoded = wire::DecodeResponse(e.bytes);
  if (!decoded.ok()) {
    return Cancel(*peer, absl::DataLossError(decoded.status().message()), out);
  }
  const v1::ExchangeResponse& response = decoded->message;
  if (response.has_hello() && response.hello().speaks() != wire::kSpeaks && !response.has_check()) {
    return Cancel(*peer,
                  absl::UnimplementedError(
                      absl::StrCat("the shard speaks exchange ", response.hello().speaks(),
                                   ", this worker speaks exchange ", wire::kSpeaks,
                                   ": run one version of Capstan on workers and shards")),
                  out);
  }
  const bool checked = !CAPSTAN_MUTANT("no_header_check") && !CAPSTAN_MUTANT("no_fence");
  if (checked && !decoded->Intact(route_.lineage)) {
    ++stats_.corrupt_frames;
    return Cancel(*peer, absl::DataLossError("a message whose check differs"), out);
  }
  if (response.has_hello()) return OnHello(*peer, response.hello(), out);
  if (peer->state != State::kOpen) {
    return Cancel(*peer, absl::DataLossError("the first answer is no HelloReply"), out);
  }
  if (response.has_ack()) return OnAck(*peer, response.ack(), out);
  if (response.has_weights()) {
    OnWeights(*peer, response.weights(), decoded->payload, decoded->payload_bytes, out);
  }
}

void Core::OnHello(Peer& peer, const v1::HelloReply& reply, Effects& out) {
  if (reply.lineage() != route_.lineage && !CAPSTAN_MUTANT("no_fence")) {
    return Cancel(peer,
                  absl::UnavailableError(absl::StrCat("HelloReply of lineage ", reply.lineage(),
                                                      ", want ", route_.lineage)),
                  out);
  }
  Enter(peer, State::kOpen);
  peer.backoff = options_.min_backoff;
  Shown(peer, reply.version());
  for (const auto& retained : retained_) {
    if (!CAPSTAN_MUTANT("frames_not_sent_again")) SendFrames(peer, retained, out);
  }
  if (&peer != Lead()) return;
  for (const auto& entry : seals_) {
    if (!CAPSTAN_MUTANT("sealed_once")) Send(peer, entry.second, out);
  }
  for (const auto& entry : evaluations_) Send(peer, entry.second, out);
}

void Core::Shown(Peer& peer, int64_t version) {
  if (version <= peer.version) return;
  peer.version = version;
  peer.corrupt_frames = 0;
}

void Core::OnAck(Peer& peer, const v1::FrameAck& ack, Effects& out) {
  if (std::find(ack.outcomes().begin(), ack.outcomes().end(), v1::FRAME_OUTCOME_CORRUPT) ==
      ack.outcomes().end()) {
    return;  // covered or past: as good as stored
  }
  ++stats_.corrupt_frames;
  if (++peer.corrupt_frames > kMaxCorruptFrames) {
    return Cancel(peer,
                  absl::DataLossError(absl::StrCat("the shard found ", peer.corrupt_frames,
                                                   " frames corrupt in one step")),
                  out);
  }
  if (CAPSTAN_MUTANT("corrupt_not_sent_again")) return;
  const LaneBlock block{ack.first_lane(), ack.lane_count()};
  for (const auto& retained : retained_) {
    if (retained->step != ack.step() || retained->block != block) continue;
    for (const ChunkRun& frame : peer.frames) {
      if (frame.first_chunk != ack.first_chunk()) continue;
      if (gradients_.RangeOf(frame).end() > retained->ready_words) continue;
      ++stats_.retries;
      // A checksum that was computed wrong would be found wrong for ever.
      const int wrong = RenewSums(*retained, frame);
      if (wrong > 0) {
        out.emplace_back(NoteWrongSums{peer.shard, retained->step, frame.first_chunk, wrong});
      }
      out.emplace_back(SendFrame{peer.stream, retained, frame});
    }
  }
}

// ---- What is sent, and kept to be sent again ----

std::shared_ptr<RetainedBlock> Core::MakeRetained(int64_t step, const LaneBlock& block,
                                                  std::shared_ptr<const FloatBuffer> gradient) {
  auto made = std::make_shared<RetainedBlock>();
  made->step = step;
  made->block = block;
  made->gradient = std::move(gradient);
  made->crc32c.resize(layout_.chunk_count());
  made->summed.resize(layout_.chunk_count());
  return made;
}

void Core::On(const BlockReady& e, Effects& out) {
  CAPSTAN_CHECK(e.gradient != nullptr && e.gradient->size() == gradients_.total_words());
  if (!options_.asynchronous) ForgetBefore(e.step);
  auto it = std::find_if(retained_.begin(), retained_.end(), [&](const auto& r) {
    return r->step == e.step && r->block == e.block && r->gradient == e.gradient;
  });
  if (it == retained_.end()) {
    if (CAPSTAN_MUTANT("one_block_is_retained")) retained_.clear();
    it = retained_.insert(retained_.end(), MakeRetained(e.step, e.block, e.gradient));
  }
  const std::shared_ptr<RetainedBlock>& retained = *it;
  const int64_t before = retained->ready_words;
  CAPSTAN_CHECK(e.ready_words >= before);
  retained->ready_words =
      CAPSTAN_MUTANT("a_part_is_the_whole") ? gradients_.total_words() : e.ready_words;
  // Frame by frame over the shards, so that all of them have something to add up early.
  size_t longest = 0;
  for (const Peer& peer : peers_) longest = std::max(longest, peer.frames.size());
  for (size_t i = 0; i < longest; ++i) {
    for (const Peer& peer : peers_) {
      if (i >= peer.frames.size()) continue;
      const ChunkRun& frame = peer.frames[i];
      const int64_t end = gradients_.RangeOf(frame).end();
      if (end <= before || end > retained->ready_words) continue;
      if (peer.state == State::kOpen && Needs(peer, *retained)) {
        out.emplace_back(SendFrame{peer.stream, retained, frame});
      } else {
        KnowSums(*retained, frame);  // there is time for it now
      }
    }
  }
}

bool Core::Needs(const Peer& peer, const RetainedBlock& retained) const {
  if (options_.asynchronous) return !HasAnswered(peer, retained.step, retained.block.first_lane);
  return peer.version < retained.step + (CAPSTAN_MUTANT("shown_is_past") ? 0 : 1);
}

// A2: the shard has the lane's step in all its chunks, and the lead its seal, too.
bool Core::HasAnswered(const Peer& peer, int64_t step, int32_t lane) const {
  const std::vector<int64_t>& marks = latest_.said(peer.shard).marks;
  return lane < static_cast<int32_t>(marks.size()) && marks[lane] > step;
}

void Core::ForgetAnswered(int64_t version) {
  const auto over = [this](int64_t step, int32_t lane) {
    const auto answered = [&](const Peer& peer) { return HasAnswered(peer, step, lane); };
    if (CAPSTAN_MUTANT("one_answer_is_all"))
      return std::any_of(peers_.begin(), peers_.end(), answered);
    return std::all_of(peers_.begin(), peers_.end(), answered);
  };
  retained_.erase(
      std::remove_if(retained_.begin(), retained_.end(),
                     [&over](const auto& r) { return over(r->step, r->block.first_lane); }),
      retained_.end());
  for (auto it = seals_.begin(); it != seals_.end();) {
    const v1::StepSeal& seal = it->second.seal();
    it = over(seal.step(), seal.first_lane()) ? seals_.erase(it) : std::next(it);
  }
  for (auto it = evaluations_.begin(); it != evaluations_.end();) {
    it = it->second.evaluation().version() < version ? evaluations_.erase(it) : std::next(it);
  }
}

void Core::SendSkip(const Peer& peer, const RetainedBlock& retained, Effects& out) {
  if (peer.kind != v1::STREAM_KIND_DATA || peer.state != State::kOpen) return;
  v1::ExchangeRequest request;
  request.mutable_skip()->set_step(retained.step);
  request.mutable_skip()->set_lane(retained.block.first_lane);
  Send(peer, std::move(request), out);
}

void Core::SendFrames(Peer& peer, const std::shared_ptr<RetainedBlock>& retained, Effects& out) {
  if (!Needs(peer, *retained)) return;
  if (retained->gradient == nullptr) return SendSkip(peer, *retained, out);
  for (const ChunkRun& frame : peer.frames) {
    if (gradients_.RangeOf(frame).end() > retained->ready_words) return;
    out.emplace_back(SendFrame{peer.stream, retained, frame});
  }
}

Core::Frame Core::Encode(const SendFrame& send) {
  RetainedBlock& retained = *send.retained;
  KnowSums(retained, send.run);
  v1::Frame frame;
  frame.set_step(retained.step);
  frame.set_first_lane(retained.block.first_lane);
  frame.set_lane_count(retained.block.lane_count);
  frame.set_first_chunk(send.run.first_chunk);
  for (int32_t chunk = send.run.first_chunk; chunk < send.run.end(); ++chunk) {
    frame.add_crc32c(retained.crc32c[chunk]);
  }
  const FlatRange range = gradients_.RangeOf(send.run);
  const size_t size_bytes = sizeof(float) * range.size;
  Frame encoded;
  encoded.prefix = wire::EncodePrefix(frame, size_bytes, route_.lineage);
  encoded.payload = absl::string_view(
      reinterpret_cast<const char*>(retained.gradient->data() + range.offset), size_bytes);
  encoded.owner = retained.gradient;
  stats_.sent_wire_bytes += static_cast<int64_t>(encoded.prefix.size() + size_bytes);
  stats_.sent_payload_bytes +=
      static_cast<int64_t>(sizeof(float)) * training::RangeOf(layout_, send.run).size;
  return encoded;
}

uint32_t Core::SumOf(const RetainedBlock& retained, int32_t chunk) const {
  const FlatRange range = gradients_.ChunkRange(chunk);
  return training::Crc32c(retained.gradient->data() + range.offset, sizeof(float) * range.size);
}

void Core::KnowSums(RetainedBlock& retained, const ChunkRun& run) const {
  for (int32_t chunk = run.first_chunk; chunk < run.end(); ++chunk) {
    if (retained.summed[chunk]) continue;
    retained.crc32c[chunk] = SumOf(retained, chunk);
    retained.summed[chunk] = true;
  }
}

int Core::RenewSums(RetainedBlock& retained, const ChunkRun& run) const {
  int wrong = 0;
  for (int32_t chunk = run.first_chunk; chunk < run.end(); ++chunk) {
    const uint32_t sum = SumOf(retained, chunk);
    if (retained.summed[chunk] && sum != retained.crc32c[chunk]) ++wrong;
    retained.crc32c[chunk] = sum;
    retained.summed[chunk] = true;
  }
  return wrong;
}

void Core::On(const SealReady& e, Effects& out) {
  v1::ExchangeRequest request;
  v1::StepSeal* seal = request.mutable_seal();
  seal->set_step(e.step);
  seal->set_first_lane(e.block.first_lane);
  seal->set_lane_count(e.block.lane_count);
  seal->set_samples(e.sums.samples);
  seal->set_loss_sum(e.sums.loss_sum);
  seal->set_correct(e.sums.correct);
  seal->set_staleness(e.staleness);
  SendToLead(request, out);
  seals_[{e.block.first_lane, e.block.lane_count}] = std::move(request);
}

void Core::On(const SkipReady& e, Effects& out) {
  CAPSTAN_CHECK(options_.asynchronous);
  const std::shared_ptr<RetainedBlock>& skip =
      retained_.emplace_back(MakeRetained(e.step, {e.lane, 1}, nullptr));
  for (const Peer& peer : peers_) SendSkip(peer, *skip, out);
}

// K2: those shards whose weights are too old are asked. Repeated by the caller.
void Core::On(const WeightsWanted& e, Effects& out) {
  CAPSTAN_CHECK(options_.asynchronous);
  v1::ExchangeRequest request;
  request.mutable_wanted()->set_step(e.step);
  request.mutable_wanted()->set_lane(e.lane);
  const int64_t k = latest_.max_staleness();
  for (const Peer& peer : peers_) {
    if (peer.kind != v1::STREAM_KIND_DATA || peer.state != State::kOpen) continue;
    const LatestWeights::Said& said = latest_.said(peer.shard);
    if (!said.marks.empty() && (k < 0 || said.floor >= e.step - k)) continue;
    Send(peer, request, out);
  }
}

void Core::On(const EvaluationReady& e, Effects& out) {
  v1::ExchangeRequest request;
  v1::EvaluationPart* part = request.mutable_evaluation();
  part->set_version(e.version);
  part->set_block(static_cast<int32_t>(e.block));
  part->set_samples(e.sums.samples);
  part->set_correct(e.sums.correct);
  part->set_loss_sum(e.sums.loss_sum);
  SendToLead(request, out);
  evaluations_[e.block] = std::move(request);
}

void Core::SendToLead(const v1::ExchangeRequest& message, Effects& out) {
  const Peer* const lead = Lead();
  if (lead == nullptr || lead->state != State::kOpen) return;  // sent when it opens
  Send(*lead, message, out);
}

void Core::Send(const Peer& peer, v1::ExchangeRequest message, Effects& out) {
  wire::SetCheck(&message, route_.lineage);
  std::string bytes = message.SerializeAsString();
  stats_.sent_wire_bytes += static_cast<int64_t>(bytes.size());
  out.emplace_back(SendMessage{peer.stream, std::move(bytes)});
}

void Core::ForgetBefore(int64_t version) {
  retained_.erase(std::remove_if(retained_.begin(), retained_.end(),
                                 [version](const auto& r) { return r->step < version; }),
                  retained_.end());
  for (auto it = seals_.begin(); it != seals_.end();) {
    it = it->second.seal().step() < version ? seals_.erase(it) : std::next(it);
  }
  for (auto it = evaluations_.begin(); it != evaluations_.end();) {
    it = it->second.evaluation().version() < version ? evaluations_.erase(it) : std::next(it);
  }
}

// ---- Peers ----

Core::Peer* Core::Find(StreamId stream) {
  const auto it = std::find_if(peers_.begin(), peers_.end(),
                               [stream](const Peer& peer) { return peer.stream == stream; });
  return stream == 0 || it == peers_.end() ? nullptr : &*it;
}

Core::Peer* Core::Lead() {
  if (peers_.empty()) return nullptr;
  return peers_.back().kind == v1::STREAM_KIND_CONTROL ? &peers_.back() : &peers_.front();
}

bool Core::connected() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [](const Peer& peer) { return peer.state == State::kOpen; });
}

std::string Core::Name(const Peer& peer) {
  return absl::StrCat("shard ", peer.shard, " (node ", peer.address.node, ", ",
                      peer.address.address, ")");
}

std::string Core::Waiting(absl::Duration now) const {
  std::vector<std::string> lines;
  for (const Peer& peer : peers_) {
    const char* what = "";
    switch (peer.state) {
      case State::kOpen:
        continue;
      case State::kOpening:
        what = "opening";
        break;
      case State::kEnding:
        what = "closing";
        break;
      case State::kBackingOff:
        what = "backing off";
        break;
      case State::kWaitsForView:
        what = "waits for a view";
        break;
    }
    std::string line =
        absl::StrCat(Name(peer), ": ", what, " for ",
                     absl::FormatDuration(absl::Trunc(now - peer.since, absl::Milliseconds(100))));
    if (!peer.last_error.ok()) absl::StrAppend(&line, ", after ", peer.last_error.ToString());
    lines.push_back(std::move(line));
  }
  return absl::StrJoin(lines, "; ");
}

}  // namespace capstan::exchange::sender
