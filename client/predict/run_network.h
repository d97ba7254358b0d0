// Runs the network of an ONNX file on arrays.
#ifndef CAPSTAN_CLIENT_PREDICT_RUN_NETWORK_H_
#define CAPSTAN_CLIENT_PREDICT_RUN_NETWORK_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/predict/predict.h"
#include "gpu_worker/data/arrays.h"
#include "gpu_worker/engine/device/device.h"
#include "training/onnx/onnx_model.h"

namespace capstan::client {

// Computes `network` with the weights of its file and returns its outputs, by their names and in
// their order. Each is [samples, ...].
//
// `inputs` has an array [samples, ...] for each input, in any order. The name of an only array of an
// only input may be empty. InvalidArgument: an input has no array, an array is no input or has
// another shape, arrays have different numbers of samples, or a number of an input names no row of a
// table that it looks up; the message names it.
// `options.limit` is not used. `between` is called before each batch; its error ends the run. Other
// errors are those of Device::Compile. Memory: all outputs and one batch. Blocks.
absl::StatusOr<std::vector<data::Array>> RunNetwork(engine::Device& device,
                                                    const training::onnx::OnnxNetwork& network,
                                                    absl::Span<const data::Array> inputs,
                                                    const PredictOptions& options,
                                                    const std::function<absl::Status()>& between);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_PREDICT_RUN_NETWORK_H_
