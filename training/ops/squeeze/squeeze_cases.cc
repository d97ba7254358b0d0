#include "training/ops/op_cases.h"
#include "training/ops/squeeze/squeeze.h"

namespace capstan::training {

std::vector<OpCase> SqueezeCases() {
  const std::vector<ValueType> pooled = Floats({{5, 1, 1}});
  return {
      {"nothing", Squeeze(), Floats({{7}})},
      {"all_ones", Squeeze(), pooled},
      {"last", Squeeze{{3}}, pooled},
      {"in_any_order", Squeeze{{-1, 2}}, pooled},
      {"between", Squeeze{{2}}, Floats({{2, 1, 3}})},
      Refused("batch", Squeeze{{0}}, pooled, "attribute axes: 0, want 1 to 3 or -3 to -1"),
      Refused("beyond", Squeeze{{4}}, pooled, "attribute axes: 4, want 1 to 3"),
      Refused("absurd", Squeeze{{-kAbsurd}}, pooled, "attribute axes: -46"),
      Refused("twice", Squeeze{{2, -2}}, pooled, "has axis 2 twice, want each once"),
      Refused("no_one", Squeeze{{1}}, pooled, "axis 1 of an input [5, 1, 1] has 5 elements"),
      Refused("nothing_left", Squeeze(), Floats({{1, 1}}), "no axis of an input [1, 1] is left"),
      Refused("integers", Squeeze(), {{{4, 1}, DType::kInt32}}, "int32, want float32"),
  };
}

std::vector<OpCase> UnsqueezeCases() {
  const std::vector<ValueType> features = Floats({{7}});
  return {
      {"in_front", Unsqueeze{{1}}, features},
      {"last", Unsqueeze{{-1}}, features},
      {"image", Unsqueeze{{1, 2}}, features},
      {"around", Unsqueeze{{4, 1}}, Floats({{3, 5}})},
      Refused("no_axes", {Unsqueeze::kName, {}}, features, "attribute axes: is required"),
      Refused("empty", Unsqueeze(), features, "attribute axes: [], want at least one axis"),
      Refused("batch", Unsqueeze{{0}}, features, "attribute axes: 0, want 1 to 2 or -2 to -1"),
      Refused("beyond", Unsqueeze{{3}}, features, "attribute axes: 3, want 1 to 2"),
      Refused("absurd", Unsqueeze{{kAbsurd}}, features, "attribute axes: 46"),
      Refused("twice", Unsqueeze{{1, -3}}, features, "has axis 1 twice, want each once"),
      Refused("bytes", Unsqueeze{{1}}, {{{4}, DType::kUint8}}, "uint8, want float32"),
  };
}

}  // namespace capstan::training
