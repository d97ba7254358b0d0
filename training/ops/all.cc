// The table of operators: one line each, sorted by name.
#include "training/ops/add/add.h"
#include "training/ops/batch_normalization/batch_normalization.h"
#include "training/ops/concat/concat.h"
#include "training/ops/conv/conv.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gelu/gelu.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/global_average_pool/global_average_pool.h"
#include "training/ops/op.h"
#include "training/ops/pool/pool.h"
#include "training/ops/relu/relu.h"
#include "training/ops/reshape/reshape.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"
#include "training/ops/sum/sum.h"

namespace capstan::training {

absl::Span<const OpDef* const> AllOps() {
  static const OpDef* const kOps[] = {
      &AddOp(),                      //
      &AveragePoolOp(),              //
      &BatchNormalizationOp(),       //
      &ConcatOp(),                   //
      &ConvOp(),                     //
      &DropoutOp(),                  //
      &FlattenOp(),                  //
      &GeluOp(),                     //
      &GemmOp(),                     //
      &GlobalAveragePoolOp(),        //
      &MaxPoolOp(),                  //
      &ReluOp(),                     //
      &ReshapeOp(),                  //
      &SoftmaxCrossEntropyLossOp(),  //
      &SumOp(),                      //
  };
  return kOps;
}

const OpDef* FindOp(absl::string_view name) {
  for (const OpDef* const op : AllOps()) {
    if (op->name == name) return op;
  }
  return nullptr;
}

}  // namespace capstan::training
