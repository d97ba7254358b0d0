#include "coordinator/core/node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan::coordinator::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Key;

TEST(NodeTest, SlotsAreFreedByTheirJobExceptOfTheGivenDevices) {
  Node node;
  node.Start(5, 3);
  node.HoldSlot(1, "a");
  node.HoldFreeSlots("");
  EXPECT_THAT(node.slots(), ElementsAre("", "a", ""));
  node.HoldFreeSlots("b");
  EXPECT_THAT(node.slots(), ElementsAre("b", "a", "b"));
  EXPECT_FALSE(node.FreeSlots("c"));
  EXPECT_TRUE(node.FreeSlots("b", /*except=*/{2}));
  EXPECT_THAT(node.slots(), ElementsAre("", "a", "b"));
  EXPECT_FALSE(node.FreeSlots("b", /*except=*/{2}));
}

TEST(NodeTest, ANodeThatWasLostIsUnheardUntilItsNextHeartbeat) {
  Node node;
  node.Start(5, 1);
  node.Connect(7);
  node.AddJob("a");
  EXPECT_TRUE(node.usable());
  EXPECT_THAT(node.Lose(/*left=*/true), ElementsAre("a"));
  EXPECT_THAT(node.jobs(), IsEmpty());
  EXPECT_TRUE(node.lost() && node.left());
  EXPECT_FALSE(node.live());

  node.ComeBack();
  EXPECT_FALSE(node.lost() || node.left());
  EXPECT_TRUE(node.live());
  EXPECT_FALSE(node.usable());
  node.set_unheard(false);
  EXPECT_TRUE(node.usable());

  // The same by a new session.
  node.Disconnect();
  EXPECT_EQ(node.last_session(), 7);
  EXPECT_FALSE(node.live());
  node.Lose(/*left=*/false);
  node.Connect(8);
  EXPECT_TRUE(node.live() && node.unheard());
}

TEST(NodeTest, AnotherProcessHoldsNothing) {
  Node node;
  node.Start(5, 1);
  node.Connect(7);
  node.HoldSlot(0, "a");
  node.AddJob("a");
  node.set_leaving(true);
  node.NoteStray("b", absl::Seconds(1));
  node.Start(6, 2);
  EXPECT_EQ(node.incarnation(), 6);
  EXPECT_THAT(node.slots(), ElementsAre("", ""));
  EXPECT_THAT(node.jobs(), IsEmpty());
  EXPECT_THAT(node.strays(), IsEmpty());
  EXPECT_FALSE(node.leaving());
  EXPECT_FALSE(node.live());
}

TEST(NodeTest, StraysAreForgottenOnceANodeDoesNotNameThem) {
  Node node;
  node.NoteStray("a", absl::Seconds(1));
  node.NoteStray("b", absl::Seconds(2));
  EXPECT_FALSE(node.KeepStrays({"a", "b", "c"}));
  EXPECT_TRUE(node.KeepStrays({"b"}));
  EXPECT_THAT(node.strays(), ElementsAre(Key("b")));
  node.Connect(3);  // what was sent on the old stream may be lost
  EXPECT_THAT(node.strays(), IsEmpty());
}

TEST(NodeTest, WorkGoesToNodesThatStay) {
  Node node;
  node.Connect(1);
  EXPECT_TRUE(node.takes_work());
  node.set_drained(true);
  EXPECT_FALSE(node.takes_work());
  node.set_drained(false);
  node.set_leaving(true);
  EXPECT_FALSE(node.takes_work());
  EXPECT_TRUE(node.usable());
}

}  // namespace
}  // namespace capstan::coordinator::core
