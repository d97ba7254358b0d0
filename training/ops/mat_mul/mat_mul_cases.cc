#include "training/ops/mat_mul/mat_mul.h"
#include "training/ops/op_cases.h"

namespace capstan::training {

std::vector<OpCase> MatMulCases() {
  return {
      {"one", MatMul(), Floats({{1, 1}, {1, 1}})},
      {"square", MatMul(), Floats({{2, 2}, {2, 2}})},
      {"matrices", MatMul(), Floats({{2, 5}, {5, 3}})},
      {"outer_product", MatMul(), Floats({{3, 1}, {1, 4}})},
      {"heads", MatMul(), Floats({{2, 3, 4}, {2, 4, 5}})},
      {"one_matrix_for_all", MatMul(), Floats({{3, 2, 4}, {4, 2}})},
      {"broadcast", MatMul(), Floats({{2, 1, 2, 3}, {3, 3, 2}})},
      Refused("one_input", MatMul(), Floats({{4, 4}}), "1 inputs, want 2"),
      Refused("features", MatMul(), Floats({{4}, {4, 4}}), "input 0: [4], want at least two axes"),
      Refused("second_features", MatMul(), Floats({{4, 4}, {4}}), "input 1: [4], want at least"),
      Refused("inner_sizes", MatMul(), Floats({{2, 3}, {2, 3}}),
              "input 1: [2, 3], want [..., 3, N]"),
      Refused("front_sizes", MatMul(), Floats({{2, 3, 3}, {4, 3, 3}}),
              "axes in front like those of input 0, [2, 3, 3]"),
      Refused("integers", MatMul(), {{{4, 4}}, {{4, 4}, DType::kInt32}}, "input 1: int32"),
      Refused("too_large", MatMul(), Floats({{int64_t{1} << 30, 1}, {1, int64_t{1} << 30}}),
              "output: shape"),
  };
}

}  // namespace capstan::training
