#include "gpu_worker/engine/plan/program.h"

#include <algorithm>

namespace capstan::engine {
namespace {

using training::Graph;
using training::InPlace;

class Planner {
 public:
  explicit Planner(const Graph& graph) : graph_(graph) {
    program_.nodes.resize(graph.node_count());
    program_.values.assign(graph.value_count(), -1);
    program_.gradients.assign(graph.value_count(), -1);
  }

  Program Run() {
    PlanBackward();
    PlaceValues();
    PlaceGradients();
    PlaceSaved();
    return std::move(program_);
  }

 private:
  int ForwardTime(int node) const { return node; }
  int BackwardTime(int node) const { return 2 * graph_.node_count() - 1 - node; }
  int producer(int value) const { return value - 1; }  // -1: the input of the graph
  bool runs(int node) const { return program_.nodes[node].backward; }

  void PlanBackward() {
    std::vector<bool> stored(graph_.value_count(), false);
    for (int i = graph_.node_count() - 1; i >= 0; --i) {
      NodeProgram& node = program_.nodes[i];
      node.backward = graph_.needs_gradient(graph_.output_of(i));
      for (const int input : graph_.nodes()[i].inputs) {
        InputGradient gradient;
        gradient.wanted = node.backward && graph_.needs_gradient(input);
        gradient.add = gradient.wanted && stored[input];
        if (gradient.wanted) stored[input] = true;
        node.inputs.push_back(gradient);
      }
    }
  }

  int NewBuffer(int64_t sample_elements, int64_t fixed_elements, int time) {
    program_.buffers.push_back({sample_elements, fixed_elements, time, time});
    return static_cast<int>(program_.buffers.size()) - 1;
  }
  void UseUntil(int buffer, int time) {
    program_.buffers[buffer].last = std::max(program_.buffers[buffer].last, time);
  }

  // The last time at which somebody reads the value, as it was made.
  int LastRead(int value) const {
    int last = 0;
    for (const int reader : graph_.readers(value)) {
      last = std::max(last, ForwardTime(reader));
      if (runs(reader) && graph_.def(reader).reads.x) last = std::max(last, BackwardTime(reader));
    }
    const int made_by = producer(value);
    if (made_by >= 0 && runs(made_by) && graph_.def(made_by).reads.y) {
      last = std::max(last, BackwardTime(made_by));
    }
    return last;
  }

  bool IsView(int value) const {
    const int made_by = producer(value);
    return made_by >= 0 && graph_.def(made_by).in_place == InPlace::kView;
  }

  // Whether node `i` may write its output over its first input: nobody else reads that one, now or later.
  bool WorksInPlace(int i) const {
    if (graph_.def(i).in_place != InPlace::kOutput) return false;
    const int input = graph_.nodes()[i].inputs[0];
    return input != 0 && !IsView(input) && graph_.readers(input).size() == 1 &&
           LastRead(input) == ForwardTime(i);
  }

  void PlaceValues() {
    program_.values[0] = NewBuffer(graph_.value_elements(0), 0, 0);
    UseUntil(program_.values[0], LastRead(0));
    for (int i = 0; i < graph_.node_count(); ++i) {
      const int output = graph_.output_of(i);
      const bool shares = graph_.def(i).in_place == InPlace::kView || WorksInPlace(i);
      program_.values[output] = shares
                                    ? program_.values[graph_.nodes()[i].inputs[0]]
                                    : NewBuffer(graph_.value_elements(output), 0, ForwardTime(i));
      UseUntil(program_.values[output], std::max(ForwardTime(i), LastRead(output)));
    }
  }

  // From the output to the input: the gradient by the first input may take the place of that by the output
  // under the same conditions as the values; it is the only one that is stored there.
  void PlaceGradients() {
    for (int i = graph_.node_count() - 1; i >= 0; --i) {
      const NodeProgram& node = program_.nodes[i];
      if (!node.backward) continue;
      const bool may_share = graph_.def(i).in_place != InPlace::kNever && !graph_.def(i).loss;
      for (size_t k = 0; k < node.inputs.size(); ++k) {
        if (!node.inputs[k].wanted) continue;
        const int input = graph_.nodes()[i].inputs[k];
        int& gradient = program_.gradients[input];
        if (gradient < 0) {
          const bool shares = k == 0 && may_share && graph_.readers(input).size() == 1;
          gradient = shares ? program_.gradients[graph_.output_of(i)]
                            : NewBuffer(graph_.value_elements(input), 0, BackwardTime(i));
        }
        const int made_by = producer(input);
        UseUntil(gradient, made_by >= 0 ? BackwardTime(made_by) : BackwardTime(i));
      }
    }
  }

  void PlaceSaved() {
    for (int i = 0; i < graph_.node_count(); ++i) {
      for (const training::SavedTensor& tensor : graph_.instance(i).inferred.saved) {
        const int64_t elements = training::Elements(tensor.shape);
        const int buffer = NewBuffer(tensor.per_sample ? elements : 0,
                                     tensor.per_sample ? 0 : elements, ForwardTime(i));
        if (runs(i)) UseUntil(buffer, BackwardTime(i));
        program_.nodes[i].saved.push_back(buffer);
      }
    }
  }

  const Graph& graph_;
  Program program_;
};

}  // namespace

Program MakeProgram(const Graph& graph) { return Planner(graph).Run(); }

}  // namespace capstan::engine
