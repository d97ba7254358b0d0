// Trilu: a triangle of each matrix [..., M, N]; the other numbers become 0. `upper` 1 keeps the
// places (i, j) with j >= i + k, `upper` 0 those with j <= i + k.
//
// With `k` 1 the upper triangle of a large negative constant is the mask that hides later positions
// from earlier ones in attention. Source: ONNX opset 14, where k is an input.
#ifndef CAPSTAN_TRAINING_OPS_TRILU_TRILU_H_
#define CAPSTAN_TRAINING_OPS_TRILU_TRILU_H_

#include <cstdint>

#include "training/ops/op.h"

namespace capstan::training {

struct Trilu {
  static constexpr char kName[] = "Trilu";
  bool upper = true;
  int64_t k = 0;

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"upper", int64_t{upper}}, {"k", k}}};
  }
  static Trilu Read(const Attributes& attributes) {
    return {attributes.Int("upper") != 0, attributes.Int("k")};
  }
};

const OpDef& TriluOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_TRILU_TRILU_H_
