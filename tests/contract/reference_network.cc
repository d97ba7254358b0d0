#include "tests/contract/reference_network.h"

#include <numeric>

namespace capstan::testing {
namespace {

using training::Graph;
using training::SampleInfo;

// The tensors of one pass over a batch.
struct Tensors {
  Tensors(const Graph& graph, int64_t count)
      : values(graph.value_count()), saved(graph.node_count()) {
    for (int v = 0; v < graph.value_count(); ++v) {
      values[v].assign(count * graph.value_elements(v), 0.0);
    }
    gradients = values;
    for (int i = 0; i < graph.node_count(); ++i) {
      for (const training::SavedTensor& tensor : graph.instance(i).inferred.saved) {
        const int64_t size = training::Elements(tensor.shape) * (tensor.per_sample ? count : 1);
        saved[i].emplace_back(size, 0.0);
      }
    }
  }

  std::vector<Doubles> values, gradients;
  std::vector<std::vector<Doubles>> saved;  // by node
};

template <typename T>
std::vector<T*> Pointers(std::vector<Doubles>& tensors) {
  std::vector<T*> out;
  for (Doubles& tensor : tensors) out.push_back(tensor.data());
  return out;
}

// Sets what forward and backward of a node read.
template <typename Call>
void SetInputs(const Graph& graph, int node, Tensors& tensors,
               const std::vector<Doubles>& parameters, Call& call) {
  for (const int input : graph.nodes()[node].inputs) {
    call.x.push_back(tensors.values[input].data());
  }
  for (const int parameter : graph.parameters_of(node)) {
    call.parameters.push_back(parameters[parameter].data());
  }
}

// Forward and loss of `samples`. A statistic of the batch is stored in place of its gradient.
void Forward(const Graph& graph, const std::vector<Doubles>& parameters, const Doubles& images,
             const SampleInfo& samples, Tensors& tensors, ReferenceResult& result) {
  tensors.values[0] = images;
  for (int i = 0; i < graph.node_count(); ++i) {
    training::ForwardCall<double> call{graph.instance(i), samples};
    SetInputs(graph, i, tensors, parameters, call);
    call.y = tensors.values[graph.output_of(i)].data();
    call.saved = Pointers<double>(tensors.saved[i]);
    for (const int parameter : graph.parameters_of(i)) {
      const bool statistic = samples.training && graph.parameters()[parameter].statistic;
      call.statistics.push_back(statistic ? result.gradients[parameter].data() : nullptr);
    }
    graph.def(i).reference_double.forward(call);
  }

  const int64_t classes = graph.num_classes(), elements = graph.value_elements(graph.logits());
  for (int64_t n = 0; n < samples.count; ++n) {
    const double* const z =
        tensors.values[graph.logits()].data() + n * elements + graph.answer_offset();
    result.logits.insert(result.logits.end(), z, z + classes);
    int64_t best = 0;
    for (int64_t k = 1; k < classes; ++k) best = z[k] > z[best] ? k : best;
    result.correct += graph.target_size() == 0 && best == samples.labels[n];
    result.loss_sum += tensors.values.back()[n];
  }
}

}  // namespace

ReferenceResult RunReference(const Graph& graph, const std::vector<Doubles>& parameters,
                             const Doubles& images, const std::vector<int32_t>& labels,
                             double loss_scale, const SampleInfo& draws) {
  const auto count = static_cast<int64_t>(labels.size());
  std::vector<int64_t> ids(labels.size());
  std::iota(ids.begin(), ids.end(), 0);
  SampleInfo samples = draws;
  samples.count = count;
  samples.training = true;
  samples.labels = labels.data();
  if (samples.ids == nullptr) samples.ids = ids.data();

  ReferenceResult result;
  for (const training::Parameter& parameter : graph.parameters()) {
    result.gradients.emplace_back(parameter.elements, 0.0);
  }
  Tensors tensors(graph, count);
  Forward(graph, parameters, images, samples, tensors, result);

  tensors.gradients.back().assign(count, loss_scale);
  for (int i = graph.loss(); i >= 0; --i) {
    training::BackwardCall<double> call{graph.instance(i), samples};
    SetInputs(graph, i, tensors, parameters, call);
    call.y = tensors.values[graph.output_of(i)].data();
    call.saved = Pointers<const double>(tensors.saved[i]);
    call.dy = tensors.gradients[graph.output_of(i)].data();
    for (const int input : graph.nodes()[i].inputs) {
      call.dx.push_back(tensors.gradients[input].data());
    }
    for (const int parameter : graph.parameters_of(i)) {
      const bool statistic = graph.parameters()[parameter].statistic;
      call.dparameters.push_back(statistic ? nullptr : result.gradients[parameter].data());
    }
    graph.def(i).reference_double.backward(call);
  }
  return result;
}

ReferenceResult EvaluateByReference(const Graph& graph, const std::vector<Doubles>& parameters,
                                    const Doubles& images, const std::vector<int32_t>& labels,
                                    const float* targets) {
  SampleInfo samples;
  samples.count = static_cast<int64_t>(labels.size());
  samples.labels = labels.data();
  samples.targets = targets;
  ReferenceResult result;
  Tensors tensors(graph, samples.count);
  Forward(graph, parameters, images, samples, tensors, result);
  return result;
}

}  // namespace capstan::testing
