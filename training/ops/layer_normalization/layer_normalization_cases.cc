#include "training/ops/layer_normalization/layer_normalization.h"
#include "training/ops/op_cases.h"

namespace capstan::training {

std::vector<OpCase> LayerNormalizationCases() {
  using Op = LayerNormalization;
  const std::vector<ValueType> image = Floats({{3, 2, 4}});
  return {
      {"one", Op(), Floats({{1}})},
      {"features", Op(), Floats({{13}})},
      {"last", Op{-1, 1e-3}, image},
      {"all", Op{1, 1e-5}, image},
      {"rows_together", Op{2, 1e-5}, image},
      Refused("batch", Op{0, 1e-5}, image, "attribute axis: 0, want 1 to 3 or -3 to -1"),
      Refused("beyond", Op{4, 1e-5}, image, "attribute axis: 4, want 1 to 3"),
      Refused("absurd", Op{kAbsurd, 1e-5}, image, "attribute axis: 46"),
      Refused("no_epsilon", Op{-1, 0}, image, "attribute epsilon: 0, want 1.17549e-38"),
      Refused("large_epsilon", Op{-1, 1e39}, image, "attribute epsilon: 1e+39"),
      Refused("bytes", Op(), {{{4}, DType::kUint8}}, "uint8, want float32"),
      Refused("two_inputs", Op(), Floats({{4}, {4}}), "2 inputs, want 1"),
  };
}

}  // namespace capstan::training
