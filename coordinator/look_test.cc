// The real coordinator on a Unix socket, with --look: it shows old runs and does nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "capstan/coordinator/v1/durable.pb.h"
#include "capstan/job/v1/job_service.grpc.pb.h"
#include "capstan/node/v1/node.grpc.pb.h"
#include "coordinator/journal/sqlite_journal.h"
#include "coordinator/server.h"
#include "grpcpp/grpcpp.h"
#include "services/channel/channel.h"
#include "services/files/files.h"

namespace capstan::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLookLimit = absl::Seconds(10);

TEST(LookTest, JobsAreShownAndNothingCanBeChanged) {
  const std::string dir = *services::MakePrivateDir("coord-look");
  const std::string state = dir + "/out/toy-1/state";
  ASSERT_TRUE(services::EnsureDir(state, 0700).ok());
  {
    auto journal = SqliteJournal::Open(state);
    ASSERT_TRUE(journal.ok()) << journal.status();
    v1::DurableJob job;
    job.set_job_id("toy-1");
    job.set_sequence(1);
    job.set_request_id("r");
    job.set_state(common::v1::JOB_STATE_RUNNING);
    ASSERT_TRUE((*journal)->Append(core::JobSaved{"toy-1", job.SerializeAsString()}).ok());
    ASSERT_TRUE((*journal)->Commit().ok());
  }
  Config config;
  config.common.listen = absl::StrCat("unix:", dir, "/c.sock");
  config.common.http = "off";
  config.state_dir = dir + "/own";
  config.look = dir + "/out";
  config.only_job = "toy-1";
  EXPECT_THAT(std::string(CheckConfig(config).message()), HasSubstr("--look"));
  config.only_job.clear();
  auto server = CoordinatorServer::Start(config, [] {});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto channel =
      *services::MakeChannel({.peer = (*server)->grpc_endpoint(), .own_connection = true});
  const auto jobs = job::v1::JobService::NewStub(channel);
  const auto context = [] { return services::NewContext(kLookLimit); };

  job::v1::GetJobRequest get;
  get.set_job_id("toy-1");
  job::v1::GetJobResponse got;
  ASSERT_TRUE(jobs->GetJob(context().get(), get, &got).ok());
  EXPECT_EQ(got.job().state(), common::v1::JOB_STATE_SUSPENDED);
  EXPECT_EQ(got.job().reason(), "Interrupted");
  job::v1::ListJobsResponse listed;
  ASSERT_TRUE(jobs->ListJobs(context().get(), {}, &listed).ok());
  EXPECT_EQ(listed.jobs_size(), 1);

  job::v1::ResumeJobRequest resume;
  resume.set_job_id("toy-1");
  job::v1::ResumeJobResponse resumed;
  const grpc::Status refused = jobs->ResumeJob(context().get(), resume, &resumed);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr("shows the runs of " + dir + "/out"));
  job::v1::CancelJobRequest cancel;
  cancel.set_job_id("toy-1");
  job::v1::CancelJobResponse cancelled;
  EXPECT_EQ(jobs->CancelJob(context().get(), cancel, &cancelled).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  // There is no service for nodes to register with.
  const auto nodes = node::v1::NodeService::NewStub(channel);
  const auto call = context();
  const auto stream = nodes->Connect(call.get());
  node::v1::ConnectResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
  server->reset();
  (void)services::RemoveTree("/tmp", dir);
}

TEST(LookTest, AFolderWithoutRunsIsNamed) {
  const std::string dir = *services::MakePrivateDir("coord-look");
  Config config;
  config.common.listen = absl::StrCat("unix:", dir, "/c.sock");
  config.common.http = "off";
  config.state_dir = dir + "/own";
  config.look = dir;
  EXPECT_THAT(std::string(CoordinatorServer::Start(config, [] {}).status().message()),
              HasSubstr(dir + ": there is no run here"));
  (void)services::RemoveTree("/tmp", dir);
}

}  // namespace
}  // namespace capstan::coordinator
