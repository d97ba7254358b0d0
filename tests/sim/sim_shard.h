// A param_store service in the simulation: the real ShardCore and ShardStorage, with simulated
// connections in place of gRPC and a simulated disk.
#ifndef CAPSTAN_TESTS_SIM_SIM_SHARD_H_
#define CAPSTAN_TESTS_SIM_SIM_SHARD_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "capstan/node/v1/node.pb.h"
#include "exchange/shard/shard_core.h"
#include "param_store/shard_storage.h"
#include "tests/sim/disk.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/network.h"
#include "tests/sim/process.h"
#include "training/optim/optimizer.h"

namespace capstan::sim {

class SimShard {
 public:
  struct Hooks {
    // Connects to the lead's address. Its answers go to `receive`.
    std::function<std::shared_ptr<Connection>(const std::string& address,
                                              std::function<void(const std::string&)> receive,
                                              std::function<void()> closed)>
        connect;
    std::function<void()> changed;  // State() has changed
    // `decided`: a decision is carried out. `published`: a version is published, and nobody has
    // been told yet.
    std::function<void(int64_t lineage, const training::Decision& decision)> decided;
    std::function<void(int64_t lineage, int64_t version, absl::Span<const float> weights,
                       int64_t first_float)>
        published;
    bool small_frames = false;  // one chunk of weights in each frame
  };

  // Borrows all. `process` is this service's. `host` is its number for the disk and the network.
  SimShard(EventQueue& queue, Random& random, SimDisk& disk, Process& process, int host,
           Hooks hooks)
      : queue_(queue),
        random_(random),
        disk_(disk),
        process_(process),
        host_(host),
        hooks_(std::move(hooks)) {}
  ~SimShard();

  // Messages of the coordinator.
  void OnStartLineage(const node::v1::StartLineage& message);
  void OnViewChange(const node::v1::ViewChange& message);
  void OnGiveOrders(const node::v1::GiveOrders& message);
  void OnFilesTaken(const node::v1::FilesTaken& message);
  void OnEndJob();

  // A stream of a task or of another shard. Returns its id.
  int64_t OpenStream();
  void SetConnection(int64_t stream, std::shared_ptr<Connection> connection);
  void OnBytes(int64_t stream, const std::string& bytes);
  void CloseStream(int64_t stream);

  std::optional<node::v1::ShardState> State() const;
  const exchange::shard::ShardCore* core() const { return core_.get(); }

 private:
  struct Weights {
    std::string bytes;
    int64_t version = 0;
    bool last = false;
  };
  struct Stream {
    std::shared_ptr<Connection> connection;
    bool greeted = false;
    std::deque<Weights> weights;  // waiting for the connection
    bool writing = false;
  };

  void Do(const exchange::shard::Event& event);
  void CarryOut(const exchange::shard::Effect& effect);
  void SendWeights(const exchange::shard::SendWeights& send);
  void WriteOn(int64_t stream);
  void EndStream(int64_t stream);
  void Tick();
  void LoadBase(const exchange::shard::LoadBase& load);
  // With the optimizer's state.
  absl::StatusOr<std::shared_ptr<exchange::FloatBuffer>> ReadBase(
      const exchange::shard::LoadBase& load, exchange::shard::BaseLoaded* loaded,
      std::vector<float>* state);
  void ReadMarks(const exchange::shard::LoadBase& load, const int64_t* header,
                 const std::string& bytes, int64_t offset, exchange::shard::BaseLoaded* loaded);
  void WriteFiles(const exchange::shard::WriteFiles& write);
  void OnLeadBytes(int64_t lineage, const std::string& bytes);

  EventQueue& queue_;
  Random& random_;
  SimDisk& disk_;
  Process& process_;
  const int host_;
  const Hooks hooks_;

  job::v1::ResolvedSpec spec_;
  std::shared_ptr<const training::Optimizer> optimizer_;
  std::unique_ptr<exchange::shard::ShardCore> core_;
  int in_steps_ = 0;
  std::unique_ptr<param_store::ShardStorage> storage_;  // refers to the plan inside core_
  std::string lead_address_;

  std::map<int64_t, Stream> streams_;
  int64_t next_stream_ = 1;
  std::shared_ptr<Connection> lead_;
  std::map<int64_t, std::string> payloads_;  // of the current frame
  int64_t next_payload_ = 1;
  int64_t temporaries_ = 0;
  absl::Duration tick_at_ = absl::InfiniteDuration();
};

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_SIM_SHARD_H_
