// Conv: x [C, H, W] -> [K, P, Q]; weight [K, C/group, kh, kw], bias [K]. The kernel is not flipped.
#ifndef CAPSTAN_TRAINING_OPS_CONV_CONV_H_
#define CAPSTAN_TRAINING_OPS_CONV_CONV_H_

#include <cstdint>

#include "training/ops/op.h"
#include "training/ops/window.h"

namespace capstan::training {

struct Conv {
  static constexpr char kName[] = "Conv";
  int64_t out_channels = 0;
  Window window;
  int64_t group = 1;  // divides the channels of input and output
  bool bias = true;

  operator Operator() const;  // NOLINT(google-explicit-constructor): a node takes either form
  static Conv Read(const Attributes& attributes);
};

const OpDef& ConvOp();

template <typename T>
void ConvForward(const ForwardCall<T>& call);
template <typename T>
void ConvBackward(const BackwardCall<T>& call);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_CONV_CONV_H_
