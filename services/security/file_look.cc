#include "services/security/file_look.h"

#include <cstdint>
#include <thread>
#include <utility>

#include "services/clock/clock.h"
#include "services/sync/mutex.h"

namespace capstan::services {

struct FileLook::State {
  std::function<void()> look;  // only used by the thread
  absl::Duration fresh;
  Mutex mu;
  CondVar changed;
  bool has_thread ABSL_GUARDED_BY(mu) = false;
  bool stopping ABSL_GUARDED_BY(mu) = false;
  bool overdue ABSL_GUARDED_BY(mu) = false;
  int64_t wanted ABSL_GUARDED_BY(mu) = 0;  // number of looks requested
  int64_t done ABSL_GUARDED_BY(mu) = 0;    // of these: begun after the request, and ended
  absl::Duration began ABSL_GUARDED_BY(mu) = -absl::InfiniteDuration();  // the last that has ended
};

FileLook::FileLook(std::function<void()> look, absl::Duration fresh)
    : state_(std::make_shared<State>()) {
  state_->look = std::move(look);
  state_->fresh = fresh;
}

FileLook::~FileLook() {
  MutexLock lock(state_->mu);
  state_->stopping = true;
  state_->changed.NotifyAll();
}

bool FileLook::Refresh() {
  State& state = *state_;
  MutexLock lock(state.mu);
  if (MonotonicNow() - state.began < state.fresh) return true;
  const int64_t mine = ++state.wanted;
  if (!state.has_thread) {
    state.has_thread = true;
    std::thread([kept = state_] { Run(kept); }).detach();
  }
  state.changed.NotifyAll();
  const absl::Duration deadline = MonotonicNow() + kPatience;
  while (state.done < mine && !state.overdue) {
    const absl::Duration left = deadline - MonotonicNow();
    if (left <= absl::ZeroDuration()) {
      state.overdue = true;
    } else {
      state.changed.WaitWithTimeout(state.mu, left);
    }
  }
  return state.done >= mine;
}

void FileLook::Run(const std::shared_ptr<State>& state) {
  while (true) {
    int64_t wanted = 0;
    {
      MutexLock lock(state->mu);
      while (!state->stopping && state->wanted == state->done) state->changed.Wait(state->mu);
      if (state->stopping) return;
      wanted = state->wanted;
    }
    const absl::Duration began = MonotonicNow();
    state->look();
    MutexLock lock(state->mu);
    state->began = began;
    state->done = wanted;
    state->overdue = false;
    state->changed.NotifyAll();
  }
}

}  // namespace capstan::services
