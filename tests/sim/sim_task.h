// A task of a gpu_worker in the simulation: the real WorkerCore and NodeFold; a toy gradient in
// place of the engine, links in place of gRPC. Its side of the exchange keeps the rules of
// param_store/client: Hello with have_version, the step's frames sent again on a new stream, a
// version complete when every chunk of it is here.
#ifndef CAPSTAN_TESTS_SIM_SIM_TASK_H_
#define CAPSTAN_TESTS_SIM_SIM_TASK_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "capstan/node/v1/node.pb.h"
#include "gpu_worker/core/worker_core.h"
#include "gpu_worker/task/node_fold.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/network.h"
#include "tests/sim/process.h"
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
    // The weights of a version as this task has them, whole.
    std::function<void(int64_t lineage, int64_t version, absl::Span<const float> weights)>
        assembled;
  };

  // Borrows all; `process` is the task's own and not shared with another one's life.
  SimTask(EventQueue& queue, Random& random, Process& process, Toy toy,
          const node::v1::StartTask& start, Hooks hooks);
  ~SimTask();

  void OnViewChange(const common::v1::View& view);
  void OnFilesTaken() { files_.Clear(); }
  void OnStop();
  // Breaks some of its streams.
  void BreakStreams();

  node::v1::TaskState State() const { return state_; }
  const std::string& job_id() const { return spec_.job_id(); }

 private:
  struct Stream {
    std::shared_ptr<Connection> link;  // null: not connected
    bool open = false;                 // HelloReply is here
    int64_t incoming = -1;             // the version being assembled
    std::set<int32_t> chunks;          // of `incoming`, that are here
    int64_t have = -1;                 // newest whole version of this shard
    bool stop = false;
    bool evaluate = false;
    std::vector<float> weights;  // of `have`
    std::vector<float> next;     // of `incoming`
    int64_t number = 0;          // of the connection, to drop what comes from older ones
  };
  struct Pushed {
    training::Node node;
    std::shared_ptr<gpu_worker::FloatBuffer> value;
  };
  struct Work {
    std::unique_ptr<gpu_worker::NodeFold> fold;
  };

  void Do(const gpu_worker::core::Event& event);
  void CarryOut(const gpu_worker::core::Effect& effect);
  void Tick();
  void Connect(int shard);
  void ConnectLater(int shard);
  void OnBytes(int shard, const std::string& bytes);
  void SendFrames(int shard, const Pushed& pushed);
  void CheckWhole();
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

  int64_t connections_ = 0;
  int64_t lineage_ = 0;
  int64_t version_ = -1;        // whole
  std::vector<float> weights_;  // of version_
  std::vector<Stream> streams_;
  std::map<int64_t, Work> works_;
  std::vector<Pushed> pushed_;  // at step version_
  node::v1::TaskState state_;
  node::v1::WrittenFiles files_;
  absl::Duration tick_at_ = absl::InfiniteDuration();
};

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_SIM_TASK_H_
