#include "coordinator/diagnosis.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "coordinator/core/cards.h"
#include "coordinator/core/node_table.h"
#include "coordinator/node_info.h"
#include "services/clock/clock.h"
#include "services/clock/clock_reading.h"
#include "services/timestamp/timestamp.h"
#include "services/version/version.h"

namespace capstan::coordinator {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(20);       // between two checks for answers
constexpr absl::Duration kOnTheWay = absl::Milliseconds(300);  // part of kTime: to a node and back

services::FolderReports OwnFolders(const ClusterFolders& folders) {
  services::FolderReports own = {services::FolderFor(folders.state, job::v1::FOLDER_USE_STATE)};
  for (const std::string& path : folders.checkpoints) {
    own.push_back(services::FolderFor(path, job::v1::FOLDER_USE_CHECKPOINTS));
  }
  return own;
}

// The folders that a node of this role must have, too. Checkpoint folders may exist only on the
// coordinator's host, since files reach it over gRPC.
services::FolderReports SharedFolders(const ClusterFolders& folders, common::v1::Role role) {
  services::FolderReports shared;
  if (role != common::v1::ROLE_WORKER) return shared;
  for (const std::string& path : folders.data) {
    shared.push_back(services::FolderFor(path, job::v1::FOLDER_USE_DATA));
  }
  return shared;
}

}  // namespace

void Diagnosis::Begin(Coordinator& coordinator, const ClusterFolders& folders, Done done) {
  if (coordinator.draining()) {
    return done(absl::UnavailableError("the coordinator shuts down"), {});
  }
  const std::shared_ptr<Diagnosis> diagnosis(new Diagnosis(coordinator, folders, std::move(done)));
  if (!coordinator.ListenForDiagnosis(diagnosis.get())) {
    return diagnosis->done_(
        absl::ResourceExhaustedError("another diagnosis is under way; try again in a few seconds"),
        {});
  }
  coordinator.Listen("", diagnosis.get());
  diagnosis->AskAll(folders);
  diagnosis->FinishWhenComplete();
}

Diagnosis::Diagnosis(Coordinator& coordinator, const ClusterFolders& folders, Done done)
    : coordinator_(coordinator),
      done_(std::move(done)),
      deadline_(MonotonicNow() + kTime),
      asked_at_(absl::Now()),
      id_(absl::ToInt64Nanoseconds(MonotonicNow())),
      own_folders_(OwnFolders(folders)) {}

void Diagnosis::AskAll(const ClusterFolders& folders) {
  std::vector<node::v1::Peer> shards;
  const absl::Duration now = MonotonicNow();
  const auto& all = coordinator_.core().nodes().all();
  for (const auto& [name, node] : all) {
    if (node.lost() && node.left()) continue;
    job::v1::NodeInfo& info = *nodes_[name].diagnosis.mutable_node();
    info = DescribeNode(node, now);
    std::string shared = core::SharedCardsText(coordinator_.core().nodes(), node);
    if (!shared.empty()) info.add_warnings(std::move(shared));
    if (node.live() && !node.is_worker()) {
      shards.emplace_back();
      shards.back().set_node(name);
      shards.back().set_address(node.reg().data_address());
    }
  }
  for (const auto& [name, node] : all) {
    if (!node.live()) continue;
    // Each begins with another shard, so that not all measure the same one at once.
    if (!shards.empty()) std::rotate(shards.begin(), shards.begin() + 1, shards.end());
    node::v1::ConnectResponse message;
    node::v1::Diagnose& order = *message.mutable_diagnose();
    order.set_diagnosis_id(id_);
    order.set_timeout_ms(static_cast<int32_t>(absl::ToInt64Milliseconds(kTime - kOnTheWay)));
    order.set_bytes_per_peer(kBytesPerPeer);
    for (const node::v1::Peer& shard : shards) {
      if (shard.node() != name) *order.add_peers() = shard;
    }
    for (const job::v1::FolderReport& folder : SharedFolders(folders, node.reg().role())) {
      *order.add_folders() = folder;
    }
    Asked& asked = nodes_[name];
    asked.sent_at = absl::Now();
    asked.waiting = coordinator_.SendToNode(name, message).ok();
    if (asked.waiting) sessions_[node.session()] = name;
  }
}

void Diagnosis::OnResult(core::SessionId session, const node::v1::DiagnosisResult& result) {
  const absl::Time received = absl::Now();
  const auto who = sessions_.find(session);
  if (result.diagnosis_id() != id_ || who == sessions_.end()) return;
  Asked& asked = nodes_[who->second];
  sessions_.erase(who);
  asked.waiting = false;
  job::v1::NodeDiagnosis& diagnosis = asked.diagnosis;
  const ClockReading clock =
      ReadClock(asked.sent_at, TimeOf(result.asked_at()), TimeOf(result.answered_at()), received);
  diagnosis.set_answered(true);
  diagnosis.set_round_trip_seconds(clock.round_trip_seconds);
  diagnosis.set_clock_ahead_seconds(clock.ahead_seconds);
  *diagnosis.mutable_peers() = result.peers();
  *diagnosis.mutable_folders() = result.folders();
  *diagnosis.mutable_devices() = result.devices();
}

void Diagnosis::OnShutdown() { Finish(absl::UnavailableError("the coordinator shuts down")); }

void Diagnosis::FinishWhenComplete() {
  if (done_ == nullptr) return;
  const absl::Duration now = MonotonicNow();
  const bool complete = own_folders_.done() && sessions_.empty();
  if (complete || now >= deadline_) return Finish(absl::OkStatus());
  coordinator_.strand().CallAt(std::min(deadline_, now + kLook),
                               [self = shared_from_this()] { self->FinishWhenComplete(); });
}

void Diagnosis::Finish(const absl::Status& status) {
  if (done_ == nullptr) return;
  coordinator_.Unlisten("", this);
  coordinator_.ListenForDiagnosis(nullptr);
  job::v1::DiagnoseResponse response;
  response.set_version(std::string(Version()));
  for (const job::v1::FolderReport& folder : own_folders_.Wait(absl::ZeroDuration())) {
    *response.add_folders() = folder;
  }
  for (auto& entry : nodes_) *response.add_nodes() = std::move(entry.second.diagnosis);
  SetTime(asked_at_, response.mutable_asked_at());
  SetTime(absl::Now(), response.mutable_answered_at());
  std::exchange(done_, nullptr)(status, response);
}

}  // namespace capstan::coordinator
