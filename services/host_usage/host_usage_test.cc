#include "services/host_usage/host_usage.h"

#include <gtest/gtest.h>

#include <fstream>

#include "services/files/files.h"

namespace capstan::services {
namespace {

TEST(HostUsageTest, SharesAreOfTheTimeBetweenTwoReads) {
  const std::string proc = *MakePrivateDir("capstan-proc");
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(proc + "/" + name) << text;
  };
  write("stat", "cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 2 3 4\n");
  write("meminfo", "MemTotal:  1000 kB\nMemFree:  100 kB\nMemAvailable:  400 kB\n");
  HostUsage host(proc);
  common::v1::NodeUsage usage;
  usage.add_devices()->set_power_watts(7);
  host.Fill(absl::Seconds(1), &usage);
  EXPECT_FALSE(usage.has_cpu_ratio());  // a ratio needs two reads
  EXPECT_EQ(usage.memory_total_bytes(), 1024000);
  EXPECT_EQ(usage.memory_used_bytes(), 600 * 1024);
  EXPECT_EQ(usage.devices(0).power_watts(), 7);

  write("stat", "cpu  130 0 100 760 110 0 0 0 50 0\n");
  host.Fill(absl::Seconds(1.5), &usage);  // too early to read again
  EXPECT_FALSE(usage.has_cpu_ratio());
  host.Fill(absl::Seconds(2), &usage);
  EXPECT_DOUBLE_EQ(usage.cpu_ratio(), 0.3);  // 30 busy of 100 ticks
  (void)RemoveTree("/tmp", proc);

  common::v1::NodeUsage nothing;
  HostUsage("/nowhere").Fill(absl::Seconds(1), &nothing);
  EXPECT_EQ(nothing.ByteSizeLong(), 0u);
}

}  // namespace
}  // namespace capstan::services
