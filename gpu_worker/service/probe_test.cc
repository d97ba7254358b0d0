#include "gpu_worker/service/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/sync/mutex.h"

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

// The gate at which a queue's probes hang, and their results. Shared with threads that outlive the
// test.
struct HungDisk {
  Mutex mu;
  CondVar changed;
  bool open = false;
  int asked = 0;
  int left = 0;
  std::set<int64_t> told;

  template <typename Condition>
  bool Until(Condition condition) {
    const absl::Time end = absl::Now() + absl::Seconds(30);
    MutexLock lock(mu);
    while (!condition() && absl::Now() < end) changed.WaitWithTimeout(mu, absl::Seconds(1));
    return condition();
  }
};

TEST(ProbeQueueTest, ADataSetThatHangsHoldsUpItsOwnProbesAlone) {
  const auto disk = std::make_shared<HungDisk>();
  ProbeQueue queue(
      [disk](const node::v1::Probe& probe) {
        MutexLock lock(disk->mu);
        if (probe.spec().data().uri() != "file:///well") {
          ++disk->asked;
          disk->changed.NotifyAll();
          while (!disk->open) disk->changed.Wait(disk->mu);
          ++disk->left;
          disk->changed.NotifyAll();
        }
        node::v1::ProbeResult result;
        result.set_probe_id(probe.probe_id());
        return result;
      },
      [disk](const node::v1::ProbeResult& result) {
        MutexLock lock(disk->mu);
        disk->told.insert(result.probe_id());
        disk->changed.NotifyAll();
      });
  const auto add = [&queue](int64_t id, const std::string& uri) {
    node::v1::Probe probe = ProbeOf("idx", uri);
    probe.set_probe_id(id);
    queue.Add(probe);
  };
  // Repeated probes of one data set still use one thread.
  for (int64_t id = 1; id <= 20; ++id) add(id, "file:///hangs");
  ASSERT_TRUE(disk->Until([&] { return disk->asked == 1; }));
  add(100, "file:///well");
  EXPECT_TRUE(disk->Until([&] { return disk->told.count(100) == 1; }));
  // So do probes of jobs that differ in how they read it.
  const int most = static_cast<int>(ProbeQueue::kMostSets);
  for (int i = 1; i <= 2 * most; ++i) {
    node::v1::Probe probe = ProbeOf("idx", "file:///hangs");
    probe.mutable_spec()->mutable_data()->set_prefetch_batches(i);
    probe.set_probe_id(1000 + i);
    queue.Add(probe);
  }
  add(102, "file:///well");
  EXPECT_TRUE(disk->Until([&] { return disk->told.count(102) == 1; }));
  // So many data sets may hang at the same time before a good one is no longer read.
  for (int i = 0; i < most - 2; ++i) add(200 + i, absl::StrCat("file:///hangs/", i));
  add(101, "file:///well");
  EXPECT_TRUE(disk->Until([&] { return disk->told.count(101) == 1; }));
  {
    MutexLock lock(disk->mu);
    EXPECT_EQ(disk->told.size(), 3u);
    disk->open = true;
    disk->changed.NotifyAll();
  }
  const size_t all = 3 + ProbeQueue::kMostOfASet + static_cast<size_t>(most - 2);
  EXPECT_TRUE(disk->Until([&] { return disk->told.size() == all; }));
}

TEST(ProbeTest, AForeignSchemeIsInvalidSpec) {
  EXPECT_EQ(AnswerProbe(ProbeOf("idx", "s3://bucket/set"), {}).reason(), "InvalidSpec");
}

}  // namespace
}  // namespace capstan::gpu_worker
