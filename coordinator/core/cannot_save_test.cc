// The last version of a job that cannot be written: said at once, and by its cause.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/test_recovery.h"

namespace capstan::coordinator::core {
namespace {

using common::v1::JOB_STATE_FAILED;
using common::v1::JOB_STATE_RUNNING;
using common::v1::JOB_STATE_SUCCEEDED;
using common::v1::JOB_STATE_SUSPENDED;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kFull[] = "write /out/x/1-10/shard-0.safetensors: No space left on device";
constexpr char kFullText[] =
    "cannot save step 10: No space left on device: write /out/x/1-10/shard-0.safetensors "
    "(shard 0 on host host-s0)";

class CannotSaveTest : public RecoveryTest {
 protected:
  void Complete() {
    Lead(10).set_complete(true);
    Lead(10);
  }
  void ReportWeights(size_t worker, const std::string& error) {
    node::v1::TaskState& task = Task(workers_[worker], id_, static_cast<int>(worker));
    node::v1::WrittenFiles& files = *task.mutable_files();
    files.Clear();
    files.set_lineage(Lineage());
    files.set_step(10);
    files.set_error(error);
    if (error.empty()) {
      common::v1::FileInfo* file = files.add_files();
      file->set_name("weights.safetensors");
      file->set_size_bytes(100);
      file->set_sha256(std::string(32, 'h'));
      task.set_weights_sha256(std::string(64, 'a'));
      task.set_phase(node::v1::TASK_PHASE_FINISHED);
    }
    Beat(workers_[worker]);
  }
  std::vector<std::string> Failures() {
    std::vector<std::string> out;
    const job::v1::Job job = Job(id_);
    for (const job::v1::Event& event : job.events()) {
      if (event.type() == "CheckpointFailed") out.push_back(event.message());
    }
    return out;
  }
};

TEST_F(CannotSaveTest, TheErrorOfAShardIsTheMessageWithinASecondAndTheRootCauseAtTheEnd) {
  Running(1, 2);
  Complete();
  Report(0, 1, 10, kFull);
  Pass(absl::Seconds(1), All());
  EXPECT_EQ(Job(id_).message(), kFullText);
  EXPECT_THAT(Job(id_).conditions(), ElementsAre("CHECKPOINT_DEGRADED"));
  EXPECT_THAT(Failures(), SizeIs(1));
  Pass(absl::Minutes(6), All());
  const job::v1::Job job = Job(id_);
  EXPECT_EQ(job.state(), JOB_STATE_FAILED);
  EXPECT_EQ(job.reason(), "Stalled");
  EXPECT_EQ(job.message(), kFullText);
  EXPECT_THAT(Failures(), SizeIs(1));  // not one for every try
}

TEST_F(CannotSaveTest, SoIsThatOfTheTaskThatWritesTheWeights) {
  Running(1, 1);
  Complete();
  Report(0, 1, 10);
  ReportWeights(0, "write /out/x/1-10/weights.safetensors: No space left on device");
  Pass(absl::Seconds(1), All());
  EXPECT_EQ(Job(id_).message(),
            "cannot save step 10: No space left on device: write /out/x/1-10/weights.safetensors "
            "(worker w0 on host host-w0)");
  EXPECT_THAT(Failures(), ElementsAre(HasSubstr("step 10: worker w0 on host host-w0: write /out")));
  ReportWeights(0, "");
  Written();
  EXPECT_EQ(Job(id_).state(), JOB_STATE_SUCCEEDED);
  EXPECT_THAT(Job(id_).conditions(), IsEmpty());
  EXPECT_EQ(Job(id_).message(), "");
}

TEST_F(CannotSaveTest, OneOfSeveralIsNamedAndTheOthersAreCounted) {
  Running(1, 3);
  Complete();
  for (int shard = 0; shard < 3; ++shard) Report(shard, 1, 10, kFull);
  Pass(absl::Seconds(1), All());
  EXPECT_EQ(Job(id_).message(), absl::StrCat(kFullText, " and 2 more"));
}

// The disk was full before: that is no reason to be silent about the last version.
TEST_F(CannotSaveTest, ACheckpointThatFailedBeforeHidesNothing) {
  Running(1, 1);
  Lead(4);
  Report(0, 1, 4, kFull);
  ASSERT_THAT(Failures(), SizeIs(1));
  Complete();
  Report(0, 1, 10, kFull);
  Pass(absl::Seconds(1), All());
  EXPECT_THAT(Failures(), ElementsAre(HasSubstr("step 4: "), HasSubstr("step 10: ")));
  EXPECT_EQ(Job(id_).message(), kFullText);
}

TEST_F(CannotSaveTest, TheManifestIsSaidLikeTheFiles) {
  Running(1, 1);
  Complete();
  Report(0, 1, 10);
  ReportWeights(0, "");
  ASSERT_THAT(manifests_, SizeIs(1));
  Written(absl::ResourceExhaustedError("fsync /out/x/manifest.json: No space left on device"));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Job(id_).message(),
            "cannot save step 10: No space left on device: fsync /out/x/manifest.json "
            "(the coordinator)");
  EXPECT_THAT(Failures(), ElementsAre("step 10: fsync /out/x/manifest.json: No space left on "
                                      "device"));
}

// A suspend waits for its version as the end of a job does for the last one.
TEST_F(CannotSaveTest, TheVersionOfASuspendIsSaidLikeTheLastOne) {
  Running(1, 2);
  Ask(For<job::v1::SuspendJobRequest>());
  Lead(4).set_suspended(true);
  Lead(4);
  Report(0, 1, 4, "", {1});
  Report(1, 1, 4, "write /out/x/1-4/shard-1.safetensors: No space left on device");
  Pass(absl::Seconds(1), All());
  EXPECT_EQ(Job(id_).message(),
            "cannot save step 4: No space left on device: write /out/x/1-4/shard-1.safetensors "
            "(shard 1 on host host-s1)");
  Report(1, 1, 4);
  Written();
  EXPECT_EQ(Job(id_).state(), JOB_STATE_SUSPENDED);
  EXPECT_EQ(Job(id_).message(), "at step 4, goes on from checkpoint 1-4");
}

TEST_F(CannotSaveTest, SoIsTheManifestOfASuspend) {
  Running(1, 1);
  Ask(For<job::v1::SuspendJobRequest>());
  Lead(4).set_suspended(true);
  Lead(4);
  Report(0, 1, 4, "", {1});
  ASSERT_THAT(manifests_, SizeIs(1));
  Written(absl::ResourceExhaustedError("fsync /out/x/manifest.json: No space left on device"));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Job(id_).message(),
            "cannot save step 4: No space left on device: fsync /out/x/manifest.json "
            "(the coordinator)");
}

