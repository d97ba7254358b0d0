#include "training/ops/global_average_pool/global_average_pool.h"
#include "training/ops/op_cases.h"

namespace capstan::training {

std::vector<OpCase> GlobalAveragePoolCases() {
  return {
      {"one", GlobalAveragePool(), Floats({{1, 1, 1}})},
      {"primes", GlobalAveragePool(), Floats({{3, 7, 5}})},
      {"typical", GlobalAveragePool(), Floats({{16, 4, 4}})},
      Refused("features", GlobalAveragePool(), Floats({{12}}), "input [12], want [C, H, W]"),
      Refused("bytes", GlobalAveragePool(), {{{1, 4, 4}, DType::kUint8}}, "uint8, want float32"),
      Refused("two_inputs", GlobalAveragePool(), Floats({{1, 4, 4}, {1, 4, 4}}), "2 inputs"),
  };
}

}  // namespace capstan::training
