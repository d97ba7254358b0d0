// How a version becomes a checkpoint, and which checkpoints are kept.
#include "coordinator/core/checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/manifest_link.h"
#include "coordinator/core/written_versions.h"

namespace capstan::coordinator::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

SavedManifest At(int64_t step, int64_t lineage = 1) {
  SavedManifest manifest;
  manifest.saved.set_id(absl::StrCat(lineage, "-", step));
  manifest.saved.set_uri(absl::StrCat("file:///out/j/", lineage, "-", step));
  manifest.saved.set_lineage(lineage);
  manifest.saved.set_step(step);
  return manifest;
}

std::vector<std::string> IdsOf(const Checkpoints& checkpoints) {
  std::vector<std::string> ids;
  for (const SavedManifest& manifest : checkpoints.all()) ids.push_back(manifest.saved.id());
  return ids;
}

std::optional<double> NoMetric(int64_t) { return std::nullopt; }
bool NotNeeded(const std::string&) { return false; }

TEST(CheckpointsTest, TheLastIsTheNewestCommitThatNobodyHasRefused) {
  Checkpoints checkpoints;
  EXPECT_EQ(checkpoints.Last(), nullptr);
  EXPECT_EQ(checkpoints.uri(), "");
  checkpoints.Add(At(8));
  checkpoints.Add(At(4, 9));  // a later lineage, at a lower step
  EXPECT_EQ(checkpoints.Last()->saved.id(), "9-4");
  EXPECT_EQ(checkpoints.uri(), "file:///out/j/9-4");
  checkpoints.Refuse("9-4");
  EXPECT_EQ(checkpoints.Last()->saved.id(), "1-8");
  EXPECT_EQ(checkpoints.uri(), "file:///out/j/9-4");  // it is still there
  checkpoints.Refuse("1-8");
  EXPECT_EQ(checkpoints.Last(), nullptr);
  checkpoints.ForgiveRefusals();
  EXPECT_EQ(checkpoints.Last()->saved.id(), "9-4");
  EXPECT_EQ(checkpoints.Find("1-8")->saved.step(), 8);
  EXPECT_EQ(checkpoints.Find("1-9"), nullptr);
}

TEST(CheckpointsTest, TheNewestTheBestAndTheNeededAreKept) {
  Checkpoints checkpoints;
  for (const int64_t step : {1, 2, 3, 4, 5, 6}) checkpoints.Add(At(step));
  const auto metric = [](int64_t step) -> std::optional<double> {
    if (step == 2 || step == 3) return 0.5;
    if (step == 1) return 0.25;
    return std::nullopt;
  };
  checkpoints.Prune(2, 1, metric, [](const std::string& id) { return id == "1-1"; });
  EXPECT_THAT(IdsOf(checkpoints), ElementsAre("1-1", "1-3", "1-5", "1-6"));
  EXPECT_TRUE(checkpoints.Find("1-3")->saved.best());  // of two equal ones the newer
  EXPECT_FALSE(checkpoints.Find("1-1")->saved.best());
  // One that was refused does not count as one of the newest, and is not kept for its metric.
  checkpoints.Refuse("1-6");
  checkpoints.Refuse("1-3");
  EXPECT_FALSE(checkpoints.Find("1-3")->saved.best());
  checkpoints.Prune(2, 1, metric, NotNeeded);
  EXPECT_THAT(IdsOf(checkpoints), ElementsAre("1-1", "1-5"));
  checkpoints.Prune(0, 0, NoMetric, NotNeeded);
  EXPECT_TRUE(checkpoints.empty());
}

TEST(CheckpointsTest, ADeletedOneIsKnownUntilItsFolderIsGone) {
  Checkpoints checkpoints;
  checkpoints.Add(At(4));
  checkpoints.Add(At(8));
  checkpoints.Delete("1-8");
  EXPECT_THAT(IdsOf(checkpoints), ElementsAre("1-4"));
  EXPECT_EQ(checkpoints.uri(), "file:///out/j/1-4");
  checkpoints.Delete("1-7");  // there is none
  EXPECT_THAT(checkpoints.deleted(), ElementsAre("1-8"));
  EXPECT_TRUE(checkpoints.NoteRemoved("1-8"));
  EXPECT_FALSE(checkpoints.NoteRemoved("1-8"));
  checkpoints.Delete("1-4");
  EXPECT_EQ(checkpoints.uri(), "");
}

