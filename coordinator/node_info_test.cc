#include "coordinator/node_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/node_table.h"

namespace capstan::coordinator {
namespace {

TEST(NodeInfoTest, AStateSaysWhetherANodeMayBeSwitchedOff) {
  const auto state = [](const core::Node& node) {
    return DescribeNode(node, absl::Seconds(50)).state();
  };
  core::Node node;
  node.Connect(1);
  EXPECT_EQ(state(node), "READY");
  node.AddJob("job-1");
  EXPECT_EQ(state(node), "READY");
  node.set_drained(true);
  EXPECT_EQ(state(node), "DRAINING");
  node.set_leaving(true);
  EXPECT_EQ(state(node), "LEAVING");  // the node leaves by itself
  node.RemoveJob("job-1");
  EXPECT_EQ(state(node), "LEAVING");
  node.set_leaving(false);
  EXPECT_EQ(state(node), "DRAINED");
  node.set_leaving(true);
  node.Lose(/*left=*/false);
  EXPECT_EQ(state(node), "LOST");
}

}  // namespace
}  // namespace capstan::coordinator
