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
  // A magic link bypasses every check of names.
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

TEST_F(BeneathFolderTest, APlaceIsWhereLinksLeadTo) {
  const std::vector<std::string> roots = {"/nowhere", root_ + "/"};
  fs::create_symlink("set/later", root_ + "/later");
  for (const char* below : {"/set/a", "/link/a", "/absolute/a"}) {
    EXPECT_EQ(PlaceBeneath(root_ + below, roots), root_ + "/set/a") << below;
  }
  EXPECT_EQ(PlaceBeneath(root_ + "/link/./new/er", roots), root_ + "/set/new/er");
  EXPECT_EQ(PlaceBeneath(root_, roots), root_);
  EXPECT_EQ(PlaceBeneath("/nowhere/x/y", roots), "/nowhere/x/y");
  // The operator's own link keeps its name.
  EXPECT_EQ(PlaceBeneath(folder_ + "/alias/link/a", {folder_ + "/alias"}),
            folder_ + "/alias/set/a");
  // A dangling link may point anywhere later, so its place is unknown.
  for (const char* below : {"/later", "/later/x", "/up/a", "/out", "/nowhere"}) {
    EXPECT_EQ(PlaceBeneath(root_ + below, roots), std::nullopt) << below;
  }
}

TEST_F(BeneathFolderTest, FoldersAreMadeInsideAlone) {
  const auto make = [&](const std::string& below) {
    const int fd = MakeFolderBeneath(root_, below);
    const int error = errno;
    if (fd < 0) return error;
    close(fd);
    return 0;
  };
  EXPECT_EQ(make("."), 0);
  EXPECT_EQ(make("set"), 0);
  EXPECT_EQ(make("new/job/1-40"), 0);
  EXPECT_TRUE(fs::is_directory(root_ + "/new/job/1-40"));
  EXPECT_EQ(make("link/a1"), 0);
  EXPECT_EQ(make("absolute/b1/c1"), 0);
  EXPECT_TRUE(fs::is_directory(root_ + "/set/a1"));
  EXPECT_TRUE(fs::is_directory(root_ + "/set/b1/c1"));
  EXPECT_EQ(make("set/a"), ENOTDIR);
  for (const char* below : {"up", "up/new", "out", "out/new", "out/new/er", "nowhere"}) {
    EXPECT_EQ(make(below), EXDEV) << below;
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ + "/outside"), fs::directory_iterator()),
            1);
  EXPECT_EQ(MakeFolderBeneath(folder_ + "/none", "new"), -1);
}

}  // namespace
}  // namespace capstan::services
