// Streams without a card: one thread each, with events under one lock. Every piece of work may be
// delayed by a random time, so that an order that was not requested does not arise by chance.
//
// The environment, read when a group is made:
//   CAPSTAN_FAKE_GROUP  fault:D:K  plan D of the group fails in its K-th lane (from 0)
//                       hang:B     the sum of bucket B never ends
//                       lost       as hang:0, and the communicator reports it
#ifndef CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_FAKE_FAKE_STREAMS_H_
#define CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_FAKE_FAKE_STREAMS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "gpu_worker/engine/cuda/group.h"

namespace capstan::engine::cuda {

// A plan as its group uses it, by one thread at a time.
struct FakeMember {
  int device = 0;
  int64_t image_elements = 0;  // of one sample
  // Takes memory of the device; a negative number returns it. ResourceExhausted: there is not
  // enough.
  std::function<absl::Status(int64_t bytes)> take;
  std::function<void(const float* weights)> load;
  std::function<absl::Status(const capstan_batch&, double loss_scale, float* gradient,
                             capstan_result*)>
      train;
};

std::unique_ptr<GroupStreams> MakeFakeStreams(std::vector<FakeMember> members,
                                              std::vector<int64_t> bucket_ends, bool reduces);

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_FAKE_FAKE_STREAMS_H_
