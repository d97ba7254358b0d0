#include "training/ops/op_cases.h"
#include "training/ops/softmax/softmax.h"

namespace capstan::training {
namespace {

template <typename Op>
std::vector<OpCase> AxisCases() {
  const std::vector<ValueType> image = Floats({{3, 5, 4}});
  return {
      {"one", Op(), Floats({{1}})},
      {"features", Op(), Floats({{11}})},
      {"last", Op(), image},
      {"channels", Op{1}, image},
      {"height", Op{-2}, image},
      Refused("batch", Op{0}, image, "attribute axis: 0, want 1 to 3 or -3 to -1"),
      Refused("beyond", Op{4}, image, "attribute axis: 4, want 1 to 3"),
      Refused("absurd", Op{-kAbsurd}, image, "attribute axis: -46"),
      Refused("integers", Op(), {{{4}, DType::kInt32}}, "int32, want float32"),
      Refused("two_inputs", Op(), Floats({{4}, {4}}), "2 inputs, want 1"),
  };
}

}  // namespace

std::vector<OpCase> SoftmaxCases() { return AxisCases<Softmax>(); }
std::vector<OpCase> LogSoftmaxCases() { return AxisCases<LogSoftmax>(); }

}  // namespace capstan::training
