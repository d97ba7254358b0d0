#include "training/ops/op_cases.h"
#include "training/ops/reduce/reduce.h"

namespace capstan::training {
namespace {

template <typename Op>
std::vector<OpCase> ReduceCases() {
  const std::vector<ValueType> image = Floats({{2, 3, 5}});
  return {
      {"one", Op(), Floats({{1}})},
      {"all", Op(), image},
      {"pixels", Op{{2, 3}, true}, image},
      {"pixels_gone", Op{{-1, -2}, false}, image},
      {"channels", Op{{1}, false}, image},
      {"between", Op{{2}, true}, image},
      Refused("nothing_left", Op{{}, false}, image,
              "attribute keepdims: 0 over every axis of [2, 3, 5], want 1"),
      Refused("batch", Op{{0}, true}, image, "attribute axes: 0, want 1 to 3 or -3 to -1"),
      Refused("beyond", Op{{4}, true}, image, "attribute axes: 4, want 1 to 3"),
      Refused("absurd", Op{{kAbsurd}, true}, image, "attribute axes: 46"),
      Refused("twice", Op{{1, -3}, true}, image, "has axis 1 twice, want each once"),
      Refused("keepdims_no_flag", With(Op(), "keepdims", int64_t{2}), image,
              "attribute keepdims: 2, want 0 or 1"),
      Refused("integers", Op(), {{{4}, DType::kInt32}}, "int32, want float32"),
  };
}

}  // namespace

std::vector<OpCase> ReduceMeanCases() { return ReduceCases<ReduceMean>(); }
std::vector<OpCase> ReduceSumCases() { return ReduceCases<ReduceSum>(); }

}  // namespace capstan::training
