// The exchange of `local` and `device`: the task is its own store. The same fold, lead and
// optimizer as in the shards, so the same bits; the same files.
//
// The learning rate, skipped steps, evaluation and the last version follow the lead
// (training/lead). One metrics.jsonl line per decided step.
//
// Threads: one strand, but for write_last, which is called by the owner wherever it may block.
#ifndef CAPSTAN_GPU_WORKER_TASK_LOCAL_EXCHANGE_H_
#define CAPSTAN_GPU_WORKER_TASK_LOCAL_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "capstan/common/v1/common.pb.h"
#include "capstan/node/v1/node.pb.h"
#include "gpu_worker/task/job.h"
#include "gpu_worker/task/node_fold.h"
#include "param_store/client/exchange.h"
#include "param_store/client/strand.h"
#include "services/files/files.h"
#include "training/lead/lead.h"

namespace capstan::gpu_worker {

class LocalExchange final : public param_store::client::Exchange {
 public:
  using Callbacks = param_store::client::ExchangeCallbacks;
  // What the shard file is written of.
  struct LastVersion {
    int64_t lineage = 0;
    int64_t step = 0;
    std::shared_ptr<const FloatBuffer> weights;
    std::shared_ptr<const FloatBuffer> momentum;  // null: the optimizer keeps none
  };
  struct LocalCallbacks {
    // The lead's account changed in a way that is to be reported at once: an epoch is complete, the
    // job is, or it failed.
    std::function<void()> on_lead;
    // The last version is there: write shard-0.safetensors.
    std::function<void(LastVersion)> on_last;
  };

  // Borrows the strand.
  LocalExchange(std::shared_ptr<const Job> job, param_store::client::Strand& strand,
                Callbacks callbacks, LocalCallbacks local);
  ~LocalExchange() override;

  // Version 0, by the job's initializer or file. Errors carry their reason (data/failure.h).
  // Unimplemented: a lineage that does not begin with version 0, a model with running statistics.
  absl::Status Open(const param_store::client::Route& route) override;
  void PushPrefix(int64_t step, const training::Node& node,
                  std::shared_ptr<const FloatBuffer> gradient, int64_t ready_floats) override;
  void SendSeal(int64_t step, const training::Node& node, const training::SealSums& sums) override;
  void SendEvaluation(int64_t version, int64_t block, const training::SealSums& sums) override;
  std::string Waiting() const override;
  param_store::client::ExchangeStats stats() const override { return {}; }

  // For TaskState.lead.
  node::v1::LeadState lead_state() const;

 private:
  void Told(const absl::StatusOr<training::Told>& told);
  void Decide();
  void Apply(const training::Decision& decision);
  void Publish(bool stop, bool evaluate, absl::Duration update);
  void Fail(const absl::Status& status);

  const std::shared_ptr<const Job> job_;
  param_store::client::Strand& strand_;
  const Callbacks callbacks_;
  const LocalCallbacks local_;
  BufferPool pool_;
  std::unique_ptr<services::LineFile> step_log_;

  int64_t lineage_ = 0;
  std::unique_ptr<training::Lead> lead_;
  std::shared_ptr<const FloatBuffer> weights_;  // of version lead_->step()
  std::shared_ptr<FloatBuffer> momentum_;       // null: none
  std::unique_ptr<NodeFold> fold_;              // of step lead_->step()
  std::shared_ptr<const FloatBuffer> root_;     // its sum over all lanes
  size_t reported_epochs_ = 0;
  bool reported_end_ = false;
  bool failed_ = false;
  // Functions on the strand that find it gone return.
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_LOCAL_EXCHANGE_H_
