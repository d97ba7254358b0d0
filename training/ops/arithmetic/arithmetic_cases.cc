#include "training/ops/arithmetic/arithmetic.h"
#include "training/ops/op_cases.h"

namespace capstan::training {
namespace {

// Divisors of the tests are drawn from few numbers around 0. Few of them are near it.
template <typename Op>
std::vector<OpCase> ArithmeticCases() {
  return {
      {"one", Op(), Floats({{1}, {1}})},
      {"features", Op(), Floats({{7}, {7}})},
      {"image", Op(), Floats({{2, 2, 2}, {2, 2, 2}})},
      {"number", Op(), Floats({{2, 3}, {1}})},
      {"by_a_number_in_front", Op(), Floats({{1}, {7}})},
      {"row", Op(), Floats({{2, 3}, {3}})},
      {"channels", Op(), Floats({{2, 3, 2}, {2, 1, 1}})},
      {"both", Op(), Floats({{3, 1}, {2, 1, 2}})},
      Refused("one_input", Op(), Floats({{4}}), "1 inputs, want 2"),
      Refused("three_inputs", Op(), Floats({{4}, {4}, {4}}), "3 inputs, want 2"),
      Refused("other_shape", Op(), Floats({{3, 5, 4}, {3, 4, 5}}),
              "input 1: [3, 4, 5], want [3, 5, 4] as input 0, or 1 where an axis differs"),
      Refused("front_axis", Op(), Floats({{3, 5}, {3}}), "input 1: [3], want [3, 5]"),
      Refused("integers", Op(), {{{4}}, {{4}, DType::kInt32}}, "input 1: int32, want float32"),
      Refused("too_large", Op(), Floats({{int64_t{1} << 30, 1}, {int64_t{1} << 30}}),
              "output: shape"),
  };
}

}  // namespace

std::vector<OpCase> SubCases() { return ArithmeticCases<Sub>(); }
std::vector<OpCase> MulCases() { return ArithmeticCases<Mul>(); }
std::vector<OpCase> DivCases() { return ArithmeticCases<Div>(); }

}  // namespace capstan::training
