#include "services/files/beneath.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/files/files.h"

namespace capstan::services {
namespace {

namespace fs = std::filesystem;

TEST(BeneathTest, NamesAreComparedByComponents) {
  EXPECT_EQ(PathBelow("/data/sets/mnist", "/data"), "sets/mnist");
  EXPECT_EQ(PathBelow("//data/./sets/", "/data/"), "sets");
  EXPECT_EQ(PathBelow("/data", "/data"), ".");
  EXPECT_EQ(PathBelow("/any/where", "/"), "any/where");
  for (const char* path : {"/data2", "/dat", "/", "", "data/x", "/data/../etc", "/data/x/.."}) {
    EXPECT_EQ(PathBelow(path, "/data"), std::nullopt) << path;
  }
}

class BeneathFolderTest : public ::testing::Test {
 protected:
  BeneathFolderTest() : folder_(*MakePrivateDir("capstan-beneath")), root_(folder_ + "/root") {
    fs::create_directories(root_ + "/set");
    fs::create_directories(folder_ + "/outside");
    std::ofstream(root_ + "/set/a") << "inside";
    std::ofstream(folder_ + "/outside/a") << "outside";
    fs::create_symlink("set", root_ + "/link");
    fs::create_symlink(root_ + "/set", root_ + "/absolute");
    fs::create_symlink("../outside", root_ + "/up");
    fs::create_symlink(folder_ + "/outside", root_ + "/out");
    fs::create_symlink(folder_ + "/outside/none", root_ + "/nowhere");
    fs::create_symlink(root_, folder_ + "/alias");
  }
  ~BeneathFolderTest() override { fs::remove_all(folder_); }
  int ErrorOf(const std::string& below) {
    const int fd = OpenBeneath(root_, below, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno;
    close(fd);
    return 0;
  }
  const std::string folder_;
  const std::string root_;
};

TEST_F(BeneathFolderTest, LinksInsideWorkAndLinksOutDoNot) {
  for (const char* below : {"set/a", "link/a", "absolute/a", "."}) {
    EXPECT_EQ(ErrorOf(below), 0) << below;
  }
  for (const char* below : {"up/a", "out/a", "out", "nowhere", "../outside/a"}) {
    EXPECT_EQ(ErrorOf(below), EXDEV) << below;
  }
  EXPECT_EQ(ErrorOf("none"), ENOENT);
  // A magic link leads past every check of names.
  const int fd = OpenBeneath("/proc", "self/cwd", O_RDONLY | O_CLOEXEC);
  EXPECT_LT(fd, 0);
}

TEST_F(BeneathFolderTest, WhatDoesNotExistYetCountsByWhatDoes) {
  const std::vector<std::string> roots = {"/nowhere", root_};
  EXPECT_TRUE(LiesBeneath(root_ + "/new/job/1-40", roots));
  EXPECT_TRUE(LiesBeneath(root_ + "/absolute/new", roots));
  EXPECT_TRUE(LiesBeneath("/nowhere/x", roots));
  EXPECT_FALSE(LiesBeneath(root_ + "/out/new", roots));
  EXPECT_FALSE(LiesBeneath(root_ + "/up", roots));
  EXPECT_FALSE(LiesBeneath(root_ + "/nowhere", roots));
  EXPECT_FALSE(LiesBeneath(folder_ + "/outside", roots));
  EXPECT_TRUE(LiesBeneath(folder_ + "/alias/set", {folder_ + "/alias"}));
  EXPECT_FALSE(LiesBeneath("/anything", {}));
}

}  // namespace
}  // namespace capstan::services
