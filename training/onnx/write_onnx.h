// Export of a graph and its weights as an ONNX file, for programs that run networks.
//
// Operator set 17 and file format 8; operator set 20 and file format 9 if the graph has an operator
// that ONNX has only since then. The input is "input" [N, ...] and the output, the logits, is
// "output" [N, classes], or [N, T, classes] of a network that predicts the next token; the loss is
// left out, and PredictsTokens() tells a reader which it is. Nodes have their names, and
// initializers those of parameters ("conv1.weight"). A Parameter is an initializer without a node; a
// Constant, and a triangle of one, is a node. Other values and constants have names with a colon,
// which no node has.
//
// Threads: a function without state.
#ifndef CAPSTAN_TRAINING_ONNX_WRITE_ONNX_H_
#define CAPSTAN_TRAINING_ONNX_WRITE_ONNX_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "training/graph/graph.h"

namespace capstan::training::onnx {

// The bytes of the file. `parameters` are the tensors of graph.parameters(), row-major, running
// statistics included. Their numbers are written as they are, even if they are not finite.
// InvalidArgument: a number of tensors that the graph does not have. Unimplemented: an operator
// that cannot be exported, by the node's name. ResourceExhausted: more weights than the format can
// hold, 2^31 bytes.
absl::StatusOr<std::string> WriteOnnx(const Graph& graph,
                                      absl::Span<const float* const> parameters);

}  // namespace capstan::training::onnx

#endif  // CAPSTAN_TRAINING_ONNX_WRITE_ONNX_H_
