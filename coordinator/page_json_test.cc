#include "coordinator/page_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan::coordinator {
namespace {

using ::testing::HasSubstr;

TEST(PageJsonTest, TheSummaryHasTheBatchOfTheFileAndHowManyAStepHas) {
  JobPage page;
  job::v1::ResolvedSpec& resolved = *page.job.mutable_resolved();
  resolved.set_num_workers(2);
  resolved.set_devices_per_worker(1);
  resolved.set_num_shards(1);
  resolved.set_global_batch(512);
  EXPECT_THAT(JobPageJson(page), HasSubstr("2 workers x 1 device, 1 shard, global batch 512\""));
  resolved.mutable_spec()->mutable_training()->set_accumulate_steps(4);
  EXPECT_THAT(JobPageJson(page), HasSubstr(", 1 shard, global batch 128 x 4 accumulated\""));
}

// Before the first loss, nothing else says that a job has no accuracy.
TEST(PageJsonTest, AJobSaysWhetherItsTargetsAreNumbers) {
  JobPage page;
  EXPECT_THAT(JobPageJson(page), HasSubstr("\"numeric_targets\":false"));
  page.job.mutable_spec()->mutable_training()->set_loss("mean_squared_error");
  EXPECT_THAT(JobPageJson(page), HasSubstr("\"numeric_targets\":true"));
  OverviewPage overview;
  overview.jobs.push_back(page.job);
  EXPECT_THAT(OverviewJson(overview), HasSubstr("\"numeric_targets\":true"));
}

}  // namespace
}  // namespace capstan::coordinator
