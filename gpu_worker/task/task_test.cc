// Tests a whole task in `local` mode: digits drawn from a seed, the engine, the fold, the lead, the
// files.
#include "gpu_worker/task/task.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <future>
#include <new>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gpu_worker/task/device_runner.h"
#include "gpu_worker/task/job.h"
#include "gpu_worker/task/test_job.h"
#include "services/files/files.h"
#include "services/logging/log.h"
#include "training/codec/manifest.h"
#include "training/codec/safetensors.h"
#include "training/codec/sha256.h"

namespace capstan::gpu_worker {
namespace {

using node::v1::TaskState;
using ::testing::HasSubstr;

struct Outcome {
  std::vector<TaskState> states;
  TaskCounters counters;
  bool failed = false;
  const TaskState& last() const { return states.back(); }
};

// Runs the task until `done` holds for a state, then stops it. Calls `then` on the strand after
// each state.
Outcome RunTask(const node::v1::StartTask& start, std::vector<std::string> devices,
                std::function<bool(const TaskState&)> done,
                std::function<void(Task&, const TaskState&)> then = nullptr,
                TaskOptions options = {}) {
  Outcome outcome;
  services::StrandLoop strand;
  options.devices = std::move(devices);
  options.cpu_threads = 2;
  std::unique_ptr<Task> task;
  Task::Callbacks callbacks;
  callbacks.on_state = [&](const TaskState& state) {
    outcome.states.push_back(state);
    if (done(state)) strand.Post([&] { task->Stop(); });
    if (then != nullptr) {
      strand.Post([&, state] {
        if (task != nullptr) then(*task, state);
      });
    }
  };
  callbacks.on_counters = [&](const TaskCounters& counters) { outcome.counters = counters; };
  callbacks.on_exit = [&](bool failed) {
    outcome.failed = failed;
    strand.Stop();
  };
  task = std::make_unique<Task>(options, strand, callbacks);
  strand.Post([&] { task->Start(start); });
  strand.PostAfter(absl::Minutes(4), [&] {
    ADD_FAILURE() << "the task is late: " << outcome.states.back().ShortDebugString();
    strand.Stop();
  });
  std::thread thread([&] { strand.Run(); });
  thread.join();
  task.reset();
  return outcome;
}

bool AllWritten(const TaskState& state) {
  return state.phase() == node::v1::TASK_PHASE_FINISHED && state.files().files_size() == 2 &&
         state.lead().complete();
}

class TaskTest : public ::testing::Test {
 protected:
  void SetUp() override { folder_ = *services::MakePrivateDir("task-test"); }
  void TearDown() override { EXPECT_TRUE(services::RemoveTree("/tmp", folder_).ok()); }

