// Reads any bytes as an ONNX file. It becomes a model whose weights are those of its graph, or it is
// refused with a sentence without control characters. The same holds for a network to run.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "services/check/check.h"
#include "training/onnx/onnx_model.h"

namespace ct = capstan::training;

namespace {

// The weights are those of the graph.
void CheckWeights(const ct::Graph& graph, const std::vector<ct::onnx::OnnxWeight>& weights,
                  int64_t most_elements) {
  CAPSTAN_CHECK(graph.parameters().size() == weights.size());
  int64_t elements = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const ct::onnx::OnnxWeight& weight = weights[i];
    CAPSTAN_CHECK(weight.name == graph.parameters()[i].name);
    CAPSTAN_CHECK(weight.shape == graph.parameters()[i].shape);
    CAPSTAN_CHECK(static_cast<int64_t>(weight.values.size()) == graph.parameters()[i].elements);
    for (const float value : weight.values) CAPSTAN_CHECK(std::isfinite(value));
    elements += graph.parameters()[i].elements;
  }
  // A bias of one number is widened to the channels of its weight.
  CAPSTAN_CHECK(elements <= 2 * most_elements);
}

void CheckRefusal(const absl::Status& status) {
  CAPSTAN_CHECK(absl::IsInvalidArgument(status));
  for (const char c : status.message()) {
    CAPSTAN_CHECK(absl::ascii_isprint(static_cast<unsigned char>(c)));
  }
}

// As a network to run: the values of the file are in the row of the graph.
void CheckNetwork(absl::string_view bytes, const ct::onnx::OnnxLimits& limits) {
  const auto network = ct::onnx::ReadOnnxNetwork(bytes, "fuzz", limits);
  if (!network.ok()) return CheckRefusal(network.status());
  int64_t inputs = 0, outputs = 0;
  for (const ct::onnx::OnnxValue& value : network->inputs) inputs += ct::Elements(value.shape);
  for (const ct::onnx::OnnxValue& value : network->outputs) outputs += ct::Elements(value.shape);
  CAPSTAN_CHECK(inputs == ct::Elements(network->graph.input_shape()));
  CAPSTAN_CHECK(outputs <= network->graph.num_classes());
  CheckWeights(network->graph, network->weights, limits.max_weight_elements);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ct::onnx::OnnxLimits limits;
  limits.max_bytes = int64_t{1} << 20;
  limits.max_weight_elements = int64_t{1} << 16;
  limits.max_folded_elements = int64_t{1} << 12;
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  CheckNetwork(bytes, limits);
  const auto model = ct::onnx::ReadOnnx(bytes, limits);
  if (!model.ok()) {
    CheckRefusal(model.status());
    return 0;
  }
  const absl::StatusOr<ct::Graph> graph = ct::onnx::WithLoss(*model, "fuzz");
  CAPSTAN_CHECK(graph.ok());
  CAPSTAN_CHECK(graph->input_shape() == model->input_shape);
  CAPSTAN_CHECK(graph->value_shape(static_cast<int>(model->nodes.size())) == model->output_shape);
  CheckWeights(*graph, model->weights, limits.max_weight_elements);
  return 0;
}
