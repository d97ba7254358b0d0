#include "training/ops/flatten/flatten.h"
#include "training/ops/op_cases.h"

namespace capstan::training {

std::vector<OpCase> FlattenCases() {
  return {
      {"one", Flatten(), Floats({{1}})},
      {"flat_already", Flatten(), Floats({{7}})},
      {"image", Flatten(), Floats({{3, 5, 7}})},
      Refused("bytes", Flatten(), {{{1, 4, 4}, DType::kUint8}}, "uint8, want float32"),
      Refused("no_input", Flatten(), {}, "0 inputs, want 1"),
  };
}

}  // namespace capstan::training
