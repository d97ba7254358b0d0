#include "training/ops/lrn/lrn.h"
#include "training/ops/op_cases.h"

namespace capstan::training {

std::vector<OpCase> LRNCases() {
  const std::vector<ValueType> image = Floats({{7, 2, 3}});
  return {
      {"one", LRN{1, 0.5, 0.75, 1}, Floats({{1}})},
      {"features", LRN{3, 0.9, 0.5, 0.7}, Floats({{5}})},
      {"alexnet", LRN{5, 1e-4, 0.75, 2}, image},
      {"even", LRN{4, 0.3, 1.25, 1}, image},
      {"over_all", LRN{std::numeric_limits<int64_t>::max(), 0.4, 0.75, 1}, image},
      {"no_power", LRN{3, 0.4, 0, 1}, image},
      Refused("no_size", {LRN::kName, {}}, image, "attribute size: is required"),
      Refused("size_zero", LRN{0, 0.4, 0.75, 1}, image, "attribute size: 0, want at least 1"),
      Refused("absurd_size", LRN{-kAbsurd, 0.4, 0.75, 1}, image, "attribute size: -46"),
      Refused("negative_alpha", LRN{3, -1, 0.75, 1}, image, "attribute alpha: -1, want 0 to"),
      Refused("negative_beta", LRN{3, 1, -1, 1}, image, "attribute beta: -1, want 0 to 100"),
      Refused("no_bias", LRN{3, 1, 0.75, 0}, image, "attribute bias: 0, want 1.17549e-38"),
      Refused("integers", LRN{3, 1, 0.75, 1}, {{{4}, DType::kInt32}}, "int32, want float32"),
  };
}

}  // namespace capstan::training
