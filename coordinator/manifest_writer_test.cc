#include "coordinator/manifest_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <set>

#include "absl/strings/str_cat.h"
#include "services/files/files.h"
#include "training/codec/manifest.h"

// Records the synced paths while it lives. The sync of `failing` fails.
struct Syncs {
  Syncs();
  ~Syncs();
  std::vector<std::string> paths;
  std::string failing;
};
static Syncs* noted = nullptr;
Syncs::Syncs() { noted = this; }
Syncs::~Syncs() { noted = nullptr; }

// Replaces the C library's function.
extern "C" int fsync(int fd) {
  if (noted != nullptr) {
    noted->paths.push_back(std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", fd)));
    if (noted->paths.back() == noted->failing) {
      errno = EIO;
      return -1;
    }
  }
  return static_cast<int>(syscall(SYS_fsync, fd));
}

namespace capstan::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;

class ManifestWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = *services::MakePrivateDir("manifest-test");
    write_.folder = absl::StrCat(root_, "/job-1/1-10");
    ASSERT_TRUE(services::EnsureDir(write_.folder).ok());
    write_.job_id = "job-1";
    write_.lineage = 1;
    write_.step = 10;
    write_.spec_digest_hex = std::string(64, 'd');
    write_.training_digest_hex = std::string(64, 'e');
    write_.orders = {1, 3};
    write_.lead_snapshot = std::string("\0\1", 2);
    write_.weights_sha256 = std::string(64, 'a');
    write_.optimizer = "sgd";
    write_.samples_used = 160;
    AddFile("shard-0.safetensors", "12345");
    AddFile("weights.safetensors", "123");
  }
  void TearDown() override { (void)services::RemoveTree("/tmp", root_); }
  void AddFile(const std::string& name, const std::string& bytes) {
    ASSERT_TRUE(services::WriteFileAtomically(absl::StrCat(write_.folder, "/", name), bytes).ok());
    common::v1::FileInfo file;
    file.set_name(name);
    file.set_size_bytes(static_cast<int64_t>(bytes.size()));
    file.set_sha256(std::string(32, '\xab'));
    write_.files.push_back(file);
  }
  absl::StatusOr<training::Manifest> Read() {
    const std::string path = absl::StrCat(write_.folder, "/manifest.json");
    const absl::StatusOr<std::string> text = services::ReadWholeFile(path, 1 << 20);
    if (!text.ok()) return text.status();
    return training::ParseManifest(path, *text);
  }

  std::string root_;
  core::WriteManifest write_;
};

TEST_F(ManifestWriterTest, NamesEveryFileWithSizeAndHash) {
  ASSERT_TRUE(WriteManifestFile(write_).ok());
  const absl::StatusOr<training::Manifest> manifest = Read();
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->job_id, "job-1");
  EXPECT_EQ(manifest->lineage, 1);
  EXPECT_EQ(manifest->step, 10);
  EXPECT_EQ(manifest->samples_used, 160);
  EXPECT_EQ(manifest->training_digest, std::string(64, 'e'));
  EXPECT_THAT(manifest->orders, testing::ElementsAre(1, 3));
  EXPECT_EQ(manifest->lead_snapshot, std::string("\0\1", 2));
  ASSERT_THAT(manifest->files, SizeIs(2));
  EXPECT_EQ(manifest->files[0].name, "shard-0.safetensors");
  EXPECT_EQ(manifest->files[0].size_bytes, 5);
  std::string hash;
  for (int i = 0; i < 32; ++i) hash += "ab";
  EXPECT_EQ(manifest->files[0].sha256, hash);
}

TEST_F(ManifestWriterTest, AFileOfAnotherSizeIsDataLossAndNothingIsCommitted) {
  write_.files[1].set_size_bytes(4);
  const absl::Status status = WriteManifestFile(write_);
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(status.message(), HasSubstr("weights.safetensors: 3 bytes, its writer reported 4"));
  EXPECT_TRUE(absl::IsNotFound(Read().status()));
}

TEST_F(ManifestWriterTest, AMissingFileIsDataLoss) {
  write_.files[0].set_name("shard-9.safetensors");
  EXPECT_TRUE(absl::IsDataLoss(WriteManifestFile(write_)));
  write_.folder += "-gone";
  EXPECT_TRUE(absl::IsDataLoss(WriteManifestFile(write_)));
}

