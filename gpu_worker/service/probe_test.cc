#include "gpu_worker/service/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan::gpu_worker {
namespace {

using ::testing::StartsWith;

node::v1::Probe ProbeOf(const std::string& format, const std::string& uri) {
  node::v1::Probe probe;
  probe.set_probe_id(9);
  probe.set_job_id("j1");
  probe.mutable_spec()->mutable_data()->set_format(format);
  if (!uri.empty()) probe.mutable_spec()->mutable_data()->set_uri(uri);
  probe.mutable_spec()->mutable_model()->set_num_classes(10);
  return probe;
}

TEST(ProbeTest, SyntheticDigitsAreWhatTheSpecSays) {
  node::v1::Probe probe = ProbeOf("synthetic_digits", "");
  probe.mutable_spec()->mutable_data()->set_train_samples(120);
  probe.mutable_spec()->mutable_data()->set_test_samples(30);
  const node::v1::ProbeResult result = AnswerProbe(probe, {});
  EXPECT_EQ(result.reason(), "") << result.message();
  EXPECT_EQ(result.probe_id(), 9);
  EXPECT_EQ(result.job_id(), "j1");
  EXPECT_EQ(result.dataset().train_samples(), 120);
  EXPECT_EQ(result.dataset().test_samples(), 30);
  EXPECT_EQ(result.dataset().channels(), 1);
  EXPECT_EQ(result.dataset().height(), 28);
  EXPECT_EQ(result.dataset().width(), 28);
  EXPECT_EQ(result.dataset().num_classes(), 10);
}

TEST(ProbeTest, AbsentDataAreNamed) {
  const node::v1::ProbeResult result = AnswerProbe(ProbeOf("idx", "file:///nonexistent/set"), {});
  EXPECT_EQ(result.reason(), "DataMissing");
  EXPECT_THAT(result.message(), StartsWith("/nonexistent/set"));
  EXPECT_FALSE(result.has_dataset());
}

TEST(ProbeTest, AForeignSchemeIsInvalidSpec) {
  EXPECT_EQ(AnswerProbe(ProbeOf("idx", "s3://bucket/set"), {}).reason(), "InvalidSpec");
}

}  // namespace
}  // namespace capstan::gpu_worker
