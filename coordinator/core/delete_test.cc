// Checkpoints that people delete, and jobs that begin from those of other jobs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "coordinator/core/core.h"
#include "coordinator/core/test_recovery.h"

namespace capstan::coordinator::core {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class DeleteTest : public RecoveryTest {
 protected:
  // keep_latest 3 on one worker and one shard, at steps 4, 5 and 6.
  void SaveThree() {
    Running(1, 1);
    Lead(4);
    for (const int64_t step : {4, 5, 6}) Save(step);
  }
  absl::Status Delete(const std::string& checkpoint) {
    auto request = For<job::v1::DeleteCheckpointRequest>();
    request.set_checkpoint(checkpoint);
    effects_ = Do(Control{++calls_, std::move(request), caller_});
    return LastReply().status;
  }
  std::vector<std::string> Kept() {
    std::vector<std::string> ids;
    const job::v1::Job job = Job(id_);
    for (const auto& saved : job.checkpoints()) ids.push_back(saved.id());
    return ids;
  }
  job::v1::JobSpec From(const std::string& weights) {
    job::v1::JobSpec spec = Spec(1, 1, "next");
    spec.mutable_model()->set_initial_weights(weights);
    return spec;
  }
  std::string Folder(const std::string& checkpoint) const {
    return absl::StrCat("file:///out/", id_, "/", checkpoint);
  }

