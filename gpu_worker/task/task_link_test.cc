#include "gpu_worker/task/task_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <vector>

#include "absl/strings/numbers.h"
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

// Messages that will be repeated are dropped as a whole while the peer is stalled. The link works
// afterwards.
TEST(TaskLinkTest, OffersToASideThatStandsStillAreDropped) {
  const SocketPair pair = *MakeSocketPair();
  TaskLink writer(
      pair.ours, [](LinkKind, absl::string_view) {}, [] {});
  const std::string padding(4000, ' ');
  int sent = 0;
  absl::Status status;
  while (status.ok() && sent < 100000) {
    status = writer.Offer(LinkKind::kTaskState, absl::StrCat(sent, padding));
    if (status.ok()) ++sent;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  std::promise<void> all;
  int got = 0;
  TaskLink reader(
      pair.theirs,
      [&](LinkKind kind, absl::string_view body) {
        int number = -1;
        EXPECT_TRUE(absl::SimpleAtoi(body.substr(0, body.find(' ')), &number));
        EXPECT_EQ(number, got++);
        if (kind == LinkKind::kCounters) all.set_value();
      },
      [] {});
  EXPECT_TRUE(writer.Send(LinkKind::kCounters, absl::StrCat(sent, " ")).ok());
  ASSERT_EQ(all.get_future().wait_for(kLimit), std::future_status::ready);
  EXPECT_EQ(got, sent + 1);
}

// Half a message cannot be taken back, and nobody waits for its rest.
TEST(TaskLinkTest, AMessageThatCannotBeEndedEndsTheLinkForBothSides) {
  const SocketPair pair = *MakeSocketPair();
  std::promise<void> broke, closed;
  TaskLink writer(
      pair.ours, [](LinkKind, absl::string_view) {}, [&] { broke.set_value(); },
      /*patience=*/absl::Milliseconds(50));
  EXPECT_EQ(writer.Offer(LinkKind::kTaskState, std::string(4 << 20, 'a')).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(broke.get_future().wait_for(kLimit), std::future_status::ready);
  TaskLink reader(
      pair.theirs, [](LinkKind, absl::string_view) { FAIL(); }, [&] { closed.set_value(); });
  EXPECT_EQ(closed.get_future().wait_for(kLimit), std::future_status::ready);
  EXPECT_EQ(writer.Offer(LinkKind::kTaskState, "b").code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace capstan::gpu_worker
