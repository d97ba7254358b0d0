// Puts versions of the weights together from chunks that come in any order from several shards.
//
// Shards differ by at most one version, but one stream may be far behind another, so more than one
// version can be under way. A version that completes overtakes the older ones.
//
// Threads: none of its own; one strand.
#ifndef CAPSTAN_EXCHANGE_WEIGHT_ASSEMBLY_H_
#define CAPSTAN_EXCHANGE_WEIGHT_ASSEMBLY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "exchange/exchange.h"
#include "exchange/float_buffer.h"
#include "training/chunks/flat_layout.h"

namespace capstan::exchange {

class WeightAssembly {
 public:
  // Borrows both.
  WeightAssembly(const training::FlatLayout& layout, BufferPool& pool);

  // Forgets everything (rule R7).
  void Reset(int64_t lineage);

  // The newest complete version; -1: none.
  int64_t complete() const { return complete_; }

  // Where the bytes of (version, chunk) belong; empty where the version is not newer than
  // complete(). Writing a chunk again is harmless: nobody reads before the version is complete.
  absl::Span<float> Destination(int64_t version, int32_t chunk, absl::Duration now);

  // The chunk is written; its frame said this. `loss_scale` 0: it did not say one. The version,
  // once this was its last chunk.
  struct Said {
    bool stop = false;
    bool evaluate = false;
    double loss_scale = 0;
    bool skipped = false;
    bool saved = false;
    uint64_t skipped_before = 0;
  };
  std::optional<CompleteWeights> Arrived(int64_t version, int32_t chunk, const Said& said,
                                         absl::Duration now);

  // Versions under way.
  size_t pending() const { return pending_.size(); }

 private:
  struct Pending {
    std::shared_ptr<FloatBuffer> buffer;
    std::vector<bool> here;  // by chunk
    int32_t missing = 0;
    bool stop = false;
    bool evaluate = false;
    bool skipped = false;
    bool saved = false;
    uint64_t skipped_before = 0;
    double loss_scale = 1;
    absl::Duration began;
  };

  const training::FlatLayout& layout_;
  BufferPool& pool_;
  int64_t lineage_ = 0;
  int64_t complete_ = -1;
  std::map<int64_t, Pending> pending_;  // by version
};

}  // namespace capstan::exchange

#endif  // CAPSTAN_EXCHANGE_WEIGHT_ASSEMBLY_H_