  TestJob Small(const std::string& name) {
    TestJob job;
    job.storage_path = folder_ + "/" + name;
    return job;
  }
  void ExpectThatItGoesOnWithTheSameBits(TestJob test, const std::vector<std::string>& devices);
  // Saves at step 4, suspends the job at step 10, and returns the folder of that checkpoint.
  void Suspend(const TestJob& test, const std::vector<std::string>& devices, std::string* base);
  // Goes on from there in lineage 2, to the end.
  static Outcome GoOn(const TestJob& test, const std::string& base,
                      const std::vector<std::string>& devices);
  std::string folder_;
};

TEST_F(TaskTest, TrainsWritesItsFilesAndFinishes) {
  TestJob test = Small("a");
  test.momentum = 0.5;
  const Outcome outcome = RunTask(test.Start(), {"cpu"}, AllWritten);
  ASSERT_FALSE(outcome.failed) << outcome.last().ShortDebugString();
  EXPECT_EQ(outcome.states.front().phase(), node::v1::TASK_PHASE_STARTING);
  EXPECT_EQ(outcome.last().phase(), node::v1::TASK_PHASE_FINISHED);
  EXPECT_EQ(outcome.last().step(), 30);
  EXPECT_EQ(outcome.last().lead().samples_used(), 30 * 64);
  EXPECT_EQ(outcome.counters.steps, 30);
  EXPECT_EQ(outcome.counters.samples, 30 * 64);
  EXPECT_GT(outcome.counters.cpu_seconds, 0);
  EXPECT_GT(outcome.counters.resident_bytes, 1 << 20);
  // Three epochs of ten steps. Each is evaluated, including the last one.
  ASSERT_EQ(outcome.last().lead().epochs_size(), 3);
  EXPECT_GT(outcome.last().lead().epochs(2).validation_accuracy(), 0.3);

  // Chance is ln(10) = 2.3; 30 steps must learn something.
  const std::string root = test.storage_path + "/digits-ab12";
  std::istringstream log(*services::ReadWholeFile(root + "/metrics.jsonl", 1 << 20));
  std::vector<double> losses;
  for (std::string line; std::getline(log, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    EXPECT_EQ(json["step"], losses.size());
    EXPECT_EQ(json["samples"], 64);
    losses.push_back(json["loss"]);
  }
  ASSERT_EQ(losses.size(), 30u);
  EXPECT_NEAR(losses[0], 2.3, 0.5);
  EXPECT_LT(losses[29], 0.8 * losses[0]);

  // The files match their description in the state.
  for (const common::v1::FileInfo& info : outcome.last().files().files()) {
    const std::string bytes = *services::ReadWholeFile(root + "/1-30/" + info.name(), 1 << 26);
    EXPECT_EQ(info.size_bytes(), static_cast<int64_t>(bytes.size()));
    const auto header =
        training::ParseSafetensorsHeader(info.name(), bytes, static_cast<int64_t>(bytes.size()));
    ASSERT_TRUE(header.ok()) << header.status();
    if (info.name() != "weights.safetensors") continue;
    EXPECT_EQ(outcome.last().weights_sha256(),
              training::Sha256Hex(absl::string_view(bytes).substr(header->data_start)));
  }

  const node::v1::StepPhases& phases = outcome.last().phases();
  EXPECT_EQ(phases.steps(), 30);
  EXPECT_GT(phases.forward(), 0);  // CPUs separate the two
  EXPECT_GT(phases.backward(), 0);
  EXPECT_NEAR(phases.total(),
              phases.data_wait() + phases.forward_backward() + phases.forward() +
                  phases.backward() + phases.local_reduce() + phases.push() +
                  phases.barrier_wait() + phases.pull() + phases.update() + phases.evaluate(),
              1e-9);
}

// The weights depend on the lanes of the resolved spec, not on the devices. The last batch of an
// epoch is smaller here and leaves lanes empty.
TEST_F(TaskTest, OneTwoAndThreeDevicesGiveTheSameBits) {
  std::vector<std::string> hashes;
  for (const int32_t devices : {1, 2, 3}) {
    TestJob test = Small(absl::StrCat("d", devices));
    test.devices = devices;
    test.lanes = 5;
    test.train = 6 * 64 + 3;
    test.steps = 15;
    const Outcome outcome =
        RunTask(test.Start(), std::vector<std::string>(devices, "cpu"), AllWritten);
    ASSERT_FALSE(outcome.failed) << outcome.last().ShortDebugString();
    hashes.push_back(outcome.last().weights_sha256());
  }
  EXPECT_EQ(hashes[0].size(), 64u);
  EXPECT_EQ(hashes[0], hashes[1]);
  EXPECT_EQ(hashes[0], hashes[2]);
}

// Rule R2: the update divides by the true samples of all batches of the step. The last step of an
// epoch has 3 samples, so some of its lanes are empty.
TEST_F(TaskTest, AccumulatedBatchesGiveTheBitsOfOneLargeBatch) {
  const auto outcome = [this](int32_t devices, int64_t batch, int32_t lanes, int32_t accumulate) {
    TestJob test = Small(absl::StrCat(devices, "-", batch, "-", accumulate));
    test.devices = devices;
    test.batch = batch;
    test.lanes = lanes;
    test.accumulate = accumulate;
    test.momentum = 0.9;
    test.train = 6 * 64 + 3;
    test.steps = 15;
    const Outcome outcome =
        RunTask(test.Start(), std::vector<std::string>(devices, "cpu"), AllWritten);
    EXPECT_FALSE(outcome.failed) << outcome.last().ShortDebugString();
    return outcome.last();
  };
  const TaskState whole = outcome(1, 64, 8, 1);
  EXPECT_EQ(whole.weights_sha256().size(), 64u);
  EXPECT_EQ(whole.lead().samples_used(), 2 * 387 + 64);
  for (const int32_t devices : {1, 2}) {
    const TaskState parts = outcome(devices, 16, 2, 4);
    EXPECT_EQ(parts.step(), 15);
    EXPECT_EQ(parts.lead().samples_used(), whole.lead().samples_used());
    EXPECT_EQ(parts.weights_sha256(), whole.weights_sha256()) << devices << " devices";
  }
  EXPECT_NE(outcome(1, 16, 2, 1).weights_sha256(), whole.weights_sha256());
}

std::vector<float> WeightsOf(const std::string& file) {
  const std::string bytes = *services::ReadWholeFile(file, 1 << 26);
  const auto header =
      training::ParseSafetensorsHeader(file, bytes, static_cast<int64_t>(bytes.size()));
  CAPSTAN_CHECK(header.ok());
  std::vector<float> weights((bytes.size() - header->data_start) / sizeof(float));
  std::memcpy(weights.data(), bytes.data() + header->data_start, weights.size() * sizeof(float));
  return weights;
}

// Without momentum, a single lane that trains by itself does what plain training does: w - (w - v)
// is v to within a rounding. The devices that compute the lanes change nothing.
TEST_F(TaskTest, LocalStepsOfOneLaneArePlainTraining) {
  const auto train = [this](TestJob test, const std::string& name, int32_t devices) {
    test.storage_path = folder_ + "/" + name;
    test.batch = 16;
    test.devices = devices;
    const Outcome outcome =
        RunTask(test.Start(), std::vector<std::string>(devices, "cpu"), AllWritten);
    EXPECT_FALSE(outcome.failed) << outcome.last().ShortDebugString();
    EXPECT_EQ(outcome.last().lead().samples_used(), 40 * 16);
    return outcome.last();
  };
  const TaskState plain = train({.lanes = 1, .steps = 40}, "plain", 1);
  const TaskState rounds = train({.lanes = 1, .steps = 10, .local_steps = 4}, "rounds", 1);
  EXPECT_EQ(rounds.step(), 10);
  const std::vector<float> want =
      WeightsOf(folder_ + "/plain/digits-ab12/1-40/weights.safetensors");
  const std::vector<float> got =
      WeightsOf(folder_ + "/rounds/digits-ab12/1-10/weights.safetensors");
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5) << i;
  EXPECT_NEAR(rounds.lead().epochs(0).train_loss(), plain.lead().epochs(0).train_loss(), 1e-4);

  const TestJob lanes{.lanes = 3, .steps = 10, .local_steps = 4, .momentum = 0.9};
  const std::string one = train(lanes, "one", 1).weights_sha256();
  EXPECT_EQ(train(lanes, "two", 2).weights_sha256(), one);
  EXPECT_EQ(train(lanes, "three", 3).weights_sha256(), one);
}

TEST_F(TaskTest, ASpecThatIsNotTheDigestsIsInvalidSpec) {
  node::v1::StartTask start = Small("x").Start();
  (*start.mutable_spec_digest())[3] ^= 1;
  const Outcome outcome = RunTask(start, {"cpu"}, [](const TaskState&) { return false; });
  EXPECT_TRUE(outcome.failed);
  EXPECT_EQ(outcome.last().phase(), node::v1::TASK_PHASE_FAILED);
  EXPECT_EQ(outcome.last().reason(), "InvalidSpec");
  EXPECT_THAT(outcome.last().message(), HasSubstr("digest"));
}

TEST_F(TaskTest, MissingDataAreNamed) {
  TestJob test = Small("x");
  job::v1::JobSpec spec = test.Spec();
  spec.mutable_data()->Clear();
  spec.mutable_data()->set_format("idx");
  spec.mutable_data()->set_uri("file://" + folder_ + "/nowhere");
  common::v1::DatasetInfo dataset;
  dataset.set_train_samples(640);
  dataset.set_channels(1);
  dataset.set_height(28);
  dataset.set_width(28);
  dataset.set_num_classes(10);
  const auto resolved = training::spec::Resolve(spec, dataset, {"digits-ab12", folder_});
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  node::v1::StartTask start = test.Start();
  start.set_resolved_spec(resolved->SerializeAsString());
  start.set_spec_digest(training::spec::Digest(start.resolved_spec()));
  const Outcome outcome = RunTask(start, {"cpu"}, [](const TaskState&) { return false; });
  EXPECT_TRUE(outcome.failed);
  EXPECT_EQ(outcome.last().reason(), "DataMissing");
  EXPECT_THAT(outcome.last().message(), HasSubstr("nowhere"));
}

TEST_F(TaskTest, AnUnknownDeviceFailsTheTask) {
  const Outcome outcome =
      RunTask(Small("x").Start(), {"tpu"}, [](const TaskState&) { return false; });
  EXPECT_TRUE(outcome.failed);
  EXPECT_EQ(outcome.last().reason(), "InternalError");
  EXPECT_THAT(outcome.last().message(), HasSubstr("tpu"));
}

// A rate at which the weights diverge. Steps with a non-finite loss are skipped, and the third one
// in a row is reported as the lead's failure.
TEST_F(TaskTest, NonFiniteLossIsTheLeadsFailure) {
  TestJob test = Small("n");
  test.learning_rate = 1e30;
  test.steps = 50;
  const Outcome outcome = RunTask(
      test.Start(), {"cpu"}, [](const TaskState& state) { return !state.lead().reason().empty(); });
  EXPECT_EQ(outcome.last().lead().reason(), "NonFiniteLoss");
  EXPECT_GE(outcome.last().lead().skipped_steps(), 2);
}

TEST_F(TaskTest, AStopOrderEndsItInTheMiddle) {
  TestJob test = Small("s");
  test.steps = 1000000;
  test.train = 64000;
  const Outcome outcome = RunTask(test.Start(), {"cpu", "cpu"}, [](const TaskState& state) {
    return state.phase() == node::v1::TASK_PHASE_RUNNING && state.lead().step() > 2;
  });
  EXPECT_FALSE(outcome.failed);
  EXPECT_GE(outcome.counters.steps, 3);
}

// Commits a checkpoint as the coordinator does, for a task that stores its own weights.
std::string Commit(const TestJob& test, const TaskState& state) {
  job::v1::ResolvedSpec spec;
  EXPECT_TRUE(spec.ParseFromString(test.Start().resolved_spec()));
  training::Manifest manifest;
  manifest.job_id = spec.job_id();
  manifest.lineage = state.files().lineage();
  manifest.step = state.files().step();
  manifest.spec_digest = "d";
  manifest.training_digest = absl::BytesToHexString(spec.training_digest());
  manifest.optimizer = "sgd";
  manifest.created_by = "test";
  manifest.lead_snapshot = state.files().lead_snapshot();
  for (const common::v1::FileInfo& file : state.files().files()) {
    manifest.files.push_back(
        {file.name(), file.size_bytes(), absl::BytesToHexString(file.sha256())});
  }
  const std::string folder =
      absl::StrCat(spec.storage_path(), "/", manifest.lineage, "-", manifest.step);
  const auto text = training::EncodeManifest(manifest);
  EXPECT_TRUE(text.ok()) << text.status();
  EXPECT_TRUE(services::WriteFileAtomically(folder + "/manifest.json", *text).ok());
  return folder;
}

// Saved every fourth step, suspended, and continued by another process. The weights must be those
// of the undisturbed run.
void TaskTest::Suspend(const TestJob& test, const std::vector<std::string>& devices,
                       std::string* base) {
  std::vector<int64_t> saved;
  bool ordered = false;
  const Outcome first = RunTask(
      test.Start(), devices,
      [&](const TaskState& state) {
        if (!state.lead().suspended() || state.files().step() != state.lead().step()) return false;
        if (base->empty()) *base = Commit(test, state);
        return true;
      },
      [&](Task& task, const TaskState& state) {
        if (state.phase() == node::v1::TASK_PHASE_RUNNING && !ordered) {
          // Each step passes the strand, so this arrives in time, however slow the files are.
          ordered = true;
          node::v1::GiveOrders give;
          give.set_lineage(1);
          node::v1::Order& order = *give.add_orders();
          order.set_id(1);
          order.set_step(9);
          order.set_suspend(true);
          task.GiveOrders(give);
        }
        if (!state.has_files() || state.files().step() == state.lead().step()) return;
        if (saved.empty() || saved.back() != state.files().step()) {
          saved.push_back(state.files().step());
        }
        node::v1::FilesTaken taken;
        taken.set_lineage(1);
        taken.set_step(state.files().step());
        task.FilesTaken(taken);
      });
  ASSERT_FALSE(first.failed) << first.last().ShortDebugString();
  ASSERT_FALSE(saved.empty());
  EXPECT_EQ(saved[0], 4);
  ASSERT_EQ(first.last().lead().step(), 10);
  EXPECT_EQ(first.last().phase(), node::v1::TASK_PHASE_FINISHED);
  EXPECT_EQ(first.last().files().files_size(), 1);  // no weights.safetensors
  EXPECT_EQ(first.last().lead().applied_order_steps(0), 9);
}

Outcome TaskTest::GoOn(const TestJob& test, const std::string& base,
                       const std::vector<std::string>& devices) {
  node::v1::StartTask again = test.Start();
  again.mutable_view()->set_lineage(2);
  again.mutable_view()->set_generation(2);
  again.set_base_manifest(base);
  return RunTask(again, devices, AllWritten, [](Task& task, const TaskState& state) {
    node::v1::FilesTaken taken;
    taken.set_lineage(2);
    taken.set_step(state.files().step());
    if (state.has_files() && state.files().step() != 30) task.FilesTaken(taken);
  });
}

void TaskTest::ExpectThatItGoesOnWithTheSameBits(TestJob test,
                                                 const std::vector<std::string>& devices) {
  if (test.optimizer == "sgd") test.momentum = 0.5;
  const Outcome whole = RunTask(test.Start(), devices, AllWritten);
  ASSERT_FALSE(whole.failed) << whole.last().ShortDebugString();

  test.storage_path += "-parts";
  test.checkpoint_every = 4;
  std::string base;
  Suspend(test, devices, &base);
  if (HasFatalFailure()) return;
  const Outcome second = GoOn(test, base, devices);
  ASSERT_FALSE(second.failed) << second.last().ShortDebugString();
  EXPECT_EQ(second.last().weights_sha256(), whole.last().weights_sha256());
  EXPECT_EQ(second.last().lead().samples_used(), 30 * 64);
  ASSERT_EQ(second.last().lead().epochs_size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(second.last().lead().epochs(i).train_loss(),
              whole.last().lead().epochs(i).train_loss());
    EXPECT_EQ(second.last().lead().epochs(i).validation_loss(),
              whole.last().lead().epochs(i).validation_loss());
  }

  const Outcome lost = GoOn(test, base + "x", devices);
  EXPECT_EQ(lost.last().reason(), "DataMissing");
  EXPECT_THAT(lost.last().message(), HasSubstr(base + "x/manifest.json"));
}

TEST_F(TaskTest, IsSuspendedAndGoesOnWithTheSameBits) {
  ExpectThatItGoesOnWithTheSameBits(Small("whole"), {"cpu"});
}

// The host operator's limits hold, whatever the coordinator says.
TEST_F(TaskTest, FilesStayUnderTheRootsOfTheHost) {
  for (const char* name : {"/root", "/outside"}) {
    ASSERT_TRUE(services::EnsureDir(folder_ + name).ok());
  }
  ASSERT_EQ(symlink((folder_ + "/outside").c_str(), (folder_ + "/root/door").c_str()), 0);
  TaskOptions options;
  options.checkpoint_roots = {folder_ + "/root"};
  options.data_roots = {folder_ + "/root"};
  const auto refused = [&](const node::v1::StartTask& start, const std::string& why) {
    const Outcome outcome = RunTask(
        start, {"cpu"}, [](const TaskState&) { return false; }, nullptr, options);
    EXPECT_TRUE(outcome.failed);
    EXPECT_EQ(outcome.last().reason(), "InvalidSpec");
    EXPECT_THAT(outcome.last().message(), HasSubstr(why));
  };
  TestJob test = Small("outside");
  refused(test.Start(), "storage_path " + folder_ + "/outside");
  test.storage_path = folder_ + "/root/door";
  refused(test.Start(), "is not under any --checkpoint-root of this worker");
  test.storage_path = folder_ + "/root/fine";
  node::v1::StartTask start = test.Start();
  start.set_base_manifest(folder_ + "/outside/1-4");
  refused(start, "base_manifest " + folder_ + "/outside/1-4: is not under any --checkpoint-root");
  EXPECT_FALSE(RunTask(test.Start(), {"cpu"}, AllWritten, nullptr, options).failed);
}

// A task of a job with shards reads of the base, too, if it keeps residuals.
TEST_F(TaskTest, ResidualsAreReadUnderTheRootsOfTheHost) {
  for (const char* name : {"/root", "/outside"}) {
    ASSERT_TRUE(services::EnsureDir(folder_ + name).ok());
  }
  TaskOptions options;
  options.checkpoint_roots = {folder_ + "/root"};
  const std::string outside = folder_ + "/outside/1-4";
  const std::string why =
      "base_manifest " + outside + ": is not under any --checkpoint-root of this worker";
  TestJob test = Small("root/fine");
  test.kvstore = "dist_sync";
  test.compression = "2bit";
  node::v1::StartTask start = test.Start();
  start.set_base_manifest(outside);
  const Outcome at_start = RunTask(
      start, {"cpu"}, [](const TaskState&) { return false; }, nullptr, options);
  EXPECT_EQ(at_start.last().reason(), "InvalidSpec");
  EXPECT_EQ(at_start.last().message(), why);
  EXPECT_FALSE(at_start.last().refuses_base()) << "the checkpoint may be good";

  start = test.Start();
  common::v1::ShardRoute& shard = *start.mutable_view()->add_shards();
  shard.set_address("unix:" + folder_ + "/nobody");
  job::v1::ResolvedSpec resolved;
  ASSERT_TRUE(resolved.ParseFromString(start.resolved_spec()));
  shard.set_chunk_count(resolved.chunk_count());
  common::v1::View next = start.view();
  next.set_lineage(2);
  next.set_generation(2);
  bool told = false;
  const Outcome later = RunTask(
      start, {"cpu"}, [](const TaskState&) { return false; },
      [&](Task& task, const TaskState&) {
        if (!std::exchange(told, true)) task.ChangeView(next, outside);
      },
      options);
  EXPECT_EQ(later.last().reason(), "InvalidSpec");
  EXPECT_EQ(later.last().message(), why);
}

// Otherwise nobody could ever stop it.
TEST_F(TaskTest, ATaskThatReachesNobodyEnds) {
  TestJob test = Small("o");
  test.steps = 1000000;
  test.train = 64000;
  test.orphan_timeout = 1;
  bool told = false;
  const Outcome outcome = RunTask(
      test.Start(), {"cpu"}, [](const TaskState&) { return false; },
      [&told](Task& task, const TaskState& state) {
        if (!told && state.phase() == node::v1::TASK_PHASE_RUNNING) task.SetCoordinatorUp(false);
        told = state.phase() == node::v1::TASK_PHASE_RUNNING;
      });
  EXPECT_TRUE(outcome.failed);
  EXPECT_EQ(outcome.last().reason(), "WorkerLost");
  EXPECT_THAT(outcome.last().message(), HasSubstr("neither the coordinator nor a shard for 1s"));
}

class NoMemory final : public data::Dataset {
 public:
  const data::DatasetInfo& info() const override { return info_; }
  absl::Status Read(absl::Span<const int64_t>, int64_t, float*, int32_t*) const override {
    throw std::bad_alloc();
  }

