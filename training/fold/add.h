// Adding gradients: the one function with which workers and shards fold (rule R1). Built without
// fast-math and without contraction, so that both give the same bits.
//
// float addition commutes bit for bit except for the payload of a NaN when both sides are NaN; a
// step with a NaN is skipped, so no result depends on it.
//
// Threads: stateless.
#ifndef CAPSTAN_TRAINING_FOLD_ADD_H_
#define CAPSTAN_TRAINING_FOLD_ADD_H_

#include <cstddef>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace capstan::training {

// out_left[i] += right[i], for i < n. The ranges do not overlap.
void AddInto(float* out_left, const float* right, size_t n);
void AddInto(double* out_left, const double* right, size_t n);

// out_left[i] += the i-th little-endian float of `right`, which may be unaligned; n =
// right.size() / 4, a whole number.
void AddBytesInto(float* out_left, absl::string_view right);

// Neither an infinity nor a NaN in it.
bool AllFinite(absl::Span<const float> values);
bool AllFinite(absl::Span<const double> values);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_FOLD_ADD_H_
