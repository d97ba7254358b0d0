// FileService, CheckpointService and JobService.VerifyCheckpoint while a job's disk hangs: callers
// get an error, nothing accumulates, and the coordinator can shut down.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "capstan/job/v1/checkpoint_service.grpc.pb.h"
#include "coordinator/checkpoint_service.h"
#include "coordinator/file_call.h"
#include "coordinator/file_service.h"
#include "coordinator/job_service.h"
#include "services/clock/clock.h"
#include "tests/integration/files_job.h"
#include "tests/support/hanging_disk.h"
#include "training/codec/sha256.h"

namespace capstan::tests {
namespace {

using coordinator::CheckpointServiceImpl;
using coordinator::FileCalls;
using coordinator::FileServiceImpl;
using coordinator::JobServiceImpl;
using ::testing::AllOf;
using ::testing::HasSubstr;

size_t ThreadsOfThisProcess() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    count += entry.path().empty() ? 0 : 1;
  }
  return count;
}

// A call with the timeout of its caller.
using Call = std::function<absl::Status(absl::Duration timeout)>;

// A caller with a timeout of a minute.
class PatientCall {
 public:
  explicit PatientCall(Call call)
      : thread_([this, call = std::move(call)] {
          const absl::Duration begin = MonotonicNow();
          status_ = call(absl::Minutes(1));
          took_ = MonotonicNow() - begin;
        }) {}
  ~PatientCall() { Wait(); }
  // Waits for the answer.
  void Wait() {
    if (thread_.joinable()) thread_.join();
  }
  const absl::Status& status() const { return status_; }
  absl::Duration took() const { return took_; }

 private:
  absl::Status status_;
  absl::Duration took_;
  std::thread thread_;  // last: it uses the others
};

// A running job. Hang() makes the disk of its folder hang.
class HangingDiskTest : public FilesJobTest {
 protected:
  void TearDown() override {
    disk_ = nullptr;
    FilesJobTest::TearDown();
  }
  void Hang() {
    auto disk = HangingDisk::Over(shard_.storage_path);
    ASSERT_TRUE(disk.ok()) << disk.status();
    disk_ = *std::move(disk);
  }
  // Calls repeatedly until the disk has `max_calls` calls, its limit. All of them together may use
  // `max_threads` threads of the coordinator.
  void CallUntilRefused(const Call& call, size_t max_calls, size_t max_threads) {
    const size_t before = ThreadsOfThisProcess();
    size_t threads = 0;
    absl::Status refused;
    const absl::Time deadline = absl::Now() + kWait;
    while (absl::Now() < deadline && !absl::StrContains(refused.message(), "the limit")) {
      refused = call(absl::Milliseconds(5));
      threads = std::max(threads, ThreadsOfThisProcess());
    }
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
    EXPECT_THAT(
        std::string(refused.message()),
        AllOf(HasSubstr(shard_.storage_path), HasSubstr(absl::StrCat(max_calls, " calls"))));
    EXPECT_LE(threads, before + max_threads + 16);  // including gRPC's own
  }
  // The call gets an error with a sentence before its own timeout.
  void ExpectTold(PatientCall& call) const {
    call.Wait();
    EXPECT_EQ(call.status().code(), absl::StatusCode::kUnavailable) << call.status();
    EXPECT_THAT(std::string(call.status().message()),
                AllOf(HasSubstr(shard_.storage_path), HasSubstr("has not answered within 4s")));
    EXPECT_LT(call.took(), FileCalls::kPatience + absl::Seconds(10));  // allows for a busy machine
  }
  // The number of calls that have reached the coordinator.
  double Started() const {
    double sum = 0;
    for (const absl::string_view line : absl::StrSplit(server_->registry().Scrape(), '\n')) {
      double count = 0;
      if (absl::StartsWith(line, "grpc_server_started_total{") &&
          absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &count)) {
        sum += count;
      }
    }
    return sum;
  }
  // Starts a call and waits until it has reached the coordinator.
  std::unique_ptr<PatientCall> Begin(const Call& call) const {
    const double before = Started();
    auto patient = std::make_unique<PatientCall>(call);
    const absl::Time deadline = absl::Now() + kWait;
    while (Started() == before && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
    EXPECT_GT(Started(), before);
    return patient;
  }
  // The shutdown of the coordinator ends the call.
  void ExpectTheEndBeside(PatientCall& call) {
    const absl::Duration begin = MonotonicNow();
    EXPECT_FALSE(server_->Shutdown());
    const absl::Duration took = MonotonicNow() - begin;
    call.Wait();
    // In the middle of a message, gRPC itself ends the call. Both codes are retried.
    EXPECT_TRUE(absl::IsUnavailable(call.status()) || absl::IsCancelled(call.status()))
        << call.status();
    EXPECT_GE(took, CoordinatorServer::kFilePatience);
    EXPECT_LT(took, CoordinatorServer::kFilePatience + absl::Seconds(8));
  }

  std::unique_ptr<HangingDisk> disk_;
};

