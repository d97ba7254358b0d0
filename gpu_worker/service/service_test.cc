// Tests the worker service with the test's own coordinator in the same process, and real children:
// this binary is started again as a task.
#include "gpu_worker/service/service.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <future>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "capstan/node/v1/node.grpc.pb.h"
#include "gpu_worker/engine/cpu/cpu_device.h"
#include "gpu_worker/nvml/fake_nvml_world.h"
#include "gpu_worker/task/task_main.h"
#include "gpu_worker/task/test_job.h"
#include "services/endpoint/endpoint.h"
#include "services/files/files.h"
#include "services/process/process.h"
#include "services/security/tokens.h"
#include "services/server/server.h"
#include "services/version/version.h"
#include "tests/support/http_get.h"

namespace capstan::gpu_worker {
namespace {

using node::v1::ConnectRequest;
using node::v1::ConnectResponse;
using node::v1::TaskState;
using ::testing::HasSubstr;

constexpr absl::Duration kLimit = absl::Seconds(30);

class FakeCoordinator final : public node::v1::NodeService::Service {
 public:
  using Stream = grpc::ServerReaderWriter<ConnectResponse, ConnectRequest>;

  grpc::Status Connect(grpc::ServerContext*, Stream* stream) override {
    ConnectRequest request;
    if (!stream->Read(&request) || !request.has_register_()) {
      return {grpc::StatusCode::FAILED_PRECONDITION, "no Register"};
    }
    ConnectResponse registered;
    registered.mutable_registered()->set_incarnation(5);
    registered.mutable_registered()->set_lease_ms(5000);
    registered.mutable_registered()->set_heartbeat_ms(200);
    stream->Write(registered);
    {
      MutexLock lock(mu_);
      registration_ = request.register_();
      stream_ = stream;
      changed_.NotifyAll();
    }
    while (stream->Read(&request)) {
      MutexLock lock(mu_);
      if (request.has_heartbeat()) heartbeat_ = request.heartbeat();
      if (request.has_probe_result()) probes_.push_back(request.probe_result());
      for (const job::v1::LogLine& line : request.logs().lines()) lines_.push_back(line);
      changed_.NotifyAll();
    }
    MutexLock lock(mu_);
    stream_ = nullptr;
    return grpc::Status::OK;
  }

  void Send(const ConnectResponse& message) {
    MutexLock lock(mu_);
    ASSERT_NE(stream_, nullptr);
    stream_->Write(message);
  }
  // Waits until `done`, called under the lock, returns true; false after `limit`.
  bool Until(const std::function<bool()>& done, absl::Duration limit = kLimit) {
    MutexLock lock(mu_);
    const absl::Time end = absl::Now() + limit;
    while (!done()) {
      if (absl::Now() >= end) return false;
      changed_.WaitWithTimeout(mu_, std::min(end - absl::Now(), absl::Milliseconds(100)));
    }
    return true;
  }
  // Read by `done` above.
  node::v1::Register registration_;
  node::v1::Heartbeat heartbeat_;
  std::vector<node::v1::ProbeResult> probes_;
  std::vector<job::v1::LogLine> lines_;
  bool connected() const { return stream_ != nullptr; }

 private:
  Mutex mu_;
  CondVar changed_;
  Stream* stream_ = nullptr;
};

// Children of this process, from /proc.
std::vector<pid_t> Children() {
  std::vector<pid_t> children;
  DIR* proc = opendir("/proc");
  while (const dirent* entry = readdir(proc)) {
    int pid;
    if (!absl::SimpleAtoi(entry->d_name, &pid)) continue;
    FILE* stat = std::fopen(absl::StrCat("/proc/", pid, "/stat").c_str(), "r");
    if (stat == nullptr) continue;
    char state = 0;
    int parent = 0;
    if (std::fscanf(stat, "%*d (%*[^)]) %c %d", &state, &parent) == 2 && parent == getpid() &&
        state != 'Z') {
      children.push_back(pid);
    }
    std::fclose(stat);
  }
  closedir(proc);
  return children;
}

class ServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = *services::MakePrivateDir("worker-test");
    services::ServerOptions options;
    options.listen = *services::ParseEndpoint(absl::StrCat("unix:", folder_, "/c.sock"));
    options.drain_timeout = absl::Milliseconds(200);
    auto server = services::Server::Start(
        options, {{node::v1::NodeService::service_full_name(), &coordinator_}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);

    config_.common.listen = absl::StrCat("unix:", folder_, "/w.sock");
    config_.common.http = "127.0.0.1:0";
    config_.coordinator = absl::StrCat("unix:", folder_, "/c.sock");
    config_.node = "w0";
    config_.devices = {"cpu", "cpu"};
    config_.cpu_threads = 2;
    auto worker = Service::Start(config_, "/proc/self/exe");
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    ASSERT_TRUE(coordinator_.Until([&] { return coordinator_.connected(); }));
  }
  void TearDown() override {
    worker_.reset();
    EXPECT_TRUE(Children().empty());
    server_->Shutdown();
    EXPECT_TRUE(services::RemoveTree("/tmp", folder_).ok());
  }