TEST(ManifestLinkTest, AnOwedManifestIsTriedAgainAfterAWhile) {
  ManifestLink link;
  EXPECT_TRUE(link.Ready(absl::Seconds(1)));
  link.Order(At(4), 4, absl::Seconds(1));
  EXPECT_TRUE(link.writing());
  EXPECT_FALSE(link.Ready(absl::Seconds(1)));
  EXPECT_EQ(link.step(), 4);
  EXPECT_TRUE(link.WritingFor(absl::Seconds(10), absl::Seconds(10.9)));
  EXPECT_FALSE(link.WritingFor(absl::Seconds(10), absl::Seconds(11)));
  link.Retry("no space", absl::Seconds(5));
  EXPECT_FALSE(link.writing());
  EXPECT_FALSE(link.Ready(absl::Seconds(4.9)));
  EXPECT_EQ(link.error(), "no space");
  EXPECT_TRUE(link.Ready(absl::Seconds(5)));
  link.Order(At(4), 4, absl::Seconds(5));
  EXPECT_EQ(link.attempts(), 2);
  EXPECT_EQ(link.Commit(/*last=*/false).saved.id(), "1-4");
  EXPECT_EQ(link.attempts(), 0);
  EXPECT_EQ(link.error(), "");
  EXPECT_TRUE(link.Ready(absl::Seconds(6)));
}

TEST(ManifestLinkTest, AfterTheManifestOfTheLastVersionNoneIsOrdered) {
  ManifestLink link;
  link.Adopt(At(10), 10);
  EXPECT_EQ(link.attempts(), 0);
  (void)link.Commit(/*last=*/true);
  EXPECT_EQ(link.phase(), ManifestLink::Phase::kCommitted);
  EXPECT_FALSE(link.Ready(absl::Hours(1)));
  link.BeginLineage();
  EXPECT_TRUE(link.Ready(absl::Hours(1)));
}

TEST(ManifestLinkTest, PeopleAreToldOnceOfEachVersionThatIsOwed) {
  ManifestLink link;
  EXPECT_TRUE(link.NoteOwed(4));
  EXPECT_FALSE(link.NoteOwed(4));
  EXPECT_TRUE(link.NoteOwed(8));
  link.BeginLineage();
  EXPECT_TRUE(link.NoteOwed(8));
}

node::v1::WrittenFiles FilesAt(int64_t step) {
  node::v1::WrittenFiles files;
  files.set_step(step);
  files.add_files()->set_name("x");
  return files;
}

TEST(WrittenVersionsTest, FilesReplaceTheErrorOfTheirShardAndCountOnce) {
  WrittenVersions written;
  node::v1::WrittenFiles none;
  none.set_step(4);
  EXPECT_TRUE(written.Take(1, none, "no space"));
  EXPECT_FALSE(written.Take(1, none, "still no space"));  // the first one stands
  EXPECT_EQ(written.versions().at(4).errors.at(1), "no space");
  EXPECT_FALSE(written.Take(1, none, ""));  // neither files nor an error
  EXPECT_TRUE(written.Take(1, FilesAt(4), ""));
  EXPECT_FALSE(written.Take(1, FilesAt(4), ""));
  EXPECT_THAT(written.versions().at(4).errors, IsEmpty());
  EXPECT_EQ(written.Of(1, 4)->files_size(), 1);
  EXPECT_EQ(written.Of(0, 4), nullptr);
  EXPECT_EQ(written.Of(1, 8), nullptr);
}

TEST(WrittenVersionsTest, WhatIsSettledIsNotWaitedForAnyMore) {
  WrittenVersions written;
  EXPECT_EQ(written.settled_step(), -1);
  for (const int64_t step : {4, 8, 12}) (void)written.Take(0, FilesAt(step), "");
  written.Settle(8);
  EXPECT_EQ(written.settled_step(), 8);
  EXPECT_EQ(written.versions().size(), 1u);
  EXPECT_FALSE(written.has_weights());
  written.TakeWeights(FilesAt(12), "ab");
  EXPECT_TRUE(written.has_weights());
  EXPECT_EQ(written.weights_sha256(), "ab");
  written.BeginLineage(6);
  EXPECT_EQ(written.settled_step(), 6);
  EXPECT_THAT(written.versions(), IsEmpty());
  EXPECT_FALSE(written.has_weights());
  EXPECT_EQ(written.weights_sha256(), "");
}

}  // namespace
}  // namespace capstan::coordinator::core
