#include "training/ops/cast/cast.h"
#include "training/ops/op_cases.h"

namespace capstan::training {

// Even numbers of elements, so that no input of the references is a whole number.
std::vector<OpCase> CastCases() {
  return {
      {"features", Cast{"int64"}, Floats({{6}})},
      {"floats", Cast(), Floats({{2, 3, 2}})},
      {"image", Cast{"int32"}, Floats({{3, 2, 4}})},
      Refused("other_type", Cast{"uint8"}, Floats({{4}}), "attribute to: 'uint8', want float"),
      Refused("bytes", Cast{"int64"}, {{{4}, DType::kUint8}}, "uint8, want float32"),
      Refused("two_inputs", Cast(), Floats({{4}, {4}}), "2 inputs, want 1"),
  };
}

}  // namespace capstan::training
