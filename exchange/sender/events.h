// What a sender::Core is told.
#ifndef CAPSTAN_EXCHANGE_SENDER_EVENTS_H_
#define CAPSTAN_EXCHANGE_SENDER_EVENTS_H_

#include <cstdint>
#include <memory>
#include <variant>

#include "absl/status/status.h"
#include "exchange/exchange.h"
#include "exchange/float_buffer.h"
#include "exchange/wire/frame_codec.h"
#include "training/fold/tree_fold.h"
#include "training/lanes/lane_tree.h"

namespace capstan::exchange::sender {

using StreamId = int64_t;  // given by the core from 1 on, never used twice

// Take up the route's lineage; everything of the one before is forgotten. CheckRoute(route) is OK.
// A route of the present lineage has no effect.
struct RouteGiven {
  Route route;
};
// [0, ready_words) of the gradient of `block` for `step` are final. Repeated with the same buffer and
// a larger number while the rest is computed. Final words do not change until `gradient` is released.
// `gradient` is what is sent: words as GradientLayout places them, so floats if nothing is compressed.
struct BlockReady {
  int64_t step = 0;
  training::LaneBlock block;
  std::shared_ptr<const FloatBuffer> gradient;  // of the whole model
  int64_t ready_words = 0;
};
struct SealReady {
  int64_t step = 0;
  training::LaneBlock block;
  training::SealSums sums;
  int64_t staleness = 0;
};
// Asynchronous jobs: as in Exchange.
struct SkipReady {
  int64_t step = 0;
  int32_t lane = 0;
};
struct WeightsWanted {
  int64_t step = 0;
  int32_t lane = 0;
};
struct EvaluationReady {
  int64_t version = 0;
  int64_t block = 0;
  training::SealSums sums;
};
// A whole message of a stream. The bytes are borrowed until Step returns.
struct MessageArrived {
  StreamId stream = 0;
  wire::Pieces bytes;
};
// The stream has ended: by the shard, by the network, or after CancelStream.
struct StreamEnded {
  StreamId stream = 0;
  absl::Status status;
};
struct Tick {};

using Event = std::variant<RouteGiven, BlockReady, SealReady, SkipReady, WeightsWanted,
                           EvaluationReady, MessageArrived, StreamEnded, Tick>;

}  // namespace capstan::exchange::sender

#endif  // CAPSTAN_EXCHANGE_SENDER_EVENTS_H_
