#include "gpu_worker/data/archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/idx_test_files.h"
#include "gpu_worker/data/tar_test_files.h"

namespace capstan::data {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr CatalogMember kTestMembers[] = {{"a.bin", 3}, {"b.bin", 600}};

CatalogEntry TestEntry() {
  CatalogEntry entry;
  entry.archive_folder = "set";
  entry.members = kTestMembers;
  return entry;
}

// Everything below a folder, including links and folders.
std::set<std::string> Below(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    names.insert(entry.path().lexically_relative(folder));
  }
  return names;
}

std::string FileText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

class ArchiveTest : public ::testing::Test {
 protected:
  absl::Status Unpack(const std::string& archive) {
    packed_.Write("x.tar.gz", archive);
    return UnpackMembers(packed_.path() + "/x.tar.gz", TestEntry(), out_.path());
  }
  void ExpectRefused(const std::string& tar, const std::string& message) {
    const absl::Status status = Unpack(Gzip(tar));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << message;
    EXPECT_EQ(FailureReason(status), "DataMissing") << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr("/x.tar.gz: " + message));
    EXPECT_FALSE(VerifyMembers(out_.path(), TestEntry()).ok()) << message;
  }
  const TempFolder packed_, out_;
  const std::string b_ = std::string(600, 'b');
};

TEST_F(ArchiveTest, UnpacksTheMembersAndKnowsThemAgain) {
  ASSERT_TRUE(Unpack(Gzip(TarMember("set/", "", '5') + TarMember("set/b.bin", b_) +
                          TarMember("./set/a.bin", "abc") + TarEnd()))
                  .ok());
  EXPECT_THAT(Below(out_.path()), ElementsAre("SHA256SUMS", "a.bin", "b.bin"));
  EXPECT_EQ(FileText(out_.path() + "/a.bin"), "abc");
  EXPECT_EQ(FileText(out_.path() + "/b.bin"), b_);
  // SHA-256 of "abc": FIPS 180-4, example 1.
  EXPECT_THAT(FileText(out_.path() + "/SHA256SUMS"),
              testing::StartsWith(
                  "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a.bin\n"));
  EXPECT_TRUE(VerifyMembers(out_.path(), TestEntry()).ok());

  out_.Write("b.bin", std::string(599, 'b') + "c");
  absl::Status status = VerifyMembers(out_.path(), TestEntry());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/b.bin: sha256 "));
  out_.Write("b.bin", "b");
  status = VerifyMembers(out_.path(), TestEntry());
  EXPECT_THAT(std::string(status.message()), HasSubstr("/b.bin: 1 bytes, want 600"));
  out_.Write("SHA256SUMS", "");
  status = VerifyMembers(out_.path(), TestEntry());
  EXPECT_THAT(std::string(status.message()), HasSubstr("/SHA256SUMS: has no line for a.bin"));
}

TEST_F(ArchiveTest, ALongPathIsPutTogetherFromItsTwoFields) {
  EXPECT_TRUE(
      Unpack(Gzip(TarMember("a.bin", "abc", '0', "set") + TarMember("set/b.bin", b_, 0) + TarEnd()))
          .ok());
}

// Names that lead out of the folder, links and devices are never created.
TEST_F(ArchiveTest, NothingElseIsMade) {
  std::string tar;
  for (const char* name : {"../escaped", "/tmp/capstan-escaped", "set/../../escaped", "set/other",
                           "a.bin", "set/a.bin/x", "other/set/a.bin"}) {
    tar += TarMember(name, "abc");
  }
  tar += TarMember("set/link", "", '2') + TarMember("set/pipe", "", '6') + TarMember("", "abc");
  ASSERT_TRUE(
      Unpack(Gzip(tar + TarMember("set/a.bin", "abc") + TarMember("set/b.bin", b_) + TarEnd()))
          .ok());
  EXPECT_THAT(Below(out_.path()), ElementsAre("SHA256SUMS", "a.bin", "b.bin"));
  EXPECT_FALSE(fs::exists(out_.path() + "/../escaped"));
  EXPECT_FALSE(fs::exists("/tmp/capstan-escaped"));
}

TEST_F(ArchiveTest, RefusesWhatIsNotExpected) {
  const std::string a = TarMember("set/a.bin", "abc"), b = TarMember("set/b.bin", b_);
  ExpectRefused(a + TarEnd(), "has no b.bin");
  ExpectRefused(TarEnd(), "has no a.bin");
  ExpectRefused(a + a + b + TarEnd(), "a.bin comes twice");
  ExpectRefused(TarMember("set/a.bin", "abcd") + b + TarEnd(), "a.bin has 4 bytes, want 3");
  ExpectRefused(TarMember("set/a.bin", "", '2') + b + TarEnd(), "a.bin is not a regular file");
  ExpectRefused(a + b, "the tar data end at offset 2560");
  ExpectRefused(a + b.substr(0, 1000), "the tar data end at offset 2024");
  std::string other = a;
  other[0] = 't';  // makes the header's checksum wrong
  ExpectRefused(other + b + TarEnd(), "no tar header at offset 0");
  ExpectRefused(a + std::string(512, 'x'), "no tar header at offset 1024");
  std::string negative = a;
  negative.replace(124, 11, "-0000000003");
  ExpectRefused(negative + b + TarEnd(), "no tar header at offset 0");

  const absl::Status status = Unpack("no gzip");
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("gzip damaged"));
}

}  // namespace
}  // namespace capstan::data