  void StartTask(int64_t steps, int32_t devices = 1) {
    TestJob test;
    test.storage_path = folder_;
    test.steps = steps;
    test.devices = devices;
    ConnectResponse message;
    *message.mutable_start_task() = test.Start();
    coordinator_.Send(message);
  }
  void StopTask(int grace_ms) {
    ConnectResponse message;
    message.mutable_stop_task()->set_job_id("digits-ab12");
    message.mutable_stop_task()->set_grace_ms(grace_ms);
    coordinator_.Send(message);
  }
  // Waits until `done` holds for the state of the one task.
  bool UntilTask(std::function<bool(const TaskState&)> done, absl::Duration limit = kLimit) {
    const bool held = coordinator_.Until(
        [&] {
          if (coordinator_.heartbeat_.tasks_size() != 1) return false;
          state_ = coordinator_.heartbeat_.tasks(0);
          return done(state_);
        },
        limit);
    if (!held) ADD_FAILURE() << "last state: " << state_.ShortDebugString();
    return held;
  }
  bool UntilNoTask() {
    return coordinator_.Until([&] { return coordinator_.heartbeat_.tasks_size() == 0; });
  }
  static bool Running(const TaskState& state) {
    return state.phase() == node::v1::TASK_PHASE_RUNNING && state.lead().step() > 3;
  }

