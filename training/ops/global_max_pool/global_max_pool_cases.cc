#include "training/ops/global_max_pool/global_max_pool.h"
#include "training/ops/op_cases.h"

namespace capstan::training {

std::vector<OpCase> GlobalMaxPoolCases() {
  return {
      {"one", GlobalMaxPool(), Floats({{1, 1, 1}})},
      {"primes", GlobalMaxPool(), Floats({{3, 7, 5}})},
      {"typical", GlobalMaxPool(), Floats({{16, 4, 4}})},
      Refused("features", GlobalMaxPool(), Floats({{12}}), "input [12], want [C, H, W]"),
      Refused("bytes", GlobalMaxPool(), {{{1, 4, 4}, DType::kUint8}}, "uint8, want float32"),
      Refused("two_inputs", GlobalMaxPool(), Floats({{1, 4, 4}, {1, 4, 4}}), "2 inputs"),
  };
}

}  // namespace capstan::training
