#include "training/ops/cast/cast.h"

#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/ops/infer.h"
#include "training/ops/reference.h"

namespace capstan::training {
namespace {

bool ToWhole(const OpInstance& op) { return Cast::Read(op.attributes).to != "float"; }

absl::StatusOr<Inference> InferCast(absl::Span<const ValueType> x, Attributes& attributes) {
  const std::string to = Cast::Read(attributes).to;
  if (to != "float" && to != "int32" && to != "int64") {
    return absl::InvalidArgumentError(
        absl::StrCat("attribute to: '", to, "', want float, int32 or int64"));
  }
  return InferSameShape(x, attributes);
}

template <typename T>
void CastForward(const ForwardCall<T>& call) {
  if (!ToWhole(call.op)) return CopyForward(call);
  const int64_t size = call.samples.count * Elements(call.op.x[0].shape);
  // The sum makes +0 of -0, which whole numbers do not have.
  for (int64_t i = 0; i < size; ++i) call.y[i] = std::trunc(call.x[0][i]) + T{0};
}

template <typename T>
void CastBackward(const BackwardCall<T>& call) {
  if (!ToWhole(call.op)) AddBackward(call);
}

}  // namespace

const OpDef& CastOp() {
  static const OpDef& op =
      *new OpDef{.name = Cast::kName,
                 .attributes = {{"to", Cast().to}},
                 .infer = InferCast,
                 .reference = {CastForward<float>, CastBackward<float>},
                 .reference_double = {CastForward<double>, CastBackward<double>}};
  return op;
}

}  // namespace capstan::training
