#include "training/ops/op_cases.h"
#include "training/ops/reshape/reshape.h"

namespace capstan::training {

std::vector<OpCase> ReshapeCases() {
  const std::vector<ValueType> image = Floats({{2, 3, 4}});
  return {
      {"one", Reshape{{1, 1, 1}}, Floats({{1}})},
      {"flat", Reshape{{24}}, image},
      {"image", Reshape{{3, 2, 4}}, Floats({{24}})},
      {"rest", Reshape{{4, -1}}, image},
      {"rest_is_one", Reshape{{24, -1}}, image},
      {"copied", Reshape{{0, -1}}, image},
      {"all_copied", Reshape{{0, 0, 0}}, image},
      Refused("no_shape", {Reshape::kName, {}}, image, "attribute shape: is required"),
      Refused("empty", Reshape{}, image, "at least one dimension"),
      Refused("other_product", Reshape{{5, 5}}, image, "want a product of 24 elements, got 25"),
      Refused("two_rests", Reshape{{-1, -1}}, image, "one -1 at most"),
      Refused("no_divisor", Reshape{{5, -1}}, image, "want a divisor of 24 elements, got 5"),
      Refused("negative", Reshape{{-2, 12}}, image, "dimensions of at least -1"),
      Refused("absurd_negative", Reshape{{std::numeric_limits<int64_t>::min()}}, image,
              "at least -1"),
      Refused("copies_nothing", Reshape{{6, 4, 1, 0}}, image, "no 0 beyond"),
      Refused("absurd", Reshape{{kAbsurd, kAbsurd, -1}}, image, "elements"),
      Refused("too_small", Reshape{{-1, 48}}, image, "want a divisor of 24"),
      Refused("integers", Reshape{{4}}, {{{4}, DType::kInt32}}, "int32, want float32"),
  };
}

}  // namespace capstan::training
