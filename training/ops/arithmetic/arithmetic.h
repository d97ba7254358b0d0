// Sub, Mul and Div: two inputs, element by element: a - b, a * b, a / b. Shapes that differ are
// broadcast within a sample (training/ops/broadcast.h). Both inputs may be the same value. A
// division by 0 gives what IEEE 754 says.
#ifndef CAPSTAN_TRAINING_OPS_ARITHMETIC_ARITHMETIC_H_
#define CAPSTAN_TRAINING_OPS_ARITHMETIC_ARITHMETIC_H_

#include "training/ops/op.h"

namespace capstan::training {

struct Sub {
  static constexpr char kName[] = "Sub";
  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {}};
  }
  static Sub Read(const Attributes&) { return {}; }
};

struct Mul {
  static constexpr char kName[] = "Mul";
  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {}};
  }
  static Mul Read(const Attributes&) { return {}; }
};

struct Div {
  static constexpr char kName[] = "Div";
  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {}};
  }
  static Div Read(const Attributes&) { return {}; }
};

const OpDef& SubOp();
const OpDef& MulOp();
const OpDef& DivOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_ARITHMETIC_ARITHMETIC_H_
