#include "coordinator/mounts.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;

TEST(MountsTest, MountPointsAreTheFifthWordOfALine) {
  EXPECT_THAT(ReadMountInfo("22 27 0:20 / /proc rw,nosuid - proc proc rw\n"
                            "27 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
                            "40 27 0:50 /jobs /mnt/two\\040words\\134x rw master:2 - nfs4 a:/ rw\n"
                            "half a line\n"),
              ElementsAre("/proc", "/", "/mnt/two words\\x"));
  EXPECT_THAT(MountPoints(), Contains("/proc"));
}

TEST(MountsTest, APathLiesOnTheLongestOneByWholeNames) {
  const std::vector<std::string> folders = {"/", "/mnt", "/mnt/nfs", "/mnt/nfs2/a"};
  EXPECT_EQ(LongestAbove("/mnt/nfs/out/j-1", folders), "/mnt/nfs");
  EXPECT_EQ(LongestAbove("/mnt/nfs", folders), "/mnt/nfs");
  EXPECT_EQ(LongestAbove("/mnt/nfs2/j-1", folders), "/mnt");
  EXPECT_EQ(LongestAbove("/home/a", folders), "/");
  EXPECT_EQ(LongestAbove("/home/a", {}), "/");
}

}  // namespace
}  // namespace capstan::coordinator
