// The metadata by which the two ends of a stream agree on shared memory: a task or shard that can
// use it sends any value, and the shard's first message comes with an invitation (shared/door.h).
#ifndef CAPSTAN_EXCHANGE_TRANSPORT_SHARED_MEMORY_KEY_H_
#define CAPSTAN_EXCHANGE_TRANSPORT_SHARED_MEMORY_KEY_H_

namespace capstan::exchange {

inline constexpr char kSharedMemoryKey[] = "capstan-shared-memory";

}  // namespace capstan::exchange

#endif  // CAPSTAN_EXCHANGE_TRANSPORT_SHARED_MEMORY_KEY_H_
