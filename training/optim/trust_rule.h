// What optimizers have that scale the update of each tensor by a trust ratio: LARS and LAMB.
//
// The direction of a step is what a tensor's weights would be moved along, before the trust ratio
// and the learning rate. Its norm is compared with that of the weights. Both norms are of the whole
// tensor, whoever has its chunks (training/norm/tensor_norms.h): first each chunk's squares are added
// up (MeasureChunk), then all norms are known (TrustRatios), then the step is applied.
//
// A ratio is computed in double and rounded to float once, in the update.
//
// Threads: const methods and pure functions, on ranges that do not overlap.
#ifndef CAPSTAN_TRAINING_OPTIM_TRUST_RULE_H_
#define CAPSTAN_TRAINING_OPTIM_TRUST_RULE_H_

#include <cmath>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "training/chunks/flat_layout.h"
#include "training/norm/tensor_norms.h"
#include "training/optim/optimizer.h"

namespace capstan::training {

struct VersionUpdate;   // apply.h
struct VersionVectors;  // apply.h

class TrustRule {
 public:
  virtual ~TrustRule() = default;

  // Whether biases, scales and shifts have a ratio, too. False: they are updated with 1.
  virtual bool scales_all_tensors() const = 0;

  // The sum of the squares of the direction of n weights. Changes nothing. The arguments are those
  // of Optimizer::Apply; step.learning_rate is not known yet.
  virtual double DirectionSquares(const float* weights, const float* gradient, const float* state,
                                  size_t n, const RuleStep& step) const = 0;

  // The ratio of a tensor with these norms, above 0. `decay` as in RuleStep.
  virtual double Ratio(const TensorNorms& norms, bool decay) const = 0;
};

// Neither 0, nor infinite, nor a NaN. Otherwise a norm says nothing, and the ratio is 1.
inline bool IsUsable(double norm) { return norm > 0 && std::isfinite(norm); }

// For LeadOptions::pieces. Null: the optimizer has no trust rule.
std::shared_ptr<const TensorPieces> PiecesFor(const Optimizer& optimizer, const FlatLayout& layout);

// The tensors with weights that have a number in `range`: so many of FlatLayout::slots(), from `first`
// on. The padding behind a tensor counts as its numbers.
struct TensorRun {
  int32_t first = 0;
  int32_t count = 0;
};
TensorRun TensorsIn(const FlatLayout& layout, const FlatRange& range);

// Appends the squares of the pieces of `chunk`. Of `update`, gradient_scale and applied_steps are
// read; the gradient is the sum times gradient_scale. The vectors begin with the chunk; `out` is not
// used. The optimizer must have a trust rule.
void MeasureChunk(const FlatLayout& layout, const TensorPieces& pieces, int32_t chunk,
                  const Optimizer& optimizer, const VersionUpdate& update,
                  const VersionVectors& vectors, std::vector<PieceSquares>* out);

// The ratios for VersionUpdate::trust_ratios, from the norms of all tensors with weights. The
// direction counts with update.clip_factor, so it must be proportional to the gradient if that is
// not 1. The optimizer must have a trust rule.
std::vector<double> TrustRatios(const FlatLayout& layout, const Optimizer& optimizer,
                                const VersionUpdate& update, absl::Span<const TensorNorms> norms);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_TRUST_RULE_H_
