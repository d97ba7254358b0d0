// A running job on nodes that do what they are told, and the faults and orders that befall it. For
// tests alone.
#ifndef CAPSTAN_COORDINATOR_CORE_TEST_RECOVERY_H_
#define CAPSTAN_COORDINATOR_CORE_TEST_RECOVERY_H_

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/test_world.h"

namespace capstan::coordinator::core {

class RecoveryTest : public ::testing::Test, public World {
 protected:
  explicit RecoveryTest(CoreOptions options = {}) : World(std::move(options)) {}
  std::string Running(int workers, int shards, const job::v1::JobSpec& spec) {
    for (int i = 0; i < workers; ++i) workers_.push_back(Worker(absl::StrCat("w", i)));
    for (int i = 0; i < shards; ++i) stores_.push_back(Store(absl::StrCat("s", i)));
    id_ = Submit(spec);
    for (const SessionId worker : workers_) AnswerProbe(worker);
    Follow();
    EXPECT_EQ(Job(id_).state(), common::v1::JOB_STATE_RUNNING);
    return id_;
  }
  std::string Running(int workers, int shards) {
    return Running(workers, shards, Spec(workers, shards));
  }
  // Nodes do what they were last told: the newest lineage and generation are theirs.
  void Follow() {
    for (size_t i = 0; i < stores_.size(); ++i) {
      for (const ConnectResponse& message : Take(stores_[i], ConnectResponse::kStartLineage)) {
        starts_.push_back(message.start_lineage());
        Shard(stores_[i], id_, message.start_lineage().shard()).Clear();
        node::v1::ShardState* state = beats_[stores_[i]].mutable_heartbeat()->mutable_shards(0);
        state->set_job_id(id_);
        state->set_shard(message.start_lineage().shard());
        state->set_lineage(message.start_lineage().view().lineage());
        state->set_ready(true);
      }
      Beat(stores_[i]);
    }
    for (const SessionId worker : workers_) {
      AnswerProbe(worker);
      for (const ConnectResponse& message : Take(worker, ConnectResponse::kStartTask)) {
        node::v1::TaskState& task = Task(worker, id_, message.start_task().rank());
        task.set_lineage(message.start_task().view().lineage());
        task.set_generation(message.start_task().view().generation());
        task.set_phase(node::v1::TASK_PHASE_RUNNING);
      }
      for (const ConnectResponse& message : Take(worker, ConnectResponse::kViewChange)) {
        for (auto& task : *beats_[worker].mutable_heartbeat()->mutable_tasks()) {
          task.set_lineage(message.view_change().view().lineage());
          task.set_generation(message.view_change().view().generation());
        }
      }
      for (const ConnectResponse& message : Take(worker, ConnectResponse::kStopTask)) {
        (void)message;
        Forget(worker);
      }
      Beat(worker);
    }
    for (const SessionId store : stores_) {
      for (const ConnectResponse& message : Take(store, ConnectResponse::kEndJob)) {
        (void)message;
        Forget(store);
        Beat(store);
      }
    }
  }
  void PassAndFollow(absl::Duration duration) {
    for (absl::Duration at; at < duration; at += absl::Milliseconds(500)) {
      Pass(absl::Milliseconds(500), All());
      Follow();
    }
  }
  std::vector<SessionId> All() const {
    std::vector<SessionId> all = workers_;
    all.insert(all.end(), stores_.begin(), stores_.end());
    return all;
  }
  int64_t Lineage() { return Job(id_).lineage(); }
  node::v1::LeadState& Lead(int64_t step) {
    node::v1::LeadState& lead = *Shard(stores_[0], id_, 0).mutable_lead();
    lead.set_lineage(Lineage());
    lead.set_step(step);
    Beat(stores_[0]);
    return *Shard(stores_[0], id_, 0).mutable_lead();
  }
  void Report(int shard, int64_t lineage, int64_t step, const std::string& error = "",
              const std::vector<int64_t>& orders = {}) {
    node::v1::WrittenFiles& files = *Shard(stores_[shard], id_, shard).mutable_files();
    files.Clear();
    files.set_lineage(lineage);
    files.set_step(step);
    files.set_error(error);
    if (error.empty()) {
      common::v1::FileInfo* file = files.add_files();
      file->set_name(absl::StrCat("shard-", shard, ".safetensors"));
      file->set_size_bytes(100);
      file->set_sha256(std::string(32, 'h'));
    }
    node::v1::LeadSnapshot snapshot;
    snapshot.set_step(step);
    snapshot.set_samples_used(16 * step);
    for (const int64_t order : orders) snapshot.add_applied_orders()->set_id(order);
    if (shard == 0) files.set_lead_snapshot(snapshot.SerializeAsString());
    Beat(stores_[shard]);
  }
  // Shard 0 has read the base of this lineage, checkpoint `id`, and refuses it.
  void RefuseBase(int64_t lineage, const std::string& id) {
    node::v1::ShardState& state = Shard(stores_[0], id_, 0);
    state.set_lineage(lineage);
    state.set_reason("CheckpointCorrupt");
    state.set_message(id + "/shard-0.safetensors: SHA-256 is not that of the manifest");
    Beat(stores_[0]);
  }
  void Written(const absl::Status& status = absl::OkStatus()) {
    Do(ManifestWritten{id_, manifests_.back().lineage, manifests_.back().step, status});
  }
  void Save(int64_t step, const std::vector<int64_t>& orders = {}) {
    for (size_t i = 0; i < stores_.size(); ++i) {
      Report(static_cast<int>(i), Lineage(), step, "", orders);
    }
    Written();
    for (const SessionId store : stores_) Shard(store, id_, 0).clear_files();
  }
  // Its process dies and another one has its name.
  void Restart(int shard) {
    Do(NodeDisconnected{stores_[shard]});
    stores_[shard] = Store(absl::StrCat("s", shard));
  }
  void Ask(decltype(Control::request) request) {
    Do(Control{++calls_, std::move(request), caller_});
  }
  template <typename Request>
  Request For() {
    Request request;
    request.set_job_id(id_);
    return request;
  }

  std::string id_;
  std::vector<SessionId> workers_;
  std::vector<SessionId> stores_;
  std::vector<node::v1::StartLineage> starts_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_TEST_RECOVERY_H_
