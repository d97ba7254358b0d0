// Fixed rules for which library kernels a plan may use, and a cache of objects made for a batch
// count. Plain host code.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_RULES_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_RULES_H_

#include <cstdint>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gpu_worker/engine/cuda/program.h"

namespace capstan::engine::cuda {

// cuDNN's notes about the numerics of an engine. The values are cuDNN's own; cudnn_graph.cc checks
// that.
enum class EngineNote {
  kTensorCore = 0,
  kDownConvertInputs = 1,
  kReducedPrecisionReduction = 2,
  kFft = 3,
  kNondeterministic = 4,
  kWinograd = 5,
  kWinogradTile4x4 = 6,
  kWinogradTile6x6 = 7,
  kWinogradTile13x13 = 8,
  kStrictNanPropagation = 9,
};

struct KernelRules {
  int32_t precision = CAPSTAN_PRECISION_FP32;
  bool deterministic = true;
};

// fp32 requires products of 24 bits: no tensor core (TF32 on float inputs), no rounded inputs, and
// no transform that loses more than a few bits. All precisions need sums in float32. Deterministic
// excludes engines that add in the order of arrival.
bool EngineAllowed(const std::vector<EngineNote>& notes, const KernelRules& rules);

// Checks a request's precision. InvalidArgument: it is not one.
absl::Status CheckPrecision(int32_t precision);

// Bytes per element of activations and of the kernels' copies of weights.
inline int64_t ElementBytes(int32_t precision) {
  return precision == CAPSTAN_PRECISION_BF16 || precision == CAPSTAN_PRECISION_FP16 ? 2 : 4;
}

// A piece of the gradient's read-back: [begin, end) of the flat vector may be copied once backward
// has done `stage`. In the order of backward.
struct ReadBack {
  int stage = 0;
  int64_t begin = 0, end = 0;
};
// At most two pieces. The first leaves as soon as half is ready, the second with the last stage.
std::vector<ReadBack> PlanReadBack(const CardProgram& program);

// Objects made for a batch count (library kernels, captured graphs). The least recently used one is
// dropped first. An ordinary job has four counts: whole and last lane, whole and last evaluation
// block.
template <typename Value>
class CountCache {
 public:
  explicit CountCache(size_t capacity) : capacity_(capacity) {}

  // Null if there is none. The pointer is valid until the next Insert.
  Value* Find(int64_t count) {
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (it->first != count) continue;
      entries_.splice(entries_.begin(), entries_, it);
      return &entries_.front().second;
    }
    return nullptr;
  }
  Value& Insert(int64_t count, Value value) {
    if (entries_.size() == capacity_) entries_.pop_back();
    entries_.emplace_front(count, std::move(value));
    return entries_.front().second;
  }
  size_t size() const { return entries_.size(); }
  void Clear() { entries_.clear(); }

 private:
  const size_t capacity_;
  std::list<std::pair<int64_t, Value>> entries_;  // most recently used first
};

// A captured graph belongs to one count and one of these.
enum class Pass { kTrain = 0, kEvaluate = 1, kPredict = 2 };
inline constexpr int kImageTypes = 3;  // capstan_image_type
inline constexpr int kGraphsPerCount = 3 * kImageTypes;
inline int GraphIndex(Pass pass, int image_type) {
  return static_cast<int>(pass) * kImageTypes + image_type;
}
// Bytes of one sample of `elements` in a batch.
inline int64_t SampleBytes(int image_type, int64_t elements) {
  return image_type == CAPSTAN_IMAGE_UINT8  ? elements
         : image_type == CAPSTAN_IMAGE_KEPT ? static_cast<int64_t>(sizeof(int32_t))
                                            : elements * static_cast<int64_t>(sizeof(float));
}

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_RULES_H_
