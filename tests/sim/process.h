// The life of a simulated process. Its events are dropped once it is dead, and wait while it stands
// still (SIGSTOP, a long pause of the host).
#ifndef CAPSTAN_TESTS_SIM_PROCESS_H_
#define CAPSTAN_TESTS_SIM_PROCESS_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/fault_class.h"

namespace capstan::sim {

class Process {
 public:
  // Borrows both. `pause` is the class under which pauses of this process are counted.
  Process(EventQueue& queue, Effects& effects, FaultClass pause)
      : queue_(queue), life_(std::make_shared<Life>(Life{.effects = &effects, .pause = pause})) {}
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() { life_->alive = false; }

  bool alive() const { return life_->alive; }
  // Drops everything guarded so far. Start begins another life.
  void Kill() { life_->alive = false; }
  void Start() {
    Kill();
    life_ = std::make_shared<Life>(Life{.effects = life_->effects, .pause = life_->pause});
  }
  void Pause(absl::Duration until) { life_->paused_until = std::max(life_->paused_until, until); }

  // Wraps `what` as an event: it runs if this life still goes on then, after any pause.
  std::function<void()> Guard(std::function<void()> what) const {
    return [queue = &queue_, life = life_, what = std::move(what)] { Run(queue, life, what); };
  }
  void At(absl::Duration time, std::function<void()> what) {
    queue_.At(time, Guard(std::move(what)));
  }
  void After(absl::Duration delay, std::function<void()> what) {
    At(queue_.now() + delay, std::move(what));
  }

 private:
  struct Life {
    bool alive = true;
    absl::Duration paused_until = {};
    Effects* effects = nullptr;
    FaultClass pause = FaultClass::kTaskPause;
  };

  static void Run(EventQueue* queue, const std::shared_ptr<Life>& life,
                  const std::function<void()>& what) {
    if (!life->alive) return;
    if (queue->now() >= life->paused_until) return what();
    life->effects->Saw(life->pause);
    queue->At(life->paused_until, [queue, life, what] { Run(queue, life, what); });
  }

  EventQueue& queue_;
  std::shared_ptr<Life> life_;
};

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_PROCESS_H_
