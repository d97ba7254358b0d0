#include "client/bench/step_bench.h"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "services/clock/clock.h"
#include "training/chunks/flat_layout.h"
#include "training/graph/tensors.h"
#include "training/init/init.h"
#include "training/ops/gather/gather.h"
#include "training/ops/parameter/parameter.h"
#include "training/ops/sequence_cross_entropy/sequence_cross_entropy.h"
#include "training/optim/apply.h"
#include "training/random/philox.h"

namespace capstan::client {
namespace {

using training::Graph;

constexpr int kWarmUpSteps = 2;
constexpr size_t kLeastSteps = 5;
constexpr size_t kMostSteps = 10000;
constexpr double kFloatBytes = 4;
constexpr uint64_t kSeed = 1;

// Floats of one sample that a run of nodes reads from outside, those of them that get a gradient,
// and floats of its weights, which are the same for all samples. The tensor of a Parameter belongs
// to the weights of each reader.
struct RunFloats {
  double inputs = 0, gradients = 0, weights = 0;
};

RunFloats FloatsOf(const Graph& graph, int first, int last) {
  RunFloats floats;
  std::vector<training::ValueId> inputs;
  for (int node = first; node <= last; ++node) {
    for (const training::ValueId value : graph.nodes()[node].inputs) {
      const bool inside = value >= graph.output_of(first);
      if (!inside && std::find(inputs.begin(), inputs.end(), value) == inputs.end()) {
        inputs.push_back(value);
      }
    }
    for (const int index : graph.parameters_of(node)) {
      const training::Parameter& parameter = graph.parameters()[index];
      if (!parameter.statistic) floats.weights += static_cast<double>(parameter.elements);
    }
  }
  for (const training::ValueId value : inputs) {
    const auto elements = static_cast<double>(graph.value_elements(value));
    if (value > 0 && graph.nodes()[value - 1].op.name == training::ParameterNode::kName) {
      floats.weights += elements;
      continue;
    }
    floats.inputs += elements;
    if (graph.needs_gradient(value)) floats.gradients += elements;
  }
  return floats;
}

// The vectors of a step, and its times.
class Steps {
 public:
  Steps(const Graph& graph, const training::FlatLayout& layout,
        const training::Optimizer& optimizer, engine::Plan& plan)
      : graph_(graph), layout_(layout), optimizer_(optimizer), plan_(plan) {}

  absl::Status Allocate(int64_t samples) {
    try {
      const auto floats = static_cast<size_t>(layout_.total_floats());
      weights_.resize(floats);
      next_.resize(floats);
      gradient_.resize(floats);
      state_.resize(floats * static_cast<size_t>(optimizer_.state_floats_per_weight()));
      images_.resize(static_cast<size_t>(samples * graph_.value_elements(0)));
      labels_.resize(static_cast<size_t>(samples));
      targets_.resize(static_cast<size_t>(samples * graph_.target_size()));
      ids_.resize(static_cast<size_t>(samples));
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for a step of ", samples, " samples: give a smaller --batch"));
    }
    training::InitRange(layout_, {}, kSeed, 0, absl::MakeSpan(weights_));
    const bool tokens =
        std::any_of(graph_.nodes().begin(), graph_.nodes().end(), [](const auto& node) {
          return node.op.name == training::Gather::kName ||
                 node.op.name == training::SequenceCrossEntropyLoss::kName;
        });
    uint32_t random = 1;  // a linear congruential generator: the numbers only have to differ
    for (float& pixel : images_) {
      random = random * 1664525 + 1013904223;
      pixel = tokens ? static_cast<float>((random >> 8) % graph_.num_classes())
                     : training::ToUniform(random);
    }
    for (int64_t i = 0; i < samples; ++i) {
      labels_[static_cast<size_t>(i)] = static_cast<int32_t>(i % graph_.num_classes());
      ids_[static_cast<size_t>(i)] = i;
    }
    if (optimizer_.trust_rule() != nullptr) ratios_.assign(layout_.slots().size(), 1.0);
    return absl::OkStatus();
  }

