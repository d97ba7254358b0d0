#include "training/ops/mean_squared_error/mean_squared_error.h"
#include "training/ops/op_cases.h"

namespace capstan::training {

std::vector<OpCase> MeanSquaredErrorLossCases() {
  using Op = MeanSquaredErrorLoss;
  return {
      {"one_output", Op(), Floats({{1}})},
      {"three_outputs", Op(), Floats({{3}})},
      {"many_outputs", Op(), Floats({{37}})},
      Refused("image", Op(), Floats({{1, 4, 4}}), "input [1, 4, 4], want [outputs]"),
      Refused("too_many_outputs", Op(), Floats({{(int64_t{1} << 24) + 1}}), "at most 16777216"),
      Refused("two_inputs", Op(), Floats({{3}, {3}}), "2 inputs, want 1"),
      Refused("integers", Op(), {{{4}, DType::kInt32}}, "int32, want float32"),
  };
}

}  // namespace capstan::training
