#include "training/ops/op_cases.h"
#include "training/ops/sequence_cross_entropy/sequence_cross_entropy.h"

namespace capstan::training {

// Even numbers of elements, so that no token of the references is a whole number.
std::vector<OpCase> SequenceCrossEntropyLossCases() {
  using Op = SequenceCrossEntropyLoss;
  return {
      {"one_position", Op(), Floats({{1, 3}, {1}})},
      {"one_class", Op(), Floats({{3, 1}, {3}})},
      {"sequence", Op(), Floats({{4, 3}, {4}})},
      {"tokens_of_any_shape", Op(), Floats({{6, 4}, {1, 2, 3}})},
      Refused("one_input", Op(), Floats({{4, 3}}), "1 inputs, want 2"),
      Refused("features", Op(), Floats({{4}, {4}}), "input 0: [4], want [positions, classes]"),
      Refused("fewer_tokens", Op(), Floats({{4, 3}, {3}}),
              "input 1: [3], want a token for each of the 4 positions"),
      Refused("too_many_classes", Op(), Floats({{1, (int64_t{1} << 24) + 1}, {1}}),
              "at most 16777216 classes"),
      Refused("integers", Op(), {{{4, 3}}, {{4}, DType::kInt32}}, "input 1: int32, want float32"),
  };
}

}  // namespace capstan::training