TEST_F(ManifestWriterTest, OnceMoreIsOkAndAnotherOneIsRefused) {
  ASSERT_TRUE(WriteManifestFile(write_).ok());
  EXPECT_TRUE(WriteManifestFile(write_).ok());
  write_.samples_used = 161;
  EXPECT_TRUE(absl::IsDataLoss(WriteManifestFile(write_)));
  EXPECT_EQ(Read()->samples_used, 160);
}

// Otherwise a power cut could undo the link for which SUCCEEDED was told.
TEST_F(ManifestWriterTest, WhatWasLinkedButNotSyncedIsSyncedByTheNextTry) {
  const std::string job = absl::StrCat(root_, "/job-1");
  Syncs syncs;
  syncs.failing = write_.folder;
  EXPECT_TRUE(absl::IsDataLoss(WriteManifestFile(write_)));
  ASSERT_TRUE(Read().ok());
  EXPECT_TRUE(absl::IsDataLoss(WriteManifestFile(write_)));
  syncs.failing.clear();
  syncs.paths.clear();
  ASSERT_TRUE(WriteManifestFile(write_).ok());
  EXPECT_THAT(syncs.paths, IsSupersetOf({write_.folder, job, root_}));
}

TEST_F(ManifestWriterTest, WhatIsFoundIsSyncedFirst) {
  const std::string job = absl::StrCat(root_, "/job-1");
  ASSERT_TRUE(WriteManifestFile(write_).ok());
  Syncs syncs;
  EXPECT_THAT(FindManifests("job-1", job), SizeIs(1));
  EXPECT_THAT(syncs.paths, ElementsAre(write_.folder, job, root_));
  for (const std::string& folder : {write_.folder, job, root_}) {
    syncs.failing = folder;
    EXPECT_THAT(FindManifests("job-1", job), IsEmpty()) << folder;
  }
}

TEST_F(ManifestWriterTest, SweepsWhatIsOlderAndNoCheckpoint) {
  const std::string job = absl::StrCat(root_, "/job-1");
  const auto make = [&](const std::string& name) {
    ASSERT_TRUE(services::EnsureDir(absl::StrCat(job, "/", name)).ok());
    ASSERT_TRUE(
        services::WriteFileAtomically(absl::StrCat(job, "/", name, "/manifest.json"), "{}").ok());
  };
  for (const char* name : {"1-20", "1-30", "2-5", "2-10", "2-12", "1-x", "01-7", "notes"}) {
    make(name);
  }
  core::SweepCheckpoints sweep;
  sweep.storage_path = job;
  sweep.lineage = 2;
  sweep.step = 10;
  sweep.keep = {"1-20", "2-10"};
  EXPECT_EQ(SweepCheckpointFolders(sweep), 3);  // 1-10 of the fixture, 1-30, 2-5
  std::set<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(job)) {
    left.insert(entry.path().filename());
  }
  EXPECT_THAT(left, testing::ElementsAre("01-7", "1-20", "1-x", "2-10", "2-12", "notes"));
}

TEST_F(ManifestWriterTest, WhatLiesOnDiskIsFoundAgain) {
  const std::string path = write_.folder.substr(0, write_.folder.rfind('/'));
  EXPECT_TRUE(FindManifests("job-1", path + "/none").empty());
  EXPECT_TRUE(FindManifests("job-1", path).empty());  // there are files, but no manifest
  ASSERT_TRUE(WriteManifestFile(write_).ok());
  const std::vector<core::FoundManifest> found = FindManifests("job-1", path);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].lineage, 1);
  EXPECT_EQ(found[0].step, 10);
  EXPECT_EQ(found[0].spec_digest, std::string(32, '\xdd'));
  EXPECT_EQ(found[0].weights_sha256, std::string(64, 'a'));
  EXPECT_EQ(found[0].samples_used, 160);
  EXPECT_EQ(HighestLineage(path), 1);
  ASSERT_TRUE(services::EnsureDir(path + "/12-3").ok());
  ASSERT_TRUE(services::EnsureDir(path + "/99-x").ok());
  EXPECT_EQ(HighestLineage(path), 12);
  EXPECT_EQ(HighestLineage(path + "/none"), 0);
  // A manifest of another job, or with other bytes than were written, is left out.
  EXPECT_TRUE(FindManifests("job-2", path).empty());
  const std::string file = write_.folder + "/manifest.json";
  std::string text = *services::ReadWholeFile(file, 1 << 20);
  text[text.size() / 2] ^= 1;
  ASSERT_TRUE(services::WriteFileAtomically(file, text).ok());
  EXPECT_TRUE(FindManifests("job-1", path).empty());
}

}  // namespace
}  // namespace capstan::coordinator
