#include "services/grpc_init/grpc_init.h"

#include "grpc/support/log.h"
#include "gtest/gtest.h"
#include "services/logging/log.h"

namespace capstan::services {
namespace {

TEST(GrpcInitDeathTest, AnAssertionOfGrpcIsSaidAtEveryLogLevel) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        SetLogLevel(kError);
        KeepGrpcInitialised();
        GPR_ASSERT(1 + 1 == 3);
      },
      "level=error event=grpc .*assertion failed: 1 \\+ 1 == 3");
}

}  // namespace
}  // namespace capstan::services
