// For a source that is compiled once per instruction set (Highway's foreach_target): chooses the
// functions that belong to a BlockedMath. Include it before Highway's headers.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_INSTRUCTION_SETS_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_INSTRUCTION_SETS_H_

#include <type_traits>

#include "gpu_worker/engine/cpu/blocked/math.h"

// Compiled for AVX-512, AVX2 and the baseline of the build. The sets between them are left out,
// because they cost code and compile time. A processor whose best set is one of them runs the
// baseline.
#define HWY_DISABLED_TARGETS (HWY_AVX3_DL | HWY_SSE4 | HWY_SSSE3)
#include "hwy/detect_targets.h"

namespace capstan::engine {

// One of three forms of a function, or of a pointer to its loops. Null: the build does not have
// that form.
template <typename Form>
Form FormOf(const BlockedMath& math, std::type_identity_t<Form> avx512,
            std::type_identity_t<Form> avx2, Form granted) {
  if (math.target == kAvx512 && avx512 != nullptr) return avx512;
  if (math.target == kAvx2 && avx2 != nullptr) return avx2;
  return granted;
}

}  // namespace capstan::engine

#if HWY_TARGETS & HWY_AVX3
#define CAPSTAN_AVX512_FORM(function) N_AVX3::function
#else
#define CAPSTAN_AVX512_FORM(function) nullptr
#endif
#if HWY_TARGETS & HWY_AVX2
#define CAPSTAN_AVX2_FORM(function) N_AVX2::function
#else
#define CAPSTAN_AVX2_FORM(function) nullptr
#endif
// The form of `function` for the instruction set of `math`. The file contains the function once per
// set.
#define CAPSTAN_FORM_OF(function, math)                                                         \
  ::capstan::engine::FormOf((math), CAPSTAN_AVX512_FORM(function), CAPSTAN_AVX2_FORM(function), \
                            HWY_STATIC_DISPATCH(function))

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_INSTRUCTION_SETS_H_
