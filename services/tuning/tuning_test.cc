#include "services/tuning/tuning.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "gtest/gtest.h"

namespace capstan::services {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CAPSTAN_OTHER_ALLOCATOR 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CAPSTAN_OTHER_ALLOCATOR 1
#endif
#endif

[[maybe_unused]] int64_t MinorFaults() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// The purpose of the settings: a buffer that is freed and allocated again is not faulted in again.
TEST(TuningTest, FreedBuffersStayMapped) {
#ifdef CAPSTAN_OTHER_ALLOCATOR
  TuneProcess();
#else
  ASSERT_TRUE(TuneProcess({.malloc_arenas = 1}));
  constexpr size_t kBytes = 1 << 20;
  const auto touch = [] {
    char* volatile block = static_cast<char*>(std::malloc(kBytes));
    std::memset(block, 1, kBytes);
    std::free(block);
  };
  touch();
  const int64_t before = MinorFaults();
  for (int i = 0; i < 100; ++i) touch();
  EXPECT_LT(MinorFaults() - before, 256);  // 100 x 256 pages without the settings
#endif
}

// Runs in its own process, which gives up root's exemption and may not make a thread.
void WithoutThreads(void (*use)()) noexcept {
  TuneProcess();
  const rlimit none = {0, 0};
  if (setrlimit(RLIMIT_NPROC, &none) != 0) std::_Exit(3);
  if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) std::_Exit(4);
  use();
  std::_Exit(0);
}

constexpr char kSentence[] =
    "cannot make a thread: Resource temporarily unavailable; raise the limit of processes";

TEST(TuningTest, AServiceThatCannotMakeItsThreadsEndsWithASentence) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(WithoutThreads([] { RequireThreads(); }), testing::ExitedWithCode(1), kSentence);
  EXPECT_EXIT(WithoutThreads([] { std::thread([] {}).join(); }), testing::ExitedWithCode(1),
              kSentence);
  EXPECT_EXIT(
      {
        RequireThreads();
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace capstan::services
