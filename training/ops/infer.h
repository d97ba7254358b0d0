// Checks and parts of Infer that several operators share. Messages carry no node: the graph puts it in front.
#ifndef CAPSTAN_TRAINING_OPS_INFER_H_
#define CAPSTAN_TRAINING_OPS_INFER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "training/ops/op.h"
#include "training/ops/types.h"

namespace capstan::training {

// InvalidArgument: got < want.
absl::Status CheckAtLeast(absl::string_view what, int64_t got, int64_t want);

// InvalidArgument: an attribute that says yes or no is neither 0 nor 1.
absl::Status CheckFlag(const Attributes& attributes, const std::string& name);

// InvalidArgument: an input is not of floats.
absl::Status CheckFloats(absl::Span<const ValueType> x);

// InvalidArgument: `x` is no [C, H, W] of floats.
absl::Status CheckImage(const ValueType& x);

// The output has the shape of the inputs. InvalidArgument: they differ, or are not of floats.
absl::StatusOr<Inference> InferSameShape(absl::Span<const ValueType> x, Attributes& attributes);

// The saturated product of 2, a and b, for operation counts.
int64_t TwiceProduct(int64_t a, int64_t b);

// "bias" [K] of a weight [K, ...]: zeros at the start, with the fans of its weight.
OpParameter BiasOf(const OpParameter& weight);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_INFER_H_
