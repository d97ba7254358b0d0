#include "training/ops/op_cases.h"
#include "training/ops/relu/relu.h"

namespace capstan::training {

std::vector<OpCase> ReluCases() {
  return {
      {"one", Relu(), Floats({{1}})},
      {"features", Relu(), Floats({{17}})},
      {"image", Relu(), Floats({{3, 5, 7}})},
      Refused("integers", Relu(), {{{4}, DType::kInt32}}, "int32, want float32"),
      Refused("two_inputs", Relu(), Floats({{4}, {4}}), "2 inputs, want 1"),
  };
}

}  // namespace capstan::training