  std::string folder_;
  FakeCoordinator coordinator_;
  std::unique_ptr<services::Server> server_;
  Config config_;
  std::unique_ptr<Service> worker_;
  TaskState state_;
};

TEST_F(ServiceTest, RegistersItsDevicesAndAnswersProbes) {
  EXPECT_EQ(coordinator_.registration_.name(), "w0");
  EXPECT_EQ(coordinator_.registration_.role(), common::v1::ROLE_WORKER);
  ASSERT_EQ(coordinator_.registration_.devices_size(), 2);
  EXPECT_EQ(coordinator_.registration_.devices(1).name(), "cpu");
  EXPECT_THAT(worker_->Addresses(), HasSubstr("grpc=unix:"));
  ConnectResponse message;
  message.mutable_probe()->set_probe_id(3);
  message.mutable_probe()->set_job_id("j");
  *message.mutable_probe()->mutable_spec() = TestJob().Spec();
  coordinator_.Send(message);
  ASSERT_TRUE(coordinator_.Until([&] { return coordinator_.probes_.size() == 1; }));
  EXPECT_EQ(coordinator_.probes_[0].probe_id(), 3);
  EXPECT_EQ(coordinator_.probes_[0].dataset().train_samples(), 640);
}

TEST_F(ServiceTest, ATaskRunsFinishesAndIsForgottenAfterStopTask) {
  StartTask(/*steps=*/20, /*devices=*/2);
  ASSERT_TRUE(UntilTask([](const TaskState& state) {
    return state.phase() == node::v1::TASK_PHASE_FINISHED && state.files().files_size() == 2 &&
           state.lead().complete();
  }));
  EXPECT_EQ(state_.weights_sha256().size(), 64u);
  EXPECT_EQ(state_.step(), 20);
  EXPECT_EQ(Children().size(), 1u);  // it waits for StopTask
  StartTask(20, 2);                  // repeated; no effect
  ConnectResponse taken;
  taken.mutable_files_taken()->set_job_id("digits-ab12");
  taken.mutable_files_taken()->set_lineage(1);
  taken.mutable_files_taken()->set_step(20);
  coordinator_.Send(taken);
  ASSERT_TRUE(UntilTask([](const TaskState& state) { return !state.has_files(); }));
  EXPECT_EQ(Children().size(), 1u);
  ASSERT_TRUE(coordinator_.Until([&] {
    for (const job::v1::LogLine& line : coordinator_.lines_) {
      if (absl::StrContains(line.text(), "event=device_ready")) return true;
    }
    return false;
  }));
  StopTask(5000);
  EXPECT_TRUE(UntilNoTask());
  EXPECT_TRUE(Children().empty());
}

TEST_F(ServiceTest, AKilledTaskIsReportedAtOnce) {
  StartTask(/*steps=*/100000000);
  ASSERT_TRUE(UntilTask(Running));
  const std::vector<pid_t> children = Children();
  ASSERT_EQ(children.size(), 1u);
  kill(children[0], SIGKILL);
  ASSERT_TRUE(
      UntilTask([](const TaskState& state) { return state.phase() == node::v1::TASK_PHASE_FAILED; },
                absl::Seconds(1)));
  EXPECT_EQ(state_.reason(), "WorkerLost");  // there was no lack of memory
  EXPECT_EQ(state_.exit_code(), -SIGKILL);
  EXPECT_EQ(state_.message(), "the task ended with signal 9 (Killed)");  // the host is known anyway
  StopTask(1000);
  EXPECT_TRUE(UntilNoTask());
}

TEST_F(ServiceTest, ACrashIsAnInternalErrorWithItsSignal) {
  StartTask(/*steps=*/100000000);
  ASSERT_TRUE(UntilTask(Running));
  kill(Children().at(0), SIGABRT);
  ASSERT_TRUE(
      UntilTask([](const TaskState& state) { return state.phase() == node::v1::TASK_PHASE_FAILED; },
                absl::Seconds(5)));
  EXPECT_EQ(state_.reason(), "InternalError");
  EXPECT_EQ(state_.exit_code(), -SIGABRT);
}

TEST_F(ServiceTest, ATaskIsStoppedInTheMiddleAndKilledWhereItDoesNotListen) {
  StartTask(/*steps=*/100000000);
  ASSERT_TRUE(UntilTask(Running));
  StopTask(20000);
  EXPECT_TRUE(UntilNoTask());
  EXPECT_TRUE(Children().empty());

  StartTask(/*steps=*/100000000);
  ASSERT_TRUE(UntilTask(Running));
  kill(Children().at(0), SIGSTOP);
  StopTask(100);
  EXPECT_TRUE(UntilNoTask());
  EXPECT_TRUE(Children().empty());
}

// Otherwise the job would show a loss without a cause.
TEST_F(ServiceTest, ItsTasksAreReportedUntilItsGoodbye) {
  StartTask(/*steps=*/100000000);
  ASSERT_TRUE(UntilTask(Running));
  worker_->Shutdown();
  ASSERT_TRUE(coordinator_.Until([&] { return !coordinator_.connected(); }));
  EXPECT_TRUE(Children().empty());
  ASSERT_TRUE(coordinator_.Until([&] { return coordinator_.heartbeat_.tasks_size() == 1; },
                                 absl::ZeroDuration()));
  EXPECT_NE(coordinator_.heartbeat_.tasks(0).phase(), node::v1::TASK_PHASE_FAILED);
}

TEST_F(ServiceTest, AFailureOfTheTaskKeepsItsReason) {
  ConnectResponse message;
  TestJob test;
  test.storage_path = folder_;
  *message.mutable_start_task() = test.Start();
  (*message.mutable_start_task()->mutable_spec_digest())[0] ^= 1;
  coordinator_.Send(message);
  ASSERT_TRUE(UntilTask([](const TaskState& state) { return state.has_exit_code(); }));
  EXPECT_EQ(state_.phase(), node::v1::TASK_PHASE_FAILED);
  EXPECT_EQ(state_.reason(), "InvalidSpec");
  EXPECT_EQ(state_.exit_code(), 1);
}

TEST_F(ServiceTest, ADeviceThatTheNodeHasNotFailsTheTask) {
  ConnectResponse message;
  TestJob test;
  test.storage_path = folder_;
  *message.mutable_start_task() = test.Start();
  message.mutable_start_task()->set_devices(0, 2);
  coordinator_.Send(message);
  ASSERT_TRUE(UntilTask(
      [](const TaskState& state) { return state.phase() == node::v1::TASK_PHASE_FAILED; }));
  EXPECT_THAT(state_.message(), HasSubstr("device 2, want 0 to 1"));
}

// Sets CAPSTAN_CPU_TARGET during a test.
class CpuTargetOfServiceTest : public ::testing::Test {
 protected:
  CpuTargetOfServiceTest() {
    config_.common.listen = "unix:/nobody/w.sock";
    config_.coordinator = "unix:/nobody/c.sock";
    config_.node = "w0";
    config_.devices = {"cpu"};
  }
  ~CpuTargetOfServiceTest() override { unsetenv(kVariable); }
  absl::Status StatusWith(const std::string& word) {
    setenv(kVariable, word.c_str(), /*overwrite=*/1);
    return Service::Start(config_, "/proc/self/exe").status();
  }
  static constexpr char kVariable[] = "CAPSTAN_CPU_TARGET";
  Config config_;
};

TEST_F(CpuTargetOfServiceTest, AWordThatIsNoneEndsTheStart) {
  const absl::Status status = StatusWith("avx1024");
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("--devices cpu: device cpu: CAPSTAN_CPU_TARGET 'avx1024', want avx512, avx2 "
                "or emulated; this processor has "));
}

