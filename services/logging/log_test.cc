#include "services/logging/log.h"

#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/sync/mutex.h"

namespace capstan::services {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// Collects the lines of a test and keeps standard error quiet.
class LogTest : public ::testing::Test {
 protected:
  LogTest() {
    SetLogToStderr(false);
    sink_ = AddLogSink([this](const LogRecord& record) {
      MutexLock lock(mu_);
      lines_.emplace_back(record.line);
    });
  }
  ~LogTest() override {
    RemoveLogSink(sink_);
    SetLogToStderr(true);
    SetLogLevel(kInfo);
  }
  std::vector<std::string> Lines() {
    MutexLock lock(mu_);
    return lines_;
  }

  Mutex mu_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mu_);
  int sink_ = 0;
};

TEST_F(LogTest, LineHasTimeLevelEventAndKeysInOrder) {
  Log(kInfo, "job_state").Kv("job", "j7").Kv("from", "PENDING").Kv("to", "STARTING");
  ASSERT_EQ(Lines().size(), 1u);
  EXPECT_THAT(Lines()[0], MatchesRegex("time=[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{3}Z "
                                       "level=info event=job_state job=j7 from=PENDING "
                                       "to=STARTING"));
}

TEST_F(LogTest, EveryTypeHasAPlainForm) {
  Log(kError, "types")
      .Kv("i", -3)
      .Kv("u", uint64_t{18446744073709551615u})
      .Kv("b", true)
      .Kv("d", 0.5)
      .Kv("t", absl::Milliseconds(1500))
      .Kv("s", absl::NotFoundError("no job j7"))
      .Kv("ok", absl::OkStatus());
  EXPECT_THAT(Lines()[0],
              HasSubstr("level=error event=types i=-3 u=18446744073709551615 b=true d=0.5 "
                        "t=1.5 s=\"NOT_FOUND: no job j7\" ok=OK"));
}

// A value from a peer must not be able to end the line or to add a key.
TEST_F(LogTest, HostileValuesAreQuoted) {
  EXPECT_EQ(QuoteLogValue("plain/path:7"), "plain/path:7");
  EXPECT_EQ(QuoteLogValue(""), "\"\"");
  EXPECT_EQ(QuoteLogValue("a b"), "\"a b\"");
  EXPECT_EQ(QuoteLogValue("x=1"), "\"x=1\"");
  EXPECT_EQ(QuoteLogValue("a\"b\\c\nd\x1b"), "\"a\\\"b\\\\c\\nd\\x1b\"");
  // U+009B begins an escape sequence, and U+202E reverses the line. The byte 9B alone is not UTF-8.
  EXPECT_EQ(QuoteLogValue("\xC3\xA9\xE2\x82\xAC"), "\"\xC3\xA9\xE2\x82\xAC\"");
  EXPECT_EQ(QuoteLogValue("a\xC2\x9B"
                          "2Jb"),
            "\"a\\xc2\\x9b2Jb\"");
  EXPECT_EQ(QuoteLogValue("\xE2\x80\xAE"
                          "dab\x9B"),
            "\"\\xe2\\x80\\xaedab\\x9b\"");
  Log(kInfo, "e").Kv("v", std::string(5000, 'a'));
  EXPECT_LT(Lines()[0].size(), kMaxLogValueBytes + 100);
}

TEST_F(LogTest, LevelIsSettableAtRunTime) {
  Log(kDebug, "hidden");
  SetLogLevel(*ParseLogLevel("debug"));
  Log(kDebug, "seen");
  SetLogLevel(kError);
  Log(kWarning, "hidden");
  ASSERT_EQ(Lines().size(), 1u);
  EXPECT_THAT(Lines()[0], HasSubstr("event=seen"));
  EXPECT_EQ(ParseLogLevel("loud").status().message(),
            "log level: got 'loud', want debug, info, warning or error");
}

TEST_F(LogTest, RepeatsAreCountedPerKeyAndReportedLater) {
  for (int i = 0; i < 5; ++i) Log(kWarning, "refused").Limit("w1", absl::Hours(1)).Kv("i", i);
  Log(kWarning, "refused").Limit("w2", absl::Hours(1)).Kv("i", 9);
  ASSERT_EQ(Lines().size(), 2u);
  EXPECT_THAT(Lines()[0], HasSubstr("event=refused i=0"));
  EXPECT_THAT(Lines()[1], HasSubstr("event=refused i=9"));
  // Once its interval is over, the next line of w1 tells how many lines were suppressed.
  Log(kWarning, "refused").Limit("w1", absl::ZeroDuration()).Kv("i", 5);
  EXPECT_THAT(Lines()[2], HasSubstr("event=refused suppressed=4 i=5"));
}

TEST_F(LogTest, SinkSeesRawFieldsAndMayLogItself) {
  std::vector<std::string> seen;
  const int id = AddLogSink([&seen](const LogRecord& record) {
    for (const auto& [key, value] : record.fields) seen.push_back(absl::StrCat(key, "|", value));
    Log(kInfo, "from_sink");  // goes to standard error only; no recursion
  });
  Log(kInfo, "e").Kv("text", "a b");
  RemoveLogSink(id);
  Log(kInfo, "e").Kv("text", "c");
  EXPECT_THAT(seen, ElementsAre("text|a b"));
  EXPECT_EQ(Lines().size(), 2u);
}

TEST_F(LogTest, ThreadsLogWholeLines) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 100; ++i) Log(kInfo, "n").Kv("t", t).Kv("i", i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Lines().size(), 400u);
}

}  // namespace
}  // namespace capstan::services
