// Helpers for tests of blocked kernels: tensors of random numbers, and a run of phases.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_PHASES_FIXTURE_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_PHASES_FIXTURE_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gpu_worker/engine/cpu/blocked/kernel.h"

namespace capstan::engine {

// Aligned floats, either zeros or random numbers.
class Floats {
 public:
  explicit Floats(int64_t count)
      : memory_(*AllocateAligned(count * 4, "test")),
        data_(reinterpret_cast<float*>(memory_.get())),
        count_(count) {}
  Floats(int64_t count, std::mt19937& random) : Floats(count) {
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < count; ++i) data_[i] = normal(random);
  }
  float* data() const { return data_; }
  int64_t count() const { return count_; }
  std::vector<float> values() const { return {data_, data_ + count_}; }
  float operator[](int64_t i) const { return data_[i]; }

 private:
  AlignedBytes memory_;
  float* data_;
  int64_t count_;
};

// Runs phases.load, then `list`, with pieces from the last to the first. Memory that is not kept
// between pieces or phases is filled with NaNs.
inline void RunPhases(const NodePhases& phases, const std::vector<Phase>& list, BatchRun run) {
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  const Floats shared(phases.shared_bytes / 4);
  std::fill_n(shared.data(), shared.count(), nan);
  run.shared = shared.data();
  for (const auto* const of : {&phases.load, &list}) {
    for (const Phase& phase : *of) {
      const Floats scratch(phase.scratch_bytes / 4);
      for (int64_t i = phase.pieces(run); i-- > 0;) {
        std::fill_n(scratch.data(), scratch.count(), nan);
        phase.run(run, i, reinterpret_cast<char*>(scratch.data()));
      }
    }
  }
}

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_PHASES_FIXTURE_H_