// A processor with all instruction sets lacks none. BlockedMathTest has targets that lack some.
TEST_F(CpuTargetOfServiceTest, WhatTheProcessorLacksEndsTheStart) {
  for (const std::string word : {"avx512", "avx2"}) {
    if (engine::CpuTarget(word).ok()) continue;
    const absl::Status status = StatusWith(word);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("device cpu: CAPSTAN_CPU_TARGET '", word,
                                       "': this processor has ")));
  }
}

// A hung mount blocks the probes of data stored on it, but no task. Shutdown waits for none of
// these probes.
TEST(WorkerNodeTest, AProbeThatHangsHoldsUpNoTask) {
  struct Gate {
    Mutex mu;  // guards everything below
    CondVar changed;
    bool open = false;
    int asked = 0;
    int left = 0;
    std::vector<int64_t> told;

    bool Until(const std::function<bool()>& done) {
      const absl::Time end = absl::Now() + kLimit;
      MutexLock lock(mu);
      while (!done() && absl::Now() < end) changed.WaitWithTimeout(mu, absl::Milliseconds(100));
      return done();
    }
  };
  const auto gate = std::make_shared<Gate>();
  WorkerNodeOptions options;
  options.binary = "/proc/self/exe";
  options.devices = {"cpu"};
  options.cpu_threads = 1;
  options.answer_probe = [gate](const node::v1::Probe& probe, const std::vector<std::string>&) {
    MutexLock lock(gate->mu);
    ++gate->asked;
    gate->changed.NotifyAll();
    while (!gate->open) gate->changed.Wait(gate->mu);
    ++gate->left;
    gate->changed.NotifyAll();
    node::v1::ProbeResult result;
    result.set_probe_id(probe.probe_id());
    return result;
  };
  WorkerNode::Callbacks callbacks;
  callbacks.on_state = [gate] {
    MutexLock lock(gate->mu);
    gate->changed.NotifyAll();
  };
  callbacks.on_reply = [gate](const ConnectRequest& reply) {
    if (!reply.has_probe_result()) return;
    MutexLock lock(gate->mu);
    gate->told.push_back(reply.probe_result().probe_id());
    gate->changed.NotifyAll();
  };
  auto node = std::make_unique<WorkerNode>(options, nullptr, callbacks);
  const auto probe = [&node](int64_t id) {
    ConnectResponse message;
    message.mutable_probe()->set_probe_id(id);
    node->OnMessage(message);
  };
  const std::string folder = *services::MakePrivateDir("worker-test");
  TestJob test;
  test.storage_path = folder;
  test.steps = 100000000;
  ConnectResponse start;
  *start.mutable_start_task() = test.Start();
  node->OnMessage(start);
  ASSERT_TRUE(gate->Until([&] { return node->MakeHeartbeat().tasks_size() == 1; }));
  probe(7);
  ASSERT_TRUE(gate->Until([&] { return gate->asked == 1; }));
  probe(8);
  probe(7);  // repeated
  ConnectResponse stop;
  stop.mutable_stop_task()->set_job_id("digits-ab12");
  stop.mutable_stop_task()->set_grace_ms(100);
  node->OnMessage(stop);
  EXPECT_TRUE(gate->Until([&] { return node->MakeHeartbeat().tasks_size() == 0; }));
  EXPECT_TRUE(Children().empty());
  {
    MutexLock lock(gate->mu);
    EXPECT_EQ(gate->asked, 1);
    gate->open = true;
    gate->changed.NotifyAll();
  }
  ASSERT_TRUE(gate->Until([&] { return gate->told.size() == 2; }));
  {
    MutexLock lock(gate->mu);
    EXPECT_THAT(gate->told, ::testing::ElementsAre(7, 8));
    gate->open = false;
  }
  probe(9);
  ASSERT_TRUE(gate->Until([&] { return gate->asked == 3; }));
  node.reset();
  {
    MutexLock lock(gate->mu);
    gate->open = true;
    gate->changed.NotifyAll();
  }
  EXPECT_TRUE(gate->Until([&] { return gate->left == 3; }));
  {
    MutexLock lock(gate->mu);
    EXPECT_EQ(gate->told.size(), 2u);
  }
  EXPECT_TRUE(services::RemoveTree("/tmp", folder).ok());
}

