#include "gpu_worker/data/data_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/idx_test_files.h"

namespace capstan::data {
namespace {

using ::testing::HasSubstr;

TEST(ParseDataUriTest, TakesPathsAndFileUris) {
  EXPECT_EQ(*ParseDataUri("/data/x"), "/data/x");
  EXPECT_EQ(*ParseDataUri("file:///data/x"), "/data/x");
  EXPECT_EQ(*ParseDataUri("file:///odd/a%20b"), "/odd/a%20b");  // nothing is decoded
}

TEST(ParseDataUriTest, RefusesTheRestAsInvalidSpec) {
  for (const char* uri : {"", "s3://bucket/x", "http://169.254.169.254/latest", "FILE:///x",
                          "file://host/x", "file://localhost/x", "file:///a/../b"}) {
    const absl::Status status = ParseDataUri(uri).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << uri;
    EXPECT_EQ(FailureReason(status), "InvalidSpec") << uri;
    EXPECT_THAT(std::string(status.message()), HasSubstr("data.uri must")) << uri;
  }
}

std::string Content(ByteSource& source) {
  uint8_t buffer[64];
  const absl::StatusOr<size_t> got = source.Read(buffer, sizeof(buffer));
  return got.ok() ? std::string(reinterpret_cast<char*>(buffer), *got) : got.status().ToString();
}

TEST(OpenDataFileTest, PrefersThePlainFileAndUnpacksTheOther) {
  const TempFolder folder;
  folder.Write("a.gz", Gzip("packed"));
  auto source = OpenDataFile(folder.path(), "a", {});
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(Content(**source), "packed");
  EXPECT_EQ((*source)->file(), folder.path() + "/a.gz");
  folder.Write("a", "plain");
  source = OpenDataFile(folder.path() + "/", "a", {folder.path()});
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(Content(**source), "plain");
}

TEST(OpenDataFileTest, AbsentAndOddFilesAreDataMissing) {
  const TempFolder folder;
  absl::Status status = OpenDataFile(folder.path(), "a", {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(FailureReason(status), "DataMissing");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(folder.path() + "/a: no such file, nor with .gz or .xz"));
  folder.Write("train.csv", "1,2");  // a person may name the file itself
  status = OpenDataFile(folder.path() + "/train.csv", "train.csv", {}).status();
  EXPECT_EQ(FailureReason(status), "DataMissing");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("/train.csv: is a file, want the folder that has train.csv"));
  EXPECT_EQ(OpenDataFile(folder.path() + "/none", "a", {folder.path()}).status().code(),
            absl::StatusCode::kNotFound);

  ASSERT_EQ(mkfifo((folder.path() + "/a").c_str(), 0600), 0);  // open must not wait for a writer
  status = OpenDataFile(folder.path(), "a", {}).status();
  EXPECT_EQ(FailureReason(status), "DataMissing");
  EXPECT_THAT(std::string(status.message()), HasSubstr("not a regular file"));
}

TEST(OpenDataFileTest, StaysInsideTheRoots) {
  const TempFolder outside, root;
  outside.Write("a", "secret");
  std::filesystem::create_directory(root.path() + "/set");
  root.Write("set/b", "inside");
  ASSERT_EQ(symlink(outside.path().c_str(), (root.path() + "/out").c_str()), 0);
  ASSERT_EQ(symlink("../../../../../../etc", (root.path() + "/up").c_str()), 0);
  ASSERT_EQ(symlink("set", (root.path() + "/link").c_str()), 0);
  const std::vector<std::string> roots = {"/nowhere", root.path() + "/"};

  EXPECT_TRUE(OpenDataFile(root.path() + "/set", "b", roots).ok());
  EXPECT_TRUE(OpenDataFile(root.path() + "/link", "b", roots).ok());  // a link inside the root

  for (const std::string& folder :
       {outside.path(), root.path() + "/out", root.path() + "/up", root.path() + "/../x",
        root.path() + "x", std::string("/proc/self"), std::string("set"),
        root.path() + "/set/.."}) {
    const std::string name = folder == root.path() + "/up" ? "passwd" : "a";
    const absl::Status status = OpenDataFile(folder, name, roots).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << folder << " " << status;
    EXPECT_EQ(FailureReason(status), "InvalidSpec") << folder;
    EXPECT_THAT(std::string(status.message()), HasSubstr("dataset path escapes the data root"));
  }
}

}  // namespace
}  // namespace capstan::data
