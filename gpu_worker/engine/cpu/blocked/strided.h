// Loops over vectors of 16 samples that lie a fixed step apart, for operators that copy, broadcast
// and sum within a sample. A vector may also be one number for all samples, a weight.
//
// All operations are those of float32, rounded one by one, so the bits are the same on every
// instruction set. Threads: stateless.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_STRIDED_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_STRIDED_H_

#include <cstdint>

#include "gpu_worker/engine/cpu/blocked/math.h"

namespace capstan::engine {

struct StridedOperand {
  const float* at = nullptr;
  int64_t step = 0;     // floats; 0: the same again
  bool number = false;  // one float for all 16 samples, else 16 floats
};

enum class BinaryOp { kAdd, kSub, kMul, kDiv };

// y[i] = a[i] op b[i] for i of [0, count). y is contiguous, and may be a.
struct BinaryCall {
  BinaryOp op = BinaryOp::kAdd;
  int64_t count = 0;
  StridedOperand a, b;
  float* y = nullptr;
};

enum class Term {
  kSame,       // dy
  kNegated,    // -dy
  kTimes,      // dy * a
  kOver,       // dy / a
  kOfDivisor,  // -dy * (b / a) / a: the gradient of b / a by a
};

// to[i] = (add ? to[i] : 0) + term(i) for i of [0, count). With to_step 0, one vector gets the sum
// of all terms: (add ? to : 0) + (term(0) + term(1) + ...). `to` may be dy.
struct TermCall {
  Term term = Term::kSame;
  int64_t count = 0;
  StridedOperand dy, a, b;
  float* to = nullptr;
  int64_t to_step = 0;  // floats
  bool add = false;
};

struct StridedLoops {
  void (*binary)(const BinaryCall& call);
  void (*term)(const TermCall& call);
};

// Of the instruction set of `math`.
const StridedLoops& StridedLoopsOf(const BlockedMath& math);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_STRIDED_H_
