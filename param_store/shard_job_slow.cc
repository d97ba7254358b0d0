// Streams that are read too slowly, and the memory that they would keep.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "param_store/shard_job.h"
#include "services/logging/log.h"
#include "training/chunks/shard_memory.h"

namespace capstan::param_store {

namespace core = exchange::shard;

using services::Log;

constexpr absl::Duration kLetGo =
    absl::Seconds(20);  // of an aborted stream; a dead connection takes 15

// Streams that still have a frame of an old version keep its buffer; they are the ones to go.
void ShardJob::CloseLaggards() {
  const int64_t oldest = storage_.current().version - 1;
  std::vector<core::StreamId> slow;
  for (const auto& [id, stream] : streams_) {
    const int64_t version = stream->writing().version;
    if (version >= 0 && version < oldest && version != core_.held().version) slow.push_back(id);
  }
  for (const core::StreamId id : slow) CloseSlow(id, "the stream is read too slowly");
}

// Who does not read at all must not keep the held version from the others.
void ShardJob::CloseStuckReaders() {
  const absl::Duration now = strand_.Now();
  std::map<core::StreamId, Progress> progress;
  std::vector<core::StreamId> stuck;
  for (const auto& [id, stream] : streams_) {
    const exchange::ServerStream::Writing writing = stream->writing();
    if (writing.version < 0 || writing.version != core_.held().version) continue;
    const auto before = progress_.find(id);
    const bool moved =
        before == progress_.end() || before->second.taken_messages != writing.taken_messages;
    progress[id] = moved ? Progress{writing.taken_messages, now} : before->second;
    if (now - progress[id].since >= options_.stuck_after) stuck.push_back(id);
  }
  progress_ = std::move(progress);
  for (const core::StreamId id : stuck) CloseSlow(id, "nothing is read from the stream");
}

void ShardJob::CloseSlow(core::StreamId id, const std::string& why) {
  events_.push_back(core::StreamClosed{id});
  Run(core::CloseStream{id, absl::ResourceExhaustedError(why)});
}

// So that the plan's bound is one: whoever still keeps an old version is not told why any more.
void ShardJob::MakeRoom() {
  CloseLaggards();
  for (const auto& closing : closing_) {
    if (const auto stream = closing.lock(); stream != nullptr) stream->Abort();
  }
  closing_.clear();
  // A closed stream in shared memory keeps no buffer, because Close has dropped its queue.
  const absl::Duration start = strand_.Now();
  while (storage_.weight_buffers_in_use() >= training::kMostWeightBuffers &&
         strand_.Now() - start < kLetGo) {
    storage_.WaitForReturn(absl::Milliseconds(50));  // those of an earlier lineage do not wake it
  }
  Log(services::kWarning, "slow_streams_aborted")
      .Kv("job", options_.plan.job_id)
      .Kv("shard", options_.plan.shard)
      .Kv("weight_buffers", storage_.weight_buffers_in_use())
      .Kv("seconds", strand_.Now() - start);
}

}  // namespace capstan::param_store