  Effects effects_;  // of the last Delete
};

TEST_F(DeleteTest, ACheckpointThatNobodyNeedsGoesForGood) {
  SaveThree();
  const size_t before = order_.size();
  ASSERT_EQ(Delete("1-4"), absl::OkStatus());
  EXPECT_EQ(std::get<job::v1::DeleteCheckpointResponse>(LastReply().response).size_bytes(), 100);
  EXPECT_THAT(Kept(), ElementsAre("1-6", "1-5"));
  EXPECT_THAT(EventTypes(id_), Contains("CheckpointDeleted"));
  ASSERT_THAT(removes_, SizeIs(1));
  EXPECT_EQ(removes_[0].storage_path, "/out/" + id_);
  EXPECT_EQ(removes_[0].checkpoint, "1-4");
  // Durable before it is answered.
  ASSERT_GE(order_.size(), before + 2);
  EXPECT_EQ(order_[before], "persist");
  EXPECT_EQ(order_[before + 1], "reply");
  EXPECT_THAT(Saved(id_).deleted(), ElementsAre("1-4"));
  // People who watch the job see that it has one less.
  EXPECT_TRUE(std::any_of(effects_.begin(), effects_.end(), [](const Effect& effect) {
    return std::holds_alternative<JobChanged>(effect);
  }));

  const absl::Status again = Delete("1-4");
  EXPECT_EQ(again.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(again.message(), absl::StrCat("job ", id_, " has no checkpoint 1-4; it has 1-6, 1-5"));
  // The disk was full, say: the next start tries again. Then it is done.
  Do(CheckpointRemoved{id_, "1-4", absl::DataLossError("unlink")});
  EXPECT_THAT(Saved(id_).deleted(), ElementsAre("1-4"));
  Do(CheckpointRemoved{id_, "1-4", absl::OkStatus()});
  EXPECT_THAT(Saved(id_).deleted(), IsEmpty());
}

TEST_F(DeleteTest, ARestartRemembersIt) {
  SaveThree();
  Cancel(id_);
  PassAndFollow(absl::Seconds(2));
  ASSERT_EQ(Delete("1-6"), absl::OkStatus());
  Ask(For<job::v1::RetryJobRequest>());
  ASSERT_EQ(LastReply().status, absl::OkStatus());
  // Its folder is there still, with the manifest of a version that no record has.
  World next;
  ASSERT_TRUE(next.core_.Restore(journal_.state(), absl::Seconds(1), absl::UnixEpoch()).ok());
  Restored restored;
  FoundManifest left;
  left.lineage = 1;
  left.step = 6;
  left.spec_digest = core_.Peek(id_)->resolution().digest();
  restored.manifests[id_] = {left};
  next.now_ = absl::Seconds(1);
  next.Do(restored);
  ASSERT_THAT(next.Job(id_).checkpoints(), SizeIs(2));
  EXPECT_EQ(next.Job(id_).checkpoints(0).id(), "1-5");
  ASSERT_THAT(next.removes_, SizeIs(1));
  EXPECT_EQ(next.removes_[0].checkpoint, "1-6");
}

TEST_F(DeleteTest, WhatTheJobGoesOnFromStays) {
  SaveThree();
  absl::Status status = Delete("1-6");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("it is the newest"));
  Restart(0);
  PassAndFollow(absl::Seconds(3));
  ASSERT_EQ(Lineage(), 2);
  Lead(7);
  Save(7);
  status = Delete("1-6");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the job goes on from it"));
  EXPECT_THAT(removes_, IsEmpty());
  // At the end all may go.
  Cancel(id_);
  PassAndFollow(absl::Seconds(2));
  EXPECT_EQ(Delete("2-7"), absl::OkStatus());
  EXPECT_EQ(Job(id_).checkpoint_uri(), Folder("1-6"));
  EXPECT_EQ(Delete("1-6"), absl::OkStatus());
}

TEST_F(DeleteTest, OwnersAloneDelete) {
  caller_ = {.name = "ann", .any_job = false};
  SaveThree();
  caller_.name = "bob";
  EXPECT_EQ(Delete("1-4").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(Kept(), SizeIs(3));
  caller_.name = "ann";
  EXPECT_EQ(Delete("1-4"), absl::OkStatus());
}

TEST_F(DeleteTest, WhatAnotherJobBeginsFromStaysUntilItHasItsOwn) {
  SaveThree();
  const std::string next = Submit(From(Folder("1-4")));  // waits: the worker is busy
  ASSERT_NE(next, "");
  absl::Status status = Delete("1-4");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("job " + next + " begins from it"));
  EXPECT_EQ(Delete("1-5"), absl::OkStatus());
  for (const int64_t step : {7, 8, 9}) Save(step);  // three newer ones
  EXPECT_THAT(Kept(), ElementsAre("1-9", "1-8", "1-7", "1-4"));
  EXPECT_THAT(sweeps_.back().keep, Contains("1-4"));
  Cancel(next);
  EXPECT_EQ(Delete("1-4"), absl::OkStatus());
}

TEST_F(DeleteTest, OnlyOnesOwnCheckpointsAreBegunFrom) {
  caller_ = {.name = "ann", .any_job = false};
  SaveThree();
  EXPECT_NE(Submit(From(Folder("1-4"))), "");
  EXPECT_NE(Submit(From(Folder("1-4/manifest.json"))), "");
  EXPECT_EQ(Submit(From(Folder("1-3"))), "");
  EXPECT_EQ(LastReply().status.message(),
            absl::StrCat("model.initial_weights: job ", id_,
                         " has no checkpoint 1-3; it has 1-6, 1-5, 1-4"));
  caller_.name = "bob";
  for (const char* path : {"1-4", "/./1-4/manifest.json", "1-6/weights.safetensors"}) {
    EXPECT_EQ(Submit(From(Folder(path))), "") << path;
    EXPECT_EQ(LastReply().status.code(), absl::StatusCode::kPermissionDenied) << path;
    EXPECT_THAT(std::string(LastReply().status.message()),
                HasSubstr(absl::StrCat("job ", id_, " is ann's, not bob's")));
  }
}

CoreOptions DataAt(const std::string& root) {
  CoreOptions options;
  options.is_data = [root](const std::string& path) { return path.rfind(root, 0) == 0; };
  return options;
}

class DataRootTest : public RecoveryTest {
 protected:
  DataRootTest() : RecoveryTest(DataAt("/data")) {}
};

TEST_F(DataRootTest, ACheckpointOfNobodyIsForAdminsUnlessItIsData) {
  job::v1::JobSpec spec = Spec(1, 1);
  spec.mutable_model()->set_initial_weights("file:///out/forgotten-1/1-4");
  caller_ = {.name = "ann", .any_job = false};
  EXPECT_EQ(Submit(spec), "");
  EXPECT_EQ(LastReply().status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(LastReply().status.message()), HasSubstr("is not below a --data-root"));
  caller_.any_job = true;
  EXPECT_NE(Submit(spec), "");
  caller_.any_job = false;
  spec.mutable_model()->set_initial_weights("file:///data/kept/1-4");
  EXPECT_NE(Submit(spec), "");
}

TEST_F(DataRootTest, WhereALinkLeadsToDecidesWhoseItIs) {
  caller_ = {.name = "ann", .any_job = false};
  const std::string ann = Submit(Spec(1, 1));
  ASSERT_NE(ann, "");
  job::v1::JobSpec spec = Spec(1, 1);
  spec.mutable_model()->set_initial_weights("file:///data/bob/1-4");
  const auto submit = [&](const std::string& who, bool any_job, const std::string& place) {
    const CallId call = ++calls_;
    Do(core::Submit{
        call, absl::StrCat("linked-", call), spec, {.name = who, .any_job = any_job}, {place}});
    return LastReply().status;
  };
  // Under its name on record, under another one, and beside it.
  for (const char* root : {"/out/", "/data/other/name/of/out/"}) {
    const std::string place = absl::StrCat(root, ann, "/1-4");
    const absl::Status status = submit("bob", false, place);
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << place;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("file:///data/bob/1-4: a link leads to ", place, ": job ",
                                       ann, " is ann's, not bob's")));
    EXPECT_EQ(submit("ann", false, place), absl::OkStatus());
    EXPECT_EQ(submit("root", true, place), absl::OkStatus());
  }
  EXPECT_EQ(submit("bob", false, "/data/kept/1-4"), absl::OkStatus());
  const absl::Status status = submit("bob", false, "/out/forgotten-1/1-4");
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not below a --data-root"));
}

}  // namespace
}  // namespace capstan::coordinator::core
