// ReduceMean and ReduceSum: the mean or the sum over some axes of a sample.
//
// Axes count as in ONNX, where the batch is axis 0: 1 is the first axis of a sample, and -1 is the
// last one. After inference they are positive.
#ifndef CAPSTAN_TRAINING_OPS_REDUCE_REDUCE_H_
#define CAPSTAN_TRAINING_OPS_REDUCE_REDUCE_H_

#include <cstdint>
#include <vector>

#include "training/ops/op.h"

namespace capstan::training {

// Without `axes`: all axes of a sample. With `keepdims` they stay as axes of 1; otherwise they go,
// and at least one axis must remain.
struct ReduceMean {
  static constexpr char kName[] = "ReduceMean";
  std::vector<int64_t> axes;
  bool keepdims = true;

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"axes", axes}, {"keepdims", int64_t{keepdims}}}};
  }
  static ReduceMean Read(const Attributes& attributes) {
    return {attributes.Ints("axes"), attributes.Int("keepdims") != 0};
  }
};

// As ReduceMean.
struct ReduceSum {
  static constexpr char kName[] = "ReduceSum";
  std::vector<int64_t> axes;
  bool keepdims = true;

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"axes", axes}, {"keepdims", int64_t{keepdims}}}};
  }
  static ReduceSum Read(const Attributes& attributes) {
    return {attributes.Ints("axes"), attributes.Int("keepdims") != 0};
  }
};

const OpDef& ReduceMeanOp();
const OpDef& ReduceSumOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_REDUCE_REDUCE_H_
