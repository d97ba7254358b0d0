#include "training/ops/op_cases.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace capstan::training {

std::vector<ValueType> Floats(const std::vector<Shape>& shapes) {
  std::vector<ValueType> types;
  for (const Shape& shape : shapes) types.push_back({shape});
  return types;
}

Operator With(Operator op, const std::string& attribute, AttributeValue value) {
  op.attributes.Set(attribute, std::move(value));
  return op;
}

OpCase Refused(std::string name, Operator op, std::vector<ValueType> inputs,
               std::string error_has) {
  return {std::move(name), std::move(op), std::move(inputs), /*hostile=*/true,
          std::move(error_has)};
}

const std::vector<OpCase>& AllOpCases() {
  static const std::vector<OpCase>& cases = *[] {
    auto* all = new std::vector<OpCase>();
#define CAPSTAN_ADD_CASES(op, kernel) \
  for (OpCase & one : op##Cases()) all->push_back(std::move(one));
    CAPSTAN_OPERATORS(CAPSTAN_ADD_CASES)
#undef CAPSTAN_ADD_CASES
    return all;
  }();
  return cases;
}

absl::StatusOr<OpInstance> Instantiate(const Operator& op, const std::vector<ValueType>& inputs,
                                       int index) {
  const OpDef* const def = FindOp(op.name);
  if (def == nullptr) return absl::InvalidArgumentError(absl::StrCat(op.name, ": not known"));
  const int count = static_cast<int>(inputs.size());
  if (count < def->min_inputs || count > def->max_inputs) {
    return absl::InvalidArgumentError(
        absl::StrCat(count, " inputs, want ", def->min_inputs, " to ", def->max_inputs));
  }
  for (const ValueType& input : inputs) {
    const absl::StatusOr<int64_t> elements = ElementCount(input.shape, "input");
    if (!elements.ok()) return elements.status();
  }
  OpInstance instance{op.attributes, inputs, {}, index};
  const absl::Status status = instance.attributes.Normalize(def->attributes);
  if (!status.ok()) return status;
  absl::StatusOr<Inference> inferred = def->infer(instance.x, instance.attributes);
  if (!inferred.ok()) return inferred.status();
  instance.inferred = *std::move(inferred);
  const absl::StatusOr<int64_t> elements = ElementCount(instance.inferred.output.shape, "output");
  if (!elements.ok()) return elements.status();
  for (const OpParameter& parameter : instance.inferred.parameters) {
    const absl::StatusOr<int64_t> size = ElementCount(parameter.shape, parameter.suffix);
    if (!size.ok()) return size.status();
  }
  return instance;
}

}  // namespace capstan::training
