#include "training/ops/dropout/dropout.h"
#include "training/ops/op_cases.h"

namespace capstan::training {

std::vector<OpCase> DropoutCases() {
  const std::vector<ValueType> features = Floats({{84}});
  return {
      {"one", Dropout(), Floats({{1}})},
      {"five", Dropout(), Floats({{5}})},
      {"image", Dropout{0.25}, Floats({{3, 5, 7}})},
      {"nothing", Dropout{0.0}, features},
      {"nearly_all", Dropout{0.9}, features},
      Refused("all", Dropout{1.0}, features, "attribute ratio: 1, want at least 0 and less than 1"),
      Refused("negative", Dropout{-0.1}, features, "attribute ratio: -0.1"),
      Refused("too_large", Dropout(), Floats({{int64_t{1} << 35}}), "want at most 17179869184"),
      Refused("integers", Dropout(), {{{4}, DType::kInt32}}, "int32, want float32"),
      Refused("two_inputs", Dropout(), Floats({{4}, {4}}), "2 inputs, want 1"),
  };
}

}  // namespace capstan::training
