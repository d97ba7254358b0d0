// A task of a gpu_worker in the simulation: the real WorkerCore, NodeFold and FileReports; a toy
// gradient in place of the engine. With shards there are links in place of gRPC, and its side of the
// exchange keeps the rules of param_store/client, whose WeightAssembly it has: Hello with
// have_version, the step's frames sent again on a new stream. A task of a local job has the real
// LocalExchange, on the simulated disk.
#ifndef CAPSTAN_TESTS_SIM_SIM_TASK_H_
#define CAPSTAN_TESTS_SIM_SIM_TASK_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "capstan/node/v1/node.pb.h"
#include "gpu_worker/core/worker_core.h"
#include "gpu_worker/task/file_reports.h"
#include "gpu_worker/task/local_exchange.h"
#include "gpu_worker/task/node_fold.h"
#include "param_store/client/strand.h"
#include "param_store/client/weight_assembly.h"
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
    // Connects to a shard's address; what comes back goes to `receive`, its end to `closed`.
    std::function<std::shared_ptr<Connection>(const std::string& address,
                                              std::function<void(const std::string&)> receive,
                                              std::function<void()> closed)>
        connect;
    std::function<void()> changed;
    // A task that is its own lead has decided, and published nothing yet.
    std::function<void(int64_t lineage, const training::Decision& decision)> decided;
    // The weights of a version as this task has them, whole.
    std::function<void(int64_t lineage, int64_t version, absl::Span<const float> weights)>
        assembled;
  };

  // Borrows all; `process` is the task's own and not shared with another one's life, `host` what the
  // disk knows it as.
  SimTask(EventQueue& queue, Random& random, SimDisk& disk, Process& process, int host, Toy toy,
          const node::v1::StartTask& start, Hooks hooks);
  ~SimTask();

  void OnViewChange(const common::v1::View& view);
  void OnGiveOrders(const node::v1::GiveOrders& give);
  void OnFilesTaken(const node::v1::FilesTaken& taken);
  void OnStop();
  // Breaks some of its streams; how many were open.
  int BreakStreams();

  node::v1::TaskState State() const;
  const std::string& job_id() const { return spec_.job_id(); }

 private:
  struct Stream {
    std::shared_ptr<Connection> link;  // null: not connected
    bool open = false;                 // HelloReply is here
    int64_t have = -1;                 // as its Hello said
    int64_t number = 0;                // of the connection, to drop what comes from older ones
  };
  struct Pushed {
    training::Node node;
    std::shared_ptr<gpu_worker::FloatBuffer> value;
  };
  struct Work {
    std::unique_ptr<gpu_worker::NodeFold> fold;
  };

  // What the parts of a task run on.
  class Strand final : public param_store::client::Strand {
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
  bool WritesIntoTheVersionBefore(int64_t version) const;
  void OnWeights(const param_store::client::CompleteWeights& weights);
  void WriteShardFile(const gpu_worker::LocalExchange::Snapshot& snapshot);
  void Do(const gpu_worker::core::Event& event);
  void CarryOut(const gpu_worker::core::Effect& effect);
  void Tick();
  void Connect(int shard);
  void ConnectLater(int shard);
  void OnBytes(int shard, const std::string& bytes);
  void SendFrames(int shard, const Pushed& pushed);
  EventQueue& queue_;
  Random& random_;
  Process& process_;
  const Toy toy_;
  const Hooks hooks_;

  job::v1::ResolvedSpec spec_;
  std::string digest_;
  common::v1::View view_;
  std::optional<training::FlatLayout> layout_;
  std::optional<training::SamplePlan> samples_;
  std::optional<training::EvalPlan> evaluation_;
  std::unique_ptr<gpu_worker::core::WorkerCore> core_;
  std::unique_ptr<gpu_worker::BufferPool> pool_;
  Strand strand_;
  SimFiles files_;
  std::unique_ptr<param_store::client::WeightAssembly> assembly_;
  std::unique_ptr<gpu_worker::LocalExchange> local_;  // null: there are shards

  int64_t connections_ = 0;
  int64_t lineage_ = 0;
  param_store::client::CompleteWeights weights_;  // the newest whole version; -1: none
  std::vector<Stream> streams_;
  std::map<int64_t, Work> works_;
  std::vector<Pushed> pushed_;  // at step weights_.version
  node::v1::TaskState state_;
  gpu_worker::FileReports reports_;
  absl::Duration tick_at_ = absl::InfiniteDuration();
};

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_SIM_TASK_H_