  absl::Status Run() {
    const absl::Duration begin = MonotonicNow();
    absl::Status status = plan_.LoadWeights(weights_.data());
    if (!status.ok()) return status;
    const absl::Duration loaded = MonotonicNow();
    engine::SampleBatch batch = {images_.data(), labels_.data(),
                                 static_cast<int64_t>(labels_.size())};
    batch.ids = ids_.data();
    batch.targets = targets_.data();
    const auto result =
        plan_.ComputeLane(batch, 1.0 / static_cast<double>(batch.count), gradient_.data());
    if (!result.ok()) return result.status();
    const absl::Duration computed = MonotonicNow();
    training::VersionUpdate update;
    update.learning_rate = 0.01;
    update.trust_ratios = ratios_;
    training::ApplyVersion(layout_, {0, layout_.total_floats()}, optimizer_, update,
                           {.out = next_.data(),
                            .in = weights_.data(),
                            .sum = gradient_.data(),
                            .state = state_.empty() ? nullptr : state_.data()});
    const absl::Duration end = MonotonicNow();
    load_seconds = absl::ToDoubleSeconds(loaded - begin);
    update_seconds = absl::ToDoubleSeconds(end - computed);
    seconds = absl::ToDoubleSeconds(end - begin);
    return absl::OkStatus();
  }

  double load_seconds = 0, update_seconds = 0, seconds = 0;  // of the last Run

