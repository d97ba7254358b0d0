// Feeds the coordinator's core with whatever four nodes with valid certificates, and any callers,
// may send. The input is a list of [kind and node, 1 byte] [length, 1 byte] [that many bytes]. The
// job id "j" stands for the first job's id.
//
// Besides not crashing, the durable state must restore another coordinator, and once the nodes are
// gone, every job can be cancelled and ends.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/test_world.h"
#include "services/check/check.h"
#include "training/spec/resolve.h"
#include "training/spec/validate.h"

namespace {

namespace core = capstan::coordinator::core;
namespace job = capstan::job;
namespace spec = capstan::training::spec;
using capstan::node::v1::ConnectRequest;

constexpr char kToy[] = "toy";  // name of the first job; all others are validated as in production

core::CoreOptions Options() {
  core::CoreOptions options;
  options.validate = [](const job::v1::JobSpec& s) {
    return s.name() == kToy || spec::Validate(s).empty() ? absl::OkStatus()
                                                         : absl::InvalidArgumentError("spec");
  };
  options.resolve = [](const job::v1::JobSpec& s, const capstan::common::v1::DatasetInfo& dataset,
                       const std::string& id, const std::string& root) {
    return s.name() == kToy ? core::ToyResolve(s, dataset, id, root)
                            : spec::Resolve(s, dataset, {.job_id = id, .storage_path = root});
  };
  return core::World::Filled(options);
}

// Nodes 0 and 1 are workers, 2 and 3 are shards.
class Nodes {
 public:
  Nodes() : world_(Options()) {
    for (int node = 0; node < 4; ++node) Connect(node);
    id_ = world_.Submit(core::World::Spec(2, 2, kToy));
    GetAlong();
    for (int node = 2; node < 4; ++node) {
      world_.Shard(sessions_[node], id_, node - 2).set_ready(true);
      world_.Beat(sessions_[node]);
    }
    for (int node = 0; node < 2; ++node) {
      world_.Task(sessions_[node], id_, node).set_phase(capstan::node::v1::TASK_PHASE_RUNNING);
      world_.Beat(sessions_[node]);
    }
  }

  void Do(uint8_t head, absl::string_view bytes) {
    const int node = head % 4;
    switch (head / 4 % 8) {
      case 0:
        Say(node, bytes);
        break;
      case 1:
        world_.Do(core::NodeDisconnected{sessions_[node], !bytes.empty()});
        Connect(node);
        break;
      case 2:
        world_.Pass(absl::Milliseconds(bytes.empty() ? 1 : 8 * static_cast<uint8_t>(bytes[0])));
        break;
      case 3:
        WriteManifests(bytes.empty() ? absl::OkStatus() : absl::DataLossError("x"));
        break;
      case 4:
        Submit(node, bytes);
        break;
      case 5:
        Order(node, bytes);
        break;
      case 6:
        if (node == 0) {
          world_.Cancel(bytes == "j" ? id_ : std::string(bytes));
        } else {
          world_.Do(core::SetDrained{++world_.calls_, absl::StrCat("n", node), bytes.empty()});
        }
        break;
      case 7:
        GetAlong();
        break;
    }
  }

  void CheckEnd() {
    core::CoordinatorCore other(Options());
    CAPSTAN_CHECK(other.Restore(world_.journal_.state(), world_.now_, absl::UnixEpoch()).ok());
    (void)other.Step({absl::UnixEpoch(), core::Restored{}}, world_.now_);
    for (int node = 0; node < 4; ++node) world_.Do(core::NodeDisconnected{sessions_[node], true});
    std::vector<std::string> ids;
    world_.core_.ForEachJob([&ids](const core::Job& job) { ids.push_back(job.id()); });
    for (const std::string& id : ids) world_.Cancel(id);
    while (!world_.manifests_.empty()) WriteManifests(absl::OkStatus());
    world_.Pass(absl::Minutes(2));
    for (const std::string& id : ids) CAPSTAN_CHECK(world_.core_.HasEnded(id));
  }

