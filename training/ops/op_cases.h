// The cases of every operator: what each implementation of it is tested with.
#ifndef CAPSTAN_TRAINING_OPS_OP_CASES_H_
#define CAPSTAN_TRAINING_OPS_OP_CASES_H_

#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "training/ops/op.h"

namespace capstan::training {

struct OpCase {
  std::string name;  // unique for its operator: letters, digits and _
  Operator op;
  std::vector<ValueType> inputs;
  bool hostile = false;   // is refused
  std::string error_has;  // hostile: a part of the message
};

// Beyond every limit; twice of it is no int64_t.
inline constexpr int64_t kAbsurd = int64_t{1} << 62;

// Of floats.
std::vector<ValueType> Floats(const std::vector<Shape>& shapes);
// `op` with one attribute set, or set otherwise.
Operator With(Operator op, const std::string& attribute, AttributeValue value);
OpCase Refused(std::string name, Operator op, std::vector<ValueType> inputs, std::string error_has);

// In the folder of each operator.
std::vector<OpCase> AddCases();
std::vector<OpCase> AveragePoolCases();
std::vector<OpCase> BatchNormalizationCases();
std::vector<OpCase> ConcatCases();
std::vector<OpCase> ConvCases();
std::vector<OpCase> DropoutCases();
std::vector<OpCase> FlattenCases();
std::vector<OpCase> GeluCases();
std::vector<OpCase> GemmCases();
std::vector<OpCase> GlobalAveragePoolCases();
std::vector<OpCase> MaxPoolCases();
std::vector<OpCase> ReluCases();
std::vector<OpCase> ReshapeCases();
std::vector<OpCase> SoftmaxCrossEntropyLossCases();
std::vector<OpCase> SumCases();

// All of them.
const std::vector<OpCase>& AllOpCases();

// The node of a case, as a graph would make it. InvalidArgument: it is refused.
absl::StatusOr<OpInstance> Instantiate(const Operator& op, const std::vector<ValueType>& inputs,
                                       int index = 0);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_OP_CASES_H_
