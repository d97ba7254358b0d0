#include "training/ops/gather/gather.h"
#include "training/ops/op_cases.h"

namespace capstan::training {

// Even numbers of elements, so that no index of the references is a whole number.
std::vector<OpCase> GatherCases() {
  constexpr int64_t kMost = int64_t{1} << 24;
  return {
      {"one_row", Gather(), Floats({{1, 3}, {3}})},
      {"embedding", Gather(), Floats({{4, 3}, {6}})},
      {"of_a_matrix", Gather(), Floats({{3, 2}, {2, 2}})},
      {"numbers", Gather(), Floats({{4}, {2}})},
      {"of_matrices", Gather(), Floats({{3, 2, 2}, {2}})},
      Refused("one_input", Gather(), Floats({{4, 4}}), "1 inputs, want 2"),
      Refused("too_many_rows", Gather(), Floats({{kMost + 1}, {1}}), "want [V, ...] with V at"),
      Refused("too_large", Gather(), Floats({{2, int64_t{1} << 30}, {int64_t{1} << 30}}),
              "output: shape"),
      Refused("whole_numbers", Gather(), {{{4, 4}}, {{4}, DType::kInt32}}, "input 1: int32"),
  };
}

}  // namespace capstan::training
