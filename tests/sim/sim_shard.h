// A param_store service in the simulation: the real ShardCore and ShardStorage, with links in place
// of gRPC.
#ifndef CAPSTAN_TESTS_SIM_SIM_SHARD_H_
#define CAPSTAN_TESTS_SIM_SIM_SHARD_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "capstan/node/v1/node.pb.h"
#include "param_store/core/shard_core.h"
#include "param_store/shard_storage.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/network.h"
#include "training/optim/sgd.h"

namespace capstan::sim {

class SimShard {
 public:
  struct Hooks {
    // Connects to the lead's address: gives the stream's outgoing link, whose answers go to
    // `receive`.
    std::function<std::shared_ptr<Link>(const std::string& address,
                                        std::function<void(const std::string&)> receive,
                                        std::function<void()> closed)>
        connect;
    std::function<void()> changed;  // State() has changed
    // Every version that is published, before anybody is told.
    std::function<void(int32_t shard, int64_t version, absl::Span<const float> weights,
                       int64_t first_float)>
        published;
  };

  SimShard(EventQueue& queue, Random& random, Hooks hooks)
      : queue_(queue), random_(random), hooks_(std::move(hooks)) {}

  // From the coordinator.
  void OnStartLineage(const node::v1::StartLineage& message);
  void OnViewChange(const node::v1::ViewChange& message);
  void OnFilesTaken(const node::v1::FilesTaken& message);
  void OnEndJob();

  // A stream of a task or of another shard. Returns its id; `reply` carries bytes back, `close`
  // ends it.
  int64_t OpenStream(std::function<void(const std::string&, bool in_order)> reply,
                     std::function<void()> close);
  void OnBytes(int64_t stream, const std::string& bytes);
  void CloseStream(int64_t stream);

  std::optional<node::v1::ShardState> State() const;
  const param_store::core::ShardCore* core() const { return core_.get(); }

 private:
  struct Stream {
    std::function<void(const std::string&, bool)> reply;
    std::function<void()> close;
    bool greeted = false;
  };

  void Do(const param_store::core::Event& event);
  void CarryOut(const param_store::core::Effect& effect);
  void Tick();
  void OnLeadBytes(int64_t lineage, const std::string& bytes);

  EventQueue& queue_;
  Random& random_;
  const Hooks hooks_;

  job::v1::ResolvedSpec spec_;
  std::optional<training::Sgd> optimizer_;
  std::unique_ptr<param_store::core::ShardCore> core_;
  std::unique_ptr<param_store::ShardStorage> storage_;  // refers to the plan inside core_
  std::string lead_address_;

  std::map<int64_t, Stream> streams_;
  int64_t next_stream_ = 1;
  std::shared_ptr<Link> lead_;
  std::map<int64_t, std::string> payloads_;  // of the frame being handled
  int64_t next_payload_ = 1;
  absl::Duration tick_at_ = absl::InfiniteDuration();
};

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_SIM_SHARD_H_
