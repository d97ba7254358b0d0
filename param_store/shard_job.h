// One job on this shard: the strand on which its ShardCore decides, the tensors, the streams, the
// stream to the lead, the files. Jobs share nothing, so the failure of one touches no other.
//
// Threads: all public methods from any thread. Two threads of its own: the strand (decisions and
// arithmetic) and one for files.
#ifndef CAPSTAN_PARAM_STORE_SHARD_JOB_H_
#define CAPSTAN_PARAM_STORE_SHARD_JOB_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "capstan/node/v1/node.pb.h"
#include "exchange/shard/shard_core.h"
#include "exchange/shared/door.h"
#include "exchange/shared/pipe.h"
#include "exchange/transport/lead_link.h"
#include "exchange/transport/server_stream.h"
#include "exchange/transport/stream_guard.h"
#include "exchange/wire/frame_codec.h"
#include "param_store/checkpoint/base_weights.h"
#include "param_store/files/job_files.h"
#include "param_store/files/step_log.h"
#include "param_store/load_meter.h"
#include "param_store/shard_metrics.h"
#include "param_store/shard_storage.h"
#include "services/endpoint/endpoint.h"
#include "services/strand/strand.h"
#include "services/sync/mutex.h"
#include "training/optim/optimizer.h"

namespace capstan::param_store {

// A stream of the held version ends when no frame of it was taken for so long.
inline constexpr absl::Duration kStuckAfter = absl::Seconds(30);

struct ShardJobOptions {
  exchange::shard::ShardPlan plan;
  std::shared_ptr<const training::Optimizer> optimizer;  // the last copy of the options lets go
  BaseWeightsOptions base;
  std::string storage_path;  // absolute folder of this job's outputs, of the coordinator's host
  std::string files_key;     // of StartLineage
  std::shared_ptr<grpc::Channel> files_channel;  // to the coordinator; null: storage_path is shared
  bool may_touch_folder = true;                  // false: it lies under no root of this host
  bool may_touch_weights = true;                 // the same of what the job begins from
  std::string training_digest;                   // 32 bytes: which checkpoints fit
  services::Security security;                   // towards the lead
  ShardMetrics* metrics = nullptr;
  absl::Duration stuck_after = kStuckAfter;
  std::function<void()> on_state;  // state() has changed; on the strand, must not wait
};

// Reads the parts of a resolved spec that a shard needs. InvalidArgument: what ParseResolved says,
// a spec without shards, a number below 0. The view says how many shards a lineage has.
absl::StatusOr<ShardJobOptions> ReadJob(absl::string_view resolved_spec,
                                        absl::string_view spec_digest, int32_t shard);

class ShardJob final : public exchange::StreamOwner, public std::enable_shared_from_this<ShardJob> {
 public:
  // Held by shared_ptr. Start, Stop and Join once each, in this order.
  explicit ShardJob(ShardJobOptions options);
  ~ShardJob() override;

  void Start();
  // Ends all streams with `status` (OK, for EndJob: with what the core says). Does not wait.
  void Stop(const absl::Status& status);
  // Waits for what is being written and for the threads. Not from one of them.
  void Join();

  // `lead_address`: where shard 0 is reached in this lineage.
  void StartLineage(exchange::shard::StartLineage event, std::string lead_address);
  void Post(exchange::shard::Event event);
  // Before the event that the view is told by.
  void Learn(const common::v1::View& view, const exchange::StreamGuard::Certificates& certificates);

  // For the files of the job; empty: the one at hand stays.
  void SetFilesKey(const std::string& key) { job_files_.SetKey(key); }

  // Not older than half a second, or the last change.
  node::v1::ShardState state() const ABSL_LOCKS_EXCLUDED(mu_);
  const std::string& spec_digest() const { return options_.plan.spec_digest; }
  int32_t shard() const { return options_.plan.shard; }
  int32_t chunk_count() const { return options_.plan.layout.chunk_count(); }  // of the whole job

  // exchange::StreamOwner.
  void OnHello(std::shared_ptr<exchange::ServerStream> stream, v1::Hello hello) override;
  void OnMessage(std::shared_ptr<exchange::ServerStream> stream,
                 std::shared_ptr<grpc::ByteBuffer> message) override;
  void OnWeightsTaken(exchange::shard::StreamId stream, int64_t version) override;
  void OnEnd(exchange::shard::StreamId stream) override;
  std::optional<int64_t> RingBytes(v1::StreamKind kind) override;
  void OnPipe(std::shared_ptr<exchange::ServerStream> stream,
              std::shared_ptr<exchange::shared::Pipe> pipe) override;

