#include "gpu_worker/engine/cpu/arena.h"

#include <algorithm>

#include "gpu_worker/engine/cpu/aligned.h"

namespace capstan::engine {

int64_t PlaceBuffers(std::vector<ArenaBuffer>& buffers) {
  std::vector<ArenaBuffer*> order;
  for (ArenaBuffer& buffer : buffers) order.push_back(&buffer);
  std::stable_sort(order.begin(), order.end(),
                   [](const ArenaBuffer* a, const ArenaBuffer* b) { return a->bytes > b->bytes; });
  std::vector<const ArenaBuffer*> placed;  // by offset
  int64_t total = 0;
  for (ArenaBuffer* const buffer : order) {
    const int64_t bytes = RoundUp(buffer->bytes, kTensorAlignBytes);
    int64_t offset = 0;
    for (const ArenaBuffer* const other : placed) {
      if (other->last < buffer->first || other->first > buffer->last) continue;
      if (offset + bytes <= other->offset) break;
      offset = std::max(offset, other->offset + RoundUp(other->bytes, kTensorAlignBytes));
    }
    buffer->offset = offset;
    total = std::max(total, offset + bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), buffer,
                                   [](const ArenaBuffer* a, const ArenaBuffer* b) {
                                     return a->offset < b->offset;
                                   }),
                  buffer);
  }
  return total;
}

}  // namespace capstan::engine
