// The values of one chunk while a step is summed up: carries out the commands of a ChunkFold (rules
// R1 and R6). An incoming value is read once: it is added straight to a held one, or copied.
//
// Memory: a buffer per slot, kept for the next step, so a steady step does not allocate. Threads:
// none of its own; calls on one object must not overlap.
#ifndef CAPSTAN_TRAINING_FOLD_CHUNK_SUM_H_
#define CAPSTAN_TRAINING_FOLD_CHUNK_SUM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "training/fold/chunk_fold.h"

namespace capstan::training {

class ChunkSum {
 public:
  // `size` floats per value, >= 1. Allocates nothing yet.
  explicit ChunkSum(size_t size);
  ChunkSum(ChunkSum&&) = default;
  ChunkSum& operator=(ChunkSum&&) = default;

  // Carries out the commands of one block. `value` is the block's: 4 * size() bytes of little-endian
  // floats, in pieces that are cut and aligned anywhere. It is not read after the call.
  void Do(const FoldCommands& commands, absl::Span<const absl::string_view> value);

  size_t size() const { return size_; }
  // The value of a slot that is in use.
  absl::Span<const float> Value(int32_t slot) const;
  // The slot of the last command: the sum over all lanes once the ChunkFold is complete.
  absl::Span<const float> Last() const { return Value(last_); }

  // The next step begins: forgets all values and keeps the buffers.
  void Reset() { last_ = -1; }
  // Bytes of all buffers, used or kept.
  size_t allocated_bytes() const { return buffers_.size() * size_ * sizeof(float); }

 private:
  struct Free {
    void operator()(float* p) const;
  };
  float* Buffer(int32_t slot);

  size_t size_;
  int32_t last_ = -1;
  std::vector<std::unique_ptr<float[], Free>> buffers_;  // by slot; 64-byte aligned
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_FOLD_CHUNK_SUM_H_
