// Reads any bytes as an ONNX file. It becomes a model whose weights are those of its graph, or it is
// refused with a sentence without control characters.
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "services/check/check.h"
#include "training/onnx/onnx_model.h"

namespace ct = capstan::training;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ct::onnx::OnnxLimits limits;
  limits.max_bytes = int64_t{1} << 20;
  limits.max_weight_elements = int64_t{1} << 16;
  const auto model =
      ct::onnx::ReadOnnx(absl::string_view(reinterpret_cast<const char*>(data), size), limits);
  if (!model.ok()) {
    CAPSTAN_CHECK(absl::IsInvalidArgument(model.status()));
    for (const char c : model.status().message()) {
      CAPSTAN_CHECK(absl::ascii_isprint(static_cast<unsigned char>(c)));
    }
    return 0;
  }
  const absl::StatusOr<ct::Graph> graph = ct::onnx::WithLoss(*model, "fuzz");
  CAPSTAN_CHECK(graph.ok());
  CAPSTAN_CHECK(graph->input_shape() == model->input_shape);
  CAPSTAN_CHECK(graph->value_shape(static_cast<int>(model->nodes.size())) == model->output_shape);
  CAPSTAN_CHECK(graph->parameters().size() == model->weights.size());
  int64_t elements = 0;
  for (size_t i = 0; i < model->weights.size(); ++i) {
    const ct::onnx::OnnxWeight& weight = model->weights[i];
    CAPSTAN_CHECK(weight.name == graph->parameters()[i].name);
    CAPSTAN_CHECK(weight.shape == graph->parameters()[i].shape);
    CAPSTAN_CHECK(static_cast<int64_t>(weight.values.size()) == graph->parameters()[i].elements);
    for (const float value : weight.values) CAPSTAN_CHECK(std::isfinite(value));
    elements += graph->parameters()[i].elements;
  }
  // A bias of one number is widened to the channels of its weight.
  CAPSTAN_CHECK(elements <= 2 * limits.max_weight_elements);
  return 0;
}
