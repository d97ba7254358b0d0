#include "training/init/init.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "services/check/check.h"
#include "training/random/philox.h"

namespace capstan::training {
namespace {

PhiloxCounter CounterOf(int64_t block, int32_t tensor) {
  return {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
          static_cast<uint32_t>(tensor), 0};
}

// Elements [first, first + out.size()) of a tensor, uniform in [-bound, bound].
void FillUniform(const Philox& philox, int32_t tensor, double bound, int64_t first,
                 absl::Span<float> out) {
  PhiloxBlock block{};
  int64_t have = -1;
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t element = first + static_cast<int64_t>(i);
    if (element / 4 != have) {
      have = element / 4;
      block = philox.Block(CounterOf(have, tensor));
    }
    const double uniform = ToUniform(block[element % 4]);
    out[i] = static_cast<float>((2.0 * uniform - 1.0) * bound);
  }
}

void FillNormal(const Philox& philox, int32_t tensor, double deviation, int64_t first,
                absl::Span<float> out) {
  std::array<double, 2> pair{};
  int64_t have = -1;
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t element = first + static_cast<int64_t>(i);
    if (element / 2 != have) {
      have = element / 2;
      pair = philox.Normals(CounterOf(have, tensor));
    }
    out[i] = static_cast<float>(pair[element % 2] * deviation);
  }
}

void Fill(const TensorSlot& slot, const InitOptions& options, const Philox& philox, int64_t first,
          absl::Span<float> out) {
  if (slot.spec.init != TensorInit::kInitializer) {
    std::fill(out.begin(), out.end(), slot.spec.init == TensorInit::kOnes ? 1.0f : 0.0f);
    return;
  }
  const double fan_in = static_cast<double>(slot.spec.fan_in);
  const double fan_out = static_cast<double>(slot.spec.fan_out);
  switch (options.initializer) {
    case Initializer::kXavier:
      FillUniform(philox, slot.index, std::sqrt(6.0 / (fan_in + fan_out)), first, out);
      return;
    case Initializer::kHe:
      FillNormal(philox, slot.index, std::sqrt(2.0 / fan_in), first, out);
      return;
    case Initializer::kNormal:
      FillNormal(philox, slot.index, options.scale, first, out);
      return;
    case Initializer::kUniform:
      FillUniform(philox, slot.index, options.scale, first, out);
      return;
    case Initializer::kZeros:  // InitRange has set them to 0
      return;
  }
}

}  // namespace

absl::Status ValidateInitOptions(const InitOptions& options) {
  if (options.initializer != Initializer::kNormal && options.initializer != Initializer::kUniform) {
    return absl::OkStatus();
  }
  if (options.scale > 0 && std::isfinite(options.scale)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("initializer scale: got ", options.scale, ", want a finite number above 0"));
}

void InitRange(const FlatLayout& layout, const InitOptions& options, uint64_t seed, int64_t offset,
               absl::Span<float> out) {
  const int64_t end = offset + static_cast<int64_t>(out.size());
  CAPSTAN_CHECK(offset >= 0 && end <= layout.total_floats());
  std::fill(out.begin(), out.end(), 0.0f);  // padding
  const Philox philox(seed, Purpose::kInit);
  for (const TensorSlot& slot : layout.slots()) {
    const int64_t first = std::max(offset, slot.offset);
    const int64_t last = std::min(end, slot.offset + slot.size);
    if (first >= last) continue;
    Fill(slot, options, philox, first - slot.offset, out.subspan(first - offset, last - first));
  }
}

}  // namespace capstan::training
