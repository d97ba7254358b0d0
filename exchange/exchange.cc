#include "exchange/exchange.h"

#include <cstdint>
#include <vector>

#include "services/check/check.h"

namespace capstan::exchange {

std::vector<int64_t> CompleteWeights::SkippedSteps() const {
  std::vector<int64_t> steps;
  if (skipped) steps.push_back(version - 1);
  for (int bit = 0; bit < 64; ++bit) {
    if ((skipped_before >> bit & 1) != 0) steps.push_back(version - 2 - bit);
  }
  return steps;
}

// A task that is its own store is synchronous.
void Exchange::SendLaneSeal(int64_t, int32_t, const training::SealSums&, int64_t) {
  CAPSTAN_CHECK(false);
}
void Exchange::Skip(int64_t, int32_t) { CAPSTAN_CHECK(false); }
void Exchange::AskForWeights(int64_t, int32_t) { CAPSTAN_CHECK(false); }

}  // namespace capstan::exchange
