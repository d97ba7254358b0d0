// FileService alone, on a Unix socket: calls that reach no job. tests/integration/job_files_test.cc
// has the others.
#include "coordinator/file_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "services/channel/channel.h"
#include "services/clock/clock.h"
#include "services/files/files.h"
#include "services/server/server.h"

namespace capstan::coordinator {
namespace {

class NoJournal final : public core::Journal {
 public:
  absl::Status Append(const core::Record&) override { return absl::OkStatus(); }
  absl::Status Commit() override { return absl::OkStatus(); }
};

// Clients set deadlines for the other calls, but need not set one for this call.
TEST(FileServiceTest, AnUploadThatSaysNothingEndsByItself) {
  const std::string folder = *services::MakePrivateDir("file-service-test");
  NoJournal journal;
  Coordinator::Options options;
  options.core.validate = [](const job::v1::JobSpec&) { return absl::OkStatus(); };
  options.core.resolve = [](const job::v1::JobSpec&, const common::v1::DatasetInfo&,
                            const std::string&, const std::string&) {
    return absl::StatusOr<job::v1::ResolvedSpec>(absl::InternalError("not asked for"));
  };
  options.journal = &journal;
  Coordinator coordinator(std::move(options));
  FileServiceImpl service(coordinator, FileKeys(std::string(32, 'k')), {},
                          /*header_patience=*/absl::Milliseconds(100));
  services::ServerOptions listen;
  listen.listen = *services::ParseEndpoint(absl::StrCat("unix:", folder, "/c.sock"));
  auto server = services::Server::Start(
      std::move(listen), {{file::v1::FileService::service_full_name(), &service, {}}});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto stub = file::v1::FileService::NewStub(
      *services::MakeChannel({.peer = (*server)->endpoint(), .own_connection = true}));

  const auto context = services::NewContext(absl::Seconds(30));
  const auto silent = stub->Upload(context.get());
  file::v1::UploadResponse response;
  EXPECT_FALSE(silent->Read(&response));
  const grpc::Status status = silent->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(status.error_message(), "upload: no header within 100ms");

  // A call that waits for its header does not delay the shutdown.
  const auto last_context = services::NewContext(absl::Seconds(30));
  const auto last = stub->Upload(last_context.get());
  service.Drain();
  EXPECT_FALSE(last->Read(&response));
  EXPECT_FALSE(last->Finish().ok());
  (*server)->Shutdown();
  EXPECT_TRUE(service.Stop(absl::Seconds(5)));
  (void)services::RemoveTree("/tmp", folder);
}

}  // namespace
}  // namespace capstan::coordinator
