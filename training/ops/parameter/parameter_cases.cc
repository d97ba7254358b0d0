#include "training/ops/op_cases.h"
#include "training/ops/parameter/parameter.h"

namespace capstan::training {

std::vector<OpCase> ParameterCases() {
  using Op = ParameterNode;
  return {
      {"one", Op{{1}}, {}},
      {"embedding", Op{{5, 3}, "initializer"}, {}},
      {"scale", Op{{3, 1, 1}, "ones"}, {}},
      Refused("an_input", Op{{4}}, Floats({{4}}), "1 inputs, want 0"),
      Refused("no_shape", {Op::kName, {}}, {}, "attribute shape: is required"),
      Refused("no_dimension", Op(), {}, "attribute shape: [], want at least one dimension"),
      Refused("empty", Op{{3, 0}}, {},
              "attribute shape: shape [3, 0], want dimensions of at least"),
      Refused("absurd", Op{{kAbsurd, kAbsurd}}, {}, "attribute shape: shape"),
      Refused("other_init", Op{{4}, "random"}, {},
              "attribute init: 'random', want zeros, ones or initializer"),
  };
}

}  // namespace capstan::training
