#include "coordinator/log_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace capstan::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The lines get the times 0, 1, 2, ... seconds in the order of the calls.
class LogFilterTest : public ::testing::Test {
 protected:
  void Add(common::v1::Role role, int index, const std::string& level, const std::string& text) {
    job::v1::LogLine line;
    line.mutable_time()->set_seconds(seconds_++);
    line.set_role(role);
    line.set_index(index);
    line.set_level(level);
    line.set_text(text);
    logs_.Append(std::move(line));
  }
  void SetUp() override {
    Add(common::v1::ROLE_COORDINATOR, 0, "info", "admitted");
    Add(common::v1::ROLE_WORKER, 0, "debug", "reads");
    Add(common::v1::ROLE_WORKER, 1, "warning", "slow");
    Add(common::v1::ROLE_PARAM_STORE, 1, "info", "applies");
    Add(common::v1::ROLE_WORKER, 1, "error", "dies");
  }
  std::vector<std::string> Texts(const job::v1::StreamLogsRequest& request) {
    const auto filter = LogFilter::Create(request);
    std::vector<std::string> out;
    for (const int64_t number : filter->InOrder(logs_)) out.push_back(logs_.Find(number)->text());
    return out;
  }

  core::LogBuffer logs_{/*max_lines=*/100, /*max_bytes=*/1 << 20};
  int64_t seconds_ = 0;
};

TEST_F(LogFilterTest, EachFieldNarrowsAndTheyNarrowTogether) {
  job::v1::StreamLogsRequest request;
  EXPECT_THAT(Texts(request), ElementsAre("admitted", "reads", "slow", "applies", "dies"));
  request.set_index(1);
  EXPECT_THAT(Texts(request), ElementsAre("slow", "applies", "dies"));
  request.add_roles(common::v1::ROLE_WORKER);
  EXPECT_THAT(Texts(request), ElementsAre("slow", "dies"));
  request.set_level("error");
  EXPECT_THAT(Texts(request), ElementsAre("dies"));
  job::v1::StreamLogsRequest zero;
  zero.set_index(0);
  EXPECT_THAT(Texts(zero), ElementsAre("reads"));  // without the coordinator's
  job::v1::StreamLogsRequest since;
  since.mutable_since()->set_seconds(3);
  EXPECT_THAT(Texts(since), ElementsAre("applies", "dies"));
}

TEST_F(LogFilterTest, TailCountsWhatMatches) {
  job::v1::StreamLogsRequest request;
  request.set_tail(2);
  EXPECT_THAT(Texts(request), ElementsAre("applies", "dies"));
  request.add_roles(common::v1::ROLE_WORKER);
  EXPECT_THAT(Texts(request), ElementsAre("slow", "dies"));
  request.set_tail(100);
  EXPECT_THAT(Texts(request), ElementsAre("reads", "slow", "dies"));
}

// A node sends its lines in batches, so a line that arrives later need not be younger.
TEST_F(LogFilterTest, LinesStandByTheirTimes) {
  seconds_ = 1;
  Add(common::v1::ROLE_WORKER, 2, "info", "reads too");  // at the time of "reads", arrives later
  seconds_ = 3;
  Add(common::v1::ROLE_WORKER, 2, "info", "late");
  job::v1::StreamLogsRequest request;
  EXPECT_THAT(Texts(request),
              ElementsAre("admitted", "reads", "reads too", "slow", "applies", "late", "dies"));
  request.set_tail(2);
  EXPECT_THAT(Texts(request), ElementsAre("late", "dies"));
}

TEST_F(LogFilterTest, WhatIsNoneIsRefusedByName) {
  const auto message = [](const job::v1::StreamLogsRequest& request) {
    return std::string(LogFilter::Create(request).status().message());
  };
  job::v1::StreamLogsRequest request;
  request.add_roles(common::v1::ROLE_CLIENT);
  EXPECT_THAT(message(request), HasSubstr("roles: "));
  request.Clear();
  request.set_level("loud");
  EXPECT_THAT(message(request), HasSubstr("level: "));
  request.Clear();
  request.set_tail(-1);
  EXPECT_THAT(message(request), HasSubstr("tail: "));
  request.Clear();
  request.set_index(-1);
  EXPECT_THAT(message(request), HasSubstr("index: "));
}

}  // namespace
}  // namespace capstan::coordinator
