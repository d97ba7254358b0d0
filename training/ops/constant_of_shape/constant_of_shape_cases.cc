#include "training/ops/constant_of_shape/constant_of_shape.h"
#include "training/ops/op_cases.h"

namespace capstan::training {

std::vector<OpCase> ConstantOfShapeCases() {
  using Op = ConstantOfShape;
  return {
      {"one", Op{{1}, 0.25}, {}},
      {"zeros", Op{{5, 3}}, {}},
      {"negative", Op{{2, 1, 4}, -1.5}, {}},
      Refused("an_input", Op{{4}}, Floats({{4}}), "1 inputs, want 0"),
      Refused("no_shape", {Op::kName, {}}, {}, "attribute shape: is required"),
      Refused("no_dimension", Op(), {}, "attribute shape: [], want at least one dimension"),
      Refused("empty", Op{{3, 0}}, {}, "attribute shape: shape [3, 0], want dimensions of at"),
      Refused("absurd", Op{{kAbsurd, kAbsurd}}, {}, "attribute shape: shape"),
      Refused("no_float", Op{{4}, 1e39}, {}, "attribute value: 1e+39, want -3.4"),
  };
}

}  // namespace capstan::training
