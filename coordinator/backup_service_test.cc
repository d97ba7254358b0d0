// BackupService of a real coordinator on a Unix socket: a coordinator made from its copy is the
// same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "capstan/job/v1/backup_service.grpc.pb.h"
#include "capstan/job/v1/job_service.grpc.pb.h"
#include "coordinator/journal/journal_copy.h"
#include "coordinator/server.h"
#include "grpcpp/grpcpp.h"
#include "services/channel/channel.h"
#include "services/files/files.h"
#include "services/version/version.h"

namespace capstan::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr absl::Duration kBackupLimit = absl::Seconds(30);  // for anything that a test waits for

class BackupServiceTest : public ::testing::Test {
 protected:
  BackupServiceTest() : dir_(*services::MakePrivateDir("backup-test")) {}
  ~BackupServiceTest() override {
    server_.reset();
    (void)services::RemoveTree("/tmp", dir_);
  }

  void Start(const std::string& state) {
    server_.reset();
    Config config;
    config.common.listen = absl::StrCat("unix:", dir_, "/c.sock");
    config.common.http = "off";
    config.common.log_level = "error";
    config.state_dir = absl::StrCat(dir_, "/", state);
    auto server = CoordinatorServer::Start(config, [] {});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = *services::MakeChannel({.peer = server_->grpc_endpoint(), .own_connection = true});
  }
  void Submit(int number) {
    job::v1::SubmitJobRequest request;
    request.set_request_id(absl::StrCat("r-", number));
    job::v1::JobSpec& spec = *request.mutable_spec();
    spec.set_version(1);
    spec.set_name("digits");
    spec.mutable_model()->set_name("mlp");
    spec.mutable_data()->set_format("synthetic_digits");
    spec.mutable_training()->set_epochs(1);
    spec.mutable_training()->set_global_batch_size(16);
    spec.mutable_training()->mutable_optimizer()->set_name("sgd");
    spec.mutable_training()->mutable_optimizer()->set_learning_rate(0.1);
    job::v1::SubmitJobResponse response;
    const grpc::Status status = job::v1::JobService::NewStub(channel_)->SubmitJob(
        services::NewContext(kBackupLimit).get(), request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  std::string Jobs() {
    job::v1::ListJobsResponse response;
    const grpc::Status status = job::v1::JobService::NewStub(channel_)->ListJobs(
        services::NewContext(kBackupLimit).get(), {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::string ids;
    for (const job::v1::Job& job : response.jobs()) absl::StrAppend(&ids, job.job_id(), " ");
    return ids;
  }
  grpc::Status Backup(std::vector<job::v1::BackupResponse>* messages) {
    const auto context = services::NewContext(kBackupLimit);
    const auto stub = job::v1::BackupService::NewStub(channel_);
    const auto reader = stub->Backup(context.get(), {});
    job::v1::BackupResponse message;
    while (reader->Read(&message)) messages->push_back(message);
    return reader->Finish();
  }

  const std::string dir_;
  std::unique_ptr<CoordinatorServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(BackupServiceTest, WhatItSendsMakesTheSameCoordinatorAgain) {
  Start("state");
  for (int i = 0; i < 100; ++i) Submit(i);
  const std::string before = Jobs();
  std::vector<job::v1::BackupResponse> messages;
  const grpc::Status status = Backup(&messages);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_GE(messages.size(), 2u);
  EXPECT_EQ(messages[0].version(), Version());
  EXPECT_THAT(messages.back().sha256(), SizeIs(64));
  EXPECT_NE(::access(absl::StrCat(dir_, "/state/journal.copy").c_str(), F_OK), 0);
  Submit(100);
  EXPECT_NE(Jobs(), before);

  std::string bytes;
  for (const auto& message : messages) bytes += message.data();
  EXPECT_EQ(static_cast<int64_t>(bytes.size()), messages[0].size_bytes());
  const std::string backup = absl::StrCat(dir_, "/backup");
  ASSERT_TRUE(services::EnsureDir(backup, 0700).ok());
  ASSERT_TRUE(services::WriteFileAtomically(backup + "/journal.db", bytes).ok());
  ASSERT_TRUE(services::WriteFileAtomically(backup + "/journal.mark", messages[0].mark()).ok());
  const auto restored = RestoreJournal(backup, absl::StrCat(dir_, "/elsewhere"));
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->commits, messages[0].commits());
  EXPECT_EQ(restored->going, 100);
  Start("elsewhere");
  EXPECT_EQ(Jobs(), before);
}

// The name of the copy is taken. The call fails with that name, and nothing else fails.
TEST_F(BackupServiceTest, ACopyThatCannotBeMadeIsNamedAndHurtsNothing) {
  Start("state");
  ASSERT_TRUE(services::EnsureDir(absl::StrCat(dir_, "/state/journal.copy/in-the-way")).ok());
  std::vector<job::v1::BackupResponse> messages;
  const grpc::Status status = Backup(&messages);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.error_message(), HasSubstr("/state/journal.copy"));
  EXPECT_THAT(messages, SizeIs(0));
  Submit(1);  // the coordinator continues, and so do backups
  ASSERT_TRUE(services::RemoveTree(dir_, absl::StrCat(dir_, "/state/journal.copy")).ok());
  EXPECT_TRUE(Backup(&messages).ok());
}

}  // namespace
}  // namespace capstan::coordinator
