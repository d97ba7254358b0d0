// The nodes that have registered: what they are, when they were heard last, what their slots hold.
#ifndef CAPSTAN_COORDINATOR_CORE_NODE_TABLE_H_
#define CAPSTAN_COORDINATOR_CORE_NODE_TABLE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "capstan/node/v1/node.pb.h"
#include "coordinator/core/types.h"

namespace capstan::coordinator::core {

struct Node {
  node::v1::Register reg;
  int64_t incarnation = 0;
  SessionId session = 0;  // 0: not connected; the lease may still hold
  SessionId last_session = 0;
  bool lost = false;            // the lease lapsed, or another process has the name now
  bool left = false;            // lost, because its service ended itself
  bool drained = false;         // gets no new work
  bool leaving = false;         // its service stops once its jobs have been handed over
  common::v1::NodeUsage usage;  // the newest report
  // Known from an earlier coordinator or lost for a while, and what it holds is not known before its
  // next heartbeat.
  bool unheard = false;
  absl::Duration last_heard;
  absl::Time last_heard_wall;
  // Per device, the job that holds the slot; empty: free.
  std::vector<std::string> slots;
  // Jobs of which this incarnation holds a task or a shard that is not known to be gone.
  std::set<std::string> jobs;
  // When a stop was last sent for a job that has no business here.
  std::map<std::string, absl::Duration> stray_stop_sent;

  const std::string& name() const { return reg.name(); }
  // "worker w on host h" needs a host even if the node gave none.
  const std::string& host() const { return reg.host().empty() ? reg.name() : reg.host(); }
  bool is_worker() const { return reg.role() == common::v1::ROLE_WORKER; }
  bool live() const { return session != 0 && !lost; }
  bool usable() const { return live() && !unheard; }
  bool takes_work() const { return usable() && !drained && !leaving; }
};

// Names of people's and machines' making: [a-z0-9-]{1,63}.
bool IsName(absl::string_view text);

// InvalidArgument, naming the field: a registration that cannot be.
absl::Status CheckRegister(const node::v1::Register& reg);

// Not thread-safe. Iteration is by name.
class NodeTable {
 public:
  struct Admission {
    bool same_process = false;      // keeps its incarnation, slots and jobs
    SessionId replaced = 0;         // session that had the name, now useless
    bool replaced_process = false;  // another process had the name, its lease has ended with this
  };
  // What admitting it would mean. AlreadyExists: another live node has the name. PermissionDenied:
  // a node that another certificate registered has it, and this certificate (`named`) has not.
  absl::StatusOr<Admission> Judge(const node::v1::Register& reg, bool named = false) const;

  // Puts the node in place. `incarnation` is the one to give to a new process.
  Node& Admit(SessionId session, const node::v1::Register& reg, const Admission& admission,
              int64_t incarnation, absl::Duration now, absl::Time wall);

  // A process that an earlier coordinator knew: not connected, heard just now.
  void AddAbsent(const node::v1::Register& reg, int64_t incarnation, absl::Duration now,
                 absl::Time wall);

  Node* Find(absl::string_view name);
  const Node* Find(absl::string_view name) const;
  Node* FindSession(SessionId session);
  // The node that has no session now and whose last one this was, or null.
  Node* FindFormerSession(SessionId session);
  // Null unless the node with this name still is this incarnation.
  Node* FindIncarnation(absl::string_view name, int64_t incarnation);
  const Node* FindIncarnation(absl::string_view name, int64_t incarnation) const;
  // Ends a session; the node stays for its lease.
  void Disconnect(SessionId session);
  void Erase(absl::string_view name);
  // Of the name, for every process that has it now or later. False: it was so already.
  bool SetDrained(const std::string& name, bool drained);
  const std::set<std::string>& drained() const { return drained_; }

  // The nodes that registered a card with this UUID, by name; null: none.
  const std::set<std::string>* Offering(const std::string& uuid) const;

  const std::map<std::string, Node, std::less<>>& all() const { return nodes_; }
  std::map<std::string, Node, std::less<>>& all() { return nodes_; }
  size_t size() const { return nodes_.size(); }

 private:
  void SetRegister(Node& node, const node::v1::Register& reg);
  void TakeOffers(const Node& node);

  std::map<std::string, Node, std::less<>> nodes_;
  std::map<std::string, std::set<std::string>> offers_;  // by UUID, names of nodes
  std::map<SessionId, std::string> sessions_;
  std::set<std::string> drained_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_NODE_TABLE_H_
