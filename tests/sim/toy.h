// The arithmetic of the simulated training, and a plain computation of its result.
//
// A lane's gradient is a function of (weights, lane, step). Its values have such different
// exponents that the bits show every wrong order of summation, every lane that is missing or
// counted twice, and every gradient of other weights. With `by_lineage` it depends on the lineage,
// too (as in D0). Then a rollback changes what is learned, and the bits show a mixture of two
// histories.
#ifndef CAPSTAN_TESTS_SIM_TOY_H_
#define CAPSTAN_TESTS_SIM_TOY_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "training/chunks/flat_layout.h"
#include "training/fold/tree_fold.h"
#include "training/lanes/lane_tree.h"
#include "training/lanes/sample_plan.h"
#include "training/lead/lead.h"

namespace capstan::sim {

// Scaling the loss changes only the scale, because powers of two are exact.
// `nonfinite_lane` puts an infinity into its gradient of `nonfinite_step`.
struct Toy {
  int64_t nonfinite_step = -1;
  int32_t nonfinite_lane = -1;
  bool by_lineage = false;
  // Above 0: an fp16 job with a scaled loss, and lane 0 has an infinity if the scale is above this.
  // 0: the loss is not scaled.
  double overflow_above = 0;

  // Above 0: the gradient's norm is clipped to this.
  double clip_norm = 0;

  enum class Optimizer { kSgd, kLars, kLamb };
  Optimizer optimizer = Optimizer::kSgd;
  static constexpr double kEta = 100;  // of lars
  const char* optimizer_name() const {
    return optimizer == Optimizer::kLars ? "lars" : optimizer == Optimizer::kLamb ? "lamb" : "sgd";
  }

  // Above 0: the gradients of an asynchronous job with so many lanes count (counts.h).
  int32_t counted_lanes = 0;

  // Gradients fit into bfloat16, so that compression to it changes nothing.
  bool short_floats = false;

  // Gradients are compressed with error feedback (2bit), and checkpoints have the residuals.
  bool feedback = false;
  static constexpr double kThreshold = 1000;  // for the sum over a step's samples

  bool scaled() const { return overflow_above > 0; }
  // The gradient of the loss times `loss_scale`, a power of two. gradient.size() == weights.size().
  void Gradient(absl::Span<const float> weights, int64_t lineage, int32_t lane, int64_t step,
                double loss_scale, absl::Span<float> gradient) const;
  training::SealSums Seal(int32_t lane, int64_t step, int64_t samples) const;
};

// Computes the right weights of every version of every lineage, without shards, messages or our
// fold: by a recursive sum over the tree, and SGD, LARS or LAMB written plainly. With error feedback,
// a version has the residual of each lane.
class Histories {
 public:
  explicit Histories(Toy toy) : toy_(toy) {}

  // Call it once, before all other methods.
  void Begin(const job::v1::ResolvedSpec& spec);
  bool begun() const { return spec_.has_value(); }
  // A lineage continues from (base_lineage, base_version). base_lineage 0: the initial weights.
  // Returns the rule that this breaks, or "".
  std::string NoteLineage(int64_t lineage, int64_t base_lineage, int64_t base_version);
  // A shard carries out a decision. Returns the rule that this breaks, or "".
  std::string NoteDecision(int64_t lineage, const training::Decision& decision);
  // All decisions from step 0, in the history that the lineage continues.
  std::vector<training::Decision> Decisions(int64_t lineage) const;
  // Null: some of its decisions are not known yet.
  const std::vector<float>* At(int64_t lineage, int64_t version);
  // The version with which the lineage began.
  int64_t BaseOf(int64_t lineage) const { return bases_.at(lineage).second; }
  bool knows(int64_t lineage) const { return bases_.count(lineage) > 0; }

 private:
  using Key = std::pair<int64_t, int64_t>;  // lineage, step or version

  // The loss scale of a step, by the decisions before it. nullopt: some of them are not known yet.
  std::optional<double> ScaleAt(int64_t lineage, int64_t step) const;
  // The rule that the step's clip factor breaks, or "". Its norm is added up one by one here, so
  // the last bits may differ.
  std::string CheckClipFactor(int64_t lineage, const training::Decision& decision);
  // Likewise that of the norms of tensors.
  std::string CheckTensorNorms(int64_t lineage, const training::Decision& decision);

  // With the state of LAMB.
  struct Version {
    std::vector<float> weights, m, v;
    std::vector<std::vector<float>> residuals;  // by lane
  };
  // The gradient of a step, given its version: without a loss scale, not clipped. `left`, if not null:
  // the residuals behind it.
  std::vector<float> SumAt(int64_t lineage, int64_t step, const Version& version,
                           std::vector<std::vector<float>>* left = nullptr) const;
  // Null: some of its decisions are not known yet.
  const Version* Find(int64_t lineage, int64_t version);
  // What `sum`, clipped, moves the weights along, by LAMB. Changes m and v.
  static std::vector<float> LambDirection(Version& version, const std::vector<float>& sum,
                                          int64_t number);
  // Makes the next version, given the clipped sum.
  void Update(Version& version, const training::Decision& decision,
              const std::vector<float>& sum) const;

  const Toy toy_;
  std::optional<job::v1::ResolvedSpec> spec_;
  std::optional<training::SamplePlan> samples_;
  std::map<int64_t, Key> bases_;
  std::map<Key, training::Decision> decisions_;
  std::map<Key, Version> versions_;
  std::optional<training::FlatLayout> layout_;
};

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_TOY_H_
