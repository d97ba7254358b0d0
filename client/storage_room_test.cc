#include "client/storage_room.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan::client {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kKib = 1024;

// Two checkpoints of 100 KiB each, and weights of 50 KiB.
training::spec::StorageNeed Need() {
  training::spec::StorageNeed need;
  need.checkpoint_bytes = 100 * kKib;
  need.checkpoints = 2;
  need.weights_bytes = 50 * kKib;
  return need;
}

TEST(StorageRoomTest, ThePlanSaysWhatIsFreeAndWarnsWhereCheckpointsDoNotFit) {
  EXPECT_EQ(RoomText(Need(), {300 * kKib, 50 * kKib}, "/out"), "      300.0 KiB free in /out\n");
  EXPECT_EQ(RoomText(Need(), {299 * kKib, 50 * kKib}, "/out"),
            "      299.0 KiB free in /out\n"
            "      warning: of these 249.0 KiB can be used, so checkpoints will fail; lower "
            "checkpoint.keep_latest or choose another checkpoint.storage_path\n");
}

TEST(StorageRoomTest, AJobThatCouldNotEndIsRefusedWithNumbers) {
  EXPECT_TRUE(LastVersionFits(Need(), {200 * kKib, 50 * kKib}, "/out").ok());
  const absl::Status refused = LastVersionFits(Need(), {199 * kKib, 50 * kKib}, "/out");
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(
      std::string(refused.message()),
      HasSubstr("/out: no space left for this job: its last version and weights are up to 150.0 "
                "KiB, and 149.0 KiB can be used (199.0 KiB are free, 50.0 KiB are reserved)"));
}

}  // namespace
}  // namespace capstan::client
