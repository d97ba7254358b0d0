// Slice: along each of `axes`, the indices start, start + step, ... before end. All other axes stay
// whole. Several of them on one input split it.
//
// Numbers are ONNX's: a negative start or end counts from the end of its axis, one outside is moved
// to the nearest place, and a negative step goes backwards. Axes count as in ONNX, where the batch
// is axis 0: 1 is the first axis of a sample, and -1 is the last one. Without `axes` they are the
// first axes of a sample; without `steps` each step is 1. Each axis keeps at least one index.
//
// After inference, `axes` and `steps` are complete, and starts are not negative. An end is negative
// only if the slice goes backwards to the first index: -(size + 1).
#ifndef CAPSTAN_TRAINING_OPS_SLICE_SLICE_H_
#define CAPSTAN_TRAINING_OPS_SLICE_SLICE_H_

#include <cstdint>
#include <vector>

#include "training/ops/op.h"

namespace capstan::training {

struct SliceNode {
  static constexpr char kName[] = "Slice";
  std::vector<int64_t> starts;
  std::vector<int64_t> ends;
  std::vector<int64_t> axes;
  std::vector<int64_t> steps;

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"starts", starts}, {"ends", ends}, {"axes", axes}, {"steps", steps}}};
  }
  static SliceNode Read(const Attributes& attributes) {
    return {attributes.Ints("starts"), attributes.Ints("ends"), attributes.Ints("axes"),
            attributes.Ints("steps")};
  }
};

const OpDef& SliceOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_SLICE_SLICE_H_
