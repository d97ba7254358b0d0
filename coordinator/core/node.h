// One node of the cluster: a process of a service that has registered, and what its slots hold.
#ifndef CAPSTAN_COORDINATOR_CORE_NODE_H_
#define CAPSTAN_COORDINATOR_CORE_NODE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "capstan/node/v1/node.pb.h"
#include "coordinator/core/types.h"

namespace capstan::coordinator::core {

// Outside the core it is read through its const methods. Not thread-safe.
class Node {
 public:
  // -- what it said of itself
  const node::v1::Register& reg() const { return reg_; }
  const std::string& name() const { return reg_.name(); }
  // "worker w on host h" needs a host even if the node gave none.
  const std::string& host() const { return reg_.host().empty() ? reg_.name() : reg_.host(); }
  bool is_worker() const { return reg_.role() == common::v1::ROLE_WORKER; }
  void SetRegister(const node::v1::Register& reg) { reg_ = reg; }
  // Number of this start of its process, from 1.
  int64_t incarnation() const { return incarnation_; }
  // Another process has the name now. It has this many devices, and holds nothing.
  void Start(int64_t incarnation, int devices);
  const common::v1::NodeUsage& usage() const { return usage_; }  // the newest report
  void SetUsage(const common::v1::NodeUsage& usage) { usage_ = usage; }

  // -- whether it is there
  SessionId session() const { return session_; }  // 0: not connected; the lease may still hold
  SessionId last_session() const { return last_session_; }
  // The process has registered on this stream, so it is not lost.
  void Connect(SessionId session);
  void Disconnect() { session_ = 0; }
  absl::Duration last_heard() const { return last_heard_; }  // the core's time
  absl::Time last_heard_wall() const { return last_heard_wall_; }
  void Hear(absl::Duration now, absl::Time wall);
  // The coordinator did not listen for so long.
  void ForgiveSilence(absl::Duration time) { last_heard_ += time; }
  // Its lease lapsed, its service ended itself, or another process has the name now.
  bool lost() const { return lost_; }
  bool left() const { return left_; }  // lost, because its service ended itself
  // Returns the jobs that it worked for. A heartbeat of the same process brings back what still runs.
  std::set<std::string> Lose(bool left);
  // A process that was lost is heard of again.
  void ComeBack();
  // Known from an earlier coordinator or lost for a while, and what it holds is not known before its
  // next heartbeat.
  bool unheard() const { return unheard_; }
  void set_unheard(bool unheard) { unheard_ = unheard; }
  bool live() const { return session_ != 0 && !lost_; }
  bool usable() const { return live() && !unheard_; }

  // -- whether it takes work
  bool drained() const { return drained_; }  // gets no new work
  void set_drained(bool drained) { drained_ = drained; }
  // Its service stops once its jobs have been handed over.
  bool leaving() const { return leaving_; }
  void set_leaving(bool leaving) { leaving_ = leaving; }
  bool takes_work() const { return usable() && !drained_ && !leaving_; }

  // -- what it holds
  // Per device, the job that holds the slot; empty: free.
  const std::vector<std::string>& slots() const { return slots_; }
  void HoldSlot(size_t device, const std::string& job) { slots_[device] = job; }
  // With an empty name they stay free.
  void HoldFreeSlots(const std::string& job);
  // Frees the job's slots, except of these devices. False: it held none of them.
  bool FreeSlots(const std::string& job, const std::set<int>& except = {});
  // Jobs of which this incarnation holds a task or a shard that is not known to be gone.
  const std::set<std::string>& jobs() const { return jobs_; }
  void AddJob(const std::string& job) { jobs_.insert(job); }
  void RemoveJob(const std::string& job) { jobs_.erase(job); }
  // By job that has no business here, when a stop was last sent for it.
  const std::map<std::string, absl::Duration>& strays() const { return strays_; }
  void NoteStray(const std::string& job, absl::Duration stop_sent) { strays_[job] = stop_sent; }
  // Forgets all other strays. False: there were none.
  bool KeepStrays(const std::set<std::string>& jobs);

 private:
  node::v1::Register reg_;
  int64_t incarnation_ = 0;
  common::v1::NodeUsage usage_;
  SessionId session_ = 0;
  SessionId last_session_ = 0;
  absl::Duration last_heard_;
  absl::Time last_heard_wall_;
  bool lost_ = false;
  bool left_ = false;
  bool unheard_ = false;
  bool drained_ = false;
  bool leaving_ = false;
  std::vector<std::string> slots_;
  std::set<std::string> jobs_;
  std::map<std::string, absl::Duration> strays_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_NODE_H_
