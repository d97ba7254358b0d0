// The exchange of `local` and `device`: the task is its own store. The same fold, lead and
// optimizer as in the shards, so the same bits; the same files.
//
// Devices that sum their lanes by themselves keep the weights too (LocalCallbacks::on_update): a step
// is then decided here and carried out there, and the host sees the versions that are evaluated or
// saved.
//
// The learning rate, skipped steps, evaluation, checkpoints, orders and the last version follow the
// lead (training/lead). One metrics.jsonl line per decided step.
//
// Threads: one strand. What on_checkpoint hands over may be read by any thread.
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
#include "exchange/exchange.h"
#include "gpu_worker/task/job.h"
#include "gpu_worker/task/lane_fold.h"
#include "param_store/checkpoint/file_store.h"
#include "services/strand/strand.h"
#include "training/lead/lead.h"
#include "training/norm/norm_tree.h"
#include "training/norm/tensor_norms.h"
#include "training/optim/apply.h"

namespace capstan::gpu_worker {

class LocalExchange final : public exchange::Exchange {
 public:
  using Callbacks = exchange::ExchangeCallbacks;
  // What the shard file is written of. Nothing of it changes any more.
  struct Snapshot {
    int64_t lineage = 0;
    int64_t step = 0;
    bool last = false;  // of its lineage: it is owed
    std::shared_ptr<const FloatBuffer> weights;
    std::shared_ptr<const FloatBuffer> state;  // the optimizer's; null: it keeps none
    std::string lead;                          // serialized LeadSnapshot
  };
  // How the devices get from the version before to `version`.
  struct DeviceUpdate {
    int64_t lineage = 0;
    int64_t version = 0;
    bool apply = true;             // false: the same weights
    training::VersionUpdate step;  // of a step that is applied
    // To be written, where not null, with what the devices have then; `done` on the strand after it.
    std::shared_ptr<FloatBuffer> weights;
    std::shared_ptr<FloatBuffer> state;  // null also where the optimizer keeps none, or not saved
    std::function<void()> done;
  };
  struct LocalCallbacks {
    // The lead's account changed in a way that is to be reported at once: an epoch is complete, the
    // job is, or it failed.
    std::function<void()> on_lead;
    // Write shard-0.safetensors of this version.
    std::function<void(Snapshot)> on_checkpoint;
    // Set: the devices keep sums and weights. Updates come in the order of the versions, each before
    // its version is published.
    std::function<void(DeviceUpdate)> on_update;
    // A line of metrics.jsonl, with its end.
    std::function<void(std::string)> on_line;
  };
  // Where a lineage begins: StartTask.base_manifest and orders.
  struct Base {
    std::string manifest;  // folder; empty: version 0
    std::vector<training::Order> orders;
    param_store::FileStore* files = &param_store::LocalFiles();  // borrowed; where it lies
  };

  // Borrows the strand.
  LocalExchange(std::shared_ptr<const Job> job, services::Strand& strand, Callbacks callbacks,
                LocalCallbacks local, Base base);
  ~LocalExchange() override;

  // The base's version, or version 0 by the job's initializer or file. Errors carry their reason
  // (data/failure.h).
  absl::Status Open(const exchange::Route& route) override;
  void PushPrefix(int64_t step, const training::LaneBlock& block,
                  std::shared_ptr<const FloatBuffer> gradient, int64_t ready_words) override;
  void SendSeal(int64_t step, const training::LaneBlock& block,
                const training::SealSums& sums) override;
  void SendEvaluation(int64_t version, int64_t block, const training::SealSums& sums) override;
  // In the place of Push, where the devices keep the sum.
  void PushKept(int64_t step, const training::LaneBlock& block, bool finite);
  // Of the version last published, if it is known here. Null: the optimizer keeps none, or the
  // devices alone have it.
  std::shared_ptr<const FloatBuffer> optimizer_state() const { return state_; }
  std::string Waiting() const override;
  bool connected() const override { return false; }
  exchange::ExchangeStats stats() const override { return {}; }

  // As to a lead in a shard; of another lineage: no effect.
  void GiveOrders(int64_t lineage, const std::vector<training::Order>& orders);
  void FilesWritten(int64_t lineage, int64_t step);
  void FilesTaken(int64_t lineage, int64_t step);

  // For TaskState.lead.
  node::v1::LeadState lead_state() const;
  // Of the lineage at hand; null before Open.
  const training::Lead* lead() const { return lead_.get(); }

 private:
  void Told(const absl::StatusOr<training::Told>& told);
  void Decide();
  absl::Status LoadBase();
  // Adds the squares of all pieces.
  void MeasurePieces(training::RootReport& report) const;
  void Apply(const training::Decision& decision);
  void ApplyOnDevices(const training::Decision& decision);
  void Save(bool last, std::string lead);
  // What is said of the version at hand.
  struct Said {
    bool stop = false;
    bool evaluate = false;
    bool skipped = false;
    bool saved = false;
  };
  static Said SaidBy(const training::Decision& decision) {
    return {decision.stop, decision.evaluate, !decision.apply, decision.checkpoint};
  }
  void Publish(const Said& said, absl::Duration update);
  void Fail(const absl::Status& status);

  const std::shared_ptr<const Job> job_;
  services::Strand& strand_;
  const Callbacks callbacks_;
  const LocalCallbacks local_;
  const Base base_;
  const int states_;                               // floats of the optimizer's state per weight
  const std::optional<training::NormTree> norms_;  // set: the job clips by norm
  const std::shared_ptr<const training::TensorPieces> pieces_;  // null: not needed
  BufferPool pool_;
  std::optional<BufferPool> state_pool_;  // where there are states

  int64_t lineage_ = 0;
  std::unique_ptr<training::Lead> lead_;
  // Of version lead_->step(); null where the devices alone have it.
  std::shared_ptr<const FloatBuffer> weights_;
  // The optimizer's; null: it keeps none, or the devices alone have it.
  std::shared_ptr<FloatBuffer> state_;
  std::unique_ptr<LaneFold> fold_;           // of step lead_->step()
  std::shared_ptr<const FloatBuffer> root_;  // its sum over all lanes
  size_t reported_epochs_ = 0;
  bool reported_end_ = false;
  bool failed_ = false;
  // Functions on the strand that find it gone return.
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_LOCAL_EXCHANGE_H_
