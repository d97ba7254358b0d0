// What a task does with the versions of the weights that come, whole or as the sums that make them.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "exchange/sender/core.h"
#include "services/check/check.h"
#include "services/check/mutant.h"

namespace capstan::exchange::sender {

using training::ChunkRun;

namespace {

WeightAssembly::Said SaidBy(const v1::WeightFrame& frame) {
  return {.stop = frame.stop(),
          .evaluate = frame.evaluate(),
          .loss_scale = frame.loss_scale(),
          .skipped = frame.skipped(),
          .saved = frame.saved(),
          .skipped_before = frame.skipped_before()};
}

absl::Status WrongChecksum(absl::string_view what, int64_t version, int32_t chunk) {
  return absl::DataLossError(
      absl::StrCat(what, " of version ", version, ", chunk ", chunk, ": the checksum differs"));
}

training::VersionUpdate UpdateOf(const v1::WeightFrame& frame, absl::Span<const double> ratios) {
  const v1::ReplicaUpdate& update = frame.update();
  return {.learning_rate = update.learning_rate(),
          .gradient_scale = update.gradient_scale(),
          .clip_factor = update.clip_factor(),
          .applied_steps = update.applied_steps(),
          .trust_ratios = ratios};
}

}  // namespace

absl::Span<float> Core::Destination(const Peer& peer, const v1::WeightFrame& frame, int32_t chunk) {
  return options_.asynchronous ? latest_.Destination(peer.shard, frame.set(), chunk, now_)
                               : assembly_.Destination(frame.version(), chunk, now_);
}

std::optional<CompleteWeights> Core::TakeSet(Peer& peer, const v1::WeightFrame& frame,
                                             int32_t chunk) {
  LatestWeights::Said said{frame.set(),
                           frame.version(),
                           frame.stop(),
                           frame.evaluate(),
                           {frame.marks().begin(), frame.marks().end()},
                           frame.floor(),
                           frame.max_staleness()};
  return latest_.Arrived(peer.shard, chunk, said, now_);
}

absl::Status Core::CheckWeights(const Peer& peer, const v1::WeightFrame& frame, const ChunkRun& run,
                                size_t payload_bytes) const {
  const int64_t end = int64_t{run.first_chunk} + run.chunk_count;
  const bool mine = peer.kind == v1::STREAM_KIND_DATA && run.chunk_count >= 1 &&
                    run.first_chunk >= peer.run.first_chunk && end <= peer.run.end();
  if (mine && replica_.has_value()) return CheckReplicaFrame(frame, run, payload_bytes);
  if (!mine || payload_bytes != sizeof(float) * training::RangeOf(layout_, run).size) {
    return absl::DataLossError(absl::StrCat("weights of chunks [", run.first_chunk, ",", end,
                                            ") with ", payload_bytes, " bytes, want chunks of [",
                                            peer.run.first_chunk, ",", peer.run.end(), ")"));
  }
  if (options_.asynchronous &&
      (frame.set() < 1 || frame.version() < 0 || frame.marks_size() != options_.lanes)) {
    return absl::DataLossError(
        "weights of an asynchronous job without a set, a version, or a mark for each lane");
  }
  return absl::OkStatus();
}

// The shard sends everything above have_version again on a new stream.
void Core::Damaged(Peer& peer, const v1::WeightFrame& frame, absl::Status why, Effects& out) {
  ++stats_.corrupt_frames;
  peer.damaged_version = frame.version();
  Cancel(peer, std::move(why), out);
}

void Core::OnWeights(Peer& peer, const v1::WeightFrame& frame, wire::Pieces payload,
                     size_t payload_bytes, Effects& out) {
  const ChunkRun run{frame.first_chunk(), frame.crc32c_size()};
  if (absl::Status shape = CheckWeights(peer, frame, run, payload_bytes); !shape.ok()) {
    return Cancel(peer, std::move(shape), out);
  }
  stats_.received_payload_bytes += static_cast<int64_t>(payload_bytes);
  Shown(peer, frame.version());
  if (replica_.has_value()) return OnReplicaFrame(peer, frame, run, payload, out);
  std::optional<CompleteWeights> whole;
  wire::PayloadReader reader(payload);
  std::vector<absl::string_view> pieces;
  for (int32_t i = 0; i < run.chunk_count; ++i) {
    const int32_t chunk = run.first_chunk + i;
    const size_t size_bytes = sizeof(float) * layout_.ChunkRange(chunk).size;
    CAPSTAN_CHECK(reader.Next(size_bytes, &pieces));
    const absl::Span<float> to = Destination(peer, frame, chunk);
    if (to.empty()) continue;  // overtaken
    if (wire::Crc32cOf(pieces) != frame.crc32c(i) && !CAPSTAN_MUTANT("weights_unchecked")) {
      return Damaged(peer, frame, WrongChecksum("weights", frame.version(), chunk), out);
    }
    wire::CopyFloats(pieces, to);
    stats_.copied_bytes += static_cast<int64_t>(size_bytes);
    auto complete = options_.asynchronous
                        ? TakeSet(peer, frame, chunk)
                        : assembly_.Arrived(frame.version(), chunk, SaidBy(frame), now_);
    if (complete.has_value()) whole = std::move(complete);
  }
  if (whole.has_value()) Complete(*std::move(whole), out);
}

void Core::Complete(CompleteWeights whole, Effects& out) {
  stats_.pull_seconds += absl::ToDoubleSeconds(whole.pull);
  if (options_.asynchronous) {
    ForgetAnswered(whole.version);
  } else {
    ForgetBefore(whole.version);
  }
  stopped_ = whole.stop;
  out.emplace_back(UseWeights{std::move(whole)});
}

// ---- Jobs whose tasks update (replica.h) ----

// What the task can build on. -1: it needs weights and state of some chunk.
int64_t Core::HaveVersion(const Peer& peer) const {
  const int64_t complete = assembly_.complete();
  if (!replica_.has_value() || peer.kind != v1::STREAM_KIND_DATA) return complete;
  return replica_->LowestVersion(peer.run) < complete ? -1 : complete;
}

absl::Status Core::CheckReplicaFrame(const v1::WeightFrame& frame, const ChunkRun& run,
                                     size_t payload_bytes) const {
  const auto chunks = static_cast<int>(run.chunk_count);
  const int64_t weights = training::RangeOf(layout_, run).size;
  int64_t floats = weights;
  bool fits = frame.version() >= 0;
  if (frame.has_update()) {
    const v1::ReplicaUpdate& update = frame.update();
    if (frame.skipped()) floats = 0;
    fits = frame.version() >= 1 && update.made_crc32c_size() == chunks &&
           frame.state_crc32c_size() == 0 && update.applied_steps() >= 0 &&
           (frame.skipped() ? update.trust_ratios_size() == 0
                            : replica_->FitsRatios(run, update.trust_ratios_size()));
  } else if (frame.state_crc32c_size() > 0) {
    fits = fits && frame.state_crc32c_size() == chunks;
    floats += replica_->states() * weights;
  }
  if (fits && payload_bytes == sizeof(float) * floats) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(frame.has_update() ? "sums" : "weights and state", " of chunks [",
                   run.first_chunk, ",", run.end(), ") with ", payload_bytes, " bytes, want ",
                   sizeof(float) * floats, ", and a checksum for each chunk"));
}

