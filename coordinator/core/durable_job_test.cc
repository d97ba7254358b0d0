#include "coordinator/core/durable_job.h"

#include <gtest/gtest.h>

#include <string>

#include "google/protobuf/util/message_differencer.h"
#include "tests/support/fill_message.h"

namespace capstan::coordinator::core {
namespace {

// A field that is lost on the way is forgotten by every restart of the coordinator.
TEST(DurableJobTest, EveryFieldSurvivesARestart) {
  v1::DurableJob want;
  int64_t next = 1;
  FillMessage(want, next);
  job::v1::JobSpec submitted, changed;
  FillMessage(submitted, next);
  FillMessage(changed, next);
  changed.mutable_labels()->erase(changed.labels().begin()->first);  // of two the order is open
  job::v1::ResolvedSpec resolved;
  FillMessage(resolved, next);
  want.set_spec(submitted.SerializeAsString());
  want.set_changed_spec(changed.SerializeAsString());
  want.set_resolved_spec(resolved.SerializeAsString());

  const absl::Duration now = absl::Seconds(100000);
  const CoreOptions options;
  const auto job = FromDurable(want, {}, options, now, absl::UnixEpoch());
  ASSERT_TRUE(job.ok()) << job.status();
  const v1::DurableJob got = ToDurable(**job, now);

  google::protobuf::util::MessageDifferencer differencer;
  std::string differences;
  differencer.ReportDifferencesToString(&differences);
  EXPECT_TRUE(differencer.Compare(want, got)) << differences;
}

}  // namespace
}  // namespace capstan::coordinator::core
