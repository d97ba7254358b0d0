// SequenceCrossEntropyLoss: logits [T, V] and the sample's own T tokens, of any shape -> [1]: the
// mean over the T positions of the cross-entropy, in nats.
//
// Position t predicts what follows it: its target is token t + 1, and at the last position the
// sample's label, which is in [0, V). Tokens are whole numbers in float32; what follows the point is
// cut off. A position whose target is a NaN or outside [0, V) adds no loss and no gradient, and
// still counts among the T. The gradient by the tokens is 0.
//
// The last position's logits are the answer for a sample: Graph::num_classes() is V.
#ifndef CAPSTAN_TRAINING_OPS_SEQUENCE_CROSS_ENTROPY_SEQUENCE_CROSS_ENTROPY_H_
#define CAPSTAN_TRAINING_OPS_SEQUENCE_CROSS_ENTROPY_SEQUENCE_CROSS_ENTROPY_H_

#include "training/ops/op.h"
#include "training/ops/token_rule.h"

namespace capstan::training {

struct SequenceCrossEntropyLoss {
  static constexpr char kName[] = "SequenceCrossEntropyLoss";
  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {}};
  }
  static SequenceCrossEntropyLoss Read(const Attributes&) { return {}; }
};

const OpDef& SequenceCrossEntropyLossOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_SEQUENCE_CROSS_ENTROPY_SEQUENCE_CROSS_ENTROPY_H_
