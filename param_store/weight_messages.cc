#include "param_store/weight_messages.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "services/check/check.h"
#include "training/optim/trust_rule.h"

namespace capstan::param_store {
namespace {

namespace v1 = param_store::v1;

// With the checksums of a frame's chunks, which have at most 1 MiB.
static_assert(sizeof(double) * training::kMaxRatiosOfAFrame + (8 << 10) <=
              exchange::wire::kMaxHeaderBytes);

using exchange::shard::SendWeights;
using training::ChunkRun;

absl::string_view BytesOf(const float* floats, int64_t count) {
  return {reinterpret_cast<const char*>(floats), static_cast<size_t>(count) * sizeof(float)};
}

v1::WeightFrame HeaderOf(const SendWeights& effect, const ChunkRun& run) {
  v1::WeightFrame header;
  header.set_version(effect.version);
  header.set_stop(effect.stop);
  header.set_evaluate(effect.evaluate);
  header.set_skipped(effect.skipped);
  header.set_saved(effect.saved);
  header.set_skipped_before(effect.skipped_before);
  header.set_loss_scale(effect.loss_scale);
  header.set_set(effect.set);
  for (const int64_t mark : effect.marks) header.add_marks(mark);
  header.set_floor(effect.floor);
  header.set_max_staleness(effect.max_staleness);
  header.set_first_chunk(run.first_chunk);
  return header;
}

WeightMessage Finish(const v1::WeightFrame& header, int64_t lineage,
                     std::vector<exchange::wire::OutgoingBytes> payload) {
  size_t bytes = 0;
  for (const exchange::wire::OutgoingBytes& part : payload) bytes += part.bytes.size();
  return {exchange::wire::EncodePrefix(header, bytes, lineage), std::move(payload)};
}

// The sums that have made the version of the run.
WeightMessage SumsMessage(const SendWeights& effect, const ShardStorage& storage,
                          const VersionWeights& weights, const ChunkRun& run, int64_t lineage) {
  const StepSums& sums = storage.step_sums();
  CAPSTAN_CHECK(sums.version == effect.version && effect.skipped == (sums.floats == nullptr));
  v1::WeightFrame header = HeaderOf(effect, run);
  v1::ReplicaUpdate& update = *header.mutable_update();
  const int32_t first = run.first_chunk - storage.run().first_chunk;
  for (int32_t i = first; i < first + run.chunk_count; ++i) {
    header.add_crc32c(effect.skipped ? 0 : sums.crcs[i]);
    update.add_made_crc32c((*weights.crcs)[i]);
  }
  if (effect.skipped) return Finish(header, lineage, {});
  update.set_learning_rate(sums.update.learning_rate);
  update.set_gradient_scale(sums.update.gradient_scale);
  update.set_clip_factor(sums.update.clip_factor);
  update.set_applied_steps(sums.update.applied_steps);
  const training::FlatRange range = training::RangeOf(storage.layout(), run);
  if (!sums.trust_ratios.empty()) {
    const training::TensorRun tensors = training::TensorsIn(storage.layout(), range);
    for (int32_t i = tensors.first; i < tensors.first + tensors.count; ++i) {
      update.add_trust_ratios(sums.trust_ratios[i]);
    }
  }
  return Finish(
      header, lineage,
      {{BytesOf(sums.floats->data() + storage.LocalRange(first).offset, range.size), sums.floats}});
}

}  // namespace

std::vector<WeightMessage> MakeWeightMessages(const SendWeights& effect, ShardStorage& storage,
                                              const VersionWeights& weights, const ChunkRun& run,
                                              int64_t lineage, int64_t max_payload_bytes) {
  std::vector<WeightMessage> messages;
  if (effect.update) {
    messages.push_back(SumsMessage(effect, storage, weights, run, lineage));
    return messages;
  }
  // The state of an older version is not here any more.
  const bool with_state =
      storage.replicas() && storage.states() > 0 && effect.version == storage.current().version;
  const training::FlatLayout& layout = storage.layout();
  const int64_t most = with_state ? std::max(max_payload_bytes / (1 + storage.states()),
                                             int64_t{sizeof(float)} * layout.chunk_floats())
                                  : max_payload_bytes;
  for (const ChunkRun& part : training::FramesOf(layout, run, most)) {
    v1::WeightFrame header = HeaderOf(effect, part);
    const int32_t first = part.first_chunk - storage.run().first_chunk;
    for (int32_t i = first; i < first + part.chunk_count; ++i) {
      header.add_crc32c((*weights.crcs)[i]);
    }
    std::vector<exchange::wire::OutgoingBytes> payload;
    payload.push_back({BytesOf(weights.floats->data() + storage.LocalRange(first).offset,
                               training::RangeOf(layout, part).size),
                       weights.floats});
    if (with_state) {
      const std::shared_ptr<const StateCopy> state = storage.CopyState(part);
      for (const uint32_t crc : state->crcs) header.add_state_crc32c(crc);
      payload.push_back(
          {BytesOf(state->floats.data(), static_cast<int64_t>(state->floats.size())), state});
    }
    messages.push_back(Finish(header, lineage, std::move(payload)));
  }
  return messages;
}

}  // namespace capstan::param_store
