// Where every tensor of a model lies in the job's one flat float32 vector, and how the vector is
// cut into chunks. A function of the model alone, unless a size of chunks is given: then they have that size (a job's resolved
// spec says it, so that a job that an earlier version began keeps its chunks). The same on every worker and shard.
//
// Weights come first, layers in REVERSE order (the layer of a tensor is its name before the last
// '.'; inside a layer the given order), so that buckets fill front to back during backward. Running
// statistics (kStat) follow, layers in reverse order too, from the next chunk border on, so that a
// chunk has one kind. Every tensor begins at a multiple of 16 floats; what lies between tensors is
// padding and zero for ever.
//
// Threads: const methods may be called from many threads.
#ifndef CAPSTAN_TRAINING_CHUNKS_FLAT_LAYOUT_H_
#define CAPSTAN_TRAINING_CHUNKS_FLAT_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::training {

inline constexpr int64_t kSlotAlignFloats = 16;              // 64 bytes
inline constexpr int64_t kMaxFlatFloats = int64_t{1} << 31;  // 8 GiB of weights
inline constexpr int64_t kSmallChunkFloats = 512;            // 2 KiB
inline constexpr int64_t kMediumChunkFloats = 4096;          // 16 KiB
inline constexpr int64_t kChunkFloats = 16384;               // 64 KiB
inline constexpr int64_t kManyChunks = 160;                  // 20 for each of 8 shards
inline constexpr int64_t kMaxChunks = kMaxFlatFloats / kChunkFloats;
inline constexpr int64_t kDefaultMaxFramePayloadBytes = 1 << 20;  // 1 MiB

enum class TensorKind {
  kWeight,  // has a gradient; summed, clipped, decayed, updated by the optimizer
  kStat,    // running statistic; a moving average, nothing else touches it (rule R3)
};

enum class TensorInit {
  kInitializer,  // the job's initializer
  kZeros,        // biases, shifts, running means
  kOnes,         // scales, running variances
};

struct TensorSpec {
  std::string name;            // "conv1.weight"; unique, not empty
  std::vector<int64_t> shape;  // each >= 1; empty: one element
  TensorKind kind = TensorKind::kWeight;
  TensorInit init = TensorInit::kInitializer;
  int64_t fan_in = 0;  // inputs of one output; >= 1 where init is kInitializer
  int64_t fan_out = 0;
  double momentum = 0;  // kStat: [0, 1], the part of the way that it goes towards a step's average
};

// [offset, offset + size) of the flat vector, in floats.
struct FlatRange {
  int64_t offset = 0;
  int64_t size = 0;
  int64_t end() const { return offset + size; }
  friend bool operator==(const FlatRange& a, const FlatRange& b) {
    return a.offset == b.offset && a.size == b.size;
  }
};

struct TensorSlot {
  TensorSpec spec;
  int32_t index = 0;   // place in forward order
  int64_t offset = 0;  // floats from the start of the flat vector
  int64_t size = 0;    // floats, without padding
  FlatRange range() const { return {offset, size}; }
};

// The weights of a layer, padding included: ready for the wire once its backward is done.
struct LayerRange {
  std::string name;
  FlatRange range;
};

class FlatLayout {
 public:
  // Tensors in FORWARD order; those of a layer follow each other. InvalidArgument, naming the
  // tensor: no tensor, an empty or repeated name, a layer in two places, a dimension or fan below
  // 1, a statistic's momentum outside its range, more than kMaxFlatFloats elements in one tensor or
  // in all with padding.
  //
  // `chunk_floats`: a multiple of kSlotAlignFloats that fits into a frame and makes at most kMaxChunks (InvalidArgument
  // otherwise). 0: the largest of the three above that makes kManyChunks of the weights, else the small one.
  static absl::StatusOr<FlatLayout> Create(std::vector<TensorSpec> forward_tensors,
                                           int64_t chunk_floats = 0);

  // Floats of the whole vector, padding included.
  int64_t total_floats() const { return total_floats_; }
  // Weights lie in [0, weight_floats()), statistics from statistics_begin() on; between them is
  // padding. Without statistics all three numbers are the same.
  int64_t weight_floats() const { return weight_floats_; }
  int64_t statistics_begin() const { return statistics_begin_; }
  bool has_statistics() const { return statistics_begin_ < total_floats_; }
  // Elements of the tensors without padding, of one kind.
  int64_t ElementCount(TensorKind kind) const;

  // In the order of their offsets, and in forward order (for hashes and files: weights as given,
  // running statistics last).
  const std::vector<TensorSlot>& slots() const { return slots_; }
  std::vector<const TensorSlot*> forward_order() const;
  // Null where there is none.
  const TensorSlot* Find(absl::string_view name) const;
  // Layers that have weights, by offset, i.e. the last layer first.
  const std::vector<LayerRange>& layers() const { return layers_; }

  int64_t chunk_floats() const { return chunk_floats_; }
  int32_t chunk_count() const;
  // `chunk` in [0, chunk_count()). The last chunk may be shorter.
  FlatRange ChunkRange(int32_t chunk) const;
  TensorKind ChunkKind(int32_t chunk) const;
  // How many of the first chunks lie wholly in [0, ready_end), where ready_end is the end of a
  // layer's range. The last chunk of the weights counts once all weights are ready.
  int32_t CompleteChunks(int64_t ready_end) const;

 private:
  FlatLayout() = default;

  std::vector<TensorSlot> slots_;
  std::vector<int32_t> forward_;  // slot of each tensor: weights in forward order, then statistics
  std::vector<LayerRange> layers_;
  int64_t weight_floats_ = 0;
  int64_t statistics_begin_ = 0;
  int64_t total_floats_ = 0;
  int64_t chunk_floats_ = 0;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_CHUNKS_FLAT_LAYOUT_H_
