#include "client/predict/run_network.h"

#include <algorithm>
#include <memory>
#include <new>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "training/graph/tensors.h"
#include "training/ops/cast/cast.h"
#include "training/ops/gather/gather.h"
#include "training/ops/slice/slice.h"

namespace capstan::client {
namespace {

using training::onnx::OnnxNetwork;
using training::onnx::OnnxValue;

constexpr int64_t kMostNumbers = int64_t{1} << 36;

std::string NamesOf(const std::vector<OnnxValue>& values) {
  std::string names;
  for (const OnnxValue& value : values) {
    absl::StrAppend(&names, names.empty() ? "'" : ", '", absl::CHexEscape(value.name), "'");
  }
  return names;
}

std::string ShapeOf(const OnnxValue& value) {
  std::string text = "[N";
  for (const int64_t dim : value.shape) absl::StrAppend(&text, ", ", dim);
  return text + "]";
}

// The array of each input.
absl::StatusOr<std::vector<const data::Array*>> MatchInputs(const OnnxNetwork& network,
                                                            absl::Span<const data::Array> arrays) {
  std::vector<const data::Array*> matched(network.inputs.size(), nullptr);
  const bool unnamed = network.inputs.size() == 1 && arrays.size() == 1 && arrays[0].name.empty();
  for (const data::Array& array : arrays) {
    const auto input =
        std::find_if(network.inputs.begin(), network.inputs.end(),
                     [&](const OnnxValue& value) { return unnamed || value.name == array.name; });
    if (input == network.inputs.end()) {
      return absl::InvalidArgumentError(absl::StrCat("array '", absl::CHexEscape(array.name),
                                                     "' is no input of the network, want ",
                                                     NamesOf(network.inputs)));
    }
    const data::Array*& place = matched[static_cast<size_t>(input - network.inputs.begin())];
    if (place != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("two arrays '", absl::CHexEscape(array.name), "', want one"));
    }
    place = &array;
  }
  for (size_t i = 0; i < matched.size(); ++i) {
    const OnnxValue& input = network.inputs[i];
    const std::string label = absl::StrCat("input '", absl::CHexEscape(input.name), "'");
    if (matched[i] == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(label, " has no array, want one of ", ShapeOf(input)));
    }
    const std::vector<int64_t>& shape = matched[i]->shape;
    if (shape.size() != input.shape.size() + 1 ||
        !std::equal(input.shape.begin(), input.shape.end(), shape.begin() + 1)) {
      return absl::InvalidArgumentError(absl::StrCat(
          label, ": array of ", training::ShapeToString(shape), ", want ", ShapeOf(input)));
    }
    if (shape[0] != matched[0]->shape[0] || shape[0] < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(label, ": ", shape[0], " samples, want ",
                       i == 0 ? "at least 1"
                              : absl::StrCat(matched[0]->shape[0], " as in '",
                                             absl::CHexEscape(network.inputs[0].name), "'")));
    }
  }
  return matched;
}

// The input whose numbers a node reads as they are, but for their shape and what follows their
// point. -1: it reads other numbers.
int InputOf(const OnnxNetwork& network, training::ValueId value) {
  const training::Graph& graph = network.graph;
  while (value > 0) {
    const training::GraphNode& node = graph.nodes()[value - 1];
    if (node.op.name == training::SliceNode::kName && node.inputs[0] == 0 &&
        network.inputs.size() > 1) {  // the row of all inputs is cut into these
      int64_t first = graph.instance(value - 1).attributes.Ints("starts")[0];
      size_t input = 0;
      while (first > 0) first -= training::Elements(network.inputs[input++].shape);
      return static_cast<int>(input);
    }
    if (graph.def(value - 1).in_place != training::InPlace::kView &&
        node.op.name != training::Cast::kName) {
      return -1;
    }
    value = node.inputs[0];
  }
  return network.inputs.size() == 1 ? 0 : -1;
}

