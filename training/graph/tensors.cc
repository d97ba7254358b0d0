#include "training/graph/tensors.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

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

absl::StatusOr<std::vector<int64_t>> ParameterOffsets(const Graph& graph,
                                                      const FlatLayout& layout) {
  std::vector<int64_t> offsets;
  for (const Parameter& parameter : graph.parameters()) {
    const TensorSlot* const slot = layout.Find(parameter.name);
    if (slot == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("layout: no tensor ", parameter.name, " of graph ", graph.name()));
    }
    if (slot->spec.shape != parameter.shape) {
      return absl::InvalidArgumentError(absl::StrCat("layout: tensor ", parameter.name, " ",
                                                     ShapeToString(slot->spec.shape), ", want ",
                                                     ShapeToString(parameter.shape)));
    }
    offsets.push_back(slot->offset);
  }
  if (layout.slots().size() != offsets.size()) {
    return absl::InvalidArgumentError(absl::StrCat("layout: ", layout.slots().size(),
                                                   " tensors, want the ", offsets.size(),
                                                   " of graph ", graph.name()));
  }
  return offsets;
}

}  // namespace capstan::training
