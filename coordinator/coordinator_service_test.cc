// The real coordinator on a Unix socket, with nodes that follow a script. Tests a job from its
// submission to the manifest on disk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "capstan/job/v1/admin_service.grpc.pb.h"
#include "capstan/job/v1/checkpoint_service.grpc.pb.h"
#include "capstan/job/v1/job_service.grpc.pb.h"
#include "capstan/node/v1/node.grpc.pb.h"
#include "coordinator/server.h"
#include "grpcpp/grpcpp.h"
#include "services/channel/channel.h"
#include "services/files/files.h"
#include "services/logging/log.h"
#include "services/security/tokens.h"
#include "services/status/status.h"
#include "services/sync/mutex.h"
#include "training/codec/manifest.h"

namespace capstan::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr absl::Duration kLimit = absl::Seconds(30);  // for anything that a test waits for

std::shared_ptr<grpc::Channel> Dial(const CoordinatorServer& server) {
  return *services::MakeChannel({.peer = server.grpc_endpoint(), .own_connection = true});
}

// A node that answers orders as its script says, and sends its state after each.
class FakeNode {
 public:
  using Script = std::function<void(const node::v1::ConnectResponse&, FakeNode&)>;

  FakeNode(const CoordinatorServer& server, node::v1::Register reg, Script script)
      : stub_(node::v1::NodeService::NewStub(Dial(server))), script_(std::move(script)) {
    services::SetTimeout(context_, kLimit);
    stream_ = stub_->Connect(&context_);
    node::v1::ConnectRequest request;
    *request.mutable_register_() = std::move(reg);
    stream_->Write(request);
    reader_ = std::thread([this] {
      node::v1::ConnectResponse response;
      while (stream_->Read(&response)) {
        if (response.has_registered()) {
          MutexLock lock(mu_);
          registered_ = true;
          changed_.NotifyAll();
        }
        script_(response, *this);
      }
      MutexLock lock(mu_);
      over_ = true;
      changed_.NotifyAll();
    });
  }
  ~FakeNode() {
    if (reader_.joinable()) Leave();
  }
  // Ends the stream like a service that stops.
  grpc::Status Leave() {
    stream_->WritesDone();
    reader_.join();
    return stream_->Finish();
  }
  // Waits until the coordinator ends the stream.
  grpc::Status Ended() {
    reader_.join();
    return stream_->Finish();
  }
  void Say(const node::v1::ConnectRequest& request) { stream_->Write(request); }
  // Only on the reader's thread.
  void Beat() {
    node::v1::ConnectRequest request;
    *request.mutable_heartbeat() = state;
    Say(request);
  }
  // False: the stream ended, or nothing arrived in time.
  bool WaitRegistered() {
    MutexLock lock(mu_);
    while (!registered_ && !over_) {
      if (changed_.WaitWithTimeout(mu_, kLimit)) break;
    }
    return registered_;
  }

  node::v1::Heartbeat state;

 private:
  const std::unique_ptr<node::v1::NodeService::Stub> stub_;
  const Script script_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<node::v1::ConnectRequest, node::v1::ConnectResponse>>
      stream_;
  Mutex mu_;
  CondVar changed_;
  bool registered_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  std::thread reader_;
};

node::v1::Register Worker(const std::string& name) {
  node::v1::Register reg;
  reg.set_name(name);
  reg.set_role(common::v1::ROLE_WORKER);
  reg.set_host("host-" + name);
  reg.add_devices()->set_name("cpu");
  return reg;
}
node::v1::Register Store(const std::string& name) {
  node::v1::Register reg;
  reg.set_name(name);
  reg.set_role(common::v1::ROLE_PARAM_STORE);
  reg.set_host("host-" + name);
  reg.set_data_address("unix:/" + name);
  return reg;
}

class ServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = *services::MakePrivateDir("coord-test");
    Config config;
    config.common.listen = absl::StrCat("unix:", dir_, "/c.sock");
    config.common.http = "off";
    config.common.log_level = "error";
    config.state_dir = absl::StrCat(dir_, "/state");
    config.data_roots = {"file:///data"};
    config.lease = absl::Seconds(10);
    config.heartbeat = absl::Milliseconds(100);
    auto server = CoordinatorServer::Start(config, [] {});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = job::v1::JobService::NewStub(Dial(*server_));
    admin_ = job::v1::AdminService::NewStub(Dial(*server_));
  }
  void TearDown() override {
    if (server_ != nullptr) server_->Shutdown();
    (void)services::RemoveTree("/tmp", dir_);
  }

  // mlp on 80 synthetic digits in batches of 16: 5 steps.
  static job::v1::JobSpec Spec(int workers, int shards) {
    job::v1::JobSpec spec;
    spec.set_version(1);
    spec.set_name("digits");
    spec.mutable_resources()->set_num_workers(workers);
    if (shards > 0) spec.mutable_resources()->set_num_shards(shards);
    spec.mutable_model()->set_name("mlp");
    spec.mutable_data()->set_format("synthetic_digits");
    spec.mutable_data()->set_train_samples(80);
    spec.mutable_data()->set_test_samples(20);
    spec.mutable_kvstore()->set_type(shards > 0 ? "dist_sync" : "local");
    spec.mutable_training()->set_epochs(1);
    spec.mutable_training()->set_global_batch_size(16);
    spec.mutable_training()->mutable_optimizer()->set_name("sgd");
    spec.mutable_training()->mutable_optimizer()->set_learning_rate(0.1);
    return spec;
  }
  grpc::Status Submit(const job::v1::JobSpec& spec, const std::string& request_id,
                      job::v1::SubmitJobResponse* response) {
    job::v1::SubmitJobRequest request;
    request.set_request_id(request_id);
    *request.mutable_spec() = spec;
    return stub_->SubmitJob(services::NewContext(kLimit).get(), request, response);
  }
  job::v1::Job Get(const std::string& id) {
    job::v1::GetJobRequest request;
    request.set_job_id(id);
    job::v1::GetJobResponse response;
    const grpc::Status status =
        stub_->GetJob(services::NewContext(kLimit).get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job();
  }

  // ---- scripts of healthy nodes ----

  static void AnswerProbe(const node::v1::Probe& probe, FakeNode& node) {
    node::v1::ConnectRequest request;
    node::v1::ProbeResult& result = *request.mutable_probe_result();
    result.set_probe_id(probe.probe_id());
    result.set_job_id(probe.job_id());
    common::v1::DatasetInfo& data = *result.mutable_dataset();
    data.set_train_samples(80);
    data.set_test_samples(20);
    data.set_channels(1);
    data.set_height(28);
    data.set_width(28);
    data.set_num_classes(10);
    node.Say(request);
  }
  static void WriteFile(const job::v1::ResolvedSpec& spec, const std::string& name,
                        node::v1::WrittenFiles* files) {
    const std::string folder = absl::StrCat(spec.storage_path(), "/1-", spec.total_steps());
    EXPECT_TRUE(services::EnsureDir(folder).ok());
    EXPECT_TRUE(services::WriteFileAtomically(absl::StrCat(folder, "/", name), "bytes").ok());
    files->set_lineage(1);
    files->set_step(spec.total_steps());
    common::v1::FileInfo* file = files->add_files();
    file->set_name(name);
    file->set_size_bytes(5);
    file->set_sha256(std::string(32, 'h'));
  }
  // The shard is ready at once. When all tasks run, all steps are done.
  FakeNode::Script StoreScript() {
    return [this](const node::v1::ConnectResponse& order, FakeNode& node) {
      if (order.has_start_lineage()) {
        const node::v1::StartLineage& start = order.start_lineage();
        node.state.clear_shards();
        node::v1::ShardState& shard = *node.state.add_shards();
        shard.set_job_id(start.job_id());
        shard.set_shard(start.shard());
        shard.set_lineage(1);
        shard.set_ready(true);
        node.Beat();
        if (!finish_) return;
        {
          MutexLock lock(mu_);
          while (running_tasks_ < start.view().workers_size()) {
            if (changed_.WaitWithTimeout(mu_, kLimit)) return;
          }
        }
        job::v1::ResolvedSpec spec;
        spec.ParseFromString(start.resolved_spec());
        shard.set_version(spec.total_steps());
        shard.set_stopped(true);
        WriteFile(spec, absl::StrCat("shard-", start.shard(), ".safetensors"),
                  shard.mutable_files());
        if (start.shard() == 0) {
          node::v1::LeadState& lead = *shard.mutable_lead();
          lead.set_lineage(1);
          lead.set_step(spec.total_steps());
          lead.set_loss(0.125);
          lead.set_samples_used(80);
          lead.set_complete(true);
          common::v1::EpochRecord* epoch = lead.add_epochs();
          epoch->set_epoch(1);
          epoch->set_validation_accuracy(0.9);
        }
        node.Beat();
      } else if (order.has_files_taken()) {
        MutexLock lock(mu_);
        ++files_taken_;
        changed_.NotifyAll();
      } else if (order.has_end_job()) {
        node.state.clear_shards();
        node.Beat();
      }
    };
  }
  FakeNode::Script WorkerScript() {
    return [this](const node::v1::ConnectResponse& order, FakeNode& node) {
      if (order.has_probe()) {
        AnswerProbe(order.probe(), node);
      } else if (order.has_start_task() && node.state.tasks().empty()) {
        const node::v1::StartTask& start = order.start_task();
        job::v1::ResolvedSpec spec;
        ASSERT_TRUE(spec.ParseFromString(start.resolved_spec()));
        node::v1::ConnectRequest logs;
        logs.mutable_logs()->set_job_id(start.job_id());
        job::v1::LogLine* line = logs.mutable_logs()->add_lines();
        line->set_index(start.rank());
        line->set_level("info");
        line->set_text(absl::StrCat("task ", start.rank(), " starts"));
        node.Say(logs);
        node::v1::TaskState& task = *node.state.add_tasks();
        task.set_job_id(start.job_id());
        task.set_rank(start.rank());
        task.set_lineage(1);
        task.set_generation(1);
        task.set_phase(node::v1::TASK_PHASE_RUNNING);
        if (start.view().lane_owners(0) == start.rank() && finish_) {
          WriteFile(spec, "weights.safetensors", task.mutable_files());
          task.set_weights_sha256(std::string(64, 'e'));
        }
        node.Beat();
        MutexLock lock(mu_);
        ++running_tasks_;
        changed_.NotifyAll();
      } else if (order.has_stop_task()) {
        node.state.clear_tasks();
        node.Beat();
      }
    };
  }

  std::string dir_;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<job::v1::JobService::Stub> stub_;
  std::unique_ptr<job::v1::AdminService::Stub> admin_;
  bool finish_ = true;  // whether fake nodes complete their jobs

  Mutex mu_;
  CondVar changed_;
  int running_tasks_ ABSL_GUARDED_BY(mu_) = 0;
  int files_taken_ ABSL_GUARDED_BY(mu_) = 0;
};

