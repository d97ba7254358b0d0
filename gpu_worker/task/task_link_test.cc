#include "gpu_worker/task/task_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <vector>

#include "absl/strings/str_cat.h"

namespace capstan::gpu_worker {
namespace {

constexpr auto kLimit = std::chrono::seconds(20);

TEST(TaskLinkTest, MessagesComeWholeInOrderAndTheEndIsTold) {
  const SocketPair pair = *MakeSocketPair();
  std::vector<std::string> got;
  std::promise<void> closed;
  TaskLink reader(
      pair.theirs,
      [&](LinkKind kind, absl::string_view body) {
        got.push_back(
            absl::StrCat(static_cast<int>(kind), ":", body.size(), ":", body.substr(0, 3)));
      },
      [&] { closed.set_value(); });
  {
    TaskLink writer(
        pair.ours, [](LinkKind, absl::string_view) {}, [] {});
    ASSERT_TRUE(writer.Send(LinkKind::kStartTask, std::string(1 << 20, 'a')).ok());
    ASSERT_TRUE(writer.Send(LinkKind::kStop, "").ok());
    ASSERT_TRUE(writer.Send(LinkKind::kTaskState, "xyz").ok());
  }
  ASSERT_EQ(closed.get_future().wait_for(kLimit), std::future_status::ready);
  EXPECT_THAT(got, ::testing::ElementsAre("1:1048576:aaa", "3:0:", "4:3:xyz"));
}

TEST(TaskLinkTest, WhatIsNoMessageEndsTheLink) {
  const SocketPair pair = *MakeSocketPair();
  std::promise<void> closed;
  TaskLink reader(
      pair.theirs, [](LinkKind, absl::string_view) { FAIL(); }, [&] { closed.set_value(); });
  const uint32_t absurd = kMaxLinkBytes + 1;
  ASSERT_EQ(write(pair.ours, &absurd, 4), 4);
  ASSERT_EQ(write(pair.ours, "x", 1), 1);
  EXPECT_EQ(closed.get_future().wait_for(kLimit), std::future_status::ready);
  close(pair.ours);
}

TEST(TaskLinkTest, SendingToNobodyIsAnErrorNotASignal) {
  const SocketPair pair = *MakeSocketPair();
  close(pair.theirs);
  TaskLink writer(
      pair.ours, [](LinkKind, absl::string_view) {}, [] {});
  EXPECT_EQ(writer.Send(LinkKind::kStop, "").code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace capstan::gpu_worker
