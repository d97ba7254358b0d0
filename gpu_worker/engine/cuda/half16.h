// bfloat16 and IEEE half numbers as stored in memory. Arithmetic is in float32. The host and cards
// give the same bits: round to nearest, ties to even; a NaN stays a NaN.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_HALF16_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_HALF16_H_

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#include <cuda_fp16.h>
#define CAPSTAN_HD __host__ __device__ __forceinline__
#else
#define CAPSTAN_HD inline
#endif

namespace capstan::engine::cuda {

CAPSTAN_HD uint32_t BitsOf(float v) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(v);
#else
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  return bits;
#endif
}

CAPSTAN_HD float FloatOf(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float v;
  std::memcpy(&v, &bits, sizeof v);
  return v;
#endif
}

CAPSTAN_HD uint16_t Bf16BitsOf(float v) {
  const uint32_t bits = BitsOf(v);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

CAPSTAN_HD uint16_t Fp16BitsOf(float v) {
#ifdef __CUDA_ARCH__
  return __half_as_ushort(__float2half_rn(v));
#else
  const uint32_t bits = BitsOf(v), magnitude = bits & 0x7fffffffu;
  const uint32_t sign = bits >> 16 & 0x8000u;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 2^16 and more
  if (magnitude < 0x38800000u) {
    // Below 2^-14 the result is a multiple of 2^-24, which is the last place of 0.5f.
    return static_cast<uint16_t>(sign | (BitsOf(FloatOf(magnitude) + 0.5f) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | (rounded - 0x38000000u) >> 13);
#endif
}

CAPSTAN_HD float FloatOfFp16(uint16_t half) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(half));
#else
  const uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31u, rest = half & 0x3ffu;
  if (exponent == 31) return FloatOf(sign | 0x7f800000u | rest << 13);
  if (exponent == 0) {
    const float v = static_cast<float>(rest) * 5.9604644775390625e-8f;  // 2^-24
    return sign != 0 ? -v : v;
  }
  return FloatOf(sign | (exponent + 112u) << 23 | rest << 13);
#endif
}

struct Bf16 {
  uint16_t bits;
  Bf16() = default;
  CAPSTAN_HD explicit Bf16(float v) : bits(Bf16BitsOf(v)) {}
  // NOLINTNEXTLINE(google-explicit-constructor): code written for float must read them, too
  CAPSTAN_HD operator float() const { return FloatOf(static_cast<uint32_t>(bits) << 16); }
};

struct Fp16 {
  uint16_t bits;
  Fp16() = default;
  CAPSTAN_HD explicit Fp16(float v) : bits(Fp16BitsOf(v)) {}
  // NOLINTNEXTLINE(google-explicit-constructor): as above
  CAPSTAN_HD operator float() const { return FloatOfFp16(bits); }
};

// The type in which elements are added and compared.
template <typename T>
struct SumType {
  using Type = T;
};
template <>
struct SumType<Bf16> {
  using Type = float;
};
template <>
struct SumType<Fp16> {
  using Type = float;
};
template <typename T>
using Sum = typename SumType<T>::Type;

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_HALF16_H_
