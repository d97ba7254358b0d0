#include "training/ops/add/add.h"
#include "training/ops/op_cases.h"

namespace capstan::training {

std::vector<OpCase> AddCases() {
  return {
      {"one", Add(), Floats({{1}, {1}})},
      {"features", Add(), Floats({{7}, {7}})},
      {"image", Add(), Floats({{3, 5, 4}, {3, 5, 4}})},
      Refused("one_input", Add(), Floats({{4}}), "1 inputs, want 2"),
      Refused("three_inputs", Add(), Floats({{4}, {4}, {4}}), "3 inputs, want 2"),
      Refused("other_shape", Add(), Floats({{3, 5, 4}, {3, 4, 5}}),
              "input 1: [3, 4, 5], want [3, 5, 4]"),
      Refused("no_broadcast", Add(), Floats({{3, 5, 4}, {1}}), "input 1: [1]"),
      Refused("integers", Add(), {{{4}}, {{4}, DType::kInt32}}, "input 1: int32, want float32"),
  };
}

}  // namespace capstan::training
