// The messages in which a stream gets chunks of a version: weights, weights with the optimizer's state,
// or the sums that make the version of the one before (WeightFrame in param_store.proto).
//
// Threads: the job's strand.
#ifndef CAPSTAN_PARAM_STORE_WEIGHT_MESSAGES_H_
#define CAPSTAN_PARAM_STORE_WEIGHT_MESSAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "exchange/shard/shard_events.h"
#include "exchange/wire/frame_codec.h"
#include "param_store/shard_storage.h"
#include "training/chunks/placement.h"

namespace capstan::param_store {

struct WeightMessage {
  std::string prefix;  // of the message, before its payload
  std::vector<exchange::wire::OutgoingBytes> payload;
};

// For the chunks of `run`, which are made and whose weights fit into max_payload_bytes. `weights` is
// what the storage has of effect.version. Several messages where the state comes with the weights.
std::vector<WeightMessage> MakeWeightMessages(
    const exchange::shard::SendWeights& effect, ShardStorage& storage,
    const VersionWeights& weights, const training::ChunkRun& run, int64_t lineage,
    int64_t max_payload_bytes = training::kDefaultMaxFramePayloadBytes);

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_WEIGHT_MESSAGES_H_
