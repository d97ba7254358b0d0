#include "training/ops/linear/linear.h"
#include "training/ops/op_cases.h"

namespace capstan::training {

std::vector<OpCase> LinearCases() {
  using Op = Linear;
  const std::vector<ValueType> image = Floats({{2, 3, 5}});
  return {
      {"one", Op{1}, Floats({{1}})},
      {"features", Op{5}, Floats({{7}})},
      {"sequence", Op{9}, Floats({{5, 3}})},
      {"no_bias", Op{3, false}, image},
      {"typical", Op{24}, Floats({{3, 18}})},
      Refused("no_size", {Op::kName, {}}, image, "attribute out_features: is required"),
      Refused("zero", Op{0}, image, "out_features 0, want at least 1"),
      Refused("absurd", Op{kAbsurd}, image, "weight: shape"),
      Refused("too_large", Op{int64_t{1} << 30}, Floats({{int64_t{1} << 30, 1}}), "output: shape"),
      Refused("bias_no_flag", With(Op{3}, "bias", int64_t{2}), image,
              "attribute bias: 2, want 0 or 1"),
      Refused("no_axis", Op{3}, Floats({Shape()}), "input [], want [..., features]"),
      Refused("bytes", Op{3}, {{{4}, DType::kUint8}}, "uint8, want float32"),
  };
}

}  // namespace capstan::training
