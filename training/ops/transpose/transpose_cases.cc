#include "training/ops/op_cases.h"
#include "training/ops/transpose/transpose.h"

namespace capstan::training {

std::vector<OpCase> TransposeCases() {
  const std::vector<ValueType> image = Floats({{2, 3, 5}});
  return {
      {"one", Transpose{{1}}, Floats({{3}})},
      {"matrix", Transpose{{2, 1}}, Floats({{3, 5}})},
      {"channels_last", Transpose{{2, 3, 1}}, image},
      {"reversed", Transpose{{-1, -2, -3}}, image},
      {"as_it_is", Transpose{{1, 2, 3}}, image},
      {"four_axes", Transpose{{3, 1, 4, 2}}, Floats({{2, 3, 1, 4}})},
      Refused("no_perm", {Transpose::kName, {}}, image, "attribute perm: is required"),
      Refused("too_few", Transpose{{2, 1}}, image, "attribute perm: 2 numbers over an input"),
      Refused("batch", Transpose{{0, 1, 2}}, image, "attribute perm: 0, want 1 to 3"),
      Refused("beyond", Transpose{{1, 2, 4}}, image, "attribute perm: 4, want 1 to 3"),
      Refused("absurd", Transpose{{1, 2, kAbsurd}}, image, "attribute perm: 46"),
      Refused("twice", Transpose{{1, 2, 2}}, image, "has axis 2 twice, want each once"),
      Refused("integers", Transpose{{1}}, {{{4}, DType::kInt32}}, "int32, want float32"),
  };
}

}  // namespace capstan::training
