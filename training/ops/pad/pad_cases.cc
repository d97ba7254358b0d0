#include "training/ops/op_cases.h"
#include "training/ops/pad/pad.h"

namespace capstan::training {

std::vector<OpCase> PadCases() {
  const std::vector<ValueType> image = Floats({{2, 3, 4}});
  return {
      {"nothing", Pad{{0, 0}, 0}, Floats({{1}})},
      {"features", Pad{{2, 1}, 0}, Floats({{5}})},
      {"image", Pad{{0, 1, 2, 0, 3, 1}, 0}, image},
      {"value", Pad{{1, 0, 0, 0, 0, 1}, -0.75}, image},
      {"takes_away", Pad{{-1, 0, 2, 0, -1, -3}, 0.5}, image},
      Refused("no_pads", {Pad::kName, {}}, image, "attribute pads: is required"),
      Refused("too_few", Pad{{1, 1, 1, 1}, 0}, image, "attribute pads: 4 numbers over an input"),
      Refused("nothing_left", Pad{{-1, 0, 0, -1, 0, 0}, 0}, image,
              "attribute pads: -1 and -1 leave nothing of axis 1 of 2"),
      Refused("none_of_x_left", Pad{{-2, 5}, 0}, Floats({{2}}), "leave nothing of axis 1 of 2"),
      Refused("absurd", Pad{{kAbsurd, 0}, 0}, Floats({{2}}), "attribute pads: 46"),
      Refused("absurd_negative", Pad{{0, -kAbsurd}, 0}, Floats({{2}}), "attribute pads: -46"),
      Refused("too_large", Pad{{kMaxTensorElements, 0}, 0}, Floats({{2}}), "output: shape"),
      Refused("beyond_floats", Pad{{0, 0}, 1e39}, Floats({{2}}), "attribute value: 1e+39"),
      Refused("integers", Pad{{0, 0}, 0}, {{{4}, DType::kInt32}}, "int32, want float32"),
  };
}

}  // namespace capstan::training
