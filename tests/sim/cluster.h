// The implementation of RunWorld: hosts, their processes, the coordinator with its journal, and the
// client.
#ifndef CAPSTAN_TESTS_SIM_CLUSTER_H_
#define CAPSTAN_TESTS_SIM_CLUSTER_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/journal.h"
#include "tests/sim/counts.h"
#include "tests/sim/disk.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/network.h"
#include "tests/sim/process.h"
#include "tests/sim/sim_shard.h"
#include "tests/sim/sim_task.h"
#include "tests/sim/toy.h"
#include "tests/sim/world.h"

namespace capstan::sim {

inline constexpr absl::Duration kHeartbeat = absl::Milliseconds(200);

// Ids of the client's calls. Order i of the plan has kFirstOrder + i, move i kFirstMove + i. Passing job i has
// kPassSubmit + i and kPassCancel + i.
inline constexpr coordinator::core::CallId kSubmit = 1, kResume = 2, kFirstOrder = 100,
                                           kFirstMove = 500, kPassSubmit = 1000, kPassCancel = 2000;
inline constexpr char kPassing[] = "passing";  // the name of jobs that are cancelled at once
inline constexpr char kGone[] = "gone";        // the host that goes away for good

class Cluster {
 public:
  explicit Cluster(const Plan& plan);

  WorldResult Run();

 private:
  // A host with one service, its session to the coordinator, and what it runs.
  struct Node {
    Node(EventQueue& queue, Effects& effects, bool is_a_worker)
        : is_worker(is_a_worker),
          service(queue, effects, is_worker ? FaultClass::kTaskPause : FaultClass::kShardPause),
          task_process(queue, effects, FaultClass::kTaskPause) {}

    std::string name;
    int host = 0;  // 0 is the coordinator's host
    const bool is_worker;
    Process service;
    bool service_runs = false;
    std::string resume_key;   // of the service's process
    int64_t incarnation = 0;  // as the coordinator told it; 0: not yet told
    bool registered = false;
    std::shared_ptr<Connection> session;
    coordinator::core::SessionId session_id = 0;
    bool broken = false;  // a fault has broken the session, and it is not back yet
    // For a while the coordinator could not hear from the node, or its process ended unheard.
    bool silenced = false;
    bool later = false;                                  // starts after the job
    bool gone = false;                                   // never comes back
    absl::Duration leave_by = absl::InfiniteDuration();  // infinite: it was not told to stop
    std::unique_ptr<SimShard> shard;
    Process task_process;
    std::unique_ptr<SimTask> task;
    std::optional<node::v1::TaskState> ended_task;  // a dead task, reported until StopTask
    bool report_due = false;
  };

  // cluster_coordinator.cc
  coordinator::core::CoreOptions CoordinatorOptions();
  void StartCoordinator();
  void StopCoordinator();
  void Tell(decltype(coordinator::core::Event::what) what);
  void StepCoordinator(const decltype(coordinator::core::Event::what)& what);
  void CarryOut(const coordinator::core::Effects& effects);
  void CarryOut(const coordinator::core::Effect& effect);
  void CoordinatorTick();
  void NoteView(const coordinator::core::Job& job);
  void NoteJoins(const common::v1::View& view);
  void CheckBeginning(const coordinator::core::Job& job);
  void WriteManifest(const coordinator::core::WriteManifest& write);
  absl::Status WriteManifestFile(const coordinator::core::WriteManifest& write);
  void Sweep(const coordinator::core::SweepCheckpoints& sweep);
  void Submit();

  // cluster_forgetting.cc
  void PlanForgetting();
  void WatchPassing();
  void NotePassing(const coordinator::core::Reply& reply);
  void NoteDurable(const coordinator::core::Record& record);
  bool HasForgotten() const;
  void CheckForgotten();