TEST_F(CannotSaveTest, AVersionInBetweenHoldsNobodyUp) {
  Running(1, 1);
  Lead(4);
  Report(0, 1, 4, kFull);
  Pass(absl::Seconds(1), All());
  EXPECT_EQ(Job(id_).message(), "");
}

TEST_F(CannotSaveTest, WhereTheFilesDoNotFitThatIsSaidOnceTheJobIsResolved) {
  job::v1::JobSpec spec = Spec(1, 1);
  spec.mutable_checkpoint()->set_storage_path("file:///disk/of/ada");
  spec.mutable_checkpoint()->set_every_seconds(30);  // 4 at a time
  Running(1, 1, spec);
  ASSERT_THAT(measures_, SizeIs(1));
  EXPECT_EQ(measures_[0].job_id, id_);
  EXPECT_EQ(measures_[0].folder, "/disk/of/ada");
  const auto short_of = [&](int64_t usable_bytes) {
    Do(RoomMeasured{id_, measures_[0].folder, usable_bytes + 1024, usable_bytes});
    const job::v1::Job job = Job(id_);
    const job::v1::Event& event = *job.events().rbegin();
    return event.type() == "StorageShort" ? event.message() : "";
  };
  EXPECT_EQ(short_of(int64_t{1} << 30), "");
  EXPECT_THAT(short_of(int64_t{30} << 10),
              testing::MatchesRegex("files of at most [0-9.]+ KiB, and 30.0 KiB can be used in "
                                    "/disk/of/ada \\(31.0 KiB free\\): checkpoints will fail; a "
                                    "lower checkpoint.keep_latest .*"));
  EXPECT_THAT(short_of(2048),
              HasSubstr("(3.0 KiB free): not even the last version and weights fit"));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  Do(RoomMeasured{"forgotten", "/x", 0, 0});
}

}  // namespace
}  // namespace capstan::coordinator::core
