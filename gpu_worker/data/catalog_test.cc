#include "gpu_worker/data/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/idx_test_files.h"

namespace capstan::data {
namespace {

using ::testing::HasSubstr;

TEST(CatalogTest, KnowsFashionMnist) {
  const CatalogEntry* entry = FindInCatalog("fashion-mnist");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->files.size(), 4u);
  EXPECT_EQ(entry->base_url.back(), '/');
  EXPECT_EQ(FindInCatalog("fashion_mnist"), nullptr);
}

TEST(CatalogTest, EveryEntryCanBeCheckedAndHasItsOwnFiles) {
  ASSERT_NE(FindInCatalog("mnist"), nullptr);
  ASSERT_NE(FindInCatalog("tinyshakespeare"), nullptr);
  std::set<std::string> hashes;
  for (const CatalogEntry& entry : Catalog()) {
    EXPECT_EQ(entry.base_url.back(), '/') << entry.name;
    EXPECT_THAT(std::string(entry.base_url), testing::MatchesRegex("https?://.*")) << entry.name;
    EXPECT_EQ(entry.members.empty(), entry.archive_folder.empty()) << entry.name;
    EXPECT_TRUE(entry.members.empty() || entry.files.size() == 1) << entry.name;
    for (const CatalogFile& file : entry.files) {
      EXPECT_GT(file.size_bytes, 0) << file.name;
      EXPECT_EQ(file.md5.size(), 32u) << file.name;
      EXPECT_EQ(file.sha256.size(), 64u) << file.name;
      EXPECT_TRUE(hashes.insert(std::string(file.sha256)).second)
          << file.name << ": the hash of another";
    }
  }
}

TEST(CatalogTest, ComparesSizeAndHash) {
  const TempFolder folder;
  // SHA-256 of "abc": FIPS 180-4, example 1.
  const CatalogFile file = {"f", 3, "",
                            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"};
  absl::Status status = VerifyFile(folder.path(), file);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(FailureReason(status), "DataMissing");
  folder.Write("f", "ab");
  status = VerifyFile(folder.path(), file);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/f: 2 bytes, want 3"));
  folder.Write("f", "abd");
  status = VerifyFile(folder.path(), file);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("want ba7816bf"));
  folder.Write("f", "abc");
  EXPECT_TRUE(VerifyFile(folder.path(), file).ok());
}

}  // namespace
}  // namespace capstan::data
