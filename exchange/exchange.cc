#include "exchange/exchange.h"

#include "services/check/check.h"

namespace capstan::exchange {

// A task that is its own store is synchronous.
void Exchange::SendLaneSeal(int64_t, int32_t, const training::SealSums&, int64_t) {
  CAPSTAN_CHECK(false);
}
void Exchange::Skip(int64_t, int32_t) { CAPSTAN_CHECK(false); }
void Exchange::AskForWeights(int64_t, int32_t) { CAPSTAN_CHECK(false); }

}  // namespace capstan::exchange
