#include "training/ops/op.h"
#include "training/ops/table.h"

namespace capstan::training {

#define CAPSTAN_DECLARE_OP(op, kernel) const OpDef& op##Op();
CAPSTAN_OPERATORS(CAPSTAN_DECLARE_OP)
#undef CAPSTAN_DECLARE_OP

absl::Span<const OpDef* const> AllOps() {
#define CAPSTAN_POINTER_TO_OP(op, kernel) &op##Op(),
  static const OpDef* const kOps[] = {CAPSTAN_OPERATORS(CAPSTAN_POINTER_TO_OP)};
#undef CAPSTAN_POINTER_TO_OP
  return kOps;
}

const OpDef* FindOp(absl::string_view name) {
  for (const OpDef* const op : AllOps()) {
    if (op->name == name) return op;
  }
  return nullptr;
}

}  // namespace capstan::training
