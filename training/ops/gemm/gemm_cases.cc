#include "training/ops/gemm/gemm.h"
#include "training/ops/op_cases.h"

namespace capstan::training {

std::vector<OpCase> GemmCases() {
  const std::vector<ValueType> features = Floats({{7}});
  return {
      {"one", Gemm{1}, Floats({{1}})},
      {"primes", Gemm{11}, Floats({{13}})},
      {"no_bias", Gemm{5, false}, features},
      {"typical", Gemm{10}, Floats({{84}})},
      Refused("image", Gemm{3}, Floats({{1, 4, 4}}), "[1, 4, 4], want [features] (put a Flatten"),
      Refused("no_size", {Gemm::kName, {}}, features, "attribute out_features: is required"),
      Refused("zero", Gemm{0}, features, "out_features 0, want at least 1"),
      Refused("negative", Gemm{-kAbsurd}, features, "want at least 1"),
      Refused("absurd", Gemm{kAbsurd}, features, "weight: shape"),
      Refused("bias_no_flag", With(Gemm{3}, "bias", int64_t{2}), features,
              "attribute bias: 2, want 0 or 1"),
      Refused("bytes", Gemm{3}, {{{4}, DType::kUint8}}, "uint8, want float32"),
  };
}

}  // namespace capstan::training
