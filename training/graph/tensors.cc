#include "training/graph/tensors.h"

#include <utility>

namespace capstan::training {
namespace {

TensorInit InitOf(ParameterInit init) {
  switch (init) {
    case ParameterInit::kInitializer:
      return TensorInit::kInitializer;
    case ParameterInit::kZeros:
      return TensorInit::kZeros;
    case ParameterInit::kOnes:
      return TensorInit::kOnes;
  }
  return TensorInit::kInitializer;
}

}  // namespace

std::vector<TensorSpec> TensorSpecs(const Graph& graph) {
  std::vector<TensorSpec> specs;
  specs.reserve(graph.parameters().size());
  for (const Parameter& parameter : graph.parameters()) {
    TensorSpec spec;
    spec.name = parameter.name;
    spec.shape = parameter.shape;
    spec.kind = parameter.statistic ? TensorKind::kStat : TensorKind::kWeight;
    spec.init = InitOf(parameter.init);
    spec.fan_in = parameter.fan_in;
    spec.fan_out = parameter.fan_out;
    spec.momentum = parameter.momentum;
    specs.push_back(std::move(spec));
  }
  return specs;
}

}  // namespace capstan::training