 private:
  const Graph& graph_;
  const training::FlatLayout& layout_;
  const training::Optimizer& optimizer_;
  engine::Plan& plan_;
  std::vector<float> weights_, next_, gradient_, state_, images_;
  std::vector<int32_t> labels_;
  std::vector<float> targets_;  // zeros, of a loss that takes numbers
  std::vector<int64_t> ids_;
  std::vector<double> ratios_;
};

absl::Status CheckBatch(const Graph& graph, int64_t batch) {
  if (batch < 1 || batch > kMostStepBatch) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch: ", batch, ", want 1 to ", kMostStepBatch));
  }
  const int64_t most = kMostStepImageBytes / static_cast<int64_t>(sizeof(float));
  if (graph.value_elements(0) > most / batch) {
    return absl::InvalidArgumentError(
        absl::StrFormat("batch: %d images of %s have %.1f GiB, want at most %.1f", batch,
                        training::ShapeToString(graph.input_shape()),
                        static_cast<double>(graph.value_elements(0)) * static_cast<double>(batch) *
                            kFloatBytes / (1 << 30),
                        static_cast<double>(kMostStepImageBytes) / (1 << 30)));
  }
  return absl::OkStatus();
}

// A row for each kernel that had something to do.
std::vector<StepRow> KernelRows(const Graph& graph, const training::FlatLayout& layout,
                                int64_t samples, absl::Span<const engine::KernelTime> times,
                                const std::vector<std::vector<double>>& forward,
                                const std::vector<std::vector<double>>& backward) {
  std::vector<StepRow> rows;
  for (size_t i = 0; i < times.size(); ++i) {
    const engine::KernelTime& time = times[i];
    StepRow row{time.name, time.kernel, Median(forward[i]), Median(backward[i])};
    if (row.seconds() == 0) continue;
    if (row.forward_seconds > 0) {
      const KernelWork work = ForwardWork(graph, time.first, time.last, samples);
      row.flops += work.flops;
      row.bytes += work.bytes;
    }
    // The time of the input contains zeros in the gradient.
    if (time.first < 0) row.bytes += kFloatBytes * static_cast<double>(layout.total_floats());
    if (row.backward_seconds > 0) {
      const KernelWork work = BackwardWork(graph, time.first, time.last, samples);
      row.flops += work.flops;
      row.bytes += work.bytes;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

KernelWork ForwardWork(const Graph& graph, int first, int last, int64_t samples) {
  const auto count = static_cast<double>(samples);
  if (first < 0) {  // read and written
    return {0, kFloatBytes * 2 * count * static_cast<double>(graph.value_elements(0))};
  }
  const RunFloats floats = FloatsOf(graph, first, last);
  if (last == graph.loss()) return {0, kFloatBytes * 2 * count * floats.inputs};
  const auto output = static_cast<double>(graph.value_elements(graph.output_of(last)));
  KernelWork work;
  work.bytes = kFloatBytes * (count * (floats.inputs + output) + floats.weights);
  for (int node = first; node <= last; ++node) {
    work.flops += count * static_cast<double>(graph.instance(node).inferred.flops);
  }
  return work;
}

KernelWork BackwardWork(const Graph& graph, int first, int last, int64_t samples) {
  if (first < 0 || last == graph.loss()) return {};
  const auto count = static_cast<double>(samples);
  const RunFloats floats = FloatsOf(graph, first, last);
  double moved = static_cast<double>(graph.value_elements(graph.output_of(last)));
  moved = count * (moved + floats.gradients);
  if (floats.weights > 0) {
    moved += count * floats.inputs + floats.weights * (floats.gradients > 0 ? 2 : 1);
  }
  KernelWork work;
  work.bytes = kFloatBytes * moved;
  for (int node = first; node <= last; ++node) {
    work.flops +=
        graph.gradients_of(node) * count * static_cast<double>(graph.instance(node).inferred.flops);
  }
  return work;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

absl::StatusOr<StepReport> MeasureStep(engine::Device& device, const Graph& graph,
                                       const training::Optimizer& optimizer,
                                       const StepBench& options) {
  absl::Status status = CheckBatch(graph, options.batch);
  if (!status.ok()) return status;
  const auto layout = training::FlatLayout::Create(training::TensorSpecs(graph));
  if (!layout.ok()) return layout.status();
  engine::PlanOptions compile;
  compile.max_batch = options.batch;
  compile.threads = options.threads;
  compile.time_kernels = true;
  const auto plan = device.Compile(graph, *layout, compile);
  if (!plan.ok()) return plan.status();
  Steps steps(graph, *layout, optimizer, **plan);
  if (status = steps.Allocate(options.batch); !status.ok()) return status;
  // Before the steps, while the threads of the plan sleep.
  const auto limits = device.MeasureLimits(options.threads);
  if (!limits.ok()) return limits.status();

  for (int i = 0; i < kWarmUpSteps && status.ok(); ++i) status = steps.Run();
  const absl::Span<const engine::KernelTime> times = (*plan)->kernel_times();
  std::vector<std::vector<double>> forward(times.size()), backward(times.size());
  std::vector<double> load, update, whole;
  const absl::Duration end = MonotonicNow() + options.length;
  while (status.ok() && whole.size() < kMostSteps &&
         (whole.size() < kLeastSteps || MonotonicNow() < end)) {
    status = steps.Run();
    for (size_t i = 0; i < times.size(); ++i) {
      forward[i].push_back(times[i].forward_seconds);
      backward[i].push_back(times[i].backward_seconds);
    }
    load.push_back(steps.load_seconds);
    update.push_back(steps.update_seconds);
    whole.push_back(steps.seconds);
  }
  if (!status.ok()) return status;

  StepReport report;
  report.model = graph.name();
  report.input = graph.input_shape();
  report.num_classes = graph.num_classes();
  report.numeric_targets = graph.target_size() > 0;
  report.batch = options.batch;
  report.threads = options.threads;
  report.optimizer = options.optimizer_name;
  report.limits = *limits;
  const double floats = static_cast<double>(layout->total_floats());
  // Weights are read and written; an update also reads the gradient, and reads and writes the state.
  report.rows.push_back({"load weights", "copies", Median(load), 0, 0, kFloatBytes * 2 * floats});
  for (StepRow& row : KernelRows(graph, *layout, options.batch, times, forward, backward)) {
    report.rows.push_back(std::move(row));
  }
  report.rows.push_back({"update", options.optimizer_name, 0, Median(update), 0,
                         kFloatBytes * floats * (3 + 2 * optimizer.state_floats_per_weight())});
  report.steps = static_cast<int64_t>(whole.size());
  std::sort(whole.begin(), whole.end());
  report.step_seconds = Median(whole);
  report.step_p10_seconds = whole[whole.size() / 10];
  report.step_p90_seconds = whole[whole.size() - 1 - whole.size() / 10];
  return report;
}

}  // namespace capstan::client
