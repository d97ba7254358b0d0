// The place of every tensor of a model in the job's one flat float32 vector, and how the vector is
// cut into chunks. Both are a function of the model alone, unless a chunk size is given. A job's
// resolved spec gives one, so that a job that an earlier version began keeps its chunks. The layout
// is the same on every worker and shard.
//
// Weights come first, layers in REVERSE order, so that buckets fill front to back during backward.
// The layer of a tensor is its name before the last '.'; inside a layer the given order stays.
// Running statistics (kStat) follow, layers in reverse order too. They start at the next chunk
// border, so that a chunk has only one kind. Every tensor begins at a multiple of 16 floats. The
// space between tensors is padding, which is always zero.
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
  kStat,    // running statistic; a moving average that only rule R3 changes
};

enum class TensorInit {
  kInitializer,  // the job's initializer
  kZeros,        // biases, shifts, running means
  kOnes,         // scales, running variances
};

struct TensorSpec {
  std::string name;            // each >= 1; empty means one element
  std::vector<int64_t> shape;  // each >= 1; empty: one element
  TensorKind kind = TensorKind::kWeight;
  TensorInit init = TensorInit::kInitializer;
  int64_t fan_in = 0;  // inputs of one output; >= 1 if init is kInitializer
  int64_t fan_out = 0;
  double momentum = 0;  // kStat: [0, 1], the fraction by which it moves towards a step's average
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

// The weights of a layer with their padding. They are ready for the wire once its backward is done.
struct LayerRange {
  std::string name;
  FlatRange range;
};

class FlatLayout {
 public:
  // Tensors in FORWARD order; those of a layer follow each other. InvalidArgument, naming the
  // tensor: there is no tensor, a name is empty or repeated, a layer is in two places, a dimension
  // or fan is below 1, a statistic's momentum is out of range, or one tensor or the padded total
  // has more than kMaxFlatFloats elements.
  //
  // `chunk_floats` must be a multiple of kSlotAlignFloats, fit into a frame and give at most
  // kMaxChunks (InvalidArgument otherwise). 0 selects the largest of the three sizes above that
  // cuts the weights into at least kManyChunks, else the smallest.
  static absl::StatusOr<FlatLayout> Create(std::vector<TensorSpec> forward_tensors,
                                           int64_t chunk_floats = 0);

  // Floats of the whole vector, padding included.
  int64_t total_floats() const { return total_floats_; }
  // Weights lie in [0, weight_floats()). Statistics begin at statistics_begin(). Padding lies
  // between them. Without statistics all three numbers are equal.
  int64_t weight_floats() const { return weight_floats_; }
  int64_t statistics_begin() const { return statistics_begin_; }
  bool has_statistics() const { return statistics_begin_ < total_floats_; }
  // Elements of all tensors of one kind, without padding.
  int64_t ElementCount(TensorKind kind) const;

  // slots() is in the order of offsets. forward_order() is for hashes and files: weights as given,
  // running statistics last.
  const std::vector<TensorSlot>& slots() const { return slots_; }
  std::vector<const TensorSlot*> forward_order() const;
  // Null if no tensor has this name.
  const TensorSlot* Find(absl::string_view name) const;
  // Layers that have weights, by offset, i.e. the last layer first.
  const std::vector<LayerRange>& layers() const { return layers_; }

  int64_t chunk_floats() const { return chunk_floats_; }
  int32_t chunk_count() const;
  // `chunk` in [0, chunk_count()). The last chunk may be shorter.
  FlatRange ChunkRange(int32_t chunk) const;
  TensorKind ChunkKind(int32_t chunk) const;

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