TEST_F(ServiceTest, ListsComeInPagesAndEventsOfAllJobsInTheirOrder) {
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) {
    job::v1::SubmitJobResponse submitted;
    ASSERT_TRUE(Submit(Spec(9, 1), absl::StrCat("r-", i), &submitted).ok());
    ids.push_back(submitted.job_id());
  }
  job::v1::ListJobsRequest jobs;
  jobs.set_limit(2);
  std::vector<std::string> listed;
  do {
    job::v1::ListJobsResponse page;
    ASSERT_TRUE(stub_->ListJobs(services::NewContext(kLimit).get(), jobs, &page).ok());
    EXPECT_LE(page.jobs_size(), 2);
    for (const job::v1::Job& job : page.jobs()) listed.push_back(job.job_id());
    jobs.set_page_token(page.next_page_token());
  } while (!jobs.page_token().empty());
  EXPECT_EQ(listed, (std::vector<std::string>{ids[4], ids[3], ids[2], ids[1], ids[0]}));
  jobs.set_page_token("x");
  job::v1::ListJobsResponse none;
  EXPECT_EQ(stub_->ListJobs(services::NewContext(kLimit).get(), jobs, &none).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);

  const auto idle = [](const node::v1::ConnectResponse&, FakeNode&) {};
  std::vector<std::unique_ptr<FakeNode>> fakes;
  for (const char* name : {"b", "a", "c"}) {
    fakes.push_back(std::make_unique<FakeNode>(*server_, Worker(name), idle));
    ASSERT_TRUE(fakes.back()->WaitRegistered());
  }
  job::v1::ListNodesRequest nodes;
  nodes.set_limit(2);
  std::vector<std::string> names;
  do {
    job::v1::ListNodesResponse page;
    ASSERT_TRUE(admin_->ListNodes(services::NewContext(kLimit).get(), nodes, &page).ok());
    for (const job::v1::NodeInfo& node : page.nodes()) names.push_back(node.name());
    nodes.set_page_token(page.next_page_token());
  } while (!nodes.page_token().empty());
  EXPECT_THAT(names, ElementsAre("a", "b", "c"));

  job::v1::CancelJobRequest cancel;
  cancel.set_job_id(ids[1]);
  job::v1::CancelJobResponse cancelled;
  ASSERT_TRUE(stub_->CancelJob(services::NewContext(kLimit).get(), cancel, &cancelled).ok());
  const auto context = services::NewContext(kLimit);
  const auto reader = stub_->StreamEvents(context.get(), job::v1::StreamEventsRequest());
  job::v1::StreamEventsResponse response;
  std::vector<std::string> submitted;
  std::map<std::string, int64_t> last;
  std::string newest;
  while (reader->Read(&response)) {
    EXPECT_EQ(response.number(), last[response.job_id()] + 1);
    last[response.job_id()] = response.number();
    if (response.event().type() == "Submitted") submitted.push_back(response.job_id());
    newest = absl::StrCat(response.job_id(), " ", response.event().type());
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_EQ(submitted, ids);
  EXPECT_EQ(newest, ids[1] + " Cancelled");
}

TEST_F(ServiceTest, AJobFromItsSubmissionToItsManifest) {
  job::v1::SubmitJobResponse submitted;
  ASSERT_TRUE(Submit(Spec(2, 2), "r-1", &submitted).ok());
  const std::string id = submitted.job_id();

  std::vector<job::v1::Job> seen;
  grpc::Status watched;
  std::thread watcher([&] {
    const auto context = services::NewContext(kLimit);
    job::v1::WatchJobRequest request;
    request.set_job_id(id);
    request.set_min_interval_ms(1);
    const auto reader = stub_->WatchJob(context.get(), request);
    job::v1::WatchJobResponse response;
    while (reader->Read(&response)) seen.push_back(response.job());
    watched = reader->Finish();
  });
  std::vector<job::v1::LogLine> lines;
  grpc::Status logged;
  std::thread logger([&] {
    const auto context = services::NewContext(kLimit);
    job::v1::StreamLogsRequest request;
    request.set_job_id(id);
    request.set_follow(true);
    const auto reader = stub_->StreamLogs(context.get(), request);
    job::v1::StreamLogsResponse response;
    while (reader->Read(&response)) lines.push_back(response.line());
    logged = reader->Finish();
  });

  std::vector<std::unique_ptr<FakeNode>> nodes;
  for (const char* name : {"s0", "s1"}) {
    nodes.push_back(std::make_unique<FakeNode>(*server_, Store(name), StoreScript()));
  }
  for (const char* name : {"w0", "w1"}) {
    nodes.push_back(std::make_unique<FakeNode>(*server_, Worker(name), WorkerScript()));
  }
  watcher.join();
  logger.join();

  ASSERT_TRUE(watched.ok()) << watched.error_message();
  ASSERT_FALSE(seen.empty());
  const job::v1::Job& job = seen.back();
  ASSERT_EQ(job.state(), common::v1::JOB_STATE_SUCCEEDED) << job.message();
  EXPECT_EQ(job.progress().step(), 5);
  EXPECT_EQ(job.progress().loss(), 0.125);
  EXPECT_EQ(job.samples_used(), 80);
  EXPECT_EQ(job.weights_sha256(), std::string(64, 'e'));
  ASSERT_THAT(job.epochs(), SizeIs(1));
  EXPECT_EQ(job.epochs(0).validation_accuracy(), 0.9);
  for (size_t i = 1; i < seen.size(); ++i) EXPECT_GE(seen[i].state(), seen[i - 1].state());

  const std::string folder = absl::StrCat(dir_, "/state/checkpoints/", id, "/1-5");
  EXPECT_EQ(job.checkpoint_uri(), absl::StrCat("file://", folder));
  const auto text = services::ReadWholeFile(folder + "/manifest.json", 1 << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  const auto manifest = training::ParseManifest("manifest.json", *text);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->job_id, id);
  EXPECT_EQ(manifest->weights_sha256, std::string(64, 'e'));
  std::vector<std::string> names;
  for (const training::ManifestFile& file : manifest->files) names.push_back(file.name);
  EXPECT_THAT(names,
              ElementsAre("shard-0.safetensors", "shard-1.safetensors", "weights.safetensors"));

  EXPECT_TRUE(logged.ok()) << logged.error_message();
  std::vector<std::string> texts;
  for (const job::v1::LogLine& line : lines) texts.push_back(line.text());
  EXPECT_THAT(texts, Contains("Admitted: gang ready: 2 workers, 2 shards, on CPUs"));
  EXPECT_THAT(texts, Contains("task 1 starts"));
  EXPECT_EQ(texts.back(), "Succeeded");
  {
    MutexLock lock(mu_);
    while (files_taken_ < 2) ASSERT_FALSE(changed_.WaitWithTimeout(mu_, kLimit));
  }
  const std::string metrics = server_->registry().Scrape();
  EXPECT_THAT(metrics, HasSubstr("capstan_jobs_finished_total{queue=\"default\",reason=\"\","
                                 "state=\"SUCCEEDED\"} 1"));
  EXPECT_THAT(metrics, HasSubstr(absl::StrCat("capstan_job_global_step{job_id=\"", id, "\"} 5")));
  for (const auto& node : nodes) EXPECT_TRUE(node->Leave().ok());
}

