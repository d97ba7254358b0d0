#include "training/graph/tensors.h"

#include <utility>

namespace capstan::training {

std::vector<TensorSpec> TensorSpecs(const Graph& graph) {
  std::vector<TensorSpec> specs;
  specs.reserve(graph.parameters().size());
  for (const Parameter& parameter : graph.parameters()) {
    TensorSpec spec;
    spec.name = parameter.name;
    spec.shape = parameter.shape;
    spec.kind = TensorKind::kWeight;
    spec.init =
        parameter.kind == ParameterKind::kWeight ? TensorInit::kInitializer : TensorInit::kZeros;
    spec.fan_in = parameter.fan_in;
    spec.fan_out = parameter.fan_out;
    specs.push_back(std::move(spec));
  }
  return specs;
}

}  // namespace capstan::training
