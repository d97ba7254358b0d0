#include "coordinator/core/members.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/scheduler/gang.h"

namespace capstan::coordinator::core {
namespace {

Shard ShardOn(int32_t index, Node& node, const std::string& job_id) {
  Shard shard;
  shard.index = index;
  shard.node = node.name();
  shard.host = node.host();
  shard.incarnation = node.incarnation();
  shard.address = node.reg().data_address();
  node.AddJob(job_id);
  return shard;
}

template <typename Member>
Member* Find(std::vector<Member>& members, int32_t index, const std::string& node,
             int64_t incarnation) {
  if (index < 0 || index >= static_cast<int32_t>(members.size())) return nullptr;
  Member& member = members[static_cast<size_t>(index)];
  return member.node == node && member.incarnation == incarnation ? &member : nullptr;
}

}  // namespace

std::string NameOf(const Task& task) {
  return absl::StrCat("worker w", task.index, " on host ", task.host);
}

std::string NameOf(const Shard& shard) {
  return absl::StrCat("shard ", shard.index, " on host ", shard.host);
}

Task* Members::FindTask(int32_t index, const std::string& node, int64_t incarnation) {
  return Find(tasks_, index, node, incarnation);
}

Shard* Members::FindShard(int32_t index, const std::string& node, int64_t incarnation) {
  return Find(shards_, index, node, incarnation);
}

Task& Members::AddTask(Node& node, const std::vector<int>& devices, const std::string& job_id) {
  Task task;
  task.index = static_cast<int32_t>(tasks_.size());
  task.node = node.name();
  task.host = node.host();
  task.incarnation = node.incarnation();
  task.devices = devices;
  for (const int device : devices) node.HoldSlot(static_cast<size_t>(device), job_id);
  node.AddJob(job_id);
  tasks_.push_back(std::move(task));
  return tasks_.back();
}

void Members::AddShard(Node& node, const std::string& job_id) {
  shards_.push_back(ShardOn(static_cast<int32_t>(shards_.size()), node, job_id));
}

void Members::ReplaceShard(int32_t index, Node& node, const std::string& job_id) {
  shards_[static_cast<size_t>(index)] = ShardOn(index, node, job_id);
}

void Members::RemoveShard(int32_t index) {
  const Shard last = shards_.back();
  shards_.pop_back();
  if (index == static_cast<int32_t>(shards_.size())) return;
  Shard& shard = shards_[static_cast<size_t>(index)];
  shard = {};
  shard.index = index;
  shard.node = last.node;
  shard.host = last.host;
  shard.incarnation = last.incarnation;
  shard.address = last.address;
}

const Shard* Members::FindShardOn(const std::string& node, int64_t incarnation) const {
  const auto it = std::find_if(shards_.begin(), shards_.end(), [&](const Shard& shard) {
    return shard.node == node && shard.incarnation == incarnation;
  });
  return it == shards_.end() ? nullptr : &*it;
}

void Members::Clear() {
  tasks_.clear();
  shards_.clear();
}

int Members::living() const {
  return static_cast<int>(
      std::count_if(tasks_.begin(), tasks_.end(), [](const Task& task) { return !task.lost; }));
}

std::vector<int32_t> Members::Shares(int devices_per_worker) const {
  std::vector<int32_t> shares;
  for (const Task& task : tasks_) {
    shares.push_back(scheduler::WorkersFor(task.devices.size(), devices_per_worker));
  }
  return shares;
}

int Members::LivingWorkers(int devices_per_worker) const {
  const std::vector<int32_t> shares = Shares(devices_per_worker);
  int workers = 0;
  for (size_t i = 0; i < tasks_.size(); ++i) workers += tasks_[i].lost ? 0 : shares[i];
  return workers;
}

void Members::ForgetLostTasks() {
  int kept = 0;
  for (auto task = tasks_.rbegin(); task != tasks_.rend(); ++task) {
    if (!task->lost || !task->gone || task->forgotten || ++kept <= kLostKept) continue;
    Task place;
    place.index = task->index;
    place.lost = place.gone = place.forgotten = true;
    *task = std::move(place);
  }
}

bool Members::AllShardsReady(int64_t lineage) const {
  return std::all_of(shards_.begin(), shards_.end(), [lineage](const Shard& shard) {
    return shard.present && shard.state.ready() && shard.state.lineage() == lineage;
  });
}

bool Members::AnyShardLost() const {
  return std::any_of(shards_.begin(), shards_.end(), [](const Shard& shard) { return shard.lost; });
}

void Members::BeginProbe(int64_t id) {
  probe_id_ = id;
  probing_ = true;
}

void Members::Load(int64_t probe_id, bool probing, bool on_gpus) {
  probe_id_ = probe_id;
  probing_ = probing;
  on_gpus_ = on_gpus;
}

}  // namespace capstan::coordinator::core
