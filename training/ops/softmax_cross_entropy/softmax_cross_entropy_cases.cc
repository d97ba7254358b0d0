#include "training/ops/op_cases.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::training {

std::vector<OpCase> SoftmaxCrossEntropyLossCases() {
  using Op = SoftmaxCrossEntropyLoss;
  const std::vector<ValueType> ten = Floats({{10}});
  return {
      {"one_class", Op(), Floats({{1}})},
      {"two_classes", Op(), Floats({{2}})},
      {"ten_classes", Op(), ten},
      {"smoothed", Op{0.1}, ten},
      {"one_class_smoothed", Op{0.5}, Floats({{1}})},
      Refused("image", Op(), Floats({{1, 4, 4}}), "input [1, 4, 4], want [classes]"),
      Refused("too_many_classes", Op(), Floats({{int64_t{1} << 31}}), "at most 2147483647"),
      Refused("smoothing_one", Op{1.0}, ten, "attribute label_smoothing: 1, want at least 0"),
      Refused("smoothing_negative", Op{-0.1}, ten, "attribute label_smoothing: -0.1"),
      Refused("integers", Op(), {{{4}, DType::kInt32}}, "int32, want float32"),
  };
}

}  // namespace capstan::training
