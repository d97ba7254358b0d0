// Looks at a file whose disk may hang.
#ifndef CAPSTAN_SERVICES_SECURITY_FILE_LOOK_H_
#define CAPSTAN_SERVICES_SECURITY_FILE_LOOK_H_

#include <functional>
#include <memory>

#include "absl/time/time.h"

namespace capstan::services {

// Runs one piece of work, again and again, on a thread of its own: whoever asks for it waits for it
// briefly, and while it hangs nobody waits at all. The work may go on after this object's end, so it
// owns what it uses. Thread-safe.
class FileLook {
 public:
  static constexpr absl::Duration kPatience = absl::Milliseconds(200);

  explicit FileLook(std::function<void()> look);
  ~FileLook();
  FileLook(const FileLook&) = delete;
  FileLook& operator=(const FileLook&) = delete;

  // Runs the work, begun after this call, and waits until it is done; at most kPatience, and not at
  // all while an earlier one is overdue. False: it was not waited for.
  bool Refresh();

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;  // and the thread's, which may be the last
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_SECURITY_FILE_LOOK_H_
