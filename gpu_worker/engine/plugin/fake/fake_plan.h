// Common parts of all plans of the fake plug-in: a device whose memory they share, faults, kept
// images.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_FAKE_FAKE_PLAN_H_
#define CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_FAKE_FAKE_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gpu_worker/engine/plugin/abi.h"
#include "gpu_worker/engine/plugin/sent_graph.h"

// The ABI's plan.
struct capstan_plan {
  virtual ~capstan_plan() = default;
  virtual void Info(capstan_plan_info* info) const = 0;
  virtual void LoadWeights(const float* weights) = 0;
  virtual absl::Status KeepImages(const float* images, int64_t first, int64_t count,
                                  int64_t whole) = 0;
  // Training if `gradient` is not null; else a prediction if `logits` is not null; else an
  // evaluation.
  virtual absl::Status Run(const capstan_batch& batch, double loss_scale, float* gradient,
                           float* logits, capstan_result* result) = 0;
  virtual int device() const = 0;
  virtual int64_t total_floats() const = 0;
  virtual int64_t image_elements() const = 0;  // of one sample
};

namespace capstan::engine::cuda {

inline constexpr int kMaxFakeDevices = 16;

std::string Environment(const char* name, const char* fallback);
// Whether CAPSTAN_FAKE_FAIL contains `how`.
bool Fails(const char* how);

// WholeBytes: memory of each device. FreeBytes: memory of one device that no plan has.
int64_t WholeBytes();
int64_t FreeBytes(int device);
// A negative number returns memory.
void TakeBytes(int device, int64_t bytes);

class FakePlanBase : public capstan_plan {
 public:
  // Takes the bytes, which must be free.
  FakePlanBase(int device, int64_t bytes, int64_t total_floats, int64_t image_elements);
  ~FakePlanBase() override;

  absl::Status KeepImages(const float* images, int64_t first, int64_t count,
                          int64_t whole) override;
  int device() const override { return device_; }
  int64_t total_floats() const override { return total_floats_; }
  int64_t image_elements() const override { return image_elements_; }

 protected:
  const float* kept() const { return kept_.data(); }
  // Internal: the device has failed before, or fails now.
  absl::Status CheckDevice(bool training) const;
  // Carries out CAPSTAN_FAKE_OVERFLOW.
  static void Overflow(double loss_scale, float* gradient);

 private:
  const int device_;
  const int64_t bytes_, total_floats_, image_elements_;
  std::vector<float> kept_;
};

// Computes any graph by the references of training/ops. Unimplemented: a precision other than fp32
// and tf32. ResourceExhausted: the device lacks memory.
absl::Status MakeReferencePlan(ReceivedGraph received, const capstan_compile_request& request,
                               capstan_plan** plan);

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_FAKE_FAKE_PLAN_H_
