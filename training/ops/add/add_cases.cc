#include "training/ops/add/add.h"
#include "training/ops/op_cases.h"

namespace capstan::training {

std::vector<OpCase> AddCases() {
  return {
      {"one", Add(), Floats({{1}, {1}})},
      {"features", Add(), Floats({{7}, {7}})},
      {"image", Add(), Floats({{3, 5, 4}, {3, 5, 4}})},
      {"number", Add(), Floats({{3, 5, 4}, {1}})},
      {"channels", Add(), Floats({{3, 5, 4}, {3, 1, 1}})},
      {"larger_second", Add(), Floats({{4}, {3, 5, 4}})},
      {"both", Add(), Floats({{5, 1}, {3, 1, 4}})},
      {"axis_of_one_in_front", Add(), Floats({{4}, {1, 4}})},
      Refused("one_input", Add(), Floats({{4}}), "1 inputs, want 2"),
      Refused("three_inputs", Add(), Floats({{4}, {4}, {4}}), "3 inputs, want 2"),
      Refused("other_shape", Add(), Floats({{3, 5, 4}, {3, 4, 5}}),
              "input 1: [3, 4, 5], want [3, 5, 4] as input 0, or 1 where an axis differs"),
      Refused("front_axis", Add(), Floats({{3, 5, 4}, {3}}), "input 1: [3]"),
      Refused("integers", Add(), {{{4}}, {{4}, DType::kInt32}}, "input 1: int32, want float32"),
  };
}

}  // namespace capstan::training