 private:
  const data::DatasetInfo info_ = {640, 1, 28, 28, 10};
};

// Also for a GPU, whose own memory has a different reason.
TEST(DeviceRunnerTest, WantOfHostMemoryIsToldAsThat) {
  const node::v1::StartTask start = TestJob().Start();
  const auto job = MakeJob(start.resolved_spec(), start.spec_digest());
  ASSERT_TRUE(job.ok()) << job.status();
  std::promise<absl::Status> failed;
  DeviceRunner::Options options;
  options.device = "cpu";
  DeviceRunner::Callbacks callbacks;
  callbacks.on_failed = [&failed](const absl::Status& status) { failed.set_value(status); };
  NoMemory train;
  const DeviceRunner runner(options, *job, train, nullptr, callbacks);
  const absl::Status status = failed.get_future().get();
  EXPECT_EQ(status.message(), "device cpu: the host is out of memory");
  EXPECT_EQ(FailureReasonOf(status, /*on_gpu=*/true), "HostOutOfMemory");
}

// On devices of the fake plug-in, which rounds to 16 bits where the CUDA plug-in does.
class GpuTaskTest : public TaskTest {
 protected:
  void SetUp() override {
    TaskTest::SetUp();
    ASSERT_NE(dlopen(CAPSTAN_NAMED_DRIVER, RTLD_NOW), nullptr) << dlerror();
    Set("CAPSTAN_CUDA_PLUGIN", CAPSTAN_FAKE_PLUGIN);
    Set("CAPSTAN_FAKE_ELEMENTS", "float");
  }
  void TearDown() override {
    for (const char* const name : names_) unsetenv(name);
    TaskTest::TearDown();
  }
  void Set(const char* name, const char* value) {
    setenv(name, value, /*overwrite=*/1);
    names_.push_back(name);
  }
  TestJob Half(const std::string& precision) {
    TestJob job = Small(precision);
    job.precision = precision;
    job.steps = 12;
    job.lanes = 1;
    return job;
  }
  std::vector<const char*> names_;
};

// Whole trainings. Their plain loops take minutes under a sanitizer, so there only the CPU device
// trains, through the same task.
class GpuTrainingTest : public GpuTaskTest {
 protected:
  void SetUp() override {
    GpuTaskTest::SetUp();
#ifdef CAPSTAN_SANITIZED_BUILD
    GTEST_SKIP() << "the plain loops of the fake cards take too long under a sanitizer";
#endif
  }
};

// Reports the plan's need, the free memory and a batch that would fit, before the first step.
TEST_F(GpuTaskTest, OutOfMemoryEndsTheTaskWithTheNumbers) {
  Set("CAPSTAN_FAKE_FREE_MIB", "2");
  TestJob test = Half("fp32");
  test.batch = 600;
  const Outcome outcome = RunTask(test.Start(), {"cuda:0"}, [](const TaskState&) { return false; });
  EXPECT_TRUE(outcome.failed);
  EXPECT_EQ(outcome.last().phase(), node::v1::TASK_PHASE_FAILED);
  EXPECT_EQ(outcome.last().reason(), "GpuOutOfMemory");
  EXPECT_THAT(outcome.last().message(),
              ::testing::MatchesRegex("device cuda:0: out of GPU memory: a plan for 600 samples "
                                      "needs [0-9.]+ MiB, 2.0 MiB of 2.0 MiB are free; up to "
                                      "[0-9]+ samples would fit: .*"));
  EXPECT_EQ(outcome.last().step(), 0);
}

// The host lacks memory, not the card, so the job is worth another try.
TEST_F(GpuTaskTest, AHostWithoutMemoryIsNotACardWithoutMemory) {
  Set("CAPSTAN_FAKE_FAIL", "host_memory");
  const Outcome outcome =
      RunTask(Half("fp32").Start(), {"cuda:0"}, [](const TaskState&) { return false; });
  EXPECT_TRUE(outcome.failed);
  EXPECT_EQ(outcome.last().reason(), "HostOutOfMemory");
  EXPECT_EQ(outcome.last().message(), "device cuda:0: the host is out of memory");
}

// Names the error, the device and the step. The service adds rank and job.
TEST_F(GpuTaskTest, AFaultOfTheCardEndsTheTaskAndIsNamed) {
  Set("CAPSTAN_FAKE_FAIL", "fault");
  const Outcome outcome =
      RunTask(Half("fp32").Start(), {"cuda:1"}, [](const TaskState&) { return false; });
  EXPECT_TRUE(outcome.failed);
  EXPECT_EQ(outcome.last().reason(), "InternalError");
  EXPECT_THAT(outcome.last().message(),
              ::testing::StartsWith("step 0, lane 0: device cuda:1: cudaStreamSynchronize: 700 "));
}

// `device`: cards add the lanes in the tree's order, and the host does the rest. The last batch of
// an epoch leaves lanes empty.
TEST_F(GpuTrainingTest, CardsThatAddGiveTheHostsBits) {
  Set("CAPSTAN_FAKE_DEVICES", "4");
  std::vector<int64_t> planned;
  const auto run = [&](const std::string& kvstore, const std::vector<std::string>& devices,
                       bool deterministic) {
    TestJob test = Small(absl::StrCat(kvstore, devices.size(), devices.back(), deterministic));
    test.kvstore = kvstore;
    test.devices = static_cast<int32_t>(devices.size());
    test.lanes = 5;
    test.train = 67;
    test.batch = 16;
    test.steps = 12;
    test.momentum = 0.5;
    test.deterministic = deterministic;
    const Outcome outcome = RunTask(test.Start(), devices, AllWritten);
    EXPECT_FALSE(outcome.failed) << outcome.last().ShortDebugString();
    EXPECT_EQ(outcome.last().lead().samples_used(), 2 * 67 + 2 * 16);
    EXPECT_EQ(outcome.counters.samples, 2 * 67 + 2 * 16);
    EXPECT_GT(outcome.last().lead().epochs(0).validation_accuracy(), 0);
    planned = outcome.counters.planned_bytes;
    return outcome.last().weights_sha256();
  };
  const std::string host = run("local", {"cuda:0"}, true);
  const int64_t plan = planned.at(0);
  const node::v1::StartTask start = Small("plan").Start();
  const int64_t floats =
      (*MakeJob(start.resolved_spec(), start.spec_digest()))->layout.total_floats();
  for (const std::vector<std::string>& devices : {std::vector<std::string>{"cuda:0"},
                                                  {"cuda:0", "cuda:2"},
                                                  {"cuda:3", "cuda:3"},
                                                  {"cuda:3", "cuda:2", "cuda:0"}}) {
    EXPECT_EQ(run("device", devices, true), host) << devices.size() << devices.back();
    // Two sums are held at a time, plus the momentum. Each device has its slice of them.
    const auto count = static_cast<int64_t>(devices.size());
    EXPECT_EQ(std::accumulate(planned.begin(), planned.end(), int64_t{0}),
              count * plan + 3 * 4 * floats)
        << devices.size() << devices.back();
  }
  // In any order the bits differ, or are equal by chance.
  EXPECT_FALSE(run("device", {"cuda:0", "cuda:2"}, false).empty());
}

// Data that only the cards have are available for a save: weights, momentum and the lead.
TEST_F(GpuTrainingTest, CardsThatKeepTheWeightsGoOnWithTheSameBits) {
  Set("CAPSTAN_FAKE_DEVICES", "4");
  TestJob test = Small("keep");
  test.kvstore = "device";
  test.devices = 2;
  ExpectThatItGoesOnWithTheSameBits(test, {"cuda:0", "cuda:2"});
}

// With `device` the cards update by every rule, except where norms are needed: then they add, and
// the host updates. The bits are those of `local` either way.
TEST_F(GpuTrainingTest, CardsUpdateByEveryRuleThatNeedsNoNorms) {
  Set("CAPSTAN_FAKE_DEVICES", "4");
  int64_t group_bytes = 0;
  const auto hash = [&](TestJob test, const std::string& kvstore,
                        const std::vector<std::string>& devices) {
    test.kvstore = kvstore;
    test.devices = static_cast<int32_t>(devices.size());
    test.lanes = 4;
    test.steps = 12;
    test.storage_path += absl::StrCat(kvstore, devices.size());
    const Outcome outcome = RunTask(test.Start(), devices, AllWritten);
    EXPECT_FALSE(outcome.failed) << outcome.last().ShortDebugString();
    group_bytes = std::accumulate(outcome.counters.planned_bytes.begin(),
                                  outcome.counters.planned_bytes.end(), int64_t{0});
    return outcome.last().weights_sha256();
  };
  const std::vector<std::string> one = {"cuda:0"}, two = {"cuda:0", "cuda:2"};
  const node::v1::StartTask start = Small("plan").Start();
  const int64_t floats =
      (*MakeJob(start.resolved_spec(), start.spec_digest()))->layout.total_floats();
  std::set<std::string> all;
  const auto expect = [&](const TestJob& test, int64_t states_on_cards) {
    const std::string bits = hash(test, "local", one);
    const int64_t plan = group_bytes;
    EXPECT_EQ(hash(test, "device", two), bits) << test.storage_path;
    EXPECT_EQ(group_bytes - 2 * plan, (2 + states_on_cards) * 4 * floats) << test.storage_path;
    EXPECT_TRUE(all.insert(bits).second) << test.storage_path;
  };
  const std::pair<const char*, int64_t> rules[] = {{"sgd", 0},     {"adam", 2},    {"adamw", 2},
                                                   {"rmsprop", 1}, {"adagrad", 1}, {"ftrl", 2},
                                                   {"lars", 0},    {"lamb", 0}};
  for (const auto& [name, states] : rules) {
    TestJob test = Small(name);
    test.optimizer = name;
    test.learning_rate = 0.01;
    test.weight_decay = 0.01;
    test.decayed = "weights";
    expect(test, states);
  }
  TestJob clipped = Small("clipped"), by_norm = Small("by-norm"), adam = Small("adam-on");
  clipped.clip_value = 1e-3;
  by_norm.clip_norm = 0.01;
  by_norm.momentum = 0.5;
  clipped.momentum = 0.5;
  expect(clipped, 1);
  expect(by_norm, 0);
  adam.optimizer = "adam";
  adam.learning_rate = 0.001;
  adam.kvstore = "device";
  adam.devices = 2;
  ExpectThatItGoesOnWithTheSameBits(adam, two);
}

// Adam's state comes from CPUs to cards, and back: without it, the loss would be another one.
TEST_F(GpuTrainingTest, AJobMovesBetweenCpusAndCardsAtACheckpoint) {
  Set("CAPSTAN_FAKE_ELEMENTS", "double");
  TestJob test = Small("move");
  test.kvstore = "device";
  test.optimizer = "adam";
  test.learning_rate = 0.003;
  test.weight_decay = 0.01;
  test.decayed = "weights";
  const Outcome whole = RunTask(test.Start(), {"cpu"}, AllWritten);
  ASSERT_FALSE(whole.failed) << whole.last().ShortDebugString();
  test.checkpoint_every = 4;
  const std::pair<const char*, const char*> ways[] = {{"cpu", "cuda:0"}, {"cuda:0", "cpu"}};
  for (const auto& [before, after] : ways) {
    test.storage_path += "-";
    std::string base;
    Suspend(test, {before}, &base);
    if (HasFatalFailure()) return;
    std::vector<std::string> used;
    const int sink = services::AddLogSink([&used](const services::LogRecord& record) {
      if (record.event == "device_ready") used.push_back(record.fields[0].second);
    });
    const Outcome moved = GoOn(test, base, {after});
    services::RemoveLogSink(sink);
    EXPECT_THAT(used, ::testing::ElementsAre(::testing::StartsWith(absl::StrCat(after, ": "))));
    ASSERT_FALSE(moved.failed) << moved.last().ShortDebugString();
    ASSERT_EQ(moved.last().lead().epochs_size(), 3);
    for (int i = 0; i < 3; ++i) {
      EXPECT_NEAR(moved.last().lead().epochs(i).train_loss(),
                  whole.last().lead().epochs(i).train_loss(), 1e-5)
          << before << " to " << after;
    }
  }
}

TEST_F(GpuTrainingTest, ASumThatHangsIsNcclTimeout) {
  Set("CAPSTAN_FAKE_GROUP", "hang:0");
  TestJob test = Small("hang");
  test.kvstore = "device";
  test.devices = 2;
  test.deterministic = false;
  test.stall_seconds = 1;
  const Outcome outcome =
      RunTask(test.Start(), {"cuda:0", "cuda:0"}, [](const TaskState&) { return false; });
  EXPECT_TRUE(outcome.failed);
  EXPECT_EQ(outcome.last().reason(), "NcclTimeout");
  EXPECT_EQ(outcome.last().message(),
            "step 0: devices together: GPU 0, the sum of bucket 0 over 2 devices: not done after "
            "0.5 s");
}

TEST_F(GpuTaskTest, AFaultAmongSeveralCardsIsNamed) {
  Set("CAPSTAN_FAKE_DEVICES", "4");
  Set("CAPSTAN_FAKE_GROUP", "fault:1:3");
  TestJob test = Small("fault");
  test.kvstore = "device";
  test.devices = 2;
  const Outcome outcome =
      RunTask(test.Start(), {"cuda:0", "cuda:3"}, [](const TaskState&) { return false; });
  EXPECT_TRUE(outcome.failed);
  EXPECT_EQ(outcome.last().reason(), "InternalError");
  EXPECT_THAT(outcome.last().message(), HasSubstr("step 1: devices together: GPU 3, "));
  EXPECT_THAT(outcome.last().message(), HasSubstr(": cudaEventQuery: 700"));
}

TEST_F(GpuTrainingTest, SixteenBitsTrain) {
  for (const char* const precision : {"bf16", "fp16"}) {
    const TestJob test = Half(precision);
    const Outcome outcome = RunTask(test.Start(), {"cuda:0"}, AllWritten);
    ASSERT_FALSE(outcome.failed) << outcome.last().ShortDebugString();
    EXPECT_EQ(outcome.last().lead().skipped_steps(), 0) << precision;
    EXPECT_LT(outcome.last().lead().loss(), 2.2) << precision;  // initially ln(10) = 2.3
  }
}

// 65536 over 64 samples is 1024. Four halvings lead to a factor of 64, which is below 100. Adam's
// first update is then that of step 4, on the cards as on the host.
TEST_F(GpuTrainingTest, TheLossScaleFallsUntilNothingOverflows) {
  Set("CAPSTAN_FAKE_OVERFLOW", "100");
  for (const char* const optimizer : {"sgd", "adam"}) {
    std::vector<std::string> hashes;
    for (const char* const kvstore : {"local", "device"}) {
      TestJob test = Half("fp16");
      test.storage_path += absl::StrCat(optimizer, kvstore);
      test.kvstore = kvstore;
      test.optimizer = optimizer;
      if (test.optimizer == "adam") test.learning_rate = 0.002;
      const Outcome outcome = RunTask(test.Start(), {"cuda:0"}, AllWritten);
      ASSERT_FALSE(outcome.failed) << outcome.last().ShortDebugString();
      EXPECT_EQ(outcome.last().lead().skipped_steps(), 4) << kvstore;
      EXPECT_EQ(outcome.last().lead().step(), 12);
      EXPECT_LT(outcome.last().lead().loss(), 2.3);
      hashes.push_back(outcome.last().weights_sha256());
    }
    EXPECT_EQ(hashes[0], hashes[1]) << optimizer;
  }
}

// 17 halvings from 2^16 to below 1, then the third counted non-finite step in a row.
TEST_F(GpuTrainingTest, WhatIsInfiniteAtEveryScaleEndsTheJob) {
  Set("CAPSTAN_FAKE_OVERFLOW", "0");
  TestJob test = Half("fp16");
  test.steps = 100;
  const Outcome outcome = RunTask(test.Start(), {"cuda:0"}, [](const TaskState& state) {
    return !state.lead().reason().empty();
  });
  EXPECT_EQ(outcome.last().lead().reason(), "NonFiniteLoss");
  EXPECT_EQ(outcome.last().lead().skipped_steps(), 19);
}

TEST_F(TaskTest, APrecisionThatTheDeviceDoesNotHaveIsNamed) {
  TestJob test = Small("h");
  test.precision = "bf16";
  const Outcome outcome = RunTask(test.Start(), {"cpu"}, [](const TaskState&) { return false; });
  EXPECT_TRUE(outcome.failed);
  EXPECT_EQ(outcome.last().reason(), "InvalidSpec");
  EXPECT_THAT(outcome.last().message(), HasSubstr("device cpu: precision: bf16 needs a GPU"));
}

}  // namespace
}  // namespace capstan::gpu_worker
