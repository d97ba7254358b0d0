// A running job with nodes that the test plays, and the files that its processes may send. For
// tests of FileService against a real coordinator.
#ifndef CAPSTAN_TESTS_INTEGRATION_FILES_JOB_H_
#define CAPSTAN_TESTS_INTEGRATION_FILES_JOB_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "capstan/file/v1/file.grpc.pb.h"
#include "capstan/job/v1/job_service.grpc.pb.h"
#include "capstan/node/v1/node.grpc.pb.h"
#include "coordinator/server.h"
#include "grpcpp/grpcpp.h"
#include "param_store/files/job_files.h"
#include "services/channel/channel.h"
#include "services/files/files.h"
#include "services/status/status.h"
#include "services/sync/mutex.h"
#include "tests/support/node_stream.h"

namespace capstan::tests {

using coordinator::CoordinatorServer;
using param_store::JobFiles;
using param_store::JobFilesOptions;
inline constexpr absl::Duration kWait = absl::Seconds(30);  // for anything that a test waits for

// Registers, and answers what a running job needs: probes, and orders with its state after each.
class ScriptedNode {
 public:
  ScriptedNode(const services::Endpoint& coordinator, const std::string& name,
               common::v1::Role role)
      : stream_(*services::MakeChannel({.peer = coordinator, .own_connection = true}),
                Registration(name, role)),
        reader_([this] {
          node::v1::ConnectResponse order;
          while (stream_.Read(&order)) Follow(order);
        }) {}
  ~ScriptedNode() {
    stream_.Cancel();
    reader_.join();
  }

  struct Start {
    std::string job_id;
    std::string storage_path;
    std::string key;
  };
  Start WaitForStart() {
    MutexLock lock(mu_);
    while (start_.key.empty() && !changed_.WaitWithTimeout(mu_, kWait)) {
    }
    return start_;
  }
  // Reports a file of this step's checkpoint as its shard does, with each heartbeat. `sha256`: 32
  // bytes.
  void Report(int64_t step, const std::string& name, int64_t size_bytes,
              const std::string& sha256 = std::string(32, 'h')) {
    MutexLock lock(mu_);
    node::v1::WrittenFiles& files = *state_.mutable_shards(0)->mutable_files();
    files.set_lineage(1);
    files.set_step(step);
    files.clear_files();
    common::v1::FileInfo& file = *files.add_files();
    file.set_name(name);
    file.set_size_bytes(size_bytes);
    file.set_sha256(sha256);
    Beat();
  }

 private:
  static node::v1::Register Registration(const std::string& name, common::v1::Role role) {
    node::v1::Register reg;
    reg.set_name(name);
    reg.set_role(role);
    reg.set_host("host-" + name);
    if (role == common::v1::ROLE_WORKER) {
      reg.add_devices()->set_name("cpu");
    } else {
      reg.set_data_address("unix:/" + name);
    }
    return reg;
  }
  void Follow(const node::v1::ConnectResponse& order) {
    if (order.has_probe()) {
      node::v1::ConnectRequest answer;
      node::v1::ProbeResult& result = *answer.mutable_probe_result();
      result.set_probe_id(order.probe().probe_id());
      result.set_job_id(order.probe().job_id());
      common::v1::DatasetInfo& data = *result.mutable_dataset();
      data.set_train_samples(80);
      data.set_test_samples(20);
      data.set_channels(1);
      data.set_height(28);
      data.set_width(28);
      data.set_num_classes(10);
      stream_.Say(answer);
    } else if (order.has_start_lineage()) {
      const node::v1::StartLineage& start = order.start_lineage();
      MutexLock lock(mu_);
      state_.clear_shards();
      node::v1::ShardState& shard = *state_.add_shards();
      shard.set_job_id(start.job_id());
      shard.set_shard(start.shard());
      shard.set_lineage(start.view().lineage());
      shard.set_ready(true);
      shard.set_files_way(job::v1::FILES_WAY_GRPC);
      Beat();
      Started(start.job_id(), start.resolved_spec(), start.files_key());
    } else if (order.has_start_task()) {
      const node::v1::StartTask& start = order.start_task();
      MutexLock lock(mu_);
      state_.clear_tasks();
      node::v1::TaskState& task = *state_.add_tasks();
      task.set_job_id(start.job_id());
      task.set_rank(start.rank());
      task.set_lineage(start.view().lineage());
      task.set_generation(start.view().generation());
      task.set_phase(node::v1::TASK_PHASE_RUNNING);
      Beat();
      Started(start.job_id(), start.resolved_spec(), start.files_key());
    }
  }
  void Beat() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    node::v1::ConnectRequest request;
    *request.mutable_heartbeat() = state_;
    stream_.Say(request);
  }
  void Started(const std::string& job_id, const std::string& resolved, const std::string& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    job::v1::ResolvedSpec spec;
    spec.ParseFromString(resolved);
    start_ = {job_id, spec.storage_path(), key};
    changed_.NotifyAll();
  }

  Mutex mu_;
  CondVar changed_;
  node::v1::Heartbeat state_ ABSL_GUARDED_BY(mu_);
  ScriptedNode::Start start_ ABSL_GUARDED_BY(mu_);
  NodeStream stream_;
  std::thread reader_;
};

class FilesJobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = *services::MakePrivateDir("job-files-test");
    StartCoordinator();
    store_ = std::make_unique<ScriptedNode>(Peer(), "s0", common::v1::ROLE_PARAM_STORE);
    second_store_ = std::make_unique<ScriptedNode>(Peer(), "s1", common::v1::ROLE_PARAM_STORE);
    worker_ = std::make_unique<ScriptedNode>(Peer(), "w0", common::v1::ROLE_WORKER);
    Submit("r-1");
    shard_ = store_->WaitForStart();
    second_shard_ = second_store_->WaitForStart();
    task_ = worker_->WaitForStart();
    ASSERT_FALSE(shard_.key.empty() || second_shard_.key.empty() || task_.key.empty());
    stub_ = file::v1::FileService::NewStub(Channel());
  }
  void TearDown() override {
    store_.reset();
    second_store_.reset();
    worker_.reset();
    if (server_ != nullptr) server_->Shutdown();
    (void)services::RemoveTree("/tmp", folder_);
  }

  services::Endpoint Peer() const {
    return *services::ParseEndpoint(absl::StrCat("unix:", folder_, "/c.sock"));
  }
  std::shared_ptr<grpc::Channel> Channel() const {
    return *services::MakeChannel({.peer = Peer(), .retry = false, .own_connection = true});
  }
  void StartCoordinator() {
    coordinator::Config config;
    config.common.listen = Peer().ToString();
    config.common.http = "off";
    config.common.log_level = "error";
    config.state_dir = absl::StrCat(folder_, "/state");
    config.data_roots = {absl::StrCat("file://", folder_)};
    config.checkpoint_roots = checkpoint_roots_;
    config.lease = absl::Seconds(30);
    config.heartbeat = absl::Milliseconds(100);
    auto server = CoordinatorServer::Start(config, [] {});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  // Returns the id of the job. Without `storage_path`, it saves in the state folder.
  std::string Submit(const std::string& request_id, const std::string& storage_path = "") {
    job::v1::SubmitJobRequest request;
    request.set_request_id(request_id);
    job::v1::JobSpec& spec = *request.mutable_spec();
    spec.set_version(1);
    spec.set_name("digits");
    spec.mutable_resources()->set_num_workers(1);
    spec.mutable_resources()->set_num_shards(2);
    spec.mutable_model()->set_name("mlp");
    spec.mutable_model()->set_initial_weights(absl::StrCat("file://", folder_, "/", base_name_));
    spec.mutable_data()->set_format("synthetic_digits");
    spec.mutable_data()->set_train_samples(80);
    spec.mutable_data()->set_test_samples(20);
    spec.mutable_kvstore()->set_type("dist_sync");
    spec.mutable_training()->set_epochs(1);
    spec.mutable_training()->set_global_batch_size(16);
    spec.mutable_training()->mutable_optimizer()->set_name("sgd");
    spec.mutable_training()->mutable_optimizer()->set_learning_rate(0.1);
    if (!storage_path.empty()) spec.mutable_checkpoint()->set_storage_path(storage_path);
    job::v1::SubmitJobResponse response;
    const grpc::Status status = job::v1::JobService::NewStub(Channel())->SubmitJob(
        services::NewContext(kWait).get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job_id();
  }

  // The files of a process that shares no disk with the coordinator.
  std::unique_ptr<JobFiles> Remote(const ScriptedNode::Start& start) const {
    return std::make_unique<JobFiles>(
        JobFilesOptions{.job_id = start.job_id,
                        .storage_path = folder_ + "/own/" + start.job_id,
                        .key = start.key,
                        .channel = Channel()});
  }
  // The folder of a checkpoint, as that process names it.
  std::string Theirs(int64_t lineage, int64_t step) const {
    return absl::StrCat(folder_, "/own/", shard_.job_id, "/", lineage, "-", step);
  }
  std::string Stored(const std::string& name) const {
    return services::ReadWholeFile(absl::StrCat(shard_.storage_path, "/", name), 1 << 24)
        .value_or("(none)");
  }
  file::v1::UploadRequest Header(const ScriptedNode::Start& start, const std::string& name,
                                 int64_t lineage, int64_t step, int64_t size) const {
    file::v1::UploadRequest request;
    file::v1::UploadHeader& header = *request.mutable_header();
    header.mutable_grant()->set_job_id(start.job_id);
    header.mutable_grant()->set_key(start.key);
    header.set_lineage(lineage);
    header.set_step(step);
    header.set_name(name);
    header.set_size_bytes(size);
    header.set_sha256(std::string(32, 'h'));
    return request;
  }
  // The status of an upload that sends only its header. OK: it was admitted.
  absl::Status Upload(const file::v1::UploadRequest& header) {
    const auto context = services::NewContext(kWait);
    const auto stream = stub_->Upload(context.get());
    file::v1::UploadResponse response;
    if (stream->Write(header) && stream->Read(&response)) {
      context->TryCancel();
      (void)stream->Finish();
      return absl::OkStatus();
    }
    return services::FromGrpcStatus(stream->Finish());
  }
  absl::Status Download(const file::v1::DownloadRequest& request) {
    const auto context = services::NewContext(kWait);
    const auto reader = stub_->Download(context.get(), request);
    file::v1::DownloadResponse response;
    while (reader->Read(&response)) {
    }
    return services::FromGrpcStatus(reader->Finish());
  }

  std::string base_name_ = "base.safetensors";  // of the initial weights, in the folder
  std::string folder_;
  std::vector<std::string> checkpoint_roots_;  // in addition to the state folder
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<ScriptedNode> store_, second_store_, worker_;
  std::unique_ptr<file::v1::FileService::Stub> stub_;
  ScriptedNode::Start shard_, second_shard_, task_;
};

inline std::string Pattern(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>((i * 2654435761u) >> 13);
  return bytes;
}

}  // namespace capstan::tests

#endif  // CAPSTAN_TESTS_INTEGRATION_FILES_JOB_H_
