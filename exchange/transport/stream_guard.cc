#include "exchange/transport/stream_guard.h"

#include <tuple>

#include "absl/strings/str_cat.h"

namespace capstan::exchange {

absl::Status CheckRole(const Caller& caller, v1::StreamKind kind) {
  if (!caller.has_value()) return absl::OkStatus();
  const bool of_shard = kind == v1::STREAM_KIND_SHARD;
  if (caller->role == (of_shard ? services::Role::kParamStore : services::Role::kWorker)) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat("role ", services::RoleName(caller->role),
                                                  " may not speak as a ",
                                                  of_shard ? "shard" : "task"));
}

void StreamGuard::Learn(const common::v1::View& view, const Certificates& certificates) {
  if (std::make_tuple(view.lineage(), view.generation()) < std::tie(lineage_, generation_)) return;
  lineage_ = view.lineage();
  generation_ = view.generation();
  std::map<std::string, std::string> by_node;
  for (const node::v1::NodeCertificate& entry : certificates) by_node[entry.node()] = entry.name();
  workers_.clear();
  shards_.clear();
  for (const common::v1::WorkerRef& worker : view.workers()) {
    workers_[worker.rank()] = {worker.node(), by_node[worker.node()]};
  }
  for (const common::v1::ShardRoute& shard : view.shards()) {
    shards_[shard.index()] = {shard.node(), by_node[shard.node()]};
  }
}

absl::Status StreamGuard::Check(const Caller& caller, const v1::Hello& hello) const {
  if (!caller.has_value()) return absl::OkStatus();
  if (absl::Status status = CheckRole(caller, hello.kind()); !status.ok()) return status;
  if (hello.lineage() != lineage_) return absl::OkStatus();  // refused for that, or not yet known
  const bool of_shard = hello.kind() == v1::STREAM_KIND_SHARD;
  const auto& peers = of_shard ? shards_ : workers_;
  const auto peer = peers.find(hello.index());
  if (peer == peers.end() || peer->second.certificate.empty()) return absl::OkStatus();
  if (caller->name == peer->second.certificate) return absl::OkStatus();
  // A new certificate of the same node, say.
  if (services::ClaimOf(*caller, peer->second.node) == services::NodeClaim::kNamed) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat(of_shard ? "shard " : "worker ", hello.index(), " is node ", peer->second.node,
                   " of certificate ", peer->second.certificate, ", not of ", caller->name));
}

}  // namespace capstan::exchange
