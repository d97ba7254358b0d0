// The arithmetic of kernels that compute element by element or sum products, for host and cards.
// Numbers are float32 inside and rounded to the elements' type once.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_WALK_MATH_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_WALK_MATH_H_

#include <cmath>

#include "gpu_worker/engine/cuda/half16.h"

namespace capstan::engine::cuda {

// Functions of two numbers.
enum class Binary { kAdd, kSub, kMul, kDiv };

CAPSTAN_HD float BinaryOf(Binary f, float a, float b) {
  switch (f) {
    case Binary::kAdd:
      return a + b;
    case Binary::kSub:
      return a - b;
    case Binary::kMul:
      return a * b;
    case Binary::kDiv:
      return a / b;
  }
  return 0;
}

// The summands of a sum over places: of one, two or three tensors.
enum class SumTerm { kP, kMinusP, kPQ, kPOverQ, kMinusPQOverRR };

CAPSTAN_HD bool ReadsQ(SumTerm term) { return term != SumTerm::kP && term != SumTerm::kMinusP; }

CAPSTAN_HD float TermOf(SumTerm term, float p, float q, float r) {
  switch (term) {
    case SumTerm::kP:
      return p;
    case SumTerm::kMinusP:
      return -p;
    case SumTerm::kPQ:
      return p * q;
    case SumTerm::kPOverQ:
      return p / q;
    case SumTerm::kMinusPQOverRR:
      return -p * (q / r) / r;
  }
  return 0;
}

// Functions of one number (training/ops/activation, gelu, relu, cast).
enum class Unary { kCopy, kTruncate, kRelu, kSigmoid, kTanh, kLeakyRelu, kClip, kGelu, kGeluTanh };

struct UnaryFunction {
  Unary f = Unary::kCopy;
  float a = 0, b = 0;  // kLeakyRelu: alpha. kClip: min, max
};

// Phi of the tanh form of Gelu: (1 + tanh u) / 2, which is accurate where tanh u is near -1.
CAPSTAN_HD float GeluTanhPhi(float x) {
  const float u = 0.7978845608f * x * (1 + 0.044715f * x * x);
  return 1 / (1 + std::exp(-2 * u));
}

CAPSTAN_HD float ValueOf(const UnaryFunction& of, float x) {
  switch (of.f) {
    case Unary::kCopy:
      return x;
    case Unary::kTruncate:
      return std::trunc(x) + 0.0f;  // +0, which the reference has
    case Unary::kRelu:
      return x < 0 ? 0 : x;
    case Unary::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Unary::kTanh:
      return std::tanh(x);
    case Unary::kLeakyRelu:
      return x < 0 ? of.a * x : x;
    case Unary::kClip:
      return x < of.a ? of.a : x > of.b ? of.b : x;
    case Unary::kGelu:
      return x * (0.5f * std::erfc(-x * 0.7071067812f));
    case Unary::kGeluTanh:
      return x * GeluTanhPhi(x);
  }
  return 0;
}

// Whether SlopeOf takes y instead of x.
CAPSTAN_HD bool SlopeReadsY(Unary f) {
  return f == Unary::kRelu || f == Unary::kSigmoid || f == Unary::kTanh;
}

// The derivative at x, from x or y.
CAPSTAN_HD float SlopeOf(const UnaryFunction& of, float v) {
  switch (of.f) {
    case Unary::kCopy:
      return 1;
    case Unary::kTruncate:
      return 0;
    case Unary::kRelu:
      return v > 0 ? 1 : 0;
    case Unary::kSigmoid:
      return v * (1 - v);
    case Unary::kTanh:
      return 1 - v * v;
    case Unary::kLeakyRelu:
      return v > 0 ? 1 : of.a;
    case Unary::kClip:
      return v >= of.a && v <= of.b ? 1 : 0;
    case Unary::kGelu: {
      const float phi = 0.5f * std::erfc(-v * 0.7071067812f);
      return phi + v * 0.3989422804f * std::exp(-0.5f * v * v);
    }
    case Unary::kGeluTanh: {
      const float phi = GeluTanhPhi(v);
      const float du = 0.7978845608f * (1 + 3 * 0.044715f * v * v);
      return phi + (phi > 0 && phi < 1 ? v * 2 * phi * (1 - phi) * du : 0);
    }
  }
  return 0;
}

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_WALK_MATH_H_