void Core::OnReplicaFrame(Peer& peer, const v1::WeightFrame& frame, const ChunkRun& run,
                          wire::Pieces payload, Effects& out) {
  const std::vector<double> ratios =
      replica_->Ratios(run, absl::MakeConstSpan(frame.update().trust_ratios()));
  const training::VersionUpdate update = UpdateOf(frame, ratios);
  wire::PayloadReader reader(payload), state_reader(payload);
  std::vector<absl::string_view> pieces, state;
  if (frame.state_crc32c_size() > 0) {
    CAPSTAN_CHECK(state_reader.Next(sizeof(float) * training::RangeOf(layout_, run).size, &pieces));
  }
  std::optional<CompleteWeights> whole;
  for (int32_t i = 0; i < run.chunk_count; ++i) {
    const int32_t chunk = run.first_chunk + i;
    const size_t size_bytes = sizeof(float) * layout_.ChunkRange(chunk).size;
    const bool empty = frame.has_update() && frame.skipped();
    if (!empty) CAPSTAN_CHECK(reader.Next(size_bytes, &pieces));
    if (frame.state_crc32c_size() > 0) {
      CAPSTAN_CHECK(state_reader.Next(size_bytes * replica_->states(), &state));
    }
    const absl::Span<float> to = assembly_.Destination(frame.version(), chunk, now_);
    if (to.empty() && replica_->version(chunk) >= frame.version()) continue;  // overtaken
    const wire::Pieces sum = pieces;
    absl::Status taken = frame.has_update()
                             ? MakeNext(peer, frame, i, update, empty ? nullptr : &sum, out)
                             : TakeWhole(frame, i, pieces, state);
    if (!taken.ok()) {
      if (whole.has_value()) Complete(*std::move(whole), out);
      if (absl::IsDataLoss(taken)) return Damaged(peer, frame, std::move(taken), out);
      return Cancel(peer, std::move(taken), out);
    }
    const bool here = replica_->version(chunk) == frame.version();
    if (to.empty() || (frame.has_update() && !here)) continue;
    if (here) {
      const absl::Span<const float> made = replica_->weights(chunk);
      std::copy(made.begin(), made.end(), to.begin());
    } else {
      wire::CopyFloats(pieces, to);  // an older version, or one without its state
    }
    stats_.copied_bytes += static_cast<int64_t>(size_bytes) * (empty ? 1 : 2);
    auto complete = assembly_.Arrived(frame.version(), chunk, SaidBy(frame), now_);
    if (complete.has_value()) whole = std::move(complete);
  }
  if (whole.has_value()) Complete(*std::move(whole), out);
}

