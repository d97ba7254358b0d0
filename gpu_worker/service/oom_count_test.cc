#include "gpu_worker/service/oom_count.h"

#include <gtest/gtest.h>

#include <string>

#include "services/files/files.h"

namespace capstan::gpu_worker {
namespace {

class OomCountTest : public ::testing::Test {
 protected:
  OomCountTest() : root_(*services::MakePrivateDir("capstan-oom")) {}
  ~OomCountTest() override { services::RemoveTree("/tmp", root_).IgnoreError(); }

  void Write(const std::string& path, const std::string& text) {
    const std::string file = root_ + path;
    ASSERT_TRUE(services::EnsureDir(file.substr(0, file.rfind('/'))).ok());
    ASSERT_TRUE(services::WriteFileAtomically(file, text).ok());
  }
  void Expect(int64_t kills, const std::string& file) {
    const OomCount count = ReadOomCount(root_);
    EXPECT_EQ(count.kills, kills);
    EXPECT_EQ(count.file, root_ + file);
  }

  const std::string root_;
};

TEST_F(OomCountTest, TheOwnGroupBeforeTheMachine) {
  EXPECT_EQ(ReadOomCount(root_).file, "");
  Write("/proc/vmstat", "nr_free_pages 12\noom_kill 41\noom_kill_x 7\n");
  Expect(41, "/proc/vmstat");
  Write("/proc/self/cgroup", "0::/jobs/a:b\n");
  Expect(41, "/proc/vmstat");  // the root group of version 2 lacks this file
  const std::string events = "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n";
  Write("/sys/fs/cgroup/memory.events", events);
  Expect(2, "/sys/fs/cgroup/memory.events");
  Write("/sys/fs/cgroup/jobs/a:b/memory.events", "oom_kill 1\n");
  Expect(1, "/sys/fs/cgroup/jobs/a:b/memory.events");
}

TEST_F(OomCountTest, VersionOne) {
  Write("/proc/self/cgroup", "9:name=systemd:/\n8:memory:/jobs\n3:cpu,cpuacct:/\n0::/\n");
  Write("/sys/fs/cgroup/memory/jobs/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
  Expect(5, "/sys/fs/cgroup/memory/jobs/memory.oom_control");
}

}  // namespace
}  // namespace capstan::gpu_worker
