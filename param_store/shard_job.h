// One job on this shard: the strand on which its ShardCore decides, the tensors, the streams, the
// stream to the lead, the files. Jobs share nothing, so the failure of one touches no other.
//
// Threads: all public methods from any thread. Two threads of its own: the strand (decisions and
// arithmetic) and one for files.
#ifndef CAPSTAN_PARAM_STORE_SHARD_JOB_H_
#define CAPSTAN_PARAM_STORE_SHARD_JOB_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "capstan/node/v1/node.pb.h"
#include "param_store/checkpoint/base_weights.h"
#include "param_store/client/strand.h"
#include "param_store/core/shard_core.h"
#include "param_store/lead_link.h"
#include "param_store/load_meter.h"
#include "param_store/server_stream.h"
#include "param_store/shard_metrics.h"
#include "param_store/shard_storage.h"
#include "param_store/step_log.h"
#include "param_store/wire/frame_codec.h"
#include "services/endpoint/endpoint.h"
#include "services/sync/mutex.h"
#include "training/optim/sgd.h"

namespace capstan::param_store {

struct ShardJobOptions {
  core::ShardPlan plan;
  training::Sgd optimizer;
  BaseWeightsOptions base;
  std::string storage_path;     // absolute folder of this job's outputs
  std::string training_digest;  // 32 bytes: which checkpoints fit
  services::Security security;  // towards the lead
  ShardMetrics* metrics = nullptr;
  std::function<void()> on_state;  // state() has changed; on the strand, must not wait
};

// Reads the parts of a resolved spec that a shard needs. InvalidArgument: what ParseResolved says,
// a spec without shards, a shard that the job has not. Unimplemented: running statistics (rule R3).
absl::StatusOr<ShardJobOptions> ReadJob(absl::string_view resolved_spec,
                                        absl::string_view spec_digest, int32_t shard);

class ShardJob final : public StreamOwner, public std::enable_shared_from_this<ShardJob> {
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
  void StartLineage(core::StartLineage event, std::string lead_address);
  void Post(core::Event event);

  // Not older than half a second, or the last change.
  node::v1::ShardState state() const ABSL_LOCKS_EXCLUDED(mu_);
  const std::string& spec_digest() const { return options_.plan.spec_digest; }
  int32_t shard() const { return options_.plan.shard; }
  int32_t chunk_count() const { return options_.plan.layout.chunk_count(); }  // of the whole job

  // StreamOwner.
  void OnHello(std::shared_ptr<ServerStream> stream, v1::Hello hello) override;
  void OnMessage(std::shared_ptr<ServerStream> stream,
                 std::shared_ptr<grpc::ByteBuffer> message) override;
  void OnEnd(core::StreamId stream) override;

 private:
  // All below on the strand.
  void Handle(const std::shared_ptr<ServerStream>& stream, const grpc::ByteBuffer& message);
  void HandleFrame(const std::shared_ptr<ServerStream>& stream, const v1::Frame& frame,
                   wire::Pieces payload, size_t payload_bytes);
  // Steps the core and carries out what it wants, until nothing is left to do.
  void Do(core::Event event);
  void Arm();
  void Publish();
  void CloseLaggards();

  void Run(const core::LoadBase& effect);
  void Run(const core::SendHelloReply& effect);
  void Run(const core::CloseStream& effect);
  void Run(const core::SendAck& effect);
  void Run(const core::FoldFrame& effect);
  void Run(const core::CheckRoots& effect);
  void Run(const core::ApplyStep& effect);
  void Run(const core::SendWeights& effect);
  void Run(const core::RetireVersion& effect);
  void Run(const core::ConnectLead& effect);
  void Run(const core::DropLead& effect);
  void Run(const core::SendPart& effect);
  void Run(const core::SendShown& effect);
  void Run(const core::SendDecision& effect);
  void Run(const core::LogStep& effect);
  void Run(const core::WriteFiles& effect);
  void Run(const core::StateChanged& effect);

  // On the file thread.
  void Load(const core::LoadBase& effect);
  void Write(const core::WriteFiles& effect, const ShardSnapshot& snapshot);

  const ShardJobOptions options_;
  client::StrandLoop strand_;
  client::StrandLoop files_;
  StepLog log_;
  std::thread strand_thread_, file_thread_;

  core::ShardCore core_;
  ShardStorage storage_;
  JobMetrics metrics_;
  LoadMeter load_;
  LeadLink lead_link_;
  std::string lead_address_;
  std::map<core::StreamId, std::shared_ptr<ServerStream>> streams_;
  std::deque<core::Event> events_;  // answers of effects, to be stepped next
  wire::Pieces payload_;            // of the frame under way
  int64_t snapshots_ = 0;           // being written: each may hold a buffer of weights
  bool in_step_ = false;
  absl::Duration armed_at_ = absl::InfiniteDuration();
  absl::Duration published_at_ = -absl::InfiniteDuration();

  mutable Mutex mu_;
  node::v1::ShardState state_ ABSL_GUARDED_BY(mu_);
};

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_SHARD_JOB_H_
