#include "training/ops/identity/identity.h"
#include "training/ops/op_cases.h"

namespace capstan::training {

std::vector<OpCase> IdentityCases() {
  return {
      {"one", IdentityNode(), Floats({{1}})},
      {"image", IdentityNode(), Floats({{3, 5, 7}})},
      Refused("bytes", IdentityNode(), {{{4}, DType::kUint8}}, "uint8, want float32"),
      Refused("two_inputs", IdentityNode(), Floats({{4}, {4}}), "2 inputs, want 1"),
  };
}

}  // namespace capstan::training
