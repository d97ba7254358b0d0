#include "coordinator/path_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <vector>

namespace capstan::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

PathPolicy::Claim ClaimOn(const std::string& root, const std::string& name) {
  return {.field = "data.uri",
          .uri = "file://" + root + "/" + name,
          .path = root + "/" + name,
          .flag = "--data-root",
          .roots = {root}};
}

// A disk that answers only when told to. It has all paths that contain "hangs".
class PathChecksTest : public ::testing::Test {
 protected:
  ~PathChecksTest() override {
    if (!let_go_) disk_.set_value();
    EXPECT_TRUE(checks_.Stop());
    strand_.Stop();
  }
  std::future<absl::Status> Ask(std::vector<PathPolicy::Claim> claims) {
    auto answer = std::make_shared<std::promise<absl::Status>>();
    strand_.Post([this, claims = std::move(claims), answer]() mutable {
      checks_.Check(std::move(claims), [answer](const absl::Status& status,
                                                const PathPolicy::Found& found) {
        const auto& violations = found.violations;
        answer->set_value(
            violations.empty() ? status : absl::InvalidArgumentError(violations[0].description));
      });
    });
    return answer->get_future();
  }
  void LetGo() {
    disk_.set_value();
    let_go_ = true;
  }

  std::promise<void> disk_;
  const std::shared_future<void> answers_ = disk_.get_future().share();
  bool let_go_ = false;
  std::atomic<int> looked_{0};
  WorkThread strand_;
  PathChecks checks_{strand_,
                     [this](const PathPolicy::Claim& claim) -> PathPolicy::Found {
                       ++looked_;
                       if (claim.path.find("hangs") != claim.path.npos) answers_.wait();
                       if (claim.path.find("bad") != claim.path.npos) return {{{"f", "bad"}}, {}};
                       return {};
                     },
                     absl::Milliseconds(300)};
};

TEST_F(PathChecksTest, WhatWasFoundIsTold) {
  EXPECT_EQ(Ask({}).get(), absl::OkStatus());
  EXPECT_EQ(Ask({ClaimOn("/data", "a"), ClaimOn("/out", "b")}).get(), absl::OkStatus());
  EXPECT_EQ(Ask({ClaimOn("/data", "a"), ClaimOn("/out", "bad")}).get(),
            absl::InvalidArgumentError("bad"));
}

TEST_F(PathChecksTest, ARootThatHangsIsNamedAndHoldsUpNobodyElse) {
  std::vector<std::future<absl::Status>> hung;
  for (int i = 0; i < 4; ++i) hung.push_back(Ask({ClaimOn("/nfs", "hangs")}));
  // Checks beside it under the same root, and under another root, still work.
  EXPECT_EQ(Ask({ClaimOn("/nfs", "well"), ClaimOn("/data", "well")}).get(), absl::OkStatus());
  for (auto& answer : hung) {
    const absl::Status status = answer.get();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("--data-root /nfs does not answer"), HasSubstr("/nfs/hangs")));
  }
  EXPECT_EQ(Ask({ClaimOn("/nfs", "well")}).get(), absl::OkStatus());
}

TEST_F(PathChecksTest, SoManyThreadsHangAndThenTheirCallersAreToldWithoutAnyMore) {
  std::vector<std::future<absl::Status>> hung;
  const size_t most = PathChecks::kThreads * (FileThreads::kMaxWaiting + 1);
  for (size_t i = 0; i < 2 * most; ++i) hung.push_back(Ask({ClaimOn("/nfs", "hangs")}));
  for (auto& answer : hung) EXPECT_TRUE(absl::IsUnavailable(answer.get()));
  EXPECT_EQ(looked_, PathChecks::kThreads);
  EXPECT_EQ(Ask({ClaimOn("/data", "well")}).get(), absl::OkStatus());
  LetGo();
  // Checks that nobody waits for any more are skipped.
  while (!Ask({ClaimOn("/nfs", "well")}).get().ok()) {
  }
  EXPECT_LE(looked_, PathChecks::kThreads + 100);
}

}  // namespace
}  // namespace capstan::coordinator
