#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/engine/cpu/limits.cc"
#include "gpu_worker/engine/cpu/limits.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gpu_worker/engine/cpu/aligned.h"
#include "gpu_worker/engine/cpu/blocked/instruction_sets.h"
#include "gpu_worker/engine/cpu/thread_pool.h"
#include "hwy/foreach_target.h"  // NOLINT(build/include): must come before highway.h
#include "hwy/highway.h"

// Once, even though this file is included several times.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_LIMITS_LOOPS_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_LIMITS_LOOPS_
namespace capstan::engine {
struct LimitLoops {
  // Makes `rounds` rounds of multiply-adds in chains that begin with starts[kLimitChains] and do
  // not depend on each other. Returns a number that depends on all of them.
  float (*multiply_adds)(int64_t rounds, const float* starts);
  int64_t round_flops = 0;  // of a round; a multiply-add is 2
};

// Present processors begin two multiply-adds in a cycle, and each takes up to five cycles, so ten
// must be under way. Twelve, a factor and a term fit into the 16 registers of AVX2.
inline constexpr int kLimitChains = 12;
}  // namespace capstan::engine
#endif

HWY_BEFORE_NAMESPACE();
namespace capstan::engine {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// The chains converge to 0.5, so no number becomes infinite or denormal.
float MultiplyAdds(int64_t rounds, const float* starts) {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, 0.5f), term = hn::Set(d, 0.25f);
  hn::Vec<decltype(d)> sums[kLimitChains];
  for (int k = 0; k < kLimitChains; ++k) sums[k] = hn::Set(d, starts[k]);
  for (int64_t round = 0; round < rounds; ++round) {
    for (auto& sum : sums) sum = hn::MulAdd(sum, factor, term);
  }
  auto all = sums[0];
  for (int k = 1; k < kLimitChains; ++k) all = hn::Add(all, sums[k]);
  return hn::GetLane(all);
}

}  // namespace

const LimitLoops* ThisLimits() {
  static const LimitLoops kLoops = {
      MultiplyAdds, 2 * kLimitChains * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>()))};
  return &kLoops;
}

}  // namespace HWY_NAMESPACE
}  // namespace capstan::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::engine {
namespace {

// Short tries, since some of them then fall between the slices of time of other work.
constexpr double kTrySeconds = 0.002;  // of multiply-adds; at least
constexpr int kComputeTries = 100;
constexpr int kCopyTries = 32;
constexpr int64_t kCopied = int64_t{256} << 20;  // bytes
constexpr int64_t kCopyParts = 8;                // copied in turn, a part in each try
constexpr int64_t kCopyPart = kCopied / kCopyParts;
constexpr int kMostThreads = 1024;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Runs the loops on all threads of a pool.
class Measurement {
 public:
  Measurement(const LimitLoops& loops, int threads)
      : loops_(loops), pool_(threads), sums_(static_cast<size_t>(threads)) {
    for (int k = 0; k < kLimitChains; ++k) starts_[k] = 0.5f + 0.001f * static_cast<float>(k);
  }

  double FlopsPerSecond() {
    rounds_ = 1 << 14;
    while (ComputeSeconds() < kTrySeconds) rounds_ *= 2;
    double least = ComputeSeconds();
    for (int i = 1; i < kComputeTries; ++i) least = std::min(least, ComputeSeconds());
    return static_cast<double>(rounds_ * loops_.round_flops) * pool_.threads() / least;
  }

  absl::StatusOr<double> MemoryBytesPerSecond() {
    absl::StatusOr<AlignedBytes> from = AllocateAligned(kCopied, "memory to copy");
    if (!from.ok()) return from.status();
    absl::StatusOr<AlignedBytes> to = AllocateAligned(kCopied, "memory to copy to");
    if (!to.ok()) return to.status();
    from_ = from->get();
    to_ = to->get();
    double least = CopySeconds();
    for (int i = 1; i < kCopyTries; ++i) least = std::min(least, CopySeconds());
    return 2.0 * static_cast<double>(kCopyPart) / least;
  }

 private:
  double ComputeSeconds() {
    return TimeAll([](void* self, int worker) {
      auto& of = *static_cast<Measurement*>(self);
      of.sums_[static_cast<size_t>(worker)].value = of.loops_.multiply_adds(of.rounds_, of.starts_);
    });
  }
  double CopySeconds() {
    part_ = (part_ + 1) % kCopyParts;
    return TimeAll([](void* self, int worker) {
      const auto& of = *static_cast<Measurement*>(self);
      const int64_t threads = of.pool_.threads();
      const int64_t first = of.part_ * kCopyPart;
      const int64_t begin = first + kCopyPart * worker / threads;
      const int64_t end = first + kCopyPart * (worker + 1) / threads;
      std::memcpy(of.to_ + begin, of.from_ + begin, static_cast<size_t>(end - begin));
    });
  }
  double TimeAll(void (*function)(void*, int)) {
    const double begin = Now();
    pool_.Run(pool_.threads(), function, this);
    return Now() - begin;
  }

  struct alignas(64) Sum {
    volatile float value = 0;  // else the loops could be left out
  };
  const LimitLoops& loops_;
  ThreadPool pool_;
  float starts_[kLimitChains] = {};
  std::vector<Sum> sums_;  // by thread
  int64_t rounds_ = 0;
  int64_t part_ = 0;
  const char* from_ = nullptr;
  char* to_ = nullptr;
};

}  // namespace

std::string ProcessorName(absl::string_view cpuinfo) {
  for (const absl::string_view line : absl::StrSplit(cpuinfo, '\n')) {
    const std::pair<absl::string_view, absl::string_view> words =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (absl::StripAsciiWhitespace(words.first) != "model name") continue;
    return std::string(absl::StripAsciiWhitespace(words.second));
  }
  return "";
}

absl::StatusOr<DeviceLimits> MeasureCpuLimits(const BlockedMath& math, int threads) {
  if (threads < 1 || threads > kMostThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads: ", threads, ", want 1 to ", kMostThreads));
  }
  DeviceLimits limits;
  std::ifstream file("/proc/cpuinfo");
  limits.processor = ProcessorName(
      std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()));
  limits.instruction_set = std::string(math.target);
  Measurement measurement(*CAPSTAN_FORM_OF(ThisLimits, math)(), threads);
  limits.flops_per_second = measurement.FlopsPerSecond();
  const absl::StatusOr<double> memory = measurement.MemoryBytesPerSecond();
  if (!memory.ok()) return memory.status();
  limits.memory_bytes_per_second = *memory;
  return limits;
}

}  // namespace capstan::engine
#endif  // HWY_ONCE