class HangingFilesTest : public HangingDiskTest {
 protected:
  // The status of a look. OK: a file was shown.
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
};

TEST_F(HangingFilesTest, CallersAreToldNothingPilesUpAndTheCoordinatorEndsBesideIt) {
  ASSERT_EQ(Look(kWait, /*stay=*/false), absl::OkStatus());  // makes the job's folder
  Hang();
  const Call look = [this](absl::Duration timeout) { return Look(timeout); };
  PatientCall patient(look);
  CallUntilRefused(look, FileServiceImpl::kMaxCalls, FileCalls::kThreads);
  // Only for the job: calls that do not touch its disk are answered.
  EXPECT_EQ(Upload(Header(shard_, "none", 1, 2, 100)).code(), absl::StatusCode::kInvalidArgument);
  ExpectTold(patient);

  // An upload has no such limit, since a large file is hashed.
  const std::unique_ptr<PatientCall> upload = Begin(
      [this](absl::Duration) { return Upload(Header(shard_, "shard-0.safetensors", 1, 2, 100)); });
  ExpectTheEndBeside(*upload);
}

// Bytes that the disk has not taken are not read from the network: the sender waits, memory stays
// flat.
TEST_F(HangingFilesTest, OfAnUploadThatTheDiskDoesNotTakeLittleIsAccepted) {
  constexpr size_t kAll = size_t{64} << 20, kMost = size_t{16} << 20;
  ASSERT_EQ(Look(kWait, /*stay=*/false), absl::OkStatus());  // makes the job's folder
  Hang();
  // The writer waits this long for the disk, and no longer.
  const auto context = services::NewContext(absl::Seconds(3));
  const auto stream = stub_->Upload(context.get());
  ASSERT_TRUE(stream->Write(Header(shard_, "shard-0.safetensors", 1, 2, 100)));
  file::v1::UploadRequest block;
  block.set_data(std::string(size_t{512} << 10, 'x'));
  size_t accepted = 0;
  while (accepted < kAll && stream->Write(block)) accepted += block.data().size();
  EXPECT_LT(accepted, kMost);
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

// A job with the checkpoints 1-2 and 1-3.
class HangingCheckpointsTest : public HangingDiskTest {
 protected:
  void SetUp() override {
    HangingDiskTest::SetUp();
    checkpoints_ = job::v1::CheckpointService::NewStub(Channel());
    jobs_ = job::v1::JobService::NewStub(Channel());
    Save(2, "bytes");
    Save(3, "bytes");
    ASSERT_EQ(Listed(), 2);
  }
  // Writes two files with these bytes each.
  void Save(int64_t step, const std::string& bytes) {
    const std::string folder = FolderOf(step);
    ASSERT_EQ(services::EnsureDir(folder), absl::OkStatus());
    for (const char* name : {"shard-0.safetensors", "shard-1.safetensors"}) {
      ASSERT_EQ(services::WriteFileAtomically(absl::StrCat(folder, "/", name), bytes),
                absl::OkStatus());
    }
    const std::string sha256 = absl::HexStringToBytes(training::Sha256Hex(bytes));
    const auto size = static_cast<int64_t>(bytes.size());
    store_->Report(step, "shard-0.safetensors", size, sha256);
    second_store_->Report(step, "shard-1.safetensors", size, sha256);
    const absl::Time deadline = absl::Now() + kWait;
    while (Newest() != step && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
    ASSERT_EQ(Newest(), step);
  }
  std::string FolderOf(int64_t step) const {
    return absl::StrCat(shard_.storage_path, "/1-", step);
  }
  job::v1::ListCheckpointsResponse List() const {
    job::v1::ListCheckpointsRequest request;
    request.set_job_id(shard_.job_id);
    job::v1::ListCheckpointsResponse response;
    const grpc::Status status =
        jobs_->ListCheckpoints(services::NewContext(kWait).get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  int Listed() const { return List().checkpoints_size(); }
  int64_t Newest() const {
    const job::v1::ListCheckpointsResponse list = List();
    return list.checkpoints().empty() ? -1 : list.checkpoints(0).step();
  }
  // Commands `export` and `download` use this call.
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
  // Verifies the newest checkpoint.
  absl::Status Verify(absl::Duration timeout) {
    job::v1::VerifyCheckpointRequest request;
    request.set_job_id(shard_.job_id);
    job::v1::VerifyCheckpointResponse response;
    const grpc::Status status =
        jobs_->VerifyCheckpoint(services::NewContext(timeout).get(), request, &response);
    if (status.ok()) {
      EXPECT_EQ(response.checkpoint().step(), Newest());
    }
    return services::FromGrpcStatus(status);
  }

  std::unique_ptr<job::v1::CheckpointService::Stub> checkpoints_;
  std::unique_ptr<job::v1::JobService::Stub> jobs_;
  const Call download_ = [this](absl::Duration timeout) { return Download(timeout); };
  const Call verify_ = [this](absl::Duration timeout) { return Verify(timeout); };
};

TEST_F(HangingCheckpointsTest, DownloadsAreToldAndADeletionIsDurableWithoutTheDisk) {
  ASSERT_EQ(Download(kWait), absl::OkStatus());
  Hang();
  PatientCall patient(download_);
  CallUntilRefused(download_, CheckpointServiceImpl::kMaxCalls, FileCalls::kThreads);

  // Calls that need no disk of jobs are answered.
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
  ExpectTold(patient);

  // The rest of the deleted checkpoint goes once the disk is back, at the latest after a restart.
  disk_->Answer();
  EXPECT_TRUE(server_->Shutdown());
  server_.reset();
  StartCoordinator();
  const absl::Time deadline = absl::Now() + kWait;
  while ((std::filesystem::exists(FolderOf(2)) || Listed() != 1) && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_FALSE(std::filesystem::exists(FolderOf(2)));
  EXPECT_EQ(Listed(), 1);
}

TEST_F(HangingCheckpointsTest, TheCoordinatorEndsBesideADownload) {
  Hang();
  const std::unique_ptr<PatientCall> patient = Begin(download_);
  CallUntilRefused(download_, CheckpointServiceImpl::kMaxCalls, FileCalls::kThreads);
  ExpectTheEndBeside(*patient);
}

TEST_F(HangingCheckpointsTest, VerificationsAreToldAndKeepOneThread) {
  ASSERT_EQ(Verify(kWait), absl::OkStatus());
  Hang();
  PatientCall patient(verify_);
  ExpectTold(patient);
  CallUntilRefused(verify_, JobServiceImpl::kMaxVerified, /*max_threads=*/1);
  const absl::Duration begin = MonotonicNow();
  EXPECT_EQ(Listed(), 2);
  EXPECT_LT(MonotonicNow() - begin, FileCalls::kPatience);

  // Once the disk is back, it works as before.
  disk_->Answer();
  absl::Status verified;
  const absl::Time deadline = absl::Now() + kWait;
  do {
    verified = Verify(kWait);
  } while (!verified.ok() && absl::Now() < deadline);
  EXPECT_EQ(verified, absl::OkStatus());
}

TEST_F(HangingCheckpointsTest, TheCoordinatorEndsBesideAVerification) {
  Hang();
  const std::unique_ptr<PatientCall> patient = Begin(verify_);
  CallUntilRefused(verify_, JobServiceImpl::kMaxVerified, /*max_threads=*/1);
  ExpectTheEndBeside(*patient);
}

// The limit is for the disk's answers and not for the size: it begins anew with each block.
TEST_F(HangingCheckpointsTest, AVerificationMayTakeLongWhileTheDiskAnswers) {
  Save(4, std::string(size_t{5} << 19, 'x'));  // 10 blocks together, with 4 reads each
  const auto disk = SlowDisk::Over(FolderOf(4), absl::Milliseconds(150));
  ASSERT_TRUE(disk.ok()) << disk.status();
  PatientCall patient(verify_);
  patient.Wait();
  EXPECT_EQ(patient.status(), absl::OkStatus());
  EXPECT_GT(patient.took(), FileCalls::kPatience);
}

class HangingMountTest : public FilesJobTest {
 protected:
  void SetUp() override {
    folder_ = *services::MakePrivateDir("hanging-mount-test");
    checkpoint_roots_ = {absl::StrCat("file://", folder_)};
    StartCoordinator();
  }
};

// A starting coordinator reads the folders of its jobs. It reads those on other mounts, however
// many jobs are in however many folders of a hung mount.
TEST_F(HangingMountTest, FoldersOfAMountThatHangsKeepNobodyFromReadingTheOthers) {
  const std::string hung = folder_ + "/hung";
  for (int i = 0; i < 40; ++i) {
    Submit(absl::StrCat("r-", i), absl::StrCat("file://", hung, "/", i));
  }
  const std::string job_id = Submit("r-well", absl::StrCat("file://", folder_, "/well"));
  server_->Shutdown();
  server_.reset();
  // The files of a killed coordinator are removed when the folder is read.
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
