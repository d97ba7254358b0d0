#include "coordinator/core/lane_paces.h"

#include <algorithm>

namespace capstan::coordinator::core {
namespace {

constexpr int kMaxRedeals = 30;
constexpr absl::Duration kRedealsForgiven = absl::Minutes(5);

}  // namespace

void LanePaces::NoteWeighed(int64_t generation, absl::Duration now) {
  if (IsNew(generation)) uneven_ = 0;
  generation_ = generation;
  weighed_at_ = now;
}

bool LanePaces::Moves(bool uneven, bool tried, absl::Duration now) {
  uneven_ = uneven ? uneven_ + 1 : 0;
  if (now - redealt_at_ >= kRedealsForgiven) redeals_ = 0;
  if (tried) return true;
  if (uneven_ < kUnevenInARow + std::min(redeals_, kMaxRedeals)) return false;
  ++redeals_;
  redealt_at_ = now;
  return true;
}

}  // namespace capstan::coordinator::core