TEST_F(ServiceTest, FilesOfACheckpointAreReadFromAnyByteAndDeleted) {
  job::v1::SubmitJobResponse submitted;
  ASSERT_TRUE(Submit(Spec(1, 1), "r-1", &submitted).ok());
  const std::string id = submitted.job_id();
  FakeNode store(*server_, Store("s0"), StoreScript());
  FakeNode worker(*server_, Worker("w0"), WorkerScript());
  const absl::Time deadline = absl::Now() + kLimit;
  while (Get(id).state() != common::v1::JOB_STATE_SUCCEEDED && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  const auto files = job::v1::CheckpointService::NewStub(Dial(*server_));
  const auto read = [&](const std::string& checkpoint, const std::string& name, int64_t offset,
                        int64_t length) {
    job::v1::DownloadCheckpointRequest request;
    request.set_job_id(id);
    request.set_checkpoint(checkpoint);
    request.set_name(name);
    request.set_offset(offset);
    request.set_length_bytes(length);
    const auto context = services::NewContext(kLimit);
    const auto reader = files->DownloadCheckpoint(context.get(), request);
    job::v1::DownloadCheckpointResponse response;
    std::string bytes;
    while (reader->Read(&response)) bytes += response.data();
    const grpc::Status status = reader->Finish();
    return status.ok() ? bytes : absl::StrCat(status.error_code(), " ", status.error_message());
  };
  const std::string folder = absl::StrCat(dir_, "/state/checkpoints/", id, "/1-5");
  EXPECT_EQ(read("1-5", "weights.safetensors", 0, 0), "bytes");
  EXPECT_EQ(read("1-5", "weights.safetensors", 3, 0), "es");
  EXPECT_EQ(read("1-5", "weights.safetensors", 1, 2), "yt");
  EXPECT_EQ(read("1-5", "weights.safetensors", 5, 0), "");
  EXPECT_EQ(read("1-5", "weights.safetensors", 6, 0), "3 offset: got 6, want 0 to 5");
  EXPECT_EQ(read("1-5", "weights.safetensors", 0, -1), "3 length_bytes: got -1, want 0 or more");
  EXPECT_EQ(read("1-5", "manifest.json", 0, 0),
            *services::ReadWholeFile(folder + "/manifest.json", 1 << 20));
  EXPECT_EQ(read("1-4", "manifest.json", 0, 0),
            absl::StrCat("5 job ", id, " has no checkpoint 1-4; it has 1-5"));
  for (const char* name : {"../../files.key", "metrics.jsonl", "/etc/passwd"}) {
    EXPECT_EQ(read("1-5", name, 0, 0),
              absl::StrCat("5 checkpoint 1-5 of job ", id, " has no file ", name));
  }
  // A link in place of a file or of the folder is not followed out of the job's folder.
  ASSERT_EQ(::unlink((folder + "/shard-0.safetensors").c_str()), 0);
  ASSERT_EQ(::symlink("/etc/passwd", (folder + "/shard-0.safetensors").c_str()), 0);
  EXPECT_EQ(read("1-5", "shard-0.safetensors", 0, 0).substr(0, 2), "9 ");
  ASSERT_EQ(::rename(folder.c_str(), (folder + "-away").c_str()), 0);
  EXPECT_EQ(read("1-5", "weights.safetensors", 0, 0).substr(0, 2), "5 ");
  ASSERT_EQ(::rename((folder + "-away").c_str(), folder.c_str()), 0);

  job::v1::DeleteCheckpointRequest request;
  request.set_job_id(id);
  request.set_checkpoint("1-5");
  job::v1::DeleteCheckpointResponse response;
  const grpc::Status deleted =
      files->DeleteCheckpoint(services::NewContext(kLimit).get(), request, &response);
  ASSERT_TRUE(deleted.ok()) << deleted.error_message();
  EXPECT_EQ(response.size_bytes(), 10);
  EXPECT_EQ(Get(id).checkpoints_size(), 0);
  EXPECT_EQ(read("1-5", "manifest.json", 0, 0),
            absl::StrCat("5 job ", id, " has no checkpoint 1-5 and no other one"));
  while (::access(folder.c_str(), F_OK) == 0 && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_NE(::access(folder.c_str(), F_OK), 0);
  EXPECT_TRUE(store.Leave().ok());
  EXPECT_TRUE(worker.Leave().ok());
}

TEST_F(ServiceTest, SubmitNamesWhatIsMissingAndIsIdempotent) {
  job::v1::SubmitJobResponse response;
  grpc::Status status = stub_->SubmitJob(services::NewContext(kLimit).get(), {}, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  std::vector<std::string> fields;
  for (const auto& violation : services::GetViolations(services::FromGrpcStatus(status))) {
    fields.push_back(violation.field);
  }
  EXPECT_THAT(fields, ElementsAre("request_id", "spec"));

  job::v1::JobSpec spec = Spec(1, 0);
  spec.mutable_training()->mutable_optimizer()->set_learning_rate(-1);
  status = Submit(spec, "a", &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  auto violations = services::GetViolations(services::FromGrpcStatus(status));
  ASSERT_THAT(violations, SizeIs(1));
  EXPECT_EQ(violations[0].field, "training.optimizer.learning_rate");

  spec = Spec(1, 0);
  spec.mutable_checkpoint()->set_storage_path("file:///etc");
  status = Submit(spec, "a", &response);
  violations = services::GetViolations(services::FromGrpcStatus(status));
  ASSERT_THAT(violations, SizeIs(1)) << status.error_message();
  EXPECT_EQ(violations[0].field, "checkpoint.storage_path");

  ASSERT_TRUE(Submit(Spec(1, 0), "a", &response).ok());
  const std::string id = response.job_id();
  EXPECT_FALSE(response.existed());
  ASSERT_TRUE(Submit(Spec(1, 0), "a", &response).ok());
  EXPECT_EQ(response.job_id(), id);
  EXPECT_TRUE(response.existed());
  EXPECT_EQ(Submit(Spec(2, 1), "a", &response).error_code(), grpc::StatusCode::ALREADY_EXISTS);

  job::v1::ListJobsResponse list;
  ASSERT_TRUE(stub_->ListJobs(services::NewContext(kLimit).get(), {}, &list).ok());
  ASSERT_THAT(list.jobs(), SizeIs(1));
  EXPECT_EQ(list.jobs(0).reason(), "WaitingForSlots");
  EXPECT_THAT(
      server_->registry().Scrape(),
      HasSubstr("capstan_jobs_rejected_total{queue=\"default\",reason=\"invalid_spec\"} 3"));
}

TEST_F(ServiceTest, AListIsFilteredBeforeItIsCutAndItsFilterIsBounded) {
  job::v1::JobSpec labelled = Spec(1, 0);
  (*labelled.mutable_labels())["team"] = "vision";
  job::v1::SubmitJobResponse oldest, other;
  ASSERT_TRUE(Submit(labelled, "a", &oldest).ok());
  ASSERT_TRUE(Submit(Spec(1, 0), "b", &other).ok());
  ASSERT_TRUE(Submit(Spec(1, 0), "c", &other).ok());
  const auto list = [this](const job::v1::ListJobsRequest& request,
                           job::v1::ListJobsResponse* response) {
    return stub_->ListJobs(services::NewContext(kLimit).get(), request, response);
  };

  job::v1::ListJobsRequest request;
  request.set_limit(1);
  (*request.mutable_labels())["team"] = "vision";
  job::v1::ListJobsResponse response;
  ASSERT_TRUE(list(request, &response).ok());
  ASSERT_THAT(response.jobs(), SizeIs(1));
  EXPECT_EQ(response.jobs(0).job_id(), oldest.job_id());
  request.set_owner("ann");  // over a Unix socket a job has no owner
  response.Clear();
  ASSERT_TRUE(list(request, &response).ok());
  EXPECT_THAT(response.jobs(), SizeIs(0));

  request.set_owner(std::string(64, 'a'));
  (*request.mutable_labels())[std::string(64, 'k')] = "v";
  for (int i = 0; i < 32; ++i) (*request.mutable_labels())[absl::StrCat("k", i)] = "v";
  const grpc::Status status = list(request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  std::vector<std::string> fields;
  for (const auto& violation : services::GetViolations(services::FromGrpcStatus(status))) {
    fields.push_back(violation.field);
  }
  EXPECT_THAT(fields, ElementsAre("owner", "labels", "labels"));
}

TEST_F(ServiceTest, UnknownJobsAreNotFoundEverywhere) {
  job::v1::GetJobRequest get;
  get.set_job_id("no-such-job");
  job::v1::GetJobResponse got;
  EXPECT_EQ(stub_->GetJob(services::NewContext(kLimit).get(), get, &got).error_code(),
            grpc::StatusCode::NOT_FOUND);
  job::v1::CancelJobRequest cancel;
  cancel.set_job_id("no-such-job");
  job::v1::CancelJobResponse cancelled;
  EXPECT_EQ(stub_->CancelJob(services::NewContext(kLimit).get(), cancel, &cancelled).error_code(),
            grpc::StatusCode::NOT_FOUND);
  job::v1::WatchJobRequest watch;
  watch.set_job_id("no-such-job");
  const auto watch_context = services::NewContext(kLimit);
  EXPECT_EQ(stub_->WatchJob(watch_context.get(), watch)->Finish().error_code(),
            grpc::StatusCode::NOT_FOUND);
  job::v1::StreamLogsRequest logs;
  const auto logs_context = services::NewContext(kLimit);
  EXPECT_EQ(stub_->StreamLogs(logs_context.get(), logs)->Finish().error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);  // job_id is empty
}

TEST_F(ServiceTest, CancelEndsARunningJobAndItsWatchers) {
  finish_ = false;
  FakeNode store(*server_, Store("s0"), StoreScript());
  FakeNode worker(*server_, Worker("w0"), WorkerScript());
  job::v1::SubmitJobResponse submitted;
  ASSERT_TRUE(Submit(Spec(1, 1), "r", &submitted).ok());
  const auto context = services::NewContext(kLimit);
  job::v1::WatchJobRequest request;
  request.set_job_id(submitted.job_id());
  const auto reader = stub_->WatchJob(context.get(), request);
  job::v1::WatchJobResponse response;
  bool asked = false;
  while (reader->Read(&response)) {
    if (response.job().state() == common::v1::JOB_STATE_RUNNING && !asked) {
      asked = true;
      job::v1::CancelJobRequest cancel;
      cancel.set_job_id(submitted.job_id());
      job::v1::CancelJobResponse cancelled;
      ASSERT_TRUE(stub_->CancelJob(services::NewContext(kLimit).get(), cancel, &cancelled).ok());
    }
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(response.job().state(), common::v1::JOB_STATE_CANCELLED);
}

TEST_F(ServiceTest, AReaderWhoDoesNotReadHoldsUpNobody) {
  job::v1::JobSpec spec = Spec(1, 1);
  spec.set_description(std::string(1024, 'x'));
  job::v1::SubmitJobResponse submitted;
  ASSERT_TRUE(Submit(spec, "r", &submitted).ok());
  job::v1::WatchJobRequest request;
  request.set_job_id(submitted.job_id());
  const auto context = services::NewContext(kLimit);
  const auto reader = stub_->WatchJob(context.get(), request);  // it never reads
  FakeNode store(*server_, Store("s0"), StoreScript());
  FakeNode worker(*server_, Worker("w0"), WorkerScript());
  const absl::Time limit = absl::Now() + kLimit;
  while (Get(submitted.job_id()).state() != common::v1::JOB_STATE_SUCCEEDED) {
    ASSERT_LT(absl::Now(), limit);
  }
  // Its present reads end with the job's end.
  job::v1::WatchJobResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(response.job().state(), common::v1::JOB_STATE_SUCCEEDED);
}

// A message is built from committed data, and the commit tells every stream of the job, including
// the one that builds the message.
TEST_F(ServiceTest, WatchersOfJobsThatChangeAllTheTimeSeeTheirEnd) {
  const auto change_and_cancel = [this](const std::string& name) {
    job::v1::SubmitJobResponse submitted;
    ASSERT_TRUE(Submit(Spec(1, 0), name, &submitted).ok());
    const auto context = services::NewContext(kLimit);
    job::v1::WatchJobRequest watch;
    watch.set_job_id(submitted.job_id());
    watch.set_min_interval_ms(1);
    const auto reader = stub_->WatchJob(context.get(), watch);
    for (int i = 1; i <= 3; ++i) {
      job::v1::UpdateJobRequest update;
      update.set_job_id(submitted.job_id());
      update.set_max_restarts(i);
      job::v1::UpdateJobResponse updated;
      EXPECT_TRUE(stub_->UpdateJob(services::NewContext(kLimit).get(), update, &updated).ok());
    }
    job::v1::CancelJobRequest cancel;
    cancel.set_job_id(submitted.job_id());
    job::v1::CancelJobResponse cancelled;
    EXPECT_TRUE(stub_->CancelJob(services::NewContext(kLimit).get(), cancel, &cancelled).ok());
    job::v1::WatchJobResponse response;
    while (reader->Read(&response)) {
    }
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.job().state(), common::v1::JOB_STATE_CANCELLED);
  };
  std::vector<std::thread> users;
  for (int user = 0; user < 16; ++user) {
    users.emplace_back([&change_and_cancel, user] {
      for (int i = 0; i < 20; ++i) change_and_cancel(absl::StrCat("r-", user, "-", i));
    });
  }
  for (std::thread& user : users) user.join();
}

TEST_F(ServiceTest, NodesAreListedAndToldHowMuchToLog) {
  std::promise<std::string> told;
  FakeNode worker(*server_, Worker("w0"), [&](const node::v1::ConnectResponse& message, FakeNode&) {
    if (message.has_set_log_level()) told.set_value(message.set_log_level().level());
  });
  ASSERT_TRUE(worker.WaitRegistered());
  job::v1::ListNodesResponse nodes;
  auto context = services::NewContext(kLimit);
  ASSERT_TRUE(admin_->ListNodes(context.get(), {}, &nodes).ok());
  ASSERT_EQ(nodes.nodes_size(), 1);
  EXPECT_EQ(nodes.nodes(0).name(), "w0");
  EXPECT_EQ(nodes.nodes(0).role(), common::v1::ROLE_WORKER);
  EXPECT_EQ(nodes.nodes(0).state(), "READY");
  EXPECT_THAT(nodes.nodes(0).devices(), ::testing::ElementsAre("cpu"));
  EXPECT_EQ(nodes.nodes(0).busy_devices(), 0);

  const auto set = [&](const std::string& node, const std::string& level) {
    job::v1::SetLogLevelRequest request;
    request.set_node(node);
    request.set_level(level);
    job::v1::SetLogLevelResponse response;
    const auto call = services::NewContext(kLimit);
    return admin_->SetLogLevel(call.get(), request, &response).error_code();
  };
  EXPECT_EQ(set("w0", "debug"), grpc::StatusCode::OK);
  EXPECT_EQ(told.get_future().get(), "debug");
  EXPECT_EQ(set("w1", "debug"), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(set("w0", "loud"), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(set("", "warning"), grpc::StatusCode::OK);
  EXPECT_FALSE(services::LogEnabled(services::kInfo));
  EXPECT_TRUE(services::LogEnabled(services::kWarning));
}

// Two jobs that nobody runs. One stream tells the events of both, another the events of one job
// until its end.
TEST_F(ServiceTest, EventsOfAllJobsAndOfOne) {
  job::v1::SubmitJobResponse first;
  job::v1::SubmitJobResponse second;
  ASSERT_TRUE(Submit(Spec(1, 1), "r-1", &first).ok());
  ASSERT_TRUE(Submit(Spec(1, 1), "r-2", &second).ok());
  const auto read = [&](const std::string& job_id, bool follow, int enough) {
    job::v1::StreamEventsRequest request;
    request.set_job_id(job_id);
    request.set_follow(follow);
    const auto context = services::NewContext(kLimit);
    const auto reader = stub_->StreamEvents(context.get(), request);
    std::vector<std::string> seen;
    job::v1::StreamEventsResponse response;
    while (static_cast<int>(seen.size()) < enough && reader->Read(&response)) {
      seen.push_back(response.job_id() + " " + response.event().type());
    }
    if (static_cast<int>(seen.size()) == enough) context->TryCancel();
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok() || static_cast<int>(seen.size()) == enough) << status.error_message();
    return seen;
  };
  const std::string a = first.job_id();
  const std::string b = second.job_id();
  EXPECT_THAT(read("", false, 100), ::testing::ElementsAre(a + " Submitted", b + " Submitted"));
  std::vector<std::string> all;
  std::thread follower([&] { all = read("", true, 3); });
  std::vector<std::string> one;
  std::thread of_one([&] { one = read(a, true, 100); });  // ends with the job
  job::v1::CancelJobRequest cancel;
  cancel.set_job_id(a);
  job::v1::CancelJobResponse cancelled;
  const auto context = services::NewContext(kLimit);
  ASSERT_TRUE(stub_->CancelJob(context.get(), cancel, &cancelled).ok());
  follower.join();
  of_one.join();
  ASSERT_GE(one.size(), 2u);
  EXPECT_EQ(one.front(), a + " Submitted");
  EXPECT_EQ(one.back(), a + " Cancelled");
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1], b + " Submitted");
  EXPECT_EQ(all[2], one[1]);
}

TEST_F(ServiceTest, NodesThatBreakTheRulesAreRefused) {
  const auto ignore = [](const node::v1::ConnectResponse&, FakeNode&) {};
  {
    FakeNode first(*server_, Worker("w0"), ignore);
    ASSERT_TRUE(first.WaitRegistered());
    FakeNode second(*server_, Worker("w0"), ignore);
    const grpc::Status status = second.Ended();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
    EXPECT_THAT(status.error_message(), HasSubstr("w0"));
    EXPECT_TRUE(first.Leave().ok());
    // It said goodbye, so its name is free at once and not only after the lease.
    FakeNode third(*server_, Worker("w0"), ignore);
    ASSERT_TRUE(third.WaitRegistered());
    node::v1::ConnectRequest nothing;
    third.Say(nothing);
    EXPECT_EQ(third.Ended().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  FakeNode nameless(*server_, Worker(""), ignore);
  EXPECT_EQ(nameless.Ended().error_code(), grpc::StatusCode::INVALID_ARGUMENT);

  grpc::ClientContext context;
  services::SetTimeout(context, kLimit);
  const auto stub = node::v1::NodeService::NewStub(Dial(*server_));
  const auto stream = stub->Connect(&context);
  node::v1::ConnectRequest request;
  request.mutable_heartbeat();
  stream->Write(request);
  node::v1::ConnectResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(ServiceTest, ShutdownEndsStreamsAndAnswers) {
  job::v1::SubmitJobResponse submitted;
  ASSERT_TRUE(Submit(Spec(1, 1), "r", &submitted).ok());
  FakeNode worker(*server_, Worker("w0"), [](const node::v1::ConnectResponse&, FakeNode&) {});
  ASSERT_TRUE(worker.WaitRegistered());
  job::v1::WatchJobRequest request;
  request.set_job_id(submitted.job_id());
  const auto context = services::NewContext(kLimit);
  const auto reader = stub_->WatchJob(context.get(), request);
  job::v1::WatchJobResponse response;
  ASSERT_TRUE(reader->Read(&response));
  server_->Shutdown();
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(worker.Ended().error_code(), grpc::StatusCode::UNAVAILABLE);
}

// A process's key is in no answer and in no file of the coordinator.
TEST_F(ServiceTest, AProcessIsKnownByItsKeyAndOfThatTheHashAloneIsKept) {
  const std::string key = "0123456789abcdef";
  const auto quiet = [](const node::v1::ConnectResponse&, FakeNode&) {};
  int64_t incarnation = 0;  // used by the reader's thread until it has left
  node::v1::Register reg = Worker("w0");
  reg.set_resume_key(key);
  FakeNode first(*server_, reg, [&](const node::v1::ConnectResponse& order, FakeNode&) {
    if (order.has_registered()) incarnation = order.registered().incarnation();
  });
  ASSERT_TRUE(first.WaitRegistered());

  // A thief who has read the number in `node list`.
  job::v1::ListNodesResponse nodes;
  grpc::ClientContext context;
  services::SetTimeout(context, kLimit);
  ASSERT_TRUE(admin_->ListNodes(&context, {}, &nodes).ok());
  node::v1::Register thief = Worker("w0");
  thief.set_last_incarnation(nodes.nodes(0).incarnation());
  EXPECT_EQ(FakeNode(*server_, thief, quiet).Ended().error_code(),
            grpc::StatusCode::ALREADY_EXISTS);
  thief.set_resume_key("fedcba9876543210");
  EXPECT_EQ(FakeNode(*server_, thief, quiet).Ended().error_code(),
            grpc::StatusCode::ALREADY_EXISTS);

  int64_t again = 0;
  {
    FakeNode same(*server_, reg, [&](const node::v1::ConnectResponse& order, FakeNode&) {
      if (order.has_registered()) again = order.registered().incarnation();
    });
    ASSERT_TRUE(same.WaitRegistered());
    EXPECT_EQ(first.Ended().error_code(), grpc::StatusCode::ABORTED);
  }
  EXPECT_EQ(again, incarnation);
  EXPECT_EQ(incarnation, nodes.nodes(0).incarnation());

  const std::string shown = nodes.SerializeAsString();
  const std::string hash = services::HashToken(key);
  EXPECT_THAT(shown, Not(HasSubstr(key)));
  EXPECT_THAT(shown, Not(HasSubstr(hash)));
  std::string journal;
  for (const char* name : {"journal.db", "journal.db-wal"}) {
    const auto bytes = services::ReadWholeFile(absl::StrCat(dir_, "/state/", name), 64 << 20);
    if (bytes.ok()) journal += *bytes;
  }
  EXPECT_THAT(journal, HasSubstr(hash));  // shows that the right file is read
  EXPECT_THAT(journal, Not(HasSubstr(key)));
}

TEST_F(ServiceTest, ADiagnosisAsksAllAndDoesNotWaitForThoseThatAreSilent) {
  node::v1::Diagnose asked;  // used by the reader's thread of w0 until it has left
  std::promise<void> under_way;
  const auto answer = [](const node::v1::ConnectResponse& order, FakeNode& node) {
    if (!order.has_diagnose()) return;
    node::v1::ConnectRequest request;
    node::v1::DiagnosisResult& result = *request.mutable_diagnosis_result();
    result.set_diagnosis_id(order.diagnose().diagnosis_id());
    result.mutable_asked_at()->set_seconds(absl::ToUnixSeconds(absl::Now()) + 3600);
    *result.mutable_answered_at() = result.asked_at();
    result.add_peers()->set_node("s0");
    node.Say(request);
    node.Say(request);  // nobody waits for the second
  };
  FakeNode w0(*server_, Worker("w0"), [&](const node::v1::ConnectResponse& order, FakeNode& node) {
    if (order.has_diagnose()) asked = order.diagnose();
    answer(order, node);
  });
  FakeNode s0(*server_, Store("s0"), answer);
  FakeNode s1(*server_, Store("s1"), [&](const node::v1::ConnectResponse& order, FakeNode&) {
    if (order.has_diagnose()) under_way.set_value();
  });
  ASSERT_TRUE(w0.WaitRegistered() && s0.WaitRegistered() && s1.WaitRegistered());

  job::v1::DiagnoseResponse found;
  grpc::Status first;
  std::thread caller([&] {
    first =
        admin_->Diagnose(services::NewContext(kLimit).get(), job::v1::DiagnoseRequest(), &found);
  });
  under_way.get_future().wait();
  job::v1::DiagnoseResponse other;  // while s1 has not answered
  EXPECT_EQ(admin_->Diagnose(services::NewContext(kLimit).get(), job::v1::DiagnoseRequest(), &other)
                .error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  caller.join();
  w0.Leave();
  ASSERT_TRUE(first.ok()) << first.error_message();
  ASSERT_EQ(found.nodes_size(), 3);
  EXPECT_EQ(found.nodes(0).node().name(), "s0");
  EXPECT_TRUE(found.nodes(0).answered());
  EXPECT_NEAR(found.nodes(0).clock_ahead_seconds(), 3600, 10);
  EXPECT_FALSE(found.nodes(1).answered());
  EXPECT_EQ(found.nodes(2).peers_size(), 1);
  ASSERT_EQ(found.folders_size(), 1);
  EXPECT_EQ(found.folders(0).use(), job::v1::FOLDER_USE_STATE);
  EXPECT_GT(found.folders(0).total_bytes(), 0);
  // A worker checks both shards and the data root; it need not have the checkpoint folders.
  EXPECT_EQ(asked.peers_size(), 2);
  ASSERT_EQ(asked.folders_size(), 1);
  EXPECT_EQ(asked.folders(0).path(), "/data");
}

// Nodes dial the coordinator, so it tells nobody an address, and it has no admin socket.
TEST(StartTest, FlagsThatOnlyOthersHaveAreNotOffered) {
  Config config;
  const char* const help[] = {"capstan_coordinator", "--help"};
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(ParseConfig(2, help, config), 0);
  const std::string offered = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(offered, HasSubstr("--state-dir"));
  for (const char* flag : {"--admin-socket", "--advertise", "--interface"}) {
    EXPECT_THAT(offered, Not(HasSubstr(flag)));
    const char* const args[] = {"capstan_coordinator", flag, "x"};
    EXPECT_EQ(ParseConfig(3, args, config), 2) << flag;
  }
}

TEST(StartTest, BadSettingsAreNamed) {
  const std::string dir = *services::MakePrivateDir("coord-bad");
  Config config;
  config.common.listen = absl::StrCat("unix:", dir, "/c.sock");
  config.common.http = "off";
  config.state_dir = dir + "/state";
  config.heartbeat = absl::Seconds(4);
  EXPECT_THAT(std::string(CoordinatorServer::Start(config, [] {}).status().message()),
              HasSubstr("--heartbeat"));
  config.heartbeat = absl::Seconds(1);
  config.data_roots = {"s3://bucket"};
  EXPECT_THAT(std::string(CoordinatorServer::Start(config, [] {}).status().message()),
              HasSubstr("--data-root"));
  config.data_roots.clear();
  for (const char* id : {"a/b", "../x", "1-20", "A"}) {
    config.only_job = id;
    EXPECT_THAT(std::string(CheckConfig(config).message()), HasSubstr("--only-job"));
  }
  config.only_job.clear();
  config.state_dir = "/dev/null/x";
  EXPECT_FALSE(CoordinatorServer::Start(config, [] {}).ok());
  (void)services::RemoveTree("/tmp", dir);
}

}  // namespace
}  // namespace capstan::coordinator
