#include "training/ops/identity/identity.h"

#include "training/ops/infer.h"
#include "training/ops/reference.h"

namespace capstan::training {

const OpDef& IdentityOp() {
  static const OpDef& op =
      *new OpDef{.name = IdentityNode::kName,
                 .infer = InferSameShape,
                 .in_place = InPlace::kView,
                 .reference = {CopyForward<float>, AddBackward<float>},
                 .reference_double = {CopyForward<double>, AddBackward<double>}};
  return op;
}

}  // namespace capstan::training
