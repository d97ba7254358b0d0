// Jobs that end while their disk hangs: nobody else waits for it, and a job that comes back does.
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "param_store/test_shards.h"

namespace capstan::param_store {
namespace {

using ::testing::HasSubstr;

// A file whose disk hangs: whoever writes to it stands still until the end of the object. It begins
// with a hole as large as files may become, and the signal for a write beyond it goes to the thread
// that writes.
class HungFile {
 public:
  explicit HungFile(const std::string& path) {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    EXPECT_EQ(pwrite(fd, "\n", 1, kSize - 1), 1);
    close(fd);
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    hangs_ = true;
    held_ = 0;
    std::signal(SIGXFSZ, Hold);
    const rlimit limit = {.rlim_cur = kSize, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~HungFile() {
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before_), 0);
    hangs_ = false;
    std::signal(SIGXFSZ, SIG_IGN);
  }
  HungFile(const HungFile&) = delete;
  HungFile& operator=(const HungFile&) = delete;

  static bool HoldsSomebody() { return held_ > 0; }

 private:
  static constexpr off_t kSize = off_t{1} << 30;

  static void Hold(int) {
    const int error = errno;
    held_ = held_ + 1;
    while (hangs_) poll(nullptr, 0, /*timeout=*/1);
    errno = error;
  }

  static inline std::atomic<bool> hangs_{false};
  static inline std::atomic<int> held_{0};
  rlimit before_ = {};
};

class EndingTest : public Shards {
 protected:
  // Of the job; its folder is there.
  std::string LogPath() const {
    EXPECT_TRUE(services::EnsureDir(resolved_.storage_path()).ok());
    return absl::StrCat(resolved_.storage_path(), "/metrics.jsonl");
  }

  // From version 0 to 1, by one worker alone.
  Call& Train() {
    Call& call = Open(0, v1::STREAM_KIND_DATA, 0);
    std::vector<float> got(layout_->total_floats());
    Pull(call, 0, 0, got);
    Push(call, 0, 0, {0, 4}, Gradient(0, 0, layout_->total_floats()));
    Seal(call, 0, {0, 4});
    Pull(call, 0, 1, got);
    return call;
  }
  bool WaitUntilHeld() {
    return WaitFor(0, [](const node::v1::ShardState&) { return HungFile::HoldsSomebody(); });
  }
  // As the coordinator does, until the shard shows it.
  bool BeginAgainAndAgain() {
    const absl::Duration until = MonotonicNow() + absl::Seconds(20);
    while (shards_[0].store->MakeHeartbeat().shards_size() == 0) {
      if (MonotonicNow() > until) return false;
      Begin(0);
      MutexLock lock(mu_);
      changed_.WaitWithTimeout(mu_, absl::Milliseconds(5));
    }
    return true;
  }
  // The status that the shard ends the stream with.
  static grpc::StatusCode EndOf(Call& call) {
    v1::ExchangeResponse response;
    while (call.stream->Read(&response)) {
    }
    const grpc::StatusCode code = call.stream->Finish().error_code();
    call.stream.reset();
    return code;
  }
};

TEST_F(EndingTest, ADiskThatHangsHoldsUpNoOtherJob) {
  StartAll(1);
  const HungFile log(LogPath());
  Call& first = Train();
  ASSERT_TRUE(WaitUntilHeld());
  resolved_ = MakeSpec(1, folder_, 0, "t-2");
  bytes_ = resolved_.SerializeAsString();
  digest_ = spec::Digest(bytes_);
  view_.set_job_id("t-2");
  Begin(0);
  Call& second = Open(0, v1::STREAM_KIND_DATA, 0);

  const absl::Duration start = MonotonicNow();
  End(0, "t-1");
  End(0, "t-2");
  EXPECT_EQ(shards_[0].store->MakeHeartbeat().shards_size(), 0);
  EXPECT_EQ(EndOf(first), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(EndOf(second), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_LT(MonotonicNow() - start, absl::Seconds(10));
  EXPECT_TRUE(BeginAgainAndAgain());  // the second is through, and may come back
}

// Else both would write the log, and the end of the old would end the series that the new one has.
TEST_F(EndingTest, AJobThatComesBackWaitsUntilItsFilesAreWritten) {
  StartAll(1);
  {
    const HungFile log(LogPath());
    Train();
    ASSERT_TRUE(WaitUntilHeld());
    End(0, "t-1");
    view_.set_lineage(2);
    view_.set_generation(2);
    lineage_ = 2;
    Begin(0);
    EXPECT_EQ(shards_[0].store->MakeHeartbeat().shards_size(), 0);
    EXPECT_EQ(shards_[0].store->FindJob("t-1"), nullptr);
  }
  ASSERT_TRUE(BeginAgainAndAgain());
  for (int i = 0; i < 3; ++i) registry_.Scrape();  // after which a series that ended is gone
  Train();
  EXPECT_THAT(registry_.Scrape(),
              HasSubstr("capstan_ps_apply_duration_seconds_count{job_id=\"t-1\"} 2"));
}

}  // namespace
}  // namespace capstan::param_store
