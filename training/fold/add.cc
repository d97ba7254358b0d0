#include "training/fold/add.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "services/check/check.h"

// This file is built with -O3. The loops below are plain, so that the compiler vectorises them.
namespace capstan::training {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

template <typename T>
void Add(T* __restrict out_left, const T* __restrict right, size_t n) {
  for (size_t i = 0; i < n; ++i) out_left[i] += right[i];
}

// Checks for each value whether all exponent bits are set, and combines the results. Works in
// blocks, so that a bad value ends the scan early and the inner loop has no branch.
template <typename T, typename Bits>
bool Finite(absl::Span<const T> values, Bits exponent_mask) {
  constexpr size_t kBlock = 2048;
  const size_t n = values.size();
  for (size_t first = 0; first < n; first += kBlock) {
    const T* block = values.data() + first;
    const size_t count = std::min(kBlock, n - first);
    Bits bad = 0;
    for (size_t i = 0; i < count; ++i) {
      const Bits bits = std::bit_cast<Bits>(block[i]);
      bad |= static_cast<Bits>((bits & exponent_mask) == exponent_mask);
    }
    if (bad != 0) return false;
  }
  return true;
}

}  // namespace

void AddInto(float* out_left, const float* right, size_t n) { Add(out_left, right, n); }
void AddInto(double* out_left, const double* right, size_t n) { Add(out_left, right, n); }

void AddBytesInto(float* __restrict out_left, absl::string_view right) {
  CAPSTAN_CHECK(right.size() % sizeof(float) == 0);
  const char* __restrict bytes = right.data();
  const size_t n = right.size() / sizeof(float);
  for (size_t i = 0; i < n; ++i) {
    float value;
    std::memcpy(&value, bytes + i * sizeof(float), sizeof(value));
    out_left[i] += value;
  }
}

bool AllFinite(absl::Span<const float> values) {
  return Finite<float, uint32_t>(values, 0x7F800000u);
}
bool AllFinite(absl::Span<const double> values) {
  return Finite<double, uint64_t>(values, 0x7FF0000000000000u);
}

}  // namespace capstan::training
