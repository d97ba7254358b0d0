// Checks and parts of Infer that several operators share. Messages do not name the node; the graph
// adds its name in front.
#ifndef CAPSTAN_TRAINING_OPS_INFER_H_
#define CAPSTAN_TRAINING_OPS_INFER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "training/ops/op.h"
#include "training/ops/types.h"

namespace capstan::training {

// InvalidArgument: got < want.
absl::Status CheckAtLeast(absl::string_view what, int64_t got, int64_t want);

// InvalidArgument: a flag is neither 0 nor 1.
absl::Status CheckFlag(const Attributes& attributes, const std::string& name);

// InvalidArgument: a number is below `least` or above `most`.
absl::Status CheckNumber(const Attributes& attributes, const std::string& name, double least,
                         double most);

// InvalidArgument: an input does not consist of floats.
absl::Status CheckFloats(absl::Span<const ValueType> x);

// InvalidArgument: `x` is not a [C, H, W] of floats.
absl::Status CheckImage(const ValueType& x);

// An axis of a sample as in ONNX, where the batch is axis 0: 1 is the first axis of a sample, and -1
// is the last one. The result is from 1 to rank. InvalidArgument: it is the batch, or there is no
// such axis; the message names the attribute and `shape`.
absl::StatusOr<int64_t> ResolveAxis(const std::string& name, int64_t axis, const Shape& shape);

// As ResolveAxis for each of a list. InvalidArgument: one axis appears twice.
absl::StatusOr<std::vector<int64_t>> ResolveAxes(const std::string& name,
                                                 const std::vector<int64_t>& axes,
                                                 const Shape& shape);

// The output has the shape of the inputs. InvalidArgument: the shapes differ, or an input does not
// consist of floats.
absl::StatusOr<Inference> InferSameShape(absl::Span<const ValueType> x, Attributes& attributes);

// The saturated product of 2, a and b, for operation counts.
int64_t TwiceProduct(int64_t a, int64_t b);

// The parameter "bias" [K] of a weight [K, ...]: initially zero, with the fans of its weight.
OpParameter BiasOf(const OpParameter& weight);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_INFER_H_
