#include "training/ops/add/add.h"

#include "training/ops/infer.h"
#include "training/ops/sum/sum.h"

namespace capstan::training {

const OpDef& AddOp() {
  static const OpDef& op =
      *new OpDef{.name = Add::kName,
                 .min_inputs = 2,
                 .max_inputs = 2,
                 .infer = InferSameShape,
                 .in_place = InPlace::kOutput,
                 .reference = {SumForward<float>, SumBackward<float>},
                 .reference_double = {SumForward<double>, SumBackward<double>}};
  return op;
}

}  // namespace capstan::training
