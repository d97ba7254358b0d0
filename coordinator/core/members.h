// The gang of a job: the training processes that compute its lanes and the shards that hold its weights.
#ifndef CAPSTAN_COORDINATOR_CORE_MEMBERS_H_
#define CAPSTAN_COORDINATOR_CORE_MEMBERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "capstan/node/v1/node.pb.h"
#include "coordinator/core/node_table.h"

namespace capstan::coordinator::core {

// A job remembers this many lost tasks.
inline constexpr int kLostKept = 16;

// One training process of a gang. Its index belongs to one incarnation of one node for ever. A process
// that takes its lanes over is another task with another index.
struct Task {
  int32_t index = 0;  // its rank
  std::string node;
  std::string host;
  int64_t incarnation = 0;
  std::vector<int> devices;

  bool probed = false;
  node::v1::ProbeResult probe;

  bool present = false;          // in the node's newest heartbeat
  bool seen = false;             // in any heartbeat
  node::v1::TaskState state;     // the newest report
  node::v1::StepPhases counted;  // the part of state.phases() that the history has already
  bool lost = false;             // owns no lane any more
  int64_t lapsed_at = 0;         // the generation in which only its lease lapsed; 0: it did not
  bool gone = false;             // runs nowhere, as far as anybody can know
  bool forgotten = false;        // lost and gone long ago: only the index is kept
  // Had its share of the lanes. False: it has just joined, or lost its lanes because it was late or slow.
  // It then gets lanes from `deal_at` on, once it has the weights of `deal_step`.
  bool dealt = true;
  absl::Duration deal_at;
  int64_t deal_step = -1;  // -1: not set yet
  // How often lanes were taken from it; 0 again once it has kept up long enough since `dealt_at`.
  int late = 0;
  absl::Duration dealt_at;
  bool on_trial = false;         // has one lane, to show how fast it is
  int64_t trial_step = 0;        // decided when the trial began
  double cost = 1;               // of a lane, against the others (lane_owners.h)
  node::v1::WorkerPace weighed;  // the part of its pace that was looked at already
  std::string why;               // lost, or failed: a sentence
  bool failure_told = false;
  bool keyed = false;   // its key for files was sent on the current session
  bool behind = false;  // people were told that this task takes weights too slowly

  absl::Duration probe_sent = -absl::InfiniteDuration();
  absl::Duration start_sent = -absl::InfiniteDuration();
  absl::Duration view_sent = -absl::InfiniteDuration();
  absl::Duration stop_sent = -absl::InfiniteDuration();
  absl::Duration taken_sent = -absl::InfiniteDuration();
};

// One shard of a gang. It belongs to one incarnation of a node, as a task does.
struct Shard {
  int32_t index = 0;
  std::string node;
  std::string host;
  int64_t incarnation = 0;
  std::string address;

  bool present = false;
  bool seen = false;
  node::v1::ShardState state;
  bool lost = false;
  bool lapsed = false;  // lost because its lease lapsed, and for nothing else
  bool gone = false;
  std::string why;
  bool failure_told = false;
  bool keyed = false;  // as of a Task
  absl::Duration lineage_sent = -absl::InfiniteDuration();
  absl::Duration view_sent = -absl::InfiniteDuration();
  int64_t generation_sent = 0;
  absl::Duration end_sent = -absl::InfiniteDuration();
  absl::Duration taken_sent = -absl::InfiniteDuration();
};

// "worker w1 on host b": how sentences name a member.
std::string NameOf(const Task& task);
std::string NameOf(const Shard& shard);

// Not thread-safe.
class Members {
 public:
  // By index. References are valid until a task is added.
  std::vector<Task>& tasks() { return tasks_; }
  const std::vector<Task>& tasks() const { return tasks_; }
  std::vector<Shard>& shards() { return shards_; }
  const std::vector<Shard>& shards() const { return shards_; }
  // Null: there is none.
  Task* FindTask(int32_t index, const std::string& node, int64_t incarnation);
  Shard* FindShard(int32_t index, const std::string& node, int64_t incarnation);

  // Takes these devices of the node for the job. A task that joins a running job begins without lanes.
  Task& AddTask(Node& node, const std::vector<int>& devices, const std::string& job_id);
  void AddShard(Node& node, const std::string& job_id);
  // Another process in place of a lost shard.
  void ReplaceShard(int32_t index, Node& node, const std::string& job_id);
  // The last shard gets its index, and has told nothing under it yet.
  void RemoveShard(int32_t index);
  // A shard of that process, whatever its index; null: there is none.
  const Shard* FindShardOn(const std::string& node, int64_t incarnation) const;
  void Clear();

  int living() const;  // tasks that are not lost
  // By task: how many workers of the spec it stands for, if each worker has this many devices.
  std::vector<int32_t> Shares(int devices_per_worker) const;
  int LivingWorkers(int devices_per_worker) const;
  // Keeps the newest kLostKept of the tasks that are lost and gone. The others become places in tasks()
  // without content: a job that lives for weeks has had many.
  void ForgetLostTasks();
  bool AllShardsReady(int64_t lineage) const;
  bool AnyShardLost() const;

  // The gang is there, and its data are not known yet.
  bool probing() const { return probing_; }
  int64_t probe_id() const { return probe_id_; }
  void BeginProbe(int64_t id);
  void EndProbe() { probing_ = false; }
  // The tasks compute on GPUs.
  bool on_gpus() const { return on_gpus_; }
  void set_on_gpus(bool on_gpus) { on_gpus_ = on_gpus; }
  // The gang fell apart before it had a view: why. Empty: it did not.
  const std::string& broken() const { return broken_; }
  void Break(std::string why) { broken_ = std::move(why); }
  void ForgetBreak() { broken_.clear(); }

  void Load(int64_t probe_id, bool probing, bool on_gpus);

 private:
  std::vector<Task> tasks_;
  std::vector<Shard> shards_;
  int64_t probe_id_ = 0;
  bool probing_ = false;
  bool on_gpus_ = false;
  std::string broken_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_MEMBERS_H_