 private:
  void Connect(int node) {
    const std::string name = absl::StrCat("n", node);
    sessions_[node] = node < 2 ? world_.Worker(name) : world_.Store(name);
  }

  void GetAlong() {
    for (int node = 0; node < 4; ++node) {
      world_.AnswerProbe(sessions_[node]);
      world_.Beat(sessions_[node]);
    }
  }

  void WriteManifests(const absl::Status& status) {
    const std::vector<core::WriteManifest> writes = std::exchange(world_.manifests_, {});
    for (const core::WriteManifest& write : writes) {
      world_.Do(core::ManifestWritten{write.job_id, write.lineage, write.step, status});
    }
  }

  void Say(int node, absl::string_view bytes) {
    ConnectRequest message;
    if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
    if (message.has_heartbeat()) {
      for (auto& task : *message.mutable_heartbeat()->mutable_tasks()) Name(task);
      for (auto& shard : *message.mutable_heartbeat()->mutable_shards()) Name(shard);
    } else if (message.has_probe_result()) {
      Name(*message.mutable_probe_result());
    } else if (message.has_logs()) {
      Name(*message.mutable_logs());
    }
    world_.Do(core::NodeMessage{sessions_[node], message});
    if (world_.closed_.count(sessions_[node]) > 0) {
      world_.Do(core::NodeDisconnected{sessions_[node], false});
      Connect(node);
    }
  }

  void Submit(int caller, absl::string_view bytes) {
    job::v1::JobSpec spec;
    if (!spec.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
    const std::string request = absl::StrCat("r", bytes.size());  // some ids are repeated
    world_.Do(core::Submit{++world_.calls_, request, spec, Caller(caller)});
  }

  template <typename Request>
  void Order(const core::Caller& caller, absl::string_view bytes) {
    Request request;
    if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
    Name(request);
    world_.Do(core::Control{++world_.calls_, request, caller});
  }
  void Order(int which, absl::string_view bytes) {
    if (bytes.empty()) return;
    const core::Caller caller = Caller(bytes[0]);
    bytes.remove_prefix(1);
    switch (which) {
      case 0:
        return Order<job::v1::SuspendJobRequest>(caller, bytes);
      case 1:
        return Order<job::v1::ResumeJobRequest>(caller, bytes);
      case 2: {
        job::v1::DeleteCheckpointRequest request;  // the same bytes, parsed as another message
        const bool parsed = request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
        if (parsed && !request.checkpoint().empty()) {
          return Order<job::v1::DeleteCheckpointRequest>(caller, bytes);
        }
        return Order<job::v1::RetryJobRequest>(caller, bytes);
      }
      default: {
        job::v1::MoveShardRequest request;  // likewise
        const bool parsed = request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
        if (parsed && request.has_move()) return Order<job::v1::MoveShardRequest>(caller, bytes);
        return Order<job::v1::UpdateJobRequest>(caller, bytes);
      }
    }
  }

  static core::Caller Caller(int which) {
    return which % 4 == 3 ? core::Caller{"eve", /*any_job=*/false}
                          : core::Caller{"", /*any_job=*/true};
  }
  template <typename Message>
  void Name(Message& message) const {
    if (message.job_id() == "j") message.set_job_id(id_);
  }

  core::World world_;
  std::array<core::SessionId, 4> sessions_;
  std::string id_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  Nodes nodes;
  for (int i = 0; i < 64 && bytes.size() >= 2; ++i) {
    const auto head = static_cast<uint8_t>(bytes[0]);
    const auto length = static_cast<uint8_t>(bytes[1]);
    nodes.Do(head, bytes.substr(2, length));
    bytes.remove_prefix(std::min<size_t>(bytes.size(), size_t{2} + length));
  }
  nodes.CheckEnd();
  return 0;
}