  // cluster.cc
  Node& AddNode(const std::string& name, bool is_worker);
  void StartService(Node& node);
  void StopService(Node& node);
  // The service says goodbye and ends. False: no service runs.
  bool LeaveService(Node& node);
  void EndService(Node& node);
  void NoteRegistered(Node& node, int64_t incarnation);
  void Connect(Node& node);
  void Beat(Node& node);
  void BeatForever(Node& node);
  void ReportSoon(Node& node);
  void OnAnswer(Node& node, const std::string& bytes);
  void Answer(Node& node, const node::v1::Probe& probe);
  void StartTask(Node& node, const node::v1::StartTask& start);
  void EndTask(Node& node, int signal);
  std::shared_ptr<Connection> ConnectExchange(Node& from, Process& process,
                                              const std::string& address,
                                              std::function<void(const std::string&)> receive,
                                              std::function<void()> closed);
  void CheckCounts(absl::string_view who, int64_t version, absl::Span<const float> weights,
                   int64_t first_float, const std::vector<int64_t>& marks);
  int64_t LoosestStaleness(int64_t lineage) const;
  void CheckStaleness(absl::string_view who, int64_t lineage, int32_t lane, int64_t step,
                      absl::Span<const float> weights);
  void CheckWeights(absl::string_view who, int64_t lineage, int64_t version,
                    absl::Span<const float> weights, int64_t first_float);
  void NoteDecision(const Node& node, int64_t lineage, const training::Decision& decision);
  void CheckEnd();
  void CheckFiles();
  absl::Status IsWhole(const std::string& folder) const;
  bool NoCheckpointIsWhole() const;

  // cluster_orders.cc
  void PlanOrders();
  void Give(size_t order);
  void Ask(const coordinator::core::Control& control);
  void Watch();
  void NoteOrders(const coordinator::core::Job& job);
  void CheckOrders(const coordinator::core::Job& job);

  // cluster_moves.cc
  void PlanMoves();
  void Move(size_t move);
  void NoteMove(const coordinator::core::Reply& reply);

  // cluster_faults.cc
  void PlanFaults();
  void Befall(const Fault& fault);
  void BeginLeaving(const ShardLeave& leave);
  void LookWhetherFree(Node& node, const ShardLeave& leave);
  int HostOf(int index) const;
  void NoteSilenced(int a, int b);
  void Heal();

  void Violation(const std::string& what);

  const Plan plan_;
  Random random_;
  EventQueue queue_;
  WorldResult result_;
  Network network_;
  SimDisk disk_;
  Histories histories_;
  std::optional<Counts> counts_;                   // of an asynchronous job
  std::set<std::pair<int64_t, int64_t>> decided_;  // lineage and step
  LinkFaults exchange_faults_;
  std::map<int64_t, int64_t> newest_;  // the newest published version of each lineage

  Process coordinator_process_;
  std::unique_ptr<coordinator::core::CoordinatorCore> coordinator_;
  coordinator::core::DurableState durable_;
  std::vector<coordinator::core::Record> uncommitted_;  // the commit in progress
  bool committing_ = false;
  std::deque<decltype(coordinator::core::Event::what)> inbox_;  // events that wait for the commit
  absl::Duration tick_at_ = absl::InfiniteDuration();
  coordinator::core::SessionId last_session_ = 0;
  std::map<coordinator::core::SessionId, std::shared_ptr<Connection>> sessions_;
  std::string job_id_;                                      // empty: no submission was answered yet
  std::vector<bool> answered_;                              // for each order of the plan
  std::vector<bool> moved_;                                 // likewise for each move: accepted
  absl::Duration suspended_at_ = absl::InfiniteDuration();  // when the client saw it
  std::map<int64_t, int64_t> told_steps_;            // order id -> the step reported to people
  std::map<int64_t, std::string> assignments_;       // generation -> lane owners
  std::set<std::string> committed_;                  // folders whose manifest was acknowledged
  bool ended_ = false;                               // the end of the job is durable
  std::set<coordinator::core::SessionId> goodbyes_;  // sessions that their nodes ended on purpose
  std::map<int64_t, std::string> keys_;    // incarnation -> key of the process that was told it
  std::map<std::string, int64_t> issued_;  // hash of a key -> its durable incarnation
  std::set<std::string> in_view_;          // the workers of the last view
  struct Passing {
    std::string id;  // empty: not answered yet
    bool cancelled = false;
    bool again = false;  // the same request id has made a second job
  };
  std::vector<Passing> passing_;
  std::set<std::string> forgotten_;  // ids of jobs

  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<Node*> workers_;
  std::vector<Node*> shards_;
};

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_CLUSTER_H_
