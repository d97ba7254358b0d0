// Messages between a shard and the lead, as events and effects of a ShardCore.
//
// Threads: pure functions.
#ifndef CAPSTAN_EXCHANGE_SHARD_SHARD_MESSAGES_H_
#define CAPSTAN_EXCHANGE_SHARD_SHARD_MESSAGES_H_

#include <cstdint>

#include "capstan/param_store/v1/param_store.pb.h"
#include "exchange/shard/shard_events.h"

namespace capstan::exchange::shard {

v1::StepDecision DecisionMessage(const training::Decision& decision, const Held& held);
DecisionArrived ReadDecision(int64_t lineage, const v1::StepDecision& message);

// `shard`: index of the sender.
v1::ShardPart PartMessage(const SendPart& effect, int32_t shard);
PartArrived ReadPart(StreamId stream, const v1::ShardPart& message);

}  // namespace capstan::exchange::shard

#endif  // CAPSTAN_EXCHANGE_SHARD_SHARD_MESSAGES_H_
