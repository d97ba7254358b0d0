#include "training/ops/op_cases.h"
#include "training/ops/trilu/trilu.h"

namespace capstan::training {

std::vector<OpCase> TriluCases() {
  const std::vector<ValueType> image = Floats({{2, 3, 5}});
  return {
      {"upper", Trilu(), image},
      {"lower", Trilu{false}, image},
      {"one", Trilu(), Floats({{1, 1}})},
      {"above", Trilu{true, 1}, Floats({{4, 4}})},
      {"lower_with_more", Trilu{false, 2}, Floats({{3, 5}})},
      {"below", Trilu{true, -1}, Floats({{5, 3}})},
      {"nothing", Trilu{true, kAbsurd}, Floats({{2, 3}})},
      {"everything", Trilu{true, -kAbsurd}, Floats({{2, 3}})},
      Refused("features", Trilu(), Floats({{4}}), "input [4], want at least two axes"),
      Refused("no_flag", With(Trilu(), "upper", int64_t{2}), image,
              "attribute upper: 2, want 0 or 1"),
      Refused("integers", Trilu(), {{{4, 4}, DType::kInt32}}, "int32, want float32"),
      Refused("two_inputs", Trilu(), Floats({{4, 4}, {4, 4}}), "2 inputs, want 1"),
  };
}

}  // namespace capstan::training
