#include "services/tuning/tuning.h"

#include <sys/resource.h>

#include <cstdlib>
#include <cstring>

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

// What the settings are for: a buffer that is freed and taken again is not faulted in again.
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

}  // namespace
}  // namespace capstan::services
