#include "training/ops/constant/constant.h"
#include "training/ops/op_cases.h"

namespace capstan::training {

std::vector<OpCase> ConstantCases() {
  using Op = ConstantNode;
  return {
      {"one", Op{0.5}, {}},
      {"matrix", Op{-3, {2, 3}}, {}},
      Refused("an_input", Op{1}, Floats({{4}}), "1 inputs, want 0"),
      Refused("no_value", {Op::kName, {}}, {}, "attribute value: is required"),
      Refused("no_dimension", Op{1, {}}, {}, "attribute shape: [], want at least one dimension"),
      Refused("empty", Op{1, {3, 0}}, {},
              "attribute shape: shape [3, 0], want dimensions of at least"),
      Refused("absurd", Op{1, {kAbsurd, kAbsurd}}, {}, "attribute shape: shape"),
      Refused("not_a_float", Op{1e300}, {}, "attribute value: 1e+300"),
  };
}

}  // namespace capstan::training
