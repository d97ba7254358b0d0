#include "gpu_worker/engine/cuda/profile.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gpu_worker/engine/cuda/cuda_status.h"
#include "gpu_worker/engine/cuda/kernels.h"

namespace capstan::engine::cuda {
namespace {

constexpr int64_t kDelayCycles = 300'000;  // 0.15 ms; an operation of cuDNN is enqueued in 0.02 ms

// Multiply-adds of one multiprocessor per cycle, from NVIDIA's tables of its cards.
double MultiplyAdds(int major, int32_t precision) {
  switch (precision) {
    case CAPSTAN_PRECISION_FP32:
      return major == 8 ? 64 : 128;
    case CAPSTAN_PRECISION_TF32:
      return major == 8 ? 512 : 1024;
    default:
      return major == 8 ? 1024 : 2048;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Profile>> Profile::FromEnvironment(const CardProgram& program,
                                                                  const KernelRules& rules,
                                                                  cudaStream_t stream, int device) {
  const char* const file = std::getenv("CAPSTAN_CUDA_PROFILE");
  if (file == nullptr || *file == 0) return std::unique_ptr<Profile>();
  auto profile = std::unique_ptr<Profile>(new Profile(program, rules, stream, file));
  const absl::Status status = profile->Build(device, rules.precision);
  if (!status.ok()) return status;
  return profile;
}

Profile::Profile(const CardProgram& program, const KernelRules& rules, cudaStream_t stream,
                 std::string file)
    : stream_(stream),
      file_(std::move(file)),
      timed_(program, ElementBytes(rules.precision), sizeof(float),
             [this](bool begin) { return Measure(begin); }) {}

absl::Status Profile::Build(int device, int32_t precision) {
  static constexpr const char* kNames[] = {"fp32", "tf32", "bf16", "fp16"};
  CAPSTAN_CUDA_RETURN(cudaEventCreate(&begin_));
  CAPSTAN_CUDA_RETURN(cudaEventCreate(&end_));
  int major = 0, units = 0, clock = 0, memory_clock = 0, bus = 0;
  for (const auto& [value, attribute] : {std::make_pair(&major, cudaDevAttrComputeCapabilityMajor),
                                         std::make_pair(&units, cudaDevAttrMultiProcessorCount),
                                         std::make_pair(&clock, cudaDevAttrClockRate),
                                         std::make_pair(&memory_clock, cudaDevAttrMemoryClockRate),
                                         std::make_pair(&bus, cudaDevAttrGlobalMemoryBusWidth)}) {
    CAPSTAN_CUDA_RETURN(cudaDeviceGetAttribute(value, attribute, device));
  }
  // Clocks are in kHz. Memory transfers twice per cycle.
  roof_.bytes_per_second = 2.0 * 1000 * memory_clock * bus / 8;
  roof_.flops_per_second = 2.0 * 1000 * clock * units * MultiplyAdds(major, precision);
  title_ = absl::StrFormat("GPU %d, %s: the roof is %.0f GB/s and %.1f TFLOP/s\n", device,
                           kNames[precision], roof_.bytes_per_second / 1e9,
                           roof_.flops_per_second / 1e12);
  return absl::OkStatus();
}

Profile::~Profile() {
  if (begin_ != nullptr) cudaEventDestroy(begin_);
  if (end_ != nullptr) cudaEventDestroy(end_);
  std::FILE* const file = std::fopen(file_.c_str(), "a");
  if (file == nullptr) return;
  std::fputs(absl::StrCat(title_, timed_.Table(roof_), "\n").c_str(), file);
  std::fclose(file);
}

Operations& Profile::Wrap(Operations& ops) {
  if (!counted_) return ops;
  timed_.Wrap(&ops);
  return timed_;
}

double Profile::Measure(bool begin) {
  if (begin) {
    // Keeps the card busy until the operation and the next event are enqueued. So the time between
    // the events is the card's, without the launches.
    LaunchDelay(stream_, kDelayCycles);
    cudaEventRecord(begin_, stream_);
    return 0;
  }
  float milliseconds = 0;
  cudaEventRecord(end_, stream_);
  cudaEventSynchronize(end_);
  cudaEventElapsedTime(&milliseconds, begin_, end_);
  return milliseconds;
}

}  // namespace capstan::engine::cuda
