// Who may open which stream of a shard where callers have certificates: tasks with those of
// workers, shards with those of shards, each with the certificate of the node that the view names.
//
// For one thread.
#ifndef CAPSTAN_EXCHANGE_TRANSPORT_STREAM_GUARD_H_
#define CAPSTAN_EXCHANGE_TRANSPORT_STREAM_GUARD_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "capstan/common/v1/common.pb.h"
#include "capstan/node/v1/node.pb.h"
#include "capstan/param_store/v1/param_store.pb.h"
#include "services/security/role.h"

namespace capstan::exchange {

namespace v1 = param_store::v1;

using Caller = std::optional<services::Identity>;  // not set: nobody was asked

// PermissionDenied: a stream of this kind is not for the caller's role. Any thread.
absl::Status CheckRole(const Caller& caller, v1::StreamKind kind);

class StreamGuard {
 public:
  using Certificates = google::protobuf::RepeatedPtrField<node::v1::NodeCertificate>;

  // What the coordinator says; a view that is older than the last changes nothing.
  void Learn(const common::v1::View& view, const Certificates& certificates);

  // PermissionDenied: what CheckRole says; in the lineage at hand `hello.index` is a node with
  // another certificate. A node of which none was told, by an older coordinator or for a node that
  // needed none, is anybody's of the role.
  absl::Status Check(const Caller& caller, const v1::Hello& hello) const;

 private:
  struct Peer {
    std::string node;
    std::string certificate;  // empty: not told
  };

  int64_t lineage_ = 0, generation_ = 0;
  std::map<int32_t, Peer> workers_, shards_;  // by rank, by index
};

}  // namespace capstan::exchange

#endif  // CAPSTAN_EXCHANGE_TRANSPORT_STREAM_GUARD_H_
