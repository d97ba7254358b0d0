// Dropout: any shape. In training each element is 0 with probability `ratio`, else multiplied by 1
// / (1 - ratio). In evaluation y = x.
//
// Element e of a sample is kept if the upper 24 bits of a word of Philox, purpose kDropout, are at
// least DropoutThreshold. The word is word e % 4 of the block with the counter
//   word 0  e / 4, bits 0 to 31
//   word 1  the sample's id, bits 0 to 31
//   word 2  epoch
//   word 3  node index, 16 bits; above them bits 32 to 47 of the id
// So a sample's mask does not depend on lane, step, batch or device. Inference refuses more than
// 2^34 elements. Ids are below 2^48 and node indices below 2^16; higher bits are cut off.
// Source: Srivastava et al. 2014, JMLR 15.
#ifndef CAPSTAN_TRAINING_OPS_DROPOUT_DROPOUT_H_
#define CAPSTAN_TRAINING_OPS_DROPOUT_DROPOUT_H_

#include <cstdint>

#include "training/ops/op.h"
#include "training/random/philox.h"

namespace capstan::training {

struct Dropout {
  static constexpr char kName[] = "Dropout";
  double ratio = 0.5;  // [0, 1)

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"ratio", ratio}}};
  }
  static Dropout Read(const Attributes& attributes) { return {attributes.Float("ratio")}; }
};

const OpDef& DropoutOp();

// ratio * 2^24, rounded up.
uint32_t DropoutThreshold(double ratio);
// The counter of elements 4 * block to 4 * block + 3.
PhiloxCounter DropoutCounter(int64_t block, int64_t id, uint32_t epoch, int node);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_DROPOUT_DROPOUT_H_
