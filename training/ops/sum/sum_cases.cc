#include "training/ops/op_cases.h"
#include "training/ops/sum/sum.h"

namespace capstan::training {

std::vector<OpCase> SumCases() {
  return {
      {"one_input", Sum(), Floats({{1}})},
      {"two", Sum(), Floats({{2, 3, 3}, {2, 3, 3}})},
      {"five", Sum(), Floats({{11}, {11}, {11}, {11}, {11}})},
      Refused("no_input", Sum(), {}, "0 inputs, want 1"),
      Refused("too_many", Sum(), std::vector<ValueType>(1025, ValueType{{1}}), "1025 inputs"),
      Refused("other_shape", Sum(), Floats({{4}, {4}, {2, 2, 1}}),
              "input 2: [2, 2, 1], want [4] as input 0"),
      Refused("bytes", Sum(), {{{4}, DType::kUint8}}, "input 0: uint8, want float32"),
  };
}

}  // namespace capstan::training
