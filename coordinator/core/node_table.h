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
#include "coordinator/core/node.h"
#include "coordinator/core/types.h"

namespace capstan::coordinator::core {

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
