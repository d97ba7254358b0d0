// Reads of a file whose disk may hang.
#ifndef CAPSTAN_SERVICES_SECURITY_FILE_LOOK_H_
#define CAPSTAN_SERVICES_SECURITY_FILE_LOOK_H_

#include <functional>
#include <memory>

#include "absl/time/time.h"

namespace capstan::services {

// Runs one piece of work repeatedly on its own thread. Callers wait for it briefly, and while it
// hangs they do not wait at all. The work may outlive this object, so it must own what it uses.
// Thread-safe.
class FileLook {
 public:
  static constexpr absl::Duration kPatience = absl::Milliseconds(200);

  // `fresh`: what was seen by a run that began less than this ago is good enough. Each run costs two
  // switches of threads, which a server that is asked thousands of times a second would feel.
  explicit FileLook(std::function<void()> look, absl::Duration fresh = absl::ZeroDuration());
  ~FileLook();
  FileLook(const FileLook&) = delete;
  FileLook& operator=(const FileLook&) = delete;

  // True at once if the last run began less than `fresh` ago. Otherwise runs the work, starting after
  // this call, and waits until it is done: at most kPatience, and not at all while an earlier run is
  // overdue. False: it did not wait until the end.
  bool Refresh();

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;  // shared with the thread, which may be the last owner
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_SECURITY_FILE_LOOK_H_
