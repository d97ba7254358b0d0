// A task of a gpu_worker in the simulation: the real task::TaskCore, sender::Core, LaneFold and
// FileReports. A toy gradient replaces the engine, and simulated connections replace gRPC. The task
// of a local job has the real LocalExchange on the simulated disk.
#ifndef CAPSTAN_TESTS_SIM_SIM_TASK_H_
#define CAPSTAN_TESTS_SIM_SIM_TASK_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "capstan/node/v1/node.pb.h"
#include "exchange/sender/core.h"
#include "exchange/task/task_core.h"
#include "gpu_worker/task/file_reports.h"
#include "gpu_worker/task/lane_encoder.h"
#include "gpu_worker/task/lane_fold.h"
#include "gpu_worker/task/local_exchange.h"
#include "services/strand/strand.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/network.h"
#include "tests/sim/process.h"
#include "tests/sim/sim_files.h"
#include "tests/sim/toy.h"
#include "training/chunks/flat_layout.h"

namespace capstan::sim {

class SimTask {
 public:
  struct Hooks {
    // Connects to a shard's address. `receive` gets its messages, and `closed` is called at the
    // end.
    std::function<std::shared_ptr<Connection>(const std::string& address,
                                              std::function<void(const std::string&)> receive,
                                              std::function<void()> closed)>
        connect;
    std::function<void()> changed;
    // A task that is its own lead has decided, and has not published the version yet.
    std::function<void(int64_t lineage, const training::Decision& decision)> decided;
    // This task has all weights of a version.
    std::function<void(const exchange::CompleteWeights& weights)> assembled;
    std::function<void(int64_t lineage, int32_t lane, int64_t step,
                       absl::Span<const float> weights)>
        computes;
  };

  // Borrows all. `process` belongs to this task alone. `host` is its number for the disk.
  SimTask(EventQueue& queue, Random& random, SimDisk& disk, Process& process, int host, Toy toy,
          const node::v1::StartTask& start, Hooks hooks);
  ~SimTask();

  void OnViewChange(const common::v1::View& view, const std::string& base_manifest);
  void OnGiveOrders(const node::v1::GiveOrders& give);
  void OnFilesTaken(const node::v1::FilesTaken& taken);
  void OnStop();
  // Breaks some of its streams. Returns how many were open.
  int BreakStreams();

  node::v1::TaskState State() const;
  const std::string& job_id() const { return spec_.job_id(); }

 private:
  struct Stream {
    std::shared_ptr<Connection> link;
    bool greeted = false;  // Hello was sent
  };
  struct Work {
    std::unique_ptr<gpu_worker::LaneFold> fold;
  };

  // The strand on which the parts of a task run.
  class Strand final : public services::Strand {
   public:
    Strand(EventQueue& queue, Process& process) : queue_(queue), process_(process) {}
    void Post(Function function) override { process_.After({}, std::move(function)); }
    void PostAfter(absl::Duration delay, Function function) override {
      process_.After(delay, std::move(function));
    }
    absl::Duration Now() const override { return queue_.now(); }

   private:
    EventQueue& queue_;
    Process& process_;
  };

  void MakeLocal(const node::v1::StartTask& start);
  void OnWeights(const exchange::CompleteWeights& weights);
  void WriteShardFile(const gpu_worker::LocalExchange::Snapshot& snapshot);
  void ReadResiduals(const exchange::task::ReadResiduals& read);
  // By lane. Tries again if they must be written.
  using Residuals = std::map<int32_t, std::shared_ptr<const gpu_worker::FloatBuffer>>;
  void WriteResiduals(const exchange::task::WriteResiduals& write, const Residuals& residuals);
  void Do(const exchange::task::Event& event);
  void CarryOut(const exchange::task::Effect& effect);
  void Tick();
  void OpenRoute();
  void PushBlock(const exchange::task::FoldAndPush& push);
  void PushLane(const exchange::task::FoldAndPush& push);
  void PushCompressed(const exchange::task::FoldAndPush& push);
  // Steps sender_ and carries out its effects.
  void Deliver(const exchange::sender::Event& event);
  void Carry(const exchange::sender::Effect& effect);
  void Connect(const exchange::sender::OpenStream& open);
  void Send(exchange::sender::StreamId stream, const std::string& bytes);
  EventQueue& queue_;
  Random& random_;
  Process& process_;
  const Toy toy_;
  const Hooks hooks_;

  job::v1::ResolvedSpec spec_;
  std::string digest_;
  common::v1::View view_;
  std::string base_manifest_;  // of the view's lineage
  bool asynchronous_ = false;
  std::optional<gpu_worker::LaneEncoder> encoder_;  // of a job that compresses gradients
  std::optional<training::FlatLayout> layout_;
  std::optional<training::SamplePlan> samples_;
  std::optional<training::EvalPlan> evaluation_;
  std::unique_ptr<exchange::task::TaskCore> core_;
  std::unique_ptr<gpu_worker::BufferPool> pool_;
  Strand strand_;
  SimFiles files_;
  std::unique_ptr<exchange::sender::Core> sender_;    // null: a local job
  std::unique_ptr<gpu_worker::LocalExchange> local_;  // null: there are shards

  int64_t lineage_ = 0;
  exchange::CompleteWeights weights_;  // the newest whole version; -1: none
  std::map<exchange::sender::StreamId, Stream> streams_;
  std::map<int64_t, Work> works_;
  node::v1::TaskState state_;
  gpu_worker::FileReports reports_;
  absl::Duration tick_at_ = absl::InfiniteDuration();
  absl::Duration sender_tick_at_ = absl::InfiniteDuration();
};

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_SIM_TASK_H_
