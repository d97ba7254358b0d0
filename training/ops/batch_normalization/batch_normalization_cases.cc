#include "training/ops/batch_normalization/batch_normalization.h"
#include "training/ops/op_cases.h"

namespace capstan::training {

std::vector<OpCase> BatchNormalizationCases() {
  using Op = BatchNormalization;
  const std::vector<ValueType> image = Floats({{3, 5, 4}});
  return {
      {"one", Op(), Floats({{1}})},
      {"one_pixel", Op(), Floats({{2, 1, 1}})},
      {"features", Op(), Floats({{7}})},
      {"image", Op(), image},
      {"large_epsilon", Op{1.0, 0.1}, image},
      {"momentum", Op{1e-3, 0.25}, image},
      {"whole_momentum", Op{1e-5, 1.0}, image},
      Refused("rank_two", Op(), Floats({{3, 5}}), "input [3, 5], want [C, H, W] or [C]"),
      Refused("epsilon_zero", Op{0.0, 0.1}, image, "attribute epsilon: 0, want"),
      Refused("epsilon_negative", Op{-1e-5, 0.1}, image, "attribute epsilon: -1e-05, want"),
      Refused("epsilon_no_float", Op{1e-60, 0.1}, image, "attribute epsilon: 1e-60, want"),
      Refused("epsilon_absurd", Op{1e60, 0.1}, image, "attribute epsilon: 1e+60, want"),
      Refused("momentum_negative", Op{1e-5, -0.1}, image, "attribute momentum: -0.1, want 0 to 1"),
      Refused("momentum_absurd", Op{1e-5, 1.5}, image, "attribute momentum: 1.5, want 0 to 1"),
      Refused("bytes", Op(), {{{3, 4, 4}, DType::kUint8}}, "uint8, want float32"),
      Refused("two_inputs", Op(), Floats({{3}, {3}}), "2 inputs, want 1"),
  };
}

}  // namespace capstan::training
