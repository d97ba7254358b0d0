// FileService and CheckpointService while the disk of a job hangs: callers are told so, nothing piles
// up, and the coordinator ends beside it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "capstan/job/v1/checkpoint_service.grpc.pb.h"
#include "coordinator/checkpoint_service.h"
#include "coordinator/file_call.h"
#include "coordinator/file_service.h"
#include "services/clock/clock.h"
#include "tests/integration/files_job.h"
#include "tests/support/hanging_disk.h"

namespace capstan::tests {
namespace {

using coordinator::CheckpointServiceImpl;
using coordinator::FileCalls;
using coordinator::FileServiceImpl;
using ::testing::AllOf;
using ::testing::HasSubstr;

size_t ThreadsOfThisProcess() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    count += entry.path().empty() ? 0 : 1;
  }
  return count;
}

class HangingFilesTest : public FilesJobTest {
 protected:
  void SetUp() override {
    FilesJobTest::SetUp();
    ASSERT_EQ(Look(kWait, /*stay=*/false), absl::OkStatus());  // makes the folder of the job
    auto disk = HangingDisk::Over(shard_.storage_path);
    ASSERT_TRUE(disk.ok()) << disk.status();
    disk_ = *std::move(disk);
  }
  void TearDown() override {
    if (disk_ != nullptr) disk_->Answer();
    FilesJobTest::TearDown();
  }
  // How it ends; OK: something was shown.
  absl::Status Look(absl::Duration timeout, bool stay = true) {
    file::v1::LookRequest request;
    request.mutable_grant()->set_job_id(shard_.job_id);
    request.mutable_grant()->set_key(shard_.key);
    const auto context = services::NewContext(timeout);
    const auto reader = stub_->Look(context.get(), request);
    file::v1::LookResponse response;
    const bool shown = reader->Read(&response);
    if (shown && !stay) context->TryCancel();
    const grpc::Status status = reader->Finish();
    return shown ? absl::OkStatus() : services::FromGrpcStatus(status);
  }

  std::unique_ptr<HangingDisk> disk_;
};

TEST_F(HangingFilesTest, CallersAreToldNothingPilesUpAndTheCoordinatorEndsBesideIt) {
  // One who waits is told by a sentence, whatever his own patience.
  absl::Status told;
  absl::Duration told_after;
  std::thread patient([&] {
    const absl::Duration begin = MonotonicNow();
    told = Look(absl::Minutes(1));
    told_after = MonotonicNow() - begin;
  });
  // Those who call again and again get few threads of the coordinator, and in the end none.
  const size_t threads_before = ThreadsOfThisProcess();
  size_t threads = 0;
  absl::Status refused;
  const absl::Time deadline = absl::Now() + kWait;
  while (absl::Now() < deadline && !absl::StrContains(refused.message(), "the limit")) {
    refused = Look(absl::Milliseconds(5));
    threads = std::max(threads, ThreadsOfThisProcess());
  }
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr(shard_.storage_path),
                    HasSubstr(absl::StrCat(FileServiceImpl::kMaxCalls, " calls"))));
  EXPECT_LE(threads, threads_before + FileCalls::kThreads + 16);  // gRPC's own among them
  // Of the job alone: what does not touch its disk is answered.
  EXPECT_EQ(Upload(Header(shard_, "none", 1, 2, 100)).code(), absl::StatusCode::kInvalidArgument);
  patient.join();
  EXPECT_EQ(told.code(), absl::StatusCode::kUnavailable) << told;
  EXPECT_THAT(std::string(told.message()),
              AllOf(HasSubstr(shard_.storage_path), HasSubstr("has not answered within 4s")));
  EXPECT_LT(told_after, FileCalls::kPatience + absl::Seconds(10));

  // An upload has no patience of its own, since a large file is hashed: the end of the coordinator is
  // its end.
  absl::Status uploaded;
  std::thread uploads([&] { uploaded = Upload(Header(shard_, "shard-0.safetensors", 1, 2, 100)); });
  const absl::Duration begin = MonotonicNow();
  EXPECT_FALSE(server_->Shutdown());
  const absl::Duration took = MonotonicNow() - begin;
  uploads.join();
  // In the middle of a message gRPC itself ends the call; both are tried again.
  EXPECT_TRUE(absl::IsUnavailable(uploaded) || absl::IsCancelled(uploaded)) << uploaded;
  EXPECT_GE(took, CoordinatorServer::kFilePatience);
  EXPECT_LT(took, CoordinatorServer::kFilePatience + absl::Seconds(8));
}

