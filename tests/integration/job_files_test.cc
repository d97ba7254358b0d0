// Files of a job between a real coordinator and the class that shards and tasks use, on Unix
// sockets: the ways that they take, cuts, restarts, and what a process may not do
// (docs/security.md).
#include "param_store/files/job_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/files_job.h"
#include "tests/support/cutting_proxy.h"

namespace capstan::tests {
namespace {

class JobFilesTest : public FilesJobTest {
 protected:
  std::vector<std::string> LookFiles() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(shard_.storage_path)) {
      const std::string name = entry.path().filename().string();
      if (absl::StartsWith(name, ".capstan-look-")) names.push_back(name);
    }
    return names;
  }
  // Waits until there are none.
  void ExpectNoLookFiles() const {
    const absl::Time deadline = absl::Now() + kWait;
    while (!LookFiles().empty() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
    EXPECT_EQ(LookFiles(), std::vector<std::string>());
  }
};

// As after the loss of the coordinator's secret: a retried call succeeds with the new key.
TEST_F(JobFilesTest, AFileThatWaitsGoesOnWithANewKey) {
  ScriptedNode::Start stale = shard_;
  stale.key = std::string(40, 'x');
  const auto files = Remote(stale);
  const std::string bytes = Pattern(1000);
  const absl::string_view part = bytes;
  absl::StatusOr<common::v1::FileInfo> written;
  std::thread writer([&] {
    written = files->Write(Theirs(1, 3), "shard-0.safetensors", {&part, 1});
  });
  const auto refused = Header(stale, "shard-0.safetensors", 1, 3, 1000);
  EXPECT_TRUE(absl::IsUnauthenticated(Upload(refused)));
  files->SetKey("");  // from a message without a key
  files->SetKey(shard_.key);
  writer.join();
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_EQ(Stored("1-3/shard-0.safetensors"), bytes);
}

TEST_F(JobFilesTest, ALookTellsASharedFolderFromAnotherOneAndLeavesNothing) {
  JobFiles shared({.job_id = shard_.job_id,
                   .storage_path = shard_.storage_path,
                   .key = shard_.key,
                   .channel = Channel()});
  ASSERT_EQ(shared.Look(), absl::OkStatus());
  EXPECT_EQ(shared.way(), job::v1::FILES_WAY_SHARED);
  const auto remote = Remote(shard_);
  EXPECT_EQ(remote->way(), job::v1::FILES_WAY_UNSPECIFIED);
  ASSERT_EQ(remote->Look(), absl::OkStatus());
  EXPECT_EQ(remote->way(), job::v1::FILES_WAY_GRPC);
  JobFiles forbidden({.job_id = shard_.job_id,
                      .storage_path = shard_.storage_path,
                      .key = shard_.key,
                      .channel = Channel(),
                      .may_touch_folder = false});
  ASSERT_EQ(forbidden.Look(), absl::OkStatus());
  EXPECT_EQ(forbidden.way(), job::v1::FILES_WAY_GRPC);
  // An older coordinator gives no key.
  JobFiles old({.job_id = shard_.job_id, .storage_path = folder_, .channel = Channel()});
  ASSERT_EQ(old.Look(), absl::OkStatus());
  EXPECT_EQ(old.way(), job::v1::FILES_WAY_SHARED);
  ExpectNoLookFiles();
}

// A killed coordinator leaves the files of the looks in progress.
TEST_F(JobFilesTest, WhatAKilledCoordinatorHasLeftGoesWithTheNextLookOrStart) {
  const auto leave = [&] {
    for (const char* name : {".capstan-look-0123abcd", ".capstan-look-0123-4567.12-3.tmp"}) {
      ASSERT_EQ(services::WriteFileAtomically(absl::StrCat(shard_.storage_path, "/", name), "x"),
                absl::OkStatus());
    }
  };
  ASSERT_EQ(Remote(shard_)->Look(), absl::OkStatus());  // makes the folder
  leave();
  ASSERT_EQ(Remote(shard_)->Look(), absl::OkStatus());
  ExpectNoLookFiles();
  leave();
  server_->Shutdown();
  server_.reset();
  StartCoordinator();
  ExpectNoLookFiles();
}

TEST_F(JobFilesTest, AFileGoesToTheCoordinatorAndComesBack) {
  const auto files = Remote(shard_);
  const std::string bytes = Pattern(1'300'000);
  const std::vector<absl::string_view> parts = {absl::string_view(bytes).substr(0, 100),
                                                absl::string_view(bytes).substr(100, 700'000),
                                                absl::string_view(bytes).substr(700'100)};
  const auto info = files->Write(Theirs(1, 3), "shard-0.safetensors", parts);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->size_bytes(), static_cast<int64_t>(bytes.size()));
  EXPECT_EQ(Stored("1-3/shard-0.safetensors"), bytes);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/own"));  // none of it was ever on this side
  // Written once more, as after a lost answer.
  EXPECT_TRUE(files->Write(Theirs(1, 3), "shard-0.safetensors", parts).ok());

  const auto reader = Remote(second_shard_);  // any process of the job may read
  auto file = reader->OpenCheckpointFile(Theirs(1, 3), "shard-0.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->size_bytes(), static_cast<int64_t>(bytes.size()));
  std::string back(bytes.size(), '\0');
  ASSERT_EQ((*file)->ReadAt(0, back.data(), 8), absl::OkStatus());
  ASSERT_EQ((*file)->ReadAt(0, back.data(), static_cast<int64_t>(back.size())), absl::OkStatus());
  EXPECT_EQ(back, bytes);
  char last = 0;
  ASSERT_EQ((*file)->ReadAt(static_cast<int64_t>(bytes.size()) - 1, &last, 1), absl::OkStatus());
  EXPECT_EQ(last, bytes.back());
  EXPECT_EQ((*file)->ReadAt(static_cast<int64_t>(bytes.size()), &last, 1).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(reader->OpenCheckpointFile(Theirs(1, 4), "shard-0.safetensors").status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(JobFilesTest, AnUploadGoesOnWhereACutLeftIt) {
  const std::string bytes = Pattern(1'000'000);
  const auto files = Remote(shard_);
  // Another upload began and lost its connection.
  {
    const auto context = services::NewContext(kWait);
    const auto stream = stub_->Upload(context.get());
    file::v1::UploadRequest request =
        Header(shard_, "shard-0.safetensors", 1, 2, static_cast<int64_t>(bytes.size()));
    file::v1::UploadResponse response;
    ASSERT_TRUE(stream->Write(request) && stream->Read(&response));
    EXPECT_EQ(response.offset(), 0);
    request.set_data(bytes.substr(0, 400'000));
    ASSERT_TRUE(stream->Write(request));
    const std::string part = absl::StrCat(shard_.storage_path, "/1-2/.shard-0.safetensors.part");
    const absl::Time deadline = absl::Now() + kWait;
    std::error_code error;
    while (std::filesystem::file_size(part, error) != 400'000 && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(5));
    }
    ASSERT_EQ(std::filesystem::file_size(part, error), 400'000u);
    // That stream is still open; the next try cancels it.
    const absl::string_view parts[] = {bytes};
    const auto info = files->Write(Theirs(1, 2), "shard-0.safetensors", parts);
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_FALSE(services::FromGrpcStatus(stream->Finish()).ok());
  }
  EXPECT_EQ(Stored("1-2/shard-0.safetensors"), bytes);
  // Checks how much was sent: bytes that were there were not sent again.
  const auto context = services::NewContext(kWait);
  const auto stream = stub_->Upload(context.get());
  file::v1::UploadRequest half =
      Header(shard_, "shard-0.safetensors", 1, 3, static_cast<int64_t>(bytes.size()));
  ASSERT_EQ(services::EnsureDir(absl::StrCat(shard_.storage_path, "/1-3")), absl::OkStatus());
  ASSERT_EQ(services::WriteFileAtomically(
                absl::StrCat(shard_.storage_path, "/1-3/.shard-0.safetensors.part"),
                bytes.substr(0, 123'456)),
            absl::OkStatus());
  file::v1::UploadResponse response;
  ASSERT_TRUE(stream->Write(half) && stream->Read(&response));
  EXPECT_EQ(response.offset(), 123'456);
  context->TryCancel();
  (void)stream->Finish();
}

// The connection is cut repeatedly while the client's own code sends. The client continues behind
// the bytes that arrived, and the final file has the right hash.
TEST_F(JobFilesTest, AConnectionThatIsCutInTheMiddleCostsWhatWasUnderWayAlone) {
  constexpr int64_t kCutAfter = 900'000;
  constexpr int64_t kKept = 500'000;  // at least one whole message of the upload
  constexpr int kCuts = 2;
  const std::string bytes = Pattern(2'300'000);
  const std::string part = absl::StrCat(shard_.storage_path, "/1-2/.shard-0.safetensors.part");
  int64_t kept = 0;  // bytes in the file at the last cut
  const auto used = [&part, &kept] {
    std::error_code error;
    const auto size = static_cast<int64_t>(std::filesystem::file_size(part, error));
    if (error || size < kept + kKept) return false;
    kept = size;
    return true;
  };
  const auto proxy = CuttingProxy::Start(folder_ + "/proxy.sock", folder_ + "/c.sock",
                                         {.bytes = kCutAfter, .cuts = kCuts, .used = used});
  ASSERT_TRUE(proxy.ok()) << proxy.status();
  JobFiles files({.job_id = shard_.job_id,
                  .storage_path = folder_ + "/own/" + shard_.job_id,
                  .key = shard_.key,
                  .channel = *services::MakeChannel(
                      {.peer = *services::ParseEndpoint("unix:" + folder_ + "/proxy.sock"),
                       .retry = false,
                       .own_connection = true}),
                  .may_touch_folder = false});
  const absl::string_view parts[] = {bytes};
  const auto info = files.Write(Theirs(1, 2), "shard-0.safetensors", parts);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_TRUE(Stored("1-2/shard-0.safetensors") == bytes);
  const std::vector<int64_t> sent = (*proxy)->sent_bytes();  // by connection
  ASSERT_EQ(sent.size(), size_t{kCuts + 1});
  // Only the message in flight at the cut is sent again.
  constexpr int64_t kOverhead = 100'000;  // of HTTP/2, and one read of the proxy beyond the cut
  const auto size = static_cast<int64_t>(bytes.size());
  EXPECT_LT(sent.back(), size - kCuts * kKept + kOverhead);
  EXPECT_LT(sent[0] + sent[1] + sent[2],
            size + kCuts * (kCutAfter - kKept) + (kCuts + 1) * kOverhead);
}

// The same of a file that comes back: it is read on behind the bytes that are there.
TEST_F(JobFilesTest, ADownloadThatIsCutGoesOnBehindWhatCame) {
  constexpr int64_t kCutAfter = 900'000;
  constexpr int kCuts = 2;
  const std::string bytes = Pattern(2'300'000);
  const absl::string_view parts[] = {bytes};
  ASSERT_TRUE(Remote(shard_)->Write(Theirs(1, 2), "shard-0.safetensors", parts).ok());
  const auto proxy = CuttingProxy::Start(folder_ + "/proxy.sock", folder_ + "/c.sock",
                                         {.bytes = kCutAfter, .of_server = true, .cuts = kCuts});
  ASSERT_TRUE(proxy.ok()) << proxy.status();
  JobFiles files({.job_id = shard_.job_id,
                  .storage_path = folder_ + "/own/" + shard_.job_id,
                  .key = shard_.key,
                  .channel = *services::MakeChannel(
                      {.peer = *services::ParseEndpoint("unix:" + folder_ + "/proxy.sock"),
                       .retry = false,
                       .own_connection = true}),
                  .may_touch_folder = false});
  auto file = files.OpenCheckpointFile(Theirs(1, 2), "shard-0.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  std::string back(bytes.size(), '\0');
  // In pieces, as a shard reads its chunks.
  constexpr size_t kPiece = 200'000;
  for (size_t at = 0; at < back.size(); at += kPiece) {
    const size_t size = std::min(kPiece, back.size() - at);
    ASSERT_EQ((*file)->ReadAt(static_cast<int64_t>(at), &back[at], static_cast<int64_t>(size)),
              absl::OkStatus());
  }
  EXPECT_TRUE(back == bytes);
  const std::vector<int64_t> sent = (*proxy)->sent_bytes();
  ASSERT_EQ(sent.size(), size_t{kCuts + 1});
  // What was on its way at a cut is sent again, and no more.
  EXPECT_LT(sent[0] + sent[1] + sent[2], static_cast<int64_t>(bytes.size()) + kCuts * kCutAfter);
  EXPECT_LT(sent[2], static_cast<int64_t>(bytes.size()) - 400'000);
}

TEST_F(JobFilesTest, WhatLiesThereOfAnotherFileIsReplaced) {
  const std::string bytes = Pattern(300'000);
  ASSERT_EQ(services::EnsureDir(absl::StrCat(shard_.storage_path, "/1-2")), absl::OkStatus());
  ASSERT_EQ(services::WriteFileAtomically(
                absl::StrCat(shard_.storage_path, "/1-2/.shard-0.safetensors.part"),
                std::string(200'000, 'x')),
            absl::OkStatus());
  const absl::string_view parts[] = {bytes};
  const auto info = Remote(shard_)->Write(Theirs(1, 2), "shard-0.safetensors", parts);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(Stored("1-2/shard-0.safetensors"), bytes);
}

TEST_F(JobFilesTest, AFileWaitsForACoordinatorThatStartsAnewAndItsKeyIsStillGood) {
  const auto files = Remote(shard_);
  ASSERT_EQ(files->Look(), absl::OkStatus());
  server_->Shutdown();
  server_.reset();
  const std::string bytes = Pattern(300'000);
  absl::StatusOr<common::v1::FileInfo> info;
  std::thread writer([&] {
    const absl::string_view parts[] = {bytes};
    info = files->Write(Theirs(1, 2), "shard-0.safetensors", parts);
  });
  StartCoordinator();
  writer.join();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(Stored("1-2/shard-0.safetensors"), bytes);
}

TEST_F(JobFilesTest, NobodyWaitsForACoordinatorThatIsGoneOnceItIsCancelled) {
  const auto files = Remote(shard_);
  ASSERT_EQ(files->Look(), absl::OkStatus());
  server_->Shutdown();
  server_.reset();
  absl::Status status;
  std::thread reader(
      [&] { status = files->OpenCheckpointFile(Theirs(1, 2), "shard-0.safetensors").status(); });
  files->Cancel();
  reader.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
}

TEST_F(JobFilesTest, LinesOfTheLogArriveOnceAndFromTheLeadAlone) {
  const auto lead = Remote(shard_);
  std::string lines = "{\"step\": 0}\n{\"step\": 1}\n";
  ASSERT_EQ(lead->AppendLog(1, lines), absl::OkStatus());
  EXPECT_EQ(lines, "");
  lines = "{\"step\": 2}\n";
  ASSERT_EQ(lead->AppendLog(1, lines), absl::OkStatus());
  EXPECT_EQ(Stored("metrics.jsonl"), "{\"step\": 0}\n{\"step\": 1}\n{\"step\": 2}\n");
  lines = "no\n";
  EXPECT_EQ(Remote(second_shard_)->AppendLog(1, lines).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(lead->AppendLog(2, lines).code(), absl::StatusCode::kFailedPrecondition);
  lines = "half a line";
  EXPECT_EQ(lead->AppendLog(1, lines).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(JobFilesTest, InitialWeightsThatAreNotHereComeFromTheCoordinator) {
  const std::string bytes = Pattern(700'000);
  ASSERT_EQ(services::WriteFileAtomically(folder_ + "/base.safetensors", bytes), absl::OkStatus());
  const auto files = Remote(shard_);
  const auto file = files->OpenInitialWeights(folder_ + "/own/base.safetensors", "");
  ASSERT_TRUE(file.ok()) << file.status();
  std::string back(bytes.size(), '\0');
  ASSERT_EQ((*file)->ReadAt(0, back.data(), static_cast<int64_t>(back.size())), absl::OkStatus());
  EXPECT_EQ(back, bytes);
}

class JobFromCheckpointTest : public JobFilesTest {
 protected:
  JobFromCheckpointTest() { base_name_ = "3-40"; }
};

TEST_F(JobFromCheckpointTest, ItsFilesComeFromTheCoordinatorWhereThisHostHasNoneOrMayNotLook) {
  const std::string bytes = Pattern(700'000), other = Pattern(7);
  for (const char* folder : {"/3-40", "/own/3-40"}) {
    ASSERT_EQ(services::EnsureDir(folder_ + folder), absl::OkStatus());
  }
  ASSERT_EQ(services::WriteFileAtomically(folder_ + "/3-40/shard-1.safetensors", bytes),
            absl::OkStatus());
  ASSERT_EQ(services::WriteFileAtomically(folder_ + "/own/3-40/shard-1.safetensors", other),
            absl::OkStatus());
  const auto size_of = [](const auto& file) { return file.ok() ? (*file)->size_bytes() : -1; };
  const std::string theirs = folder_ + "/own/3-40";
  const auto files = Remote(shard_);
  EXPECT_EQ(size_of(files->OpenInitialWeights(theirs, "shard-1.safetensors")), 7);
  EXPECT_EQ(size_of(files->OpenInitialWeights(folder_ + "/x/3-40", "shard-1.safetensors")),
            700'000);
  JobFiles forbidden({.job_id = shard_.job_id,
                      .storage_path = folder_ + "/own/" + shard_.job_id,
                      .key = shard_.key,
                      .channel = Channel(),
                      .may_touch_weights = false});
  const auto file = forbidden.OpenInitialWeights(theirs, "shard-1.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  std::string back(bytes.size(), '\0');
  ASSERT_EQ((*file)->ReadAt(0, back.data(), static_cast<int64_t>(back.size())), absl::OkStatus());
  EXPECT_EQ(back, bytes);
  EXPECT_EQ(forbidden.OpenInitialWeights(theirs, "shard-2.safetensors").status().code(),
            absl::StatusCode::kNotFound);
  for (const char* name : {"../base.safetensors", "metrics.jsonl", "shard-x.safetensors"}) {
    EXPECT_EQ(forbidden.OpenInitialWeights(theirs, name).status().code(),
              absl::StatusCode::kInvalidArgument)
        << name;
  }
}

// ---- Rows of docs/security.md ----

TEST_F(JobFilesTest, AKeyIsGoodForItsJobAlone) {
  file::v1::UploadRequest header = Header(shard_, "shard-0.safetensors", 1, 2, 100);
  ASSERT_EQ(Upload(header), absl::OkStatus());
  for (const std::string& key : {std::string(), std::string("shard/0/1"), shard_.key + "0",
                                 std::string(32, '\0') + "shard/0/1"}) {
    header.mutable_header()->mutable_grant()->set_key(key);
    EXPECT_EQ(Upload(header).code(), absl::StatusCode::kUnauthenticated);
    file::v1::DownloadRequest download;
    *download.mutable_grant() = header.header().grant();
    download.mutable_checkpoint_file()->set_lineage(1);
    download.mutable_checkpoint_file()->set_name("manifest.json");
    EXPECT_EQ(Download(download).code(), absl::StatusCode::kUnauthenticated);
  }
  header.mutable_header()->mutable_grant()->set_key(shard_.key);
  header.mutable_header()->mutable_grant()->set_job_id("another-1");
  EXPECT_EQ(Upload(header).code(), absl::StatusCode::kUnauthenticated);
}

TEST_F(JobFilesTest, AProcessWritesItsOwnFileOfItsOwnHistoryAlone) {
  const auto refused = [&](const ScriptedNode::Start& start, const std::string& name,
                           int64_t lineage, int64_t step, int64_t size) {
    return Upload(Header(start, name, lineage, step, size)).code();
  };
  using absl::StatusCode;
  EXPECT_EQ(refused(shard_, "shard-1.safetensors", 1, 2, 100), StatusCode::kPermissionDenied);
  EXPECT_EQ(refused(shard_, "weights.safetensors", 1, 2, 100), StatusCode::kPermissionDenied);
  EXPECT_EQ(refused(task_, "shard-0.safetensors", 1, 2, 100), StatusCode::kPermissionDenied);
  EXPECT_EQ(refused(shard_, "shard-0.safetensors", 2, 2, 100), StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused(shard_, "shard-0.safetensors", 1, 6, 100), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(shard_, "shard-0.safetensors", 1, -2, 100), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(shard_, "shard-0.safetensors", 1, 2, int64_t{1} << 40),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(shard_, "shard-0.safetensors", 1, 2, 0), StatusCode::kInvalidArgument);
}

TEST_F(JobFilesTest, NoNameLeadsOutOfTheFolderOfACheckpoint) {
  ASSERT_EQ(services::WriteFileAtomically(folder_ + "/secret", "precious"), absl::OkStatus());
  ASSERT_EQ(services::EnsureDir(absl::StrCat(shard_.storage_path, "/1-2")), absl::OkStatus());
  ASSERT_EQ(symlink((folder_ + "/secret").c_str(),
                    absl::StrCat(shard_.storage_path, "/1-2/shard-7.safetensors").c_str()),
            0);
  for (const std::string name :
       {"../../../secret", "..", ".", "", "/etc/passwd", "shard-0.safetensors/../../secret",
        "metrics.jsonl", ".shard-0.safetensors.part", "files.key", "../../../state/files.key"}) {
    EXPECT_EQ(Upload(Header(shard_, name, 1, 2, 100)).code(), absl::StatusCode::kInvalidArgument)
        << name;
    file::v1::DownloadRequest download;
    download.mutable_grant()->set_job_id(shard_.job_id);
    download.mutable_grant()->set_key(shard_.key);
    download.mutable_checkpoint_file()->set_lineage(1);
    download.mutable_checkpoint_file()->set_step(2);
    download.mutable_checkpoint_file()->set_name(name);
    EXPECT_EQ(Download(download).code(), absl::StatusCode::kInvalidArgument) << name;
    download.mutable_checkpoint_file()->set_name("shard-7.safetensors");
    EXPECT_EQ(Download(download).code(), absl::StatusCode::kFailedPrecondition);  // a link
  }
}

// Somebody with write access to the job's folder has put links on the way.
TEST_F(JobFilesTest, NoLinkOnTheWayLeadsOutOfTheCheckpointRoots) {
  const std::string outside = folder_ + "/outside";
  ASSERT_EQ(services::EnsureDir(outside + "/1-2"), absl::OkStatus());
  ASSERT_EQ(services::WriteFileAtomically(outside + "/1-2/shard-0.safetensors", "precious"),
            absl::OkStatus());
  ASSERT_EQ(services::EnsureDir(shard_.storage_path), absl::OkStatus());
  file::v1::DownloadRequest download;
  download.mutable_grant()->set_job_id(shard_.job_id);
  download.mutable_grant()->set_key(shard_.key);
  download.mutable_checkpoint_file()->set_lineage(1);
  download.mutable_checkpoint_file()->set_step(2);
  download.mutable_checkpoint_file()->set_name("shard-0.safetensors");
  const auto refused = [&](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "a link leads out")) << status;
  };
  namespace fs = std::filesystem;
  fs::create_directory_symlink(outside + "/1-2", shard_.storage_path + "/1-2");
  refused(Download(download));
  refused(Upload(Header(shard_, "shard-0.safetensors", 1, 2, 100)));
  fs::remove_all(shard_.storage_path);
  fs::create_directory_symlink(outside, shard_.storage_path);
  refused(Download(download));
  refused(Upload(Header(shard_, "shard-0.safetensors", 1, 2, 100)));
  refused(Upload(Header(shard_, "shard-0.safetensors", 1, 3, 100)));
  std::string lines = "{}\n";
  refused(Remote(shard_)->AppendLog(1, lines));
  refused(Remote(shard_)->Look());
  std::vector<std::string> there;
  for (const auto& entry : fs::recursive_directory_iterator(outside)) {
    there.push_back(fs::relative(entry.path(), outside).string());
  }
  EXPECT_THAT(there, ::testing::UnorderedElementsAre("1-2", "1-2/shard-0.safetensors"));
}

TEST_F(JobFilesTest, MoreBytesThanAnnouncedAndOtherBytesAreRefused) {
  const auto context = services::NewContext(kWait);
  const auto stream = stub_->Upload(context.get());
  file::v1::UploadRequest request = Header(shard_, "shard-0.safetensors", 1, 2, 10);
  file::v1::UploadResponse response;
  ASSERT_TRUE(stream->Write(request) && stream->Read(&response));
  request.set_data("01234567890");
  ASSERT_TRUE(stream->Write(request));
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);

  // The first call owns the file until its thread has released it.
  request = Header(shard_, "shard-0.safetensors", 1, 2, 10);
  std::unique_ptr<grpc::ClientContext> again;
  std::unique_ptr<grpc::ClientReaderWriter<file::v1::UploadRequest, file::v1::UploadResponse>>
      other;
  grpc::Status busy;
  const absl::Time deadline = absl::Now() + kWait;
  do {
    again = services::NewContext(kWait);
    other = stub_->Upload(again.get());
    if (other->Write(request) && other->Read(&response)) break;
    busy = other->Finish();
    ASSERT_EQ(busy.error_code(), grpc::StatusCode::ABORTED) << busy.error_message();
  } while (absl::Now() < deadline);
  request.set_data("0123456789");  // its hash is not hhh...
  ASSERT_TRUE(other->Write(request));
  EXPECT_FALSE(other->Read(&response));
  EXPECT_EQ(other->Finish().error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(Stored("1-2/shard-0.safetensors"), "(none)");
}

}  // namespace
}  // namespace capstan::tests
