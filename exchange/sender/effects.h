// What a sender::Core wants done. Effects are carried out in the order given.
#ifndef CAPSTAN_EXCHANGE_SENDER_EFFECTS_H_
#define CAPSTAN_EXCHANGE_SENDER_EFFECTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "exchange/exchange.h"
#include "exchange/float_buffer.h"
#include "exchange/sender/events.h"
#include "training/chunks/placement.h"
#include "training/lanes/lane_tree.h"

namespace capstan::exchange::sender {

// A pushed block. It is kept until a version above its step is complete. In an asynchronous job it is
// kept until every shard has answered it; without a gradient it stands for a skip.
struct RetainedBlock {
  int64_t step = 0;
  training::LaneBlock block;
  std::shared_ptr<const FloatBuffer> gradient;
  std::vector<uint32_t> crc32c;  // by chunk; of those in `summed`
  std::vector<bool> summed;      // by chunk
  int64_t ready_words = 0;       // final, as in BlockReady
};

// Open a stream to the shard. Hello follows as its first SendMessage. A task has one DATA stream per
// shard and, with several shards, a CONTROL stream to the lead, so that seals do not wait behind
// frames.
struct OpenStream {
  StreamId stream = 0;
  int32_t shard = 0;
  v1::StreamKind kind = v1::STREAM_KIND_DATA;
};
// Send a small message.
struct SendMessage {
  StreamId stream = 0;
  std::string bytes;
};
// Send the chunks of `run` of a block: the bytes of Core::Encode. They are encoded when they are sent,
// so the first frames travel while the checksums of the later ones are computed.
struct SendFrame {
  StreamId stream = 0;
  std::shared_ptr<RetainedBlock> retained;
  training::ChunkRun run;
};
// End the stream. StreamEnded follows.
struct CancelStream {
  StreamId stream = 0;
};
// End the stream and forget it: no event of it is wanted any more.
struct DropStream {
  StreamId stream = 0;
};
// The last effect of its step.
struct UseWeights {
  CompleteWeights weights;
};
// The exchange cannot go on in any lineage. At most once; the last effect of its step.
struct Fail {
  absl::Status status;
};
// For the log: a stream ended. `expected`: a shard ends its streams behind the last version.
struct NoteStreamEnd {
  int32_t shard = 0;
  std::string node;
  v1::StreamKind kind = v1::STREAM_KIND_DATA;
  absl::Status status;
  bool expected = false;
};
// For the log: the shard called a frame corrupt, and `wrong` of its checksums were.
struct NoteWrongSums {
  int32_t shard = 0;
  int64_t step = 0;
  int32_t first_chunk = 0;
  int wrong = 0;
};

// For the log: the task has updated a chunk to other weights than the shard has. It comes whole again.
struct NoteReplicaDiffers {
  int32_t shard = 0;
  std::string node;
  int64_t version = 0;
  int32_t chunk = 0;
};

using Effect = std::variant<OpenStream, SendMessage, SendFrame, CancelStream, DropStream,
                            UseWeights, Fail, NoteStreamEnd, NoteWrongSums, NoteReplicaDiffers>;
using Effects = std::vector<Effect>;

}  // namespace capstan::exchange::sender

#endif  // CAPSTAN_EXCHANGE_SENDER_EFFECTS_H_
