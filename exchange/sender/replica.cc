#include "exchange/sender/replica.h"

#include <algorithm>
#include <utility>

#include "services/check/check.h"
#include "services/check/mutant.h"
#include "training/codec/crc32c.h"
#include "training/optim/trust_rule.h"

namespace capstan::exchange::sender {

using training::ChunkRun;
using training::FlatRange;

Replica::Replica(const training::FlatLayout& layout,
                 std::shared_ptr<const training::Optimizer> optimizer)
    : layout_(layout),
      optimizer_(std::move(optimizer)),
      states_(optimizer_->state_floats_per_weight()),
      weights_(layout.total_floats()),
      state_(static_cast<size_t>(states_ * layout.total_floats())),
      versions_(static_cast<size_t>(layout.chunk_count()), -1) {}

void Replica::Reset() { std::fill(versions_.begin(), versions_.end(), -1); }

absl::Span<float> Replica::State(int32_t chunk) {
  const FlatRange range = layout_.ChunkRange(chunk);
  return absl::MakeSpan(state_).subspan(states_ * range.offset, states_ * range.size);
}

bool Replica::FitsRatios(const ChunkRun& run, int count) const {
  const bool wanted = optimizer_->trust_rule() != nullptr;
  return count ==
         (wanted ? training::TensorsIn(layout_, training::RangeOf(layout_, run)).count : 0);
}

std::vector<double> Replica::Ratios(const ChunkRun& run,
                                    absl::Span<const double> of_the_run) const {
  if (optimizer_->trust_rule() == nullptr) return {};
  const int32_t first = training::TensorsIn(layout_, training::RangeOf(layout_, run)).first;
  // ApplyVersion reads no ratio of a tensor outside of the range.
  std::vector<double> all(layout_.slots().size(), 1.0);
  std::copy(of_the_run.begin(), of_the_run.end(), all.begin() + first);
  return all;
}

void Replica::Take(int64_t version, int32_t chunk, wire::Pieces weights, wire::Pieces state) {
  if (version < versions_[chunk]) return;
  const FlatRange range = layout_.ChunkRange(chunk);
  wire::CopyFloats(weights, weights_.span().subspan(range.offset, range.size));
  if (states_ > 0 && !CAPSTAN_MUTANT("state_stays_behind")) wire::CopyFloats(state, State(chunk));
  versions_[chunk] = version;
}

Replica::Outcome Replica::Make(int64_t version, int32_t chunk,
                               const training::VersionUpdate& update, const wire::Pieces* sum,
                               uint32_t made) {
  int64_t& here = versions_[chunk];
  const bool again = version == here && CAPSTAN_MUTANT("a_sum_counts_again");
  if (version <= here && !again) return Outcome::kPast;
  if (version != here + 1 && !again && !CAPSTAN_MUTANT("a_sum_fits_any_version")) {
    return Outcome::kMissing;
  }
  const FlatRange range = layout_.ChunkRange(chunk);
  float* const weights = weights_.data() + range.offset;
  if (sum != nullptr) {
    sum_.resize(static_cast<size_t>(range.size));
    wire::CopyFloats(*sum, absl::MakeSpan(sum_));
    training::ApplyVersion(layout_, range, *optimizer_, update,
                           {.out = weights,
                            .in = weights,
                            .sum = sum_.data(),
                            .state = states_ == 0 ? nullptr : State(chunk).data()});
  }
  const bool same = training::Crc32c(weights, sizeof(float) * range.size) == made;
  // The check would find these bugs.
  const bool checked = !CAPSTAN_MUTANT("a_sum_counts_again") &&
                       !CAPSTAN_MUTANT("a_sum_fits_any_version") &&
                       !CAPSTAN_MUTANT("state_stays_behind");
  here = same || !checked ? version : -1;
  return here == version ? Outcome::kMade : Outcome::kDiffers;
}

absl::Span<const float> Replica::weights(int32_t chunk) const {
  const FlatRange range = layout_.ChunkRange(chunk);
  return weights_.span().subspan(range.offset, range.size);
}

int64_t Replica::LowestVersion(const ChunkRun& run) const {
  const auto first = versions_.begin() + run.first_chunk;
  return *std::min_element(first, first + run.chunk_count);
}

}  // namespace capstan::exchange::sender
