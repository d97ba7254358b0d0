// The arithmetic of the simulated training, and its result computed plainly.
//
// A lane's gradient is a function of (weights, lane, step) whose values have wide exponents, so
// that every other order of summation, every lane missing or counted twice and every gradient of
// other weights shows in the bits. Where `by_lineage`, it is a function of the lineage too (as in
// D0): then a rollback changes what is learned, and whatever mixes two histories shows.
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
#include "training/fold/tree_fold.h"
#include "training/lanes/lane_tree.h"
#include "training/lanes/sample_plan.h"
#include "training/lead/lead.h"

namespace capstan::sim {

// A scaled loss shows in nothing but the scale: powers of two are exact.
// `nonfinite_lane` of `nonfinite_step` puts an infinity into its gradient.
struct Toy {
  int64_t nonfinite_step = -1;
  int32_t nonfinite_lane = -1;
  bool by_lineage = false;
  // The job is of fp16: its loss is scaled. With a scale above this lane 0 has an infinity; 0: none is
  // scaled.
  double overflow_above = 0;

  bool scaled() const { return overflow_above > 0; }
  // Of the loss times `loss_scale`, a power of two. gradient.size() == weights.size().
  void Gradient(absl::Span<const float> weights, int64_t lineage, int32_t lane, int64_t step,
                double loss_scale, absl::Span<float> gradient) const;
  training::SealSums Seal(int32_t lane, int64_t step, int64_t samples) const;
};

// What the weights of every version of every lineage must be, without shards, messages or our fold:
// a recursive sum over the tree and one line of SGD.
class Histories {
 public:
  explicit Histories(Toy toy) : toy_(toy) {}

  // Once, before all else.
  void Begin(const job::v1::ResolvedSpec& spec);
  bool begun() const { return spec_.has_value(); }
  // A lineage goes on from (base_lineage, base_version); base_lineage 0: the initial weights. What
  // breaks a rule is said; empty: nothing.
  std::string NoteLineage(int64_t lineage, int64_t base_lineage, int64_t base_version);
  // A shard carries a decision out.
  std::string NoteDecision(int64_t lineage, const training::Decision& decision);
  // Of the history that the lineage stands in, from step 0.
  std::vector<training::Decision> Decisions(int64_t lineage) const;
  // Null: nobody can know that version yet.
  const std::vector<float>* At(int64_t lineage, int64_t version);
  // The version that the lineage began with.
  int64_t BaseOf(int64_t lineage) const { return bases_.at(lineage).second; }
  bool knows(int64_t lineage) const { return bases_.count(lineage) > 0; }

 private:
  using Key = std::pair<int64_t, int64_t>;  // lineage, step or version

  // That the loss of a step is scaled with, by the decisions before it; nullopt: nobody can know yet.
  std::optional<double> ScaleAt(int64_t lineage, int64_t step) const;

  const Toy toy_;
  std::optional<job::v1::ResolvedSpec> spec_;
  std::optional<training::SamplePlan> samples_;
  std::map<int64_t, Key> bases_;
  std::map<Key, training::Decision> decisions_;
  std::map<Key, std::vector<float>> versions_;
};

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_TOY_H_