// A job that runs and has the checkpoints 1-2 and 1-3. Then the disk hangs that its folder is.
class HangingCheckpointsTest : public FilesJobTest {
 protected:
  void SetUp() override {
    FilesJobTest::SetUp();
    checkpoints_ = job::v1::CheckpointService::NewStub(Channel());
    for (const int step : {2, 3}) {
      const std::string folder = absl::StrCat(shard_.storage_path, "/1-", step);
      ASSERT_EQ(services::EnsureDir(folder), absl::OkStatus());
      for (const char* name : {"shard-0.safetensors", "shard-1.safetensors"}) {
        ASSERT_EQ(services::WriteFileAtomically(absl::StrCat(folder, "/", name), "bytes"),
                  absl::OkStatus());
      }
      store_->Report(step, "shard-0.safetensors", 5);
      second_store_->Report(step, "shard-1.safetensors", 5);
      const absl::Time deadline = absl::Now() + kWait;
      while (Listed() < step - 1 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
      ASSERT_EQ(Listed(), step - 1);
    }
    ASSERT_EQ(Download(kWait), absl::OkStatus());
    auto disk = HangingDisk::Over(shard_.storage_path);
    ASSERT_TRUE(disk.ok()) << disk.status();
    disk_ = *std::move(disk);
  }
  void TearDown() override {
    if (disk_ != nullptr) disk_->Answer();
    FilesJobTest::TearDown();
  }
  int Listed() const {
    job::v1::ListCheckpointsRequest request;
    request.set_job_id(shard_.job_id);
    job::v1::ListCheckpointsResponse response;
    const grpc::Status status = job::v1::JobService::NewStub(Channel())->ListCheckpoints(
        services::NewContext(kWait).get(), request, &response);
    return status.ok() ? response.checkpoints_size() : -1;
  }
  // `export` and `download` of the command line are made of these.
  absl::Status Download(absl::Duration timeout) {
    job::v1::DownloadCheckpointRequest request;
    request.set_job_id(shard_.job_id);
    request.set_checkpoint("1-3");
    request.set_name("shard-0.safetensors");
    const auto context = services::NewContext(timeout);
    const auto reader = checkpoints_->DownloadCheckpoint(context.get(), request);
    job::v1::DownloadCheckpointResponse response;
    while (reader->Read(&response)) {
    }
    return services::FromGrpcStatus(reader->Finish());
  }
  // Calls again and again, until the disk has as many calls as it may. The most threads meanwhile.
  size_t CallUntilRefused() {
    size_t threads = 0;
    absl::Status refused;
    const absl::Time deadline = absl::Now() + kWait;
    while (absl::Now() < deadline && !absl::StrContains(refused.message(), "the limit")) {
      refused = Download(absl::Milliseconds(5));
      threads = std::max(threads, ThreadsOfThisProcess());
    }
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr(shard_.storage_path),
                      HasSubstr(absl::StrCat(CheckpointServiceImpl::kMaxCalls, " calls"))));
    return threads;
  }

  std::unique_ptr<job::v1::CheckpointService::Stub> checkpoints_;
  std::unique_ptr<HangingDisk> disk_;
};

