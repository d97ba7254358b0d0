#include "training/ops/gelu/gelu.h"
#include "training/ops/op_cases.h"

namespace capstan::training {

std::vector<OpCase> GeluCases() {
  return {
      {"one", Gelu(), Floats({{1}})},
      {"exact", Gelu{"none"}, Floats({{3, 5, 7}})},
      {"tanh", Gelu{"tanh"}, Floats({{3, 5, 7}})},
      Refused("other_form", Gelu{"sigmoid"}, Floats({{4}}),
              "attribute approximate: 'sigmoid', want none or tanh"),
      Refused("integers", Gelu(), {{{4}, DType::kInt32}}, "int32, want float32"),
      Refused("two_inputs", Gelu(), Floats({{4}, {4}}), "2 inputs, want 1"),
  };
}

}  // namespace capstan::training