 private:
  // All below on the strand.
  void UsePipe(const std::shared_ptr<exchange::ServerStream>& stream,
               const std::shared_ptr<exchange::shared::Pipe>& pipe);
  void Handle(const std::shared_ptr<exchange::ServerStream>& stream,
              exchange::wire::Pieces message);
  void HandleFrame(const std::shared_ptr<exchange::ServerStream>& stream, const v1::Frame& frame,
                   exchange::wire::Pieces payload, size_t payload_bytes);
  // Steps the core and carries out what it wants, until nothing is left to do.
  void Do(exchange::shard::Event event);
  void RenewSums(const v1::Hello& hello);
  // Makes the version under way frame by frame, in the order of sending, and sends each frame to
  // everybody who is owed it as soon as it is made.
  void Deliver();
  void SendFrame(const exchange::shard::SendWeights& effect, const VersionWeights& weights,
                 const training::ChunkRun& frame, bool last);
  void Arm();
  void Publish();
  void CloseLaggards();
  void MakeRoom();
  ShardStorage::Bytes ResidentBytes() const { return storage_.ResidentBytes(loading_, snapshots_); }
  void CloseStuckReaders();
  void CloseSlow(exchange::shard::StreamId id, const std::string& why);

  void Run(const exchange::shard::LoadBase& effect);
  void Run(const exchange::shard::SendHelloReply& effect);
  void Run(const exchange::shard::CloseStream& effect);
  void Run(const exchange::shard::SendAck& effect);
  void Run(const exchange::shard::FoldFrame& effect);
  void Run(const exchange::shard::ApplyFrame& effect);
  void Run(const exchange::shard::CheckRoots& effect);
  void Run(const exchange::shard::ApplyStep& effect);
  void Run(const exchange::shard::SendWeights& effect);
  void Run(const exchange::shard::DropWeights& effect);
  void Run(const exchange::shard::RetireVersion& effect);
  void Run(const exchange::shard::ConnectLead& effect);
  void Run(const exchange::shard::DropLead& effect);
  void Run(const exchange::shard::SendPart& effect);
  void Run(const exchange::shard::SendShown& effect);
  void Run(const exchange::shard::SendDecision& effect);
  void Run(const exchange::shard::LogStep& effect);
  void Run(const exchange::shard::WriteFiles& effect);
  void Run(const exchange::shard::StateChanged& effect);

  // On the file thread.
  void Load(const exchange::shard::LoadBase& effect);
  void Write(const exchange::shard::WriteFiles& effect, std::shared_ptr<ShardSnapshot> snapshot);

  const ShardJobOptions options_;
  JobFiles job_files_;
  services::StrandLoop strand_;
  services::StrandLoop files_;
  StepLog log_;
  std::thread strand_thread_, file_thread_;

  exchange::shard::ShardCore core_;
  ShardStorage storage_;
  JobMetrics metrics_;
  LoadMeter load_;
  exchange::LeadLink lead_link_;
  std::string lead_address_;
  exchange::StreamGuard guard_;
  std::map<exchange::shard::StreamId, std::shared_ptr<exchange::ServerStream>> streams_;
  struct Progress {
    int64_t taken_messages = 0;
    absl::Duration since;
  };
  std::map<exchange::shard::StreamId, Progress> progress_;  // of those who read the held version
  std::deque<exchange::shard::Event> events_;        // answers of effects, to be stepped next
  std::vector<exchange::shard::SendWeights> sends_;  // until Deliver
  exchange::wire::Pieces payload_;                   // of the frame under way
  // Snapshots that wait to be written, and lineages between their first buffer and Begin.
  std::atomic<int64_t> snapshots_ = 0, loading_ = 0;
  std::vector<std::weak_ptr<exchange::ServerStream>>
      closing_;  // are told why, and may keep a buffer
  bool in_step_ = false;
  bool making_ = false;  // a version whose chunks are not made yet
  absl::Duration armed_at_ = absl::InfiniteDuration();
  absl::Duration published_at_ = -absl::InfiniteDuration();

  mutable Mutex mu_;
  node::v1::ShardState state_ ABSL_GUARDED_BY(mu_);
};

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_SHARD_JOB_H_