TEST_F(HangingCheckpointsTest, DownloadsAreToldAndADeletionIsDurableWithoutTheDisk) {
  absl::Status told;
  absl::Duration told_after;
  std::thread patient([&] {
    const absl::Duration begin = MonotonicNow();
    told = Download(absl::Minutes(1));
    told_after = MonotonicNow() - begin;
  });
  const size_t threads_before = ThreadsOfThisProcess();
  EXPECT_LE(CallUntilRefused(),
            threads_before + FileCalls::kThreads + 16);  // gRPC's own among them

  // What needs no disk of jobs is answered.
  const absl::Duration begin = MonotonicNow();
  EXPECT_EQ(Listed(), 2);
  job::v1::DeleteCheckpointRequest request;
  request.set_job_id(shard_.job_id);
  request.set_checkpoint("1-2");
  job::v1::DeleteCheckpointResponse response;
  const grpc::Status deleted =
      checkpoints_->DeleteCheckpoint(services::NewContext(kWait).get(), request, &response);
  EXPECT_TRUE(deleted.ok()) << deleted.error_message();
  EXPECT_EQ(Listed(), 1);
  EXPECT_LT(MonotonicNow() - begin, FileCalls::kPatience);  // none has waited for the disk
  patient.join();
  EXPECT_EQ(told.code(), absl::StatusCode::kUnavailable) << told;
  EXPECT_THAT(std::string(told.message()),
              AllOf(HasSubstr(shard_.storage_path), HasSubstr("has not answered within 4s")));
  EXPECT_LT(told_after, FileCalls::kPatience + absl::Seconds(10));  // a machine that is busy

  // What is left of the one that was deleted goes once the disk is back, after a restart at the latest.
  disk_->Answer();
  EXPECT_TRUE(server_->Shutdown());
  server_.reset();
  StartCoordinator();
  const std::string folder = shard_.storage_path + "/1-2";
  const absl::Time deadline = absl::Now() + kWait;
  while ((std::filesystem::exists(folder) || Listed() != 1) && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_FALSE(std::filesystem::exists(folder));
  EXPECT_EQ(Listed(), 1);
}

TEST_F(HangingCheckpointsTest, TheCoordinatorEndsBesideADownload) {
  absl::Status ended;
  std::thread patient([&] { ended = Download(absl::Minutes(1)); });
  (void)CallUntilRefused();
  const absl::Duration begin = MonotonicNow();
  EXPECT_FALSE(server_->Shutdown());
  const absl::Duration took = MonotonicNow() - begin;
  patient.join();
  EXPECT_TRUE(absl::IsUnavailable(ended) || absl::IsCancelled(ended)) << ended;
  EXPECT_GE(took, CoordinatorServer::kFilePatience);
  EXPECT_LT(took, CoordinatorServer::kFilePatience + absl::Seconds(8));
}

class HangingMountTest : public FilesJobTest {
 protected:
  void SetUp() override {
    folder_ = *services::MakePrivateDir("hanging-mount-test");
    checkpoint_roots_ = {absl::StrCat("file://", folder_)};
    StartCoordinator();
  }
};

// A coordinator that starts reads the folders of its jobs. However many of them lie in however many
// folders of a mount that hangs, the others are read.
TEST_F(HangingMountTest, FoldersOfAMountThatHangsKeepNobodyFromReadingTheOthers) {
  const std::string hung = folder_ + "/hung";
  for (int i = 0; i < 40; ++i) {
    Submit(absl::StrCat("r-", i), absl::StrCat("file://", hung, "/", i));
  }
  const std::string job_id = Submit("r-well", absl::StrCat("file://", folder_, "/well"));
  server_->Shutdown();
  server_.reset();
  // What a killed coordinator has left there goes when the folder is read.
  const std::string job = absl::StrCat(folder_, "/well/", job_id);
  const std::string left = job + "/.capstan-look-00ff-1";
  ASSERT_EQ(services::EnsureDir(job), absl::OkStatus());
  ASSERT_EQ(services::WriteFileAtomically(left, "x"), absl::OkStatus());
  ASSERT_EQ(services::EnsureDir(hung), absl::OkStatus());
  const auto disk = HangingDisk::Over(hung);
  ASSERT_TRUE(disk.ok()) << disk.status();
  StartCoordinator();
  const absl::Time deadline = absl::Now() + kWait;
  while (std::filesystem::exists(left) && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_FALSE(std::filesystem::exists(left));
  (*disk)->Answer();
}

}  // namespace
}  // namespace capstan::tests

int main(int argc, char** argv) {
  if (const char* out = std::getenv("CAPSTAN_NO_FUSE"); out != nullptr && out[0] == '1') {
    std::printf("NOT TESTED: files on a disk that hangs (CAPSTAN_NO_FUSE=1)\n");
    return 0;
  }
  if (const absl::Status status = capstan::tests::OwnMounts(); !status.ok()) {
    std::fprintf(
        stderr,
        "FUSE and a mount namespace are needed: %s; CAPSTAN_NO_FUSE=1 leaves this test out\n",
        std::string(status.message()).c_str());
    return 1;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
