#include "training/ops/concat/concat.h"
#include "training/ops/op_cases.h"

namespace capstan::training {

std::vector<OpCase> ConcatCases() {
  return {
      {"one", Concat{1}, Floats({{1}})},
      {"features", Concat{1}, Floats({{3}, {5}, {1}})},
      {"channels", Concat{1}, Floats({{2, 3, 5}, {1, 3, 5}, {4, 3, 5}})},
      {"height", Concat{2}, Floats({{3, 2, 5}, {3, 4, 5}})},
      {"width", Concat{3}, Floats({{3, 4, 2}, {3, 4, 3}})},
      {"last", Concat{-1}, Floats({{2, 2, 1}, {2, 2, 5}})},
      {"first_from_the_end", Concat{-3}, Floats({{2, 2, 3}, {1, 2, 3}})},
      Refused("no_axis", {Concat::kName, {}}, Floats({{4}}), "attribute axis: is required"),
      Refused("batch", Concat{0}, Floats({{4}}), "attribute axis: 0, want 1 to 1"),
      Refused("batch_from_the_end", Concat{-4}, Floats({{4, 4, 4}}), "attribute axis: -4"),
      Refused("beyond", Concat{4}, Floats({{4, 4, 4}}), "attribute axis: 4, want 1 to 3"),
      Refused("absurd_axis", Concat{kAbsurd}, Floats({{4}}), "attribute axis"),
      Refused("absurd_negative_axis", Concat{-kAbsurd}, Floats({{4}}), "attribute axis"),
      Refused("other_dimension", Concat{1}, Floats({{2, 3, 5}, {2, 3, 4}}),
              "input 1: [2, 3, 4], want [2, 3, 5] in all dimensions except axis 1"),
      Refused("other_rank", Concat{1}, Floats({{6}, {6, 1, 1}}), "input 1: [6, 1, 1]"),
      Refused("integers", Concat{1}, {{{4}}, {{4}, DType::kInt32}}, "input 1: int32"),
      Refused("too_large", Concat{1}, Floats({{kMaxTensorElements}, {1}}), "output: shape"),
  };
}

}  // namespace capstan::training
