// CAPSTAN_CHECK: ends the process with file, line and condition when a bug of ours is found.
//
// For our own invariants only. Bad input of a peer, file, flag or device is answered with an
// absl::Status. Needs only the standard library, so every folder may use it.
#ifndef CAPSTAN_SERVICES_CHECK_CHECK_H_
#define CAPSTAN_SERVICES_CHECK_CHECK_H_

#include <cstdio>
#include <cstdlib>

namespace capstan {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::fflush(stderr);
  std::abort();
}

}  // namespace capstan

#define CAPSTAN_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::capstan::CheckFailed(__FILE__, __LINE__, #condition))

#endif  // CAPSTAN_SERVICES_CHECK_CHECK_H_