// A chunk that comes whole. Without its state, it is a version to read, and none to build on.
absl::Status Core::TakeWhole(const v1::WeightFrame& frame, int32_t index, wire::Pieces weights,
                             wire::Pieces state) {
  const int32_t chunk = frame.first_chunk() + index;
  const bool checked = !CAPSTAN_MUTANT("weights_unchecked");
  if (wire::Crc32cOf(weights) != frame.crc32c(index) && checked) {
    return WrongChecksum("weights", frame.version(), chunk);
  }
  if (frame.state_crc32c_size() == 0 && replica_->states() > 0) return absl::OkStatus();
  if (frame.state_crc32c_size() > 0 && wire::Crc32cOf(state) != frame.state_crc32c(index) &&
      checked) {
    return WrongChecksum("state", frame.version(), chunk);
  }
  replica_->Take(frame.version(), chunk, weights, state);
  return absl::OkStatus();
}

// U3. `sum` is null where the step was skipped.
absl::Status Core::MakeNext(Peer& peer, const v1::WeightFrame& frame, int32_t index,
                            const training::VersionUpdate& update, const wire::Pieces* sum,
                            Effects& out) {
  const int32_t chunk = frame.first_chunk() + index;
  if (sum != nullptr && wire::Crc32cOf(*sum) != frame.crc32c(index) &&
      !CAPSTAN_MUTANT("weights_unchecked")) {
    return WrongChecksum("the sum", frame.version(), chunk);
  }
  const int64_t before = replica_->version(chunk);
  switch (replica_->Make(frame.version(), chunk, update, sum, frame.update().made_crc32c(index))) {
    case Replica::Outcome::kMade:
    case Replica::Outcome::kPast:
      return absl::OkStatus();
    case Replica::Outcome::kMissing:
      return absl::AbortedError(absl::StrCat("the sum for version ", frame.version(), ", chunk ",
                                             chunk, ": version ", before, " is here"));
    case Replica::Outcome::kDiffers:
      out.emplace_back(NoteReplicaDiffers{peer.shard, peer.address.node, frame.version(), chunk});
      return absl::DataLossError(absl::StrCat("version ", frame.version(), ", chunk ", chunk,
                                              ": this worker's update differs from the shard's"));
  }
  return absl::OkStatus();
}

}  // namespace capstan::exchange::sender
