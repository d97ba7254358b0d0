#include "training/ops/activation/activation.h"
#include "training/ops/op_cases.h"

namespace capstan::training {
namespace {

template <typename Op>
std::vector<OpCase> ActivationCases(const Op& other = Op()) {
  return {
      {"one", Op(), Floats({{1}})},
      {"features", other, Floats({{17}})},
      {"image", Op(), Floats({{3, 5, 7}})},
      Refused("integers", Op(), {{{4}, DType::kInt32}}, "int32, want float32"),
      Refused("two_inputs", Op(), Floats({{4}, {4}}), "2 inputs, want 1"),
  };
}

}  // namespace

std::vector<OpCase> SigmoidCases() { return ActivationCases<Sigmoid>(); }
std::vector<OpCase> TanhCases() { return ActivationCases<Tanh>(); }

std::vector<OpCase> LeakyReluCases() {
  std::vector<OpCase> cases = ActivationCases(LeakyRelu{0.3});
  cases.push_back({"falls", LeakyRelu{-0.5}, Floats({{2, 5}})});
  cases.push_back(
      Refused("beyond_floats", LeakyRelu{1e39}, Floats({{4}}), "attribute alpha: 1e+39, want -3"));
  return cases;
}

std::vector<OpCase> ClipCases() {
  std::vector<OpCase> cases = ActivationCases(Clip{-0.51, 0.77});
  cases.push_back({"least", With({Clip::kName, {}}, "min", 0.13), Floats({{2, 5}})});
  cases.push_back({"most", With({Clip::kName, {}}, "max", 0.13), Floats({{2, 5}})});
  cases.push_back(
      Refused("no_room", Clip{2, 1}, Floats({{4}}), "attribute min: 2, want at most the max 1"));
  cases.push_back(
      Refused("beyond_floats", Clip{-1e39, 1}, Floats({{4}}), "attribute min: -1e+39, want -3"));
  return cases;
}

}  // namespace capstan::training
