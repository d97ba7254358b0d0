#include "param_store/files/step_log.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/files/files.h"
#include "services/logging/log.h"

namespace capstan::param_store {
namespace {

using ::testing::ElementsAre;

// While the disk hangs, its strand runs nothing.
TEST(StepLogTest, SoManyLinesWaitForADiskThatHangsAndItGoesOn) {
  const std::string folder = *services::MakePrivateDir("step-log-test");
  std::vector<std::string> said;
  const int sink = services::AddLogSink(
      [&said](const services::LogRecord& record) { said.emplace_back(record.event); });
  services::StrandLoop files;
  StepLog log(files, "t-1", absl::StrCat(folder, "/t-1"));
  const std::string line = std::string(1023, 'x') + "\n";
  std::string want;
  for (int i = 0; i < 8192; ++i) {
    log.Append(line);
    want += line;
  }
  EXPECT_THAT(said, ElementsAre());
  for (int i = 0; i < 100; ++i) log.Append(line);
  EXPECT_THAT(said, ElementsAre("step_log_failed"));

  files.Post([&] {
    log.Append("last\n");
    files.Post([&] {
      log.Close();
      files.Stop();
    });
  });
  files.Run();
  services::RemoveLogSink(sink);
  EXPECT_THAT(said, ElementsAre("step_log_failed", "step_log_back"));
  const auto text = services::ReadWholeFile(absl::StrCat(folder, "/t-1/metrics.jsonl"), 16 << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_TRUE(*text == want + "last\n") << text->size() << " bytes";
  EXPECT_TRUE(services::RemoveTree("/tmp", folder).ok());
}

}  // namespace
}  // namespace capstan::param_store
