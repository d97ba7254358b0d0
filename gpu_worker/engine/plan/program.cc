#include "gpu_worker/engine/plan/program.h"

#include <algorithm>
#include <utility>

#include "training/ops/parameter/parameter.h"

namespace capstan::engine {
namespace {

using training::Graph;
using training::InPlace;

class Planner {
 public:
  Planner(const Graph& graph, const std::vector<FusionPattern>& patterns,
          ReadsParameter reads_parameter)
      : graph_(graph), patterns_(patterns), reads_parameter_(reads_parameter) {
    program_.values.assign(graph.value_count(), -1);
    program_.gradients.assign(graph.value_count(), -1);
  }

  Program Run() {
    CutIntoSteps();
    PlanBackward();
    PlaceValues();
    PlaceGradients();
    PlaceSaved();
    return std::move(program_);
  }

 private:
  int steps() const { return static_cast<int>(program_.steps.size()); }
  const ProgramStep& step(int i) const { return program_.steps[i]; }
  int ForwardTime(int step) const { return step; }
  int BackwardTime(int step) const { return 2 * steps() - 1 - step; }
  int producer(int value) const { return value == 0 ? -1 : step_of_[value - 1]; }  // -1: the input
  bool runs(int i) const { return step(i).backward; }
  training::BackwardReads reads(int i) const {
    return step(i).pattern < 0 ? graph_.def(step(i).first).reads : patterns_[step(i).pattern].reads;
  }
  InPlace in_place(int i) const {
    if (step(i).pattern < 0) {
      const InPlace of_op = graph_.def(step(i).first).in_place;
      if (of_op == InPlace::kOutput &&
          (step(i).parameters[0] >= 0 ||
           graph_.value_elements(step(i).inputs[0]) != graph_.value_elements(step(i).output))) {
        return InPlace::kNever;  // the input has no place, or is broadcast
      }
      return of_op;
    }
    return in_place_input(i) < 0 ? InPlace::kNever : InPlace::kOutput;
  }
  // The input whose place the output may take.
  int in_place_input(int i) const {
    return step(i).pattern < 0 ? 0 : patterns_[step(i).pattern].in_place_input;
  }
  // Whether backward of step `i` reads `value`, one of its inputs.
  bool ReadsInput(int i, int value) const {
    if (!runs(i) || !reads(i).x) return false;
    if (step(i).pattern < 0) return true;
    for (int k = 0; k < static_cast<int>(step(i).inputs.size()); ++k) {
      if (step(i).inputs[k] == value && k != in_place_input(i)) return true;
    }
    return false;
  }

  // Whether `node` is a Parameter whose value the kernel of its one reader takes from the weights.
  bool IsReadFromWeights(int node, const std::vector<FusedRun>& fused) const {
    if (reads_parameter_ == nullptr || graph_.def(node).name != training::ParameterNode::kName) {
      return false;
    }
    const std::vector<int>& readers = graph_.readers(graph_.output_of(node));
    if (readers.size() != 1) return false;
    for (const FusedRun& run : fused) {
      if (readers[0] >= run.first && readers[0] <= run.last) return false;
    }
    const std::vector<int>& inputs = graph_.nodes()[readers[0]].inputs;
    const auto at = std::find(inputs.begin(), inputs.end(), graph_.output_of(node));
    return reads_parameter_(graph_, readers[0], static_cast<int>(at - inputs.begin()));
  }

  void CutIntoSteps() {
    const std::vector<FusedRun> fused = FindFusedRuns(graph_, patterns_);
    std::vector<bool> from_weights;  // by value
    from_weights.assign(graph_.value_count(), false);
    size_t next = 0;
    for (int node = 0; node < graph_.node_count();) {
      if (IsReadFromWeights(node, fused)) {
        from_weights[graph_.output_of(node)] = true;
        step_of_.push_back(-1);
        ++node;
        continue;
      }
      ProgramStep of;
      of.first = of.last = node;
      if (next < fused.size() && fused[next].first == node) {
        of.last = fused[next].last;
        of.pattern = fused[next++].pattern;
      }
      of.output = graph_.output_of(of.last);
      for (; node <= of.last; ++node) {
        step_of_.push_back(steps());
        for (const int input : graph_.nodes()[node].inputs) {
          if (input > of.first) continue;
          of.inputs.push_back(input);
          of.parameters.push_back(from_weights[input] ? input - 1 : -1);
        }
      }
      program_.steps.push_back(std::move(of));
    }
  }

