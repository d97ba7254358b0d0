#include "gpu_worker/engine/plugin/fake/fake_plan.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace capstan::engine::cuda {
namespace {

struct FakeDevice {
  std::atomic<int64_t> used_bytes{0};
  std::atomic<bool> failed{false};
};
FakeDevice devices[kMaxFakeDevices];

}  // namespace

std::string Environment(const char* name, const char* fallback) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != 0 ? value : fallback;
}

bool Fails(const char* how) { return Environment("CAPSTAN_FAKE_FAIL", "") == how; }

int64_t WholeBytes() {
  return int64_t{std::atoi(Environment("CAPSTAN_FAKE_FREE_MIB", "1024").c_str())} << 20;
}

int64_t FreeBytes(int device) { return WholeBytes() - devices[device].used_bytes; }

void TakeBytes(int device, int64_t bytes) { devices[device].used_bytes += bytes; }

FakePlanBase::FakePlanBase(int device, int64_t bytes, int64_t total_floats, int64_t image_elements)
    : device_(device), bytes_(bytes), total_floats_(total_floats), image_elements_(image_elements) {
  TakeBytes(device_, bytes_);
}

FakePlanBase::~FakePlanBase() {
  TakeBytes(device_, -(bytes_ + static_cast<int64_t>(kept_.size() * sizeof(float))));
}

absl::Status FakePlanBase::KeepImages(const float* images, int64_t first, int64_t count,
                                      int64_t whole) {
  if (first == 0) {
    const int64_t bytes = whole * image_elements_ * static_cast<int64_t>(sizeof(float));
    const int64_t free = FreeBytes(device_);
    if (bytes > free / 2) {
      return absl::ResourceExhaustedError(
          absl::StrCat(whole, " images need ", bytes, " bytes, half of ", free, " may be taken"));
    }
    TakeBytes(device_, bytes);
    kept_.resize(static_cast<size_t>(whole * image_elements_));
  }
  std::copy(images, images + count * image_elements_, kept_.begin() + first * image_elements_);
  return absl::OkStatus();
}

absl::Status FakePlanBase::CheckDevice(bool training) const {
  if (training && Fails("fault")) devices[device_].failed = true;
  if (!devices[device_].failed) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("cudaStreamSynchronize: 700 (an illegal memory access was encountered) on fake "
                   "device ",
                   device_));
}

void FakePlanBase::Overflow(double loss_scale, float* gradient) {
  if (loss_scale > std::atof(Environment("CAPSTAN_FAKE_OVERFLOW", "1e300").c_str())) {
    gradient[0] = HUGE_VALF;
  }
}

}  // namespace capstan::engine::cuda
