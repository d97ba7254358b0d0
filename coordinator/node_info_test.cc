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
  node.session = 1;
  EXPECT_EQ(state(node), "READY");
  node.jobs = {"job-1"};
  EXPECT_EQ(state(node), "READY");
  node.drained = true;
  EXPECT_EQ(state(node), "DRAINING");
  node.leaving = true;
  EXPECT_EQ(state(node), "LEAVING");  // the node leaves by itself
  node.jobs.clear();
  EXPECT_EQ(state(node), "LEAVING");
  node.leaving = false;
  EXPECT_EQ(state(node), "DRAINED");
  node.lost = node.leaving = true;
  EXPECT_EQ(state(node), "LOST");
}

}  // namespace
}  // namespace capstan::coordinator
