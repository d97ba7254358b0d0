// The cases of every operator, with which each implementation is tested.
#ifndef CAPSTAN_TRAINING_OPS_OP_CASES_H_
#define CAPSTAN_TRAINING_OPS_OP_CASES_H_

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "training/ops/op.h"
#include "training/ops/table.h"

namespace capstan::training {

// The operator of a case. If it was given in its typed form, e.g. Gelu{"tanh"}, it can still be
// read into that form.
struct CaseOperator : Operator {
  CaseOperator(Operator op)  // NOLINT(google-explicit-constructor): a case takes either form
      : Operator(std::move(op)) {}
  template <typename T, typename = decltype(T::kName)>
  CaseOperator(const T& op)  // NOLINT(google-explicit-constructor): a case takes either form
      : Operator(op), retyped(Retyped<T>) {}

  // Reads `op` into the typed form and writes it back; nullopt if `op` is another operator. Null:
  // it was not given in typed form.
  std::optional<Operator> (*retyped)(const Operator& op) = nullptr;

 private:
  template <typename T>
  static std::optional<Operator> Retyped(const Operator& op) {
    const std::optional<T> typed = As<T>(op);
    if (!typed.has_value()) return std::nullopt;
    return Operator(*typed);
  }
};

struct OpCase {
  std::string name;  // unique for its operator: letters, digits and _
  CaseOperator op;
  std::vector<ValueType> inputs;
  bool hostile = false;   // must be refused
  std::string error_has;  // hostile: a part of the message
};

// Beyond every limit. Twice of it overflows int64_t.
inline constexpr int64_t kAbsurd = int64_t{1} << 62;

// Values of type float.
std::vector<ValueType> Floats(const std::vector<Shape>& shapes);
// `op` with one attribute set or replaced.
Operator With(Operator op, const std::string& attribute, AttributeValue value);
OpCase Refused(std::string name, Operator op, std::vector<ValueType> inputs, std::string error_has);

// Defined in the folder of each operator: AddCases(), ...
#define CAPSTAN_DECLARE_CASES(op, kernel) std::vector<OpCase> op##Cases();
CAPSTAN_OPERATORS(CAPSTAN_DECLARE_CASES)
#undef CAPSTAN_DECLARE_CASES

// The cases of all operators.
const std::vector<OpCase>& AllOpCases();

// The node of a case, as a graph would make it. InvalidArgument: the operator refuses it.
absl::StatusOr<OpInstance> Instantiate(const Operator& op, const std::vector<ValueType>& inputs,
                                       int index = 0);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_OP_CASES_H_
