#include "gpu_worker/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan::gpu_worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ConfigTest, WhatIsMissingOrMalformedIsNamed) {
  Config config;
  EXPECT_THAT(std::string(config.Check().message()), HasSubstr("--coordinator"));
  config.coordinator = "unix:/tmp/c.sock";
  for (const char* name : {"", "Big", "under_score", "a/b"}) {
    config.node = name;
    EXPECT_THAT(std::string(config.Check().message()), HasSubstr("--node")) << name;
  }
  config.node = std::string(64, 'a');
  EXPECT_FALSE(config.Check().ok());
  config.node = std::string(63, 'a');
  EXPECT_TRUE(config.Check().ok());
  config.devices.clear();
  EXPECT_THAT(std::string(config.Check().message()), HasSubstr("--devices"));
}

// These flags are for services that others dial. A worker that accepted them would confuse people.
TEST(ConfigTest, AnAddressForOthersIsNoFlag) {
  for (const char* flag : {"--advertise", "--interface"}) {
    Config config;
    services::FlagSet flags("capstan_gpu_worker", "test");
    config.AddTo(flags);
    EXPECT_THAT(flags.Help(), Not(HasSubstr(flag)));
    const char* argv[] = {"capstan_gpu_worker", flag, "10.0.0.5:7090"};
    EXPECT_THAT(std::string(flags.TryParse(3, argv).message()), HasSubstr(flag));
  }
}

TEST(ConfigTest, FlagsAreRead) {
  Config config;
  services::FlagSet flags("capstan_gpu_worker", "test");
  config.AddTo(flags);
  const char* argv[] = {"capstan_gpu_worker",
                        "--coordinator",
                        "unix:/c",
                        "--node",
                        "w0",
                        "--devices",
                        "cpu,cpu",
                        "--cpu-threads",
                        "3",
                        "--checkpoint-root",
                        "/a,/b"};
  ASSERT_TRUE(flags.TryParse(11, argv).ok());
  EXPECT_EQ(config.checkpoint_roots, (std::vector<std::string>{"/a", "/b"}));
  EXPECT_EQ(config.devices.size(), 2u);
  EXPECT_EQ(config.cpu_threads, 3);
  EXPECT_TRUE(config.Check().ok());
}

}  // namespace
}  // namespace capstan::gpu_worker