  void PlanBackward() {
    std::vector<bool> stored(graph_.value_count(), false);
    for (int i = steps() - 1; i >= 0; --i) {
      ProgramStep& of = program_.steps[i];
      of.backward = graph_.needs_gradient(of.output);
      for (size_t k = 0; k < of.inputs.size(); ++k) {
        const int input = of.inputs[k];
        InputGradient gradient;
        gradient.wanted = of.backward && of.parameters[k] < 0 && graph_.needs_gradient(input);
        gradient.add = gradient.wanted && stored[input];
        if (gradient.wanted) stored[input] = true;
        of.gradients.push_back(gradient);
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

  // The last time at which a step reads the value unchanged.
  int LastRead(int value) const {
    int last = 0;
    for (const int node : graph_.readers(value)) {
      const int reader = step_of_[node];
      last = std::max(last, ForwardTime(reader));
      if (ReadsInput(reader, value)) last = std::max(last, BackwardTime(reader));
    }
    const int made_by = producer(value);
    if (made_by >= 0 && runs(made_by) && reads(made_by).y) {
      last = std::max(last, BackwardTime(made_by));
    }
    return last;
  }

  bool IsView(int value) const {
    const int made_by = producer(value);
    return made_by >= 0 && in_place(made_by) == InPlace::kView;
  }

  // Whether step `i` may write its output over an input, i.e. no other step reads that input, now
  // or later.
  bool WorksInPlace(int i) const {
    if (in_place(i) != InPlace::kOutput) return false;
    const int input = step(i).inputs[in_place_input(i)];
    return input != 0 && !IsView(input) && graph_.readers(input).size() == 1 &&
           LastRead(input) == ForwardTime(i);
  }

  void PlaceValues() {
    program_.values[0] = NewBuffer(graph_.value_elements(0), 0, 0);
    UseUntil(program_.values[0], LastRead(0));
    for (int i = 0; i < steps(); ++i) {
      const int output = step(i).output;
      const bool shares = in_place(i) == InPlace::kView || WorksInPlace(i);
      program_.values[output] = shares
                                    ? program_.values[step(i).inputs[in_place_input(i)]]
                                    : NewBuffer(graph_.value_elements(output), 0, ForwardTime(i));
      UseUntil(program_.values[output], std::max(ForwardTime(i), LastRead(output)));
    }
  }

  // Goes from the output to the input. The gradient by one input may take the place of the gradient
  // by the output under the same conditions as the values. It must be the only one that is stored
  // there.
  void PlaceGradients() {
    for (int i = steps() - 1; i >= 0; --i) {
      const ProgramStep& of = step(i);
      if (!of.backward) continue;
      const bool may_share = in_place(i) != InPlace::kNever && !graph_.def(of.last).loss;
      for (int k = 0; k < static_cast<int>(of.inputs.size()); ++k) {
        if (!of.gradients[k].wanted) continue;
        const int input = of.inputs[k];
        int& gradient = program_.gradients[input];
        if (gradient < 0) {
          const bool shares =
              k == in_place_input(i) && may_share && graph_.readers(input).size() == 1;
          gradient = shares ? program_.gradients[of.output]
                            : NewBuffer(graph_.value_elements(input), 0, BackwardTime(i));
        }
        const int made_by = producer(input);
        UseUntil(gradient, made_by >= 0 ? BackwardTime(made_by) : BackwardTime(i));
      }
    }
  }

  void PlaceSaved() {
    for (int i = 0; i < steps(); ++i) {
      const std::vector<training::SavedTensor> saved =
          step(i).pattern < 0 ? graph_.instance(step(i).first).inferred.saved
                              : patterns_[step(i).pattern].saved(graph_, step(i).first);
      for (const training::SavedTensor& tensor : saved) {
        const int64_t elements = training::Elements(tensor.shape);
        const int buffer = NewBuffer(tensor.per_sample ? elements : 0,
                                     tensor.per_sample ? 0 : elements, ForwardTime(i));
        if (runs(i)) UseUntil(buffer, BackwardTime(i));
        program_.steps[i].saved.push_back(buffer);
      }
    }
  }

  const Graph& graph_;
  const std::vector<FusionPattern>& patterns_;
  const ReadsParameter reads_parameter_;
  std::vector<int> step_of_;  // by node; -1: it has none
  Program program_;
};

}  // namespace

Program MakeProgram(const Graph& graph, const std::vector<FusionPattern>& patterns,
                    ReadsParameter reads_parameter) {
  return Planner(graph, patterns, reads_parameter).Run();
}

}  // namespace capstan::engine