// Data that name jobs need a token, unless the operator opens them to everybody.
TEST_F(ServiceTest, OffLoopbackMetricsWantATokenUnlessTheyAreOpened) {
  const std::string token = services::MakeToken();
  const std::string tokens = absl::StrCat(folder_, "/tokens.json");
  ASSERT_TRUE(
      services::WriteFileAtomically(tokens,
                                    services::FormatTokens({{services::HashToken(token),
                                                             {services::Role::kClient, "ann"},
                                                             absl::Now() + absl::Hours(1)}}),
                                    {.mode = 0600, .sync = false})
          .ok());
  for (const bool open : {false, true}) {
    worker_.reset();
    config_.common.security.insecure = true;  // plain HTTP off loopback
    config_.common.security.tokens = tokens;
    config_.common.http = "0.0.0.0:0";
    config_.common.open_metrics = open;
    auto worker = Service::Start(config_, "/proc/self/exe");
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    const std::string without = tests::HttpGet(worker_->Addresses(), "/metrics");
    EXPECT_THAT(without, HasSubstr(open ? " 200 " : " 401 "));
    EXPECT_EQ(absl::StrContains(without, "capstan_build_info"), open);
    EXPECT_THAT(tests::HttpGet(worker_->Addresses(), "/metrics", token),
                HasSubstr("capstan_build_info"));
  }
}

class ServiceWithGpusTest : public ServiceTest {
 protected:
  ServiceWithGpusTest() { setenv("CAPSTAN_NVML_LIBRARY", FakeNvmlWorld::Library().c_str(), 1); }
  ~ServiceWithGpusTest() override { unsetenv("CAPSTAN_NVML_LIBRARY"); }

  FakeNvmlWorld world_{"driver 580.95.05\ngpu uuid=GPU-a name=NVIDIA_H200 total=100 used=7\n"};
};

TEST_F(ServiceWithGpusTest, TheirMetricsAreServed) {
  std::string text;
  ASSERT_TRUE(coordinator_.Until([&] {
    text = tests::HttpGet(worker_->Addresses(), "/metrics");
    return absl::StrContains(text, "capstan_gpu_info{");
  })) << text;
  EXPECT_THAT(text, HasSubstr("capstan_gpu_memory_used_bytes{UUID=\"GPU-a\",gpu=\"0\"} 7\n"));
}

// The binary of a package that was upgraded while the service runs.
TEST(TaskBinaryTest, ATaskOfAnotherBuildThanItsServiceDoesNotStart) {
  services::ProcessSpawner spawner;
  for (const std::vector<std::string>& said :
       {std::vector<std::string>{}, {"--service-version", "0.0.1+another"}}) {
    std::vector<std::string> args = {"task", "--devices", "cpu"};
    args.insert(args.end(), said.begin(), said.end());
    std::promise<std::string> line;
    services::ProcessOptions options{.binary = "/proc/self/exe", .args = args};
    options.on_line = [&line](services::OutputStream, absl::string_view text) {
      line.set_value(std::string(text));
    };
    const auto task = spawner.Spawn(std::move(options));
    ASSERT_TRUE(task.ok()) << task.status();
    const auto exit = (*task)->WaitFor(absl::Seconds(30));
    ASSERT_TRUE(exit.has_value());
    EXPECT_EQ(exit->code, 2);
    std::future<std::string> told = line.get_future();
    ASSERT_EQ(told.wait_for(std::chrono::seconds(30)), std::future_status::ready);
    const std::string text = told.get();
    EXPECT_THAT(text, HasSubstr(absl::StrCat("this binary is of version ", Version(), "+")));
    EXPECT_THAT(text, HasSubstr(said.empty() ? "of an earlier one" : "of 0.0.1+another"));
  }
}

TEST_F(ServiceTest, ShutdownEndsTheTasks) {
  StartTask(/*steps=*/100000000);
  ASSERT_TRUE(UntilTask(Running));
  worker_->Shutdown();
  EXPECT_TRUE(Children().empty());
}

}  // namespace
}  // namespace capstan::gpu_worker

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "task") == 0) {
    return capstan::gpu_worker::TaskMain(argc, argv);
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
