// Initial weights: a pure function of (seed, initializer, layout), so that any range of the flat
// vector can be computed by itself.
//
//   kXavier   uniform in [-a, a], a = sqrt(6 / (fan_in + fan_out))   Glorot & Bengio 2010
//   kHe       normal, standard deviation sqrt(2 / fan_in)            He et al. 2015
//   kNormal   normal, standard deviation `scale`
//   kUniform  uniform in [-scale, scale]
//   kZeros    0
// Tensors with TensorInit::kZeros (biases) are 0 and with kOnes 1 under every initializer; padding
// is 0.
//
// Random numbers: Philox, purpose kInit. For element e the counter is (e / 4 or e / 2, its high
// word, tensor index in forward order, 0). A block gives four uniforms (24 bits each) or two
// normals (Box-Muller in double, then rounded to float). The place in the flat vector does not
// matter.
//
// Threads: stateless.
#ifndef CAPSTAN_TRAINING_INIT_INIT_H_
#define CAPSTAN_TRAINING_INIT_INIT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "training/chunks/flat_layout.h"

namespace capstan::training {

enum class Initializer { kXavier, kHe, kNormal, kUniform, kZeros };

struct InitOptions {
  Initializer initializer = Initializer::kXavier;
  double scale = 0.01;  // kNormal, kUniform: > 0, finite
};

// InvalidArgument: a scale outside its range.
absl::Status ValidateInitOptions(const InitOptions& options);

// Writes the initial values of [offset, offset + out.size()) of the flat vector. The options must
// be valid and the range must lie inside the layout.
void InitRange(const FlatLayout& layout, const InitOptions& options, uint64_t seed, int64_t offset,
               absl::Span<float> out);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_INIT_INIT_H_
