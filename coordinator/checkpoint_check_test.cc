#include "coordinator/checkpoint_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "coordinator/manifest_writer.h"
#include "services/files/files.h"

namespace capstan::coordinator {
namespace {

using ::testing::HasSubstr;

// A checkpoint with a file of 1,200,000 bytes and an empty file.
class CheckpointCheckTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = absl::StrCat(root_, "/job-1/1-10");
    ASSERT_TRUE(services::EnsureDir(folder_).ok());
    core::WriteManifest write;
    write.folder = folder_;
    write.job_id = "job-1";
    write.lineage = 1;
    write.step = 10;
    write.spec_digest_hex = std::string(64, 'd');
    write.training_digest_hex = std::string(64, 'e');
    write.optimizer = "sgd";
    saved_.set_uri("file://" + folder_);
    saved_.set_lineage(1);
    saved_.set_step(10);
    for (const std::string name : {"shard-0.safetensors", "shard-1.safetensors"}) {
      const std::string bytes = name == "shard-0.safetensors" ? bytes_ : "";
      ASSERT_TRUE(services::WriteFileAtomically(PathOf(name), bytes).ok());
      common::v1::FileInfo& file = *saved_.add_files();
      file.set_name(name);
      file.set_size_bytes(static_cast<int64_t>(bytes.size()));
      file.set_sha256(absl::HexStringToBytes(training::Sha256Hex(bytes)));
      write.files.push_back(file);
    }
    ASSERT_EQ(WriteManifestFile(write), absl::OkStatus());
  }
  void TearDown() override { (void)services::RemoveTree("/tmp", root_); }
  std::string PathOf(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  // Runs a whole check and counts its pieces.
  absl::Status Check() {
    CheckpointCheck check(saved_);
    for (pieces_ = 0; !check.done(); ++pieces_) {
      if (absl::Status status = check.Next(); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
  void ExpectDamage(const std::string& name, const std::string& why) {
    const absl::Status status = Check();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(PathOf(name), ": ", why)));
  }

  const std::string root_ = *services::MakePrivateDir("checkpoint-check-test");
  std::string folder_;
  std::string bytes_ = std::string(1200000, 'x');
  job::v1::SavedCheckpoint saved_;
  int pieces_ = 0;
};

TEST_F(CheckpointCheckTest, DamageIsFoundByItsHash) {
  EXPECT_EQ(Check(), absl::OkStatus());
  bytes_[1100000] ^= 1;
  ASSERT_TRUE(services::WriteFileAtomically(PathOf("shard-0.safetensors"), bytes_).ok());
  ExpectDamage("shard-0.safetensors", "SHA-256 is ");
}

// No piece is larger than a block, so that a waiting caller sees that the disk answers.
TEST_F(CheckpointCheckTest, APieceIsABlockAtMost) {
  EXPECT_EQ(Check(), absl::OkStatus());
  EXPECT_EQ(pieces_, 2 + (1 + 3) + (1 + 1));  // by hand: open and read each, 1,200,000 bytes in 3
}

TEST_F(CheckpointCheckTest, WhatIsMissingShorterOrAnotherKindOfFileIsNamed) {
  const std::string path = PathOf("shard-0.safetensors");
  ASSERT_EQ(truncate(path.c_str(), 1199999), 0);
  ExpectDamage("shard-0.safetensors", "1199999 bytes, the manifest says 1200000");
  ASSERT_EQ(unlink(path.c_str()), 0);
  EXPECT_EQ(Check().code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(services::WriteFileAtomically(PathOf("same"), bytes_).ok());
  ASSERT_EQ(symlink("same", path.c_str()), 0);
  EXPECT_EQ(Check().code(), absl::StatusCode::kDataLoss);
  ASSERT_EQ(unlink(path.c_str()), 0);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);  // opening it would wait for a writer
  ExpectDamage("shard-0.safetensors", "not a regular file");
}

TEST_F(CheckpointCheckTest, TheManifestIsThatOfTheRecord) {
  saved_.set_step(11);
  ExpectDamage("manifest.json", "is that of lineage 1, step 10, 2 files; want lineage 1, step 11");
  saved_.set_step(10);
  ASSERT_TRUE(services::WriteFileAtomically(PathOf("manifest.json"), "{}").ok());
  EXPECT_EQ(Check().code(), absl::StatusCode::kDataLoss);
  ASSERT_EQ(unlink(PathOf("manifest.json").c_str()), 0);
  EXPECT_EQ(Check().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace capstan::coordinator