// A table has no row for an index beyond its end.
absl::Status CheckIndices(const OnnxNetwork& network,
                          const std::vector<const data::Array*>& arrays) {
  const training::Graph& graph = network.graph;
  for (const training::GraphNode& node : graph.nodes()) {
    if (node.op.name != training::Gather::kName) continue;
    const int input = InputOf(network, node.inputs[1]);
    if (input < 0) continue;
    const int64_t rows = graph.value_shape(node.inputs[0])[0];
    const std::vector<float>& numbers = arrays[static_cast<size_t>(input)]->numbers;
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (training::RowOfIndex(numbers[i], rows) >= 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("input '", absl::CHexEscape(network.inputs[static_cast<size_t>(input)].name),
                       "': number ", i, " is ", numbers[i], ", want ", -rows, " to ", rows - 1,
                       ", a row of the table of node '", node.name, "'"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<engine::Plan>> PlanOf(engine::Device& device,
                                                     const OnnxNetwork& network, int64_t max_batch,
                                                     int threads) {
  const auto layout = training::FlatLayout::Create(training::TensorSpecs(network.graph));
  if (!layout.ok()) return layout.status();
  const auto offsets = training::ParameterOffsets(network.graph, *layout);
  if (!offsets.ok()) return offsets.status();
  std::vector<float> weights(static_cast<size_t>(layout->total_floats()), 0.0f);
  for (size_t i = 0; i < network.weights.size(); ++i) {
    const std::vector<float>& values = network.weights[i].values;
    std::copy(values.begin(), values.end(), weights.begin() + (*offsets)[i]);
  }
  engine::PlanOptions options;
  options.max_batch = max_batch;
  options.threads = threads;
  absl::StatusOr<std::unique_ptr<engine::Plan>> plan =
      device.Compile(network.graph, *layout, options);
  if (!plan.ok()) return plan;
  const absl::Status loaded = (*plan)->LoadWeights(weights.data());
  if (!loaded.ok()) return loaded;
  return plan;
}

}  // namespace

absl::StatusOr<std::vector<data::Array>> RunNetwork(engine::Device& device,
                                                    const OnnxNetwork& network,
                                                    absl::Span<const data::Array> inputs,
                                                    const PredictOptions& options,
                                                    const std::function<absl::Status()>& between) {
  const absl::StatusOr<std::vector<const data::Array*>> matched = MatchInputs(network, inputs);
  if (!matched.ok()) return matched.status();
  const absl::Status indices = CheckIndices(network, *matched);
  if (!indices.ok()) return indices;
  const int64_t count = (*matched)[0]->shape[0];
  const int64_t size = std::min(count, options.max_batch);
  const int64_t row = training::Elements(network.graph.input_shape());
  const int64_t logits_row = network.graph.num_classes();
  if (logits_row > kMostNumbers / count) {
    return absl::ResourceExhaustedError(absl::StrCat(count, " samples with ", logits_row,
                                                     " numbers each, want at most ", kMostNumbers,
                                                     " numbers together"));
  }
  std::vector<data::Array> outputs;
  try {
    const absl::StatusOr<std::unique_ptr<engine::Plan>> plan =
        PlanOf(device, network, size, options.threads);
    if (!plan.ok()) return plan.status();
    for (const OnnxValue& value : network.outputs) {
      data::Array& output = outputs.emplace_back();
      output.name = value.name;
      output.shape = value.shape;
      output.shape.insert(output.shape.begin(), count);
      output.numbers.reserve(static_cast<size_t>(count * training::Elements(value.shape)));
    }
    std::vector<float> rows(static_cast<size_t>(size * row));
    std::vector<float> logits(static_cast<size_t>(size * logits_row));
    for (int64_t first = 0; first < count; first += size) {
      absl::Status status = between();
      if (!status.ok()) return status;
      engine::SampleBatch batch;
      batch.count = std::min(size, count - first);
      batch.images = rows.data();
      float* to = rows.data();
      for (int64_t n = first; n < first + batch.count; ++n) {
        for (size_t i = 0; i < network.inputs.size(); ++i) {
          const int64_t elements = training::Elements(network.inputs[i].shape);
          to = std::copy_n((*matched)[i]->numbers.data() + n * elements, elements, to);
        }
      }
      status = (*plan)->Predict(batch, logits.data());
      if (!status.ok()) return status;
      for (int64_t n = 0; n < batch.count; ++n) {
        const float* from = logits.data() + n * logits_row;
        for (size_t i = 0; i < outputs.size(); ++i) {
          const int64_t elements = training::Elements(network.outputs[i].shape);
          outputs[i].numbers.insert(outputs[i].numbers.end(), from, from + elements);
          from += elements;
        }
      }
    }
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", count, " samples, ", size,
                                                     " at a time: give fewer samples, "
                                                     "or a smaller --batch"));
  }
  return outputs;
}

}  // namespace capstan::client
