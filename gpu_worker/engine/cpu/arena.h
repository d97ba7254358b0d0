// Places all buffers of one block in one piece of memory. Buffers that are never needed at the same
// time may share a place.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_ARENA_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_ARENA_H_

#include <cstdint>
#include <vector>

namespace capstan::engine {

struct ArenaBuffer {
  int64_t bytes = 0;
  int first = 0, last = 0;  // needed from time `first` to time `last`, both included
  int64_t offset = 0;       // set by PlaceBuffers: a multiple of 64
};

// Sets the offsets and returns the size of the whole arena in bytes. Places the largest buffer
// first, each at the lowest place that is free during its life. Deterministic.
int64_t PlaceBuffers(std::vector<ArenaBuffer>& buffers);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_ARENA_H_
