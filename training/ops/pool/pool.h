// MaxPool and AveragePool: x [C, H, W] -> [C, P, Q], per channel.
#ifndef CAPSTAN_TRAINING_OPS_POOL_POOL_H_
#define CAPSTAN_TRAINING_OPS_POOL_POOL_H_

#include "training/ops/op.h"
#include "training/ops/window.h"

namespace capstan::training {

// Pads are smaller than the kernel. The gradient goes to the first of equal maxima. If a window
// contains a NaN, the first NaN is its maximum.
struct MaxPool {
  static constexpr char kName[] = "MaxPool";
  Window window;

  operator Operator() const;  // NOLINT(google-explicit-constructor): a node takes either form
  static MaxPool Read(const Attributes& attributes) { return {ReadWindow(attributes)}; }
};

// As MaxPool. Padding counts in the mean only if count_include_pad is set.
struct AveragePool {
  static constexpr char kName[] = "AveragePool";
  Window window;
  bool count_include_pad = false;

  operator Operator() const;  // NOLINT(google-explicit-constructor): a node takes either form
  static AveragePool Read(const Attributes& attributes) {
    return {ReadWindow(attributes), attributes.Int("count_include_pad") != 0};
  }
};

const OpDef& MaxPoolOp();
const OpDef& AveragePoolOp();

template <typename T>
void MaxPoolForward(const ForwardCall<T>& call);
template <typename T>
void MaxPoolBackward(const BackwardCall<T>& call);
template <typename T>
void AveragePoolForward(const ForwardCall<T>& call);
template <typename T>
void AveragePoolBackward(const BackwardCall<T>& call);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_POOL_POOL_H_
