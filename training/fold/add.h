// Addition of gradients. Workers and shards fold with these functions only (rule R1). They are
// built without fast-math and without contraction, so that both sides get the same bits.
//
// float addition commutes bit for bit, except for the payload of a NaN when both sides are NaN. A
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

// out_left[i] += the i-th little-endian float of `right`, which may be unaligned. n = right.size()
// / 4 must be a whole number.
void AddBytesInto(float* out_left, absl::string_view right);

// True if no value is an infinity or a NaN.
bool AllFinite(absl::Span<const float> values);
bool AllFinite(absl::Span<const double> values);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_FOLD_ADD_H_
