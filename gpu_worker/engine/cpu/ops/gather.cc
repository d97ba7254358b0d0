// Gather: rows of a table for 16 samples at once.
//
// The table is either a value, with a table for each sample, or a Parameter that nobody else reads,
// which is taken from the weights (ReadsParameterFromWeights). Then no sample has a copy of the
// table or of its gradient, and each block has sums only for the rows that it names.
#include "training/ops/gather/gather.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "gpu_worker/engine/cpu/blocked/block_sums.h"
#include "gpu_worker/engine/cpu/blocked/kernel.h"
#include "gpu_worker/engine/cpu/blocked/runs.h"

namespace capstan::engine {
namespace {

// An index of a block: its row, then its sample, then its place among the sample's indices. Sorted,
// they are in the order in which the reference adds.
using IndexKey = uint64_t;
constexpr int kPlaceBits = 36, kSampleBits = 4;
IndexKey KeyOf(int64_t row, int64_t sample, int64_t place) {
  return (static_cast<IndexKey>(row) << (kPlaceBits + kSampleBits)) |
         (static_cast<IndexKey>(sample) << kPlaceBits) | static_cast<IndexKey>(place);
}
int64_t RowOf(IndexKey key) { return static_cast<int64_t>(key >> (kPlaceBits + kSampleBits)); }
int64_t SampleOf(IndexKey key) {
  return static_cast<int64_t>(key >> kPlaceBits) & ((int64_t{1} << kSampleBits) - 1);
}
int64_t PlaceOf(IndexKey key) {
  return static_cast<int64_t>(key & ((IndexKey{1} << kPlaceBits) - 1));
}

class GatherKernel {
 public:
  GatherKernel(const training::OpInstance& op, const NodePlaces& places)
      : rows_(op.x[0].shape[0]),
        size_(training::Elements(op.x[0].shape) / rows_),
        indices_(training::Elements(op.x[1].shape)),
        offset_(places.of_input(0)),
        places_(places) {}

  absl::Status Make(NodePhases& phases, const std::shared_ptr<GatherKernel>& self) {
    phases.kernel = "rows";
    const int64_t cuts =
        std::min(indices_, CeilDivide(indices_ * size_ * kSideBySide, kPieceFloats));
    phases.forward.push_back({0, [cuts](const BatchRun& run) { return run.blocks * cuts; },
                              [self, cuts](const BatchRun& run, int64_t piece, char*) {
                                const int64_t cut = piece % cuts;
                                for (int64_t i = self->indices_ * cut / cuts;
                                     i < self->indices_ * (cut + 1) / cuts; ++i) {
                                  self->CopyRows(run, piece / cuts, i);
                                }
                              }});
    if (!places_.backward) return absl::OkStatus();
    if (offset_ >= 0) {
      const absl::Status status = TakeMemory(phases);
      if (!status.ok()) return status;
    }
    phases.backward.push_back({ScratchBytes(), [](const BatchRun& run) { return run.blocks; },
                               [self](const BatchRun& run, int64_t block, char* scratch) {
                                 self->Backward(run, block, scratch);
                               }});
    if (offset_ < 0) return absl::OkStatus();
    phases.backward.push_back(
        SumsOfLanes(places_, rows_ * size_, offset_,
                    [self](int64_t block, int64_t first, int64_t size, double* totals) {
                      self->AddBlock(block, first, size, totals);
                    }));
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kColumns = 64;  // of a row, summed at once

  const float* IndicesOf(int64_t block, int64_t place) const {
    return places_.x[1] + (block * indices_ + place) * kSideBySide;
  }

  // ---- Forward ----

  void CopyRows(const BatchRun& run, int64_t block, int64_t place) const {
    const float* const indices = IndicesOf(block, place);
    int64_t rows[kSideBySide];
    for (int64_t l = 0; l < kSideBySide; ++l) {
      rows[l] = training::RowOfIndex(static_cast<double>(indices[l]), rows_);
    }
    float* const y = places_.y + (block * indices_ + place) * size_ * kSideBySide;
    if (offset_ >= 0) return CopyWeights(run.weights + offset_, rows, y);
    const float* const table = places_.x[0] + block * rows_ * size_ * kSideBySide;
    for (int64_t l = 0; l < kSideBySide; ++l) {
      const float* const row = table + rows[l] * size_ * kSideBySide + l;
      for (int64_t e = 0; e < size_; ++e) {
        y[e * kSideBySide + l] = rows[l] >= 0 ? row[e * kSideBySide] : 0.0f;
      }
    }
  }

  void CopyWeights(const float* table, const int64_t* rows, float* y) const {
    alignas(64) float square[kSideBySide * kSideBySide];
    int64_t e = 0;
    for (; e + kSideBySide <= size_; e += kSideBySide) {
      for (int64_t l = 0; l < kSideBySide; ++l) {
        float* const to = square + l * kSideBySide;
        if (rows[l] >= 0) {
          std::copy_n(table + rows[l] * size_ + e, kSideBySide, to);
        } else {
          std::fill_n(to, kSideBySide, 0.0f);
        }
      }
      places_.math->transpose(square, kSideBySide, y + e * kSideBySide, kSideBySide);
    }
    for (; e < size_; ++e) {
      for (int64_t l = 0; l < kSideBySide; ++l) {
        y[e * kSideBySide + l] = rows[l] >= 0 ? table[rows[l] * size_ + e] : 0.0f;
      }
    }
  }

  // ---- Backward ----

  int64_t ScratchBytes() const {
    return kColumns * kSideBySide * 4 +
           indices_ * kSideBySide * static_cast<int64_t>(sizeof(IndexKey));
  }

  // Memory for the sums of each block. `slots_`: how many rows a block can name.
  absl::Status TakeMemory(NodePhases& phases) {
    slots_ = std::min(rows_, indices_ * kSideBySide);
    absl::StatusOr<float*> sums =
        KernelMemory(phases, places_.max_blocks * slots_ * size_, phases.scratch_bytes);
    if (!sums.ok()) return sums.status();
    sums_ = *sums;
    static_assert(sizeof(int32_t) == sizeof(float));
    absl::StatusOr<float*> named =
        KernelMemory(phases, places_.max_blocks * slots_, phases.scratch_bytes);
    if (!named.ok()) return named.status();
    named_ = reinterpret_cast<int32_t*>(*named);
    named_count_.assign(static_cast<size_t>(places_.max_blocks), 0);
    return absl::OkStatus();
  }

  void Backward(const BatchRun& run, int64_t block, char* scratch) {
    auto* const values = reinterpret_cast<float*>(scratch);
    auto* const keys = reinterpret_cast<IndexKey*>(values + kColumns * kSideBySide);
    const NodePlaces::Gradient &dtable = places_.dx[0], &dindices = places_.dx[1];
    const int64_t of_table = rows_ * size_ * kSideBySide, of_indices = indices_ * kSideBySide;
    const bool to_value = dtable.data != nullptr;
    if (to_value) AddNothing(dtable.data + block * of_table, of_table, dtable.add);
    if (to_value || offset_ >= 0) {
      const IndexKey* const end = SortedKeys(run, block, keys);
      int64_t slot = 0;
      for (const IndexKey *from = keys, *to = from; from < end; from = to, ++slot) {
        while (to < end && RowOf(*to) == RowOf(*from)) ++to;
        SumRow(block, from, to, slot, values);
      }
      if (offset_ >= 0) named_count_[static_cast<size_t>(block)] = slot;
    }
    if (dindices.data != nullptr) {
      AddNothing(dindices.data + block * of_indices, of_indices, dindices.add);
    }
  }

  // Returns their end.
  IndexKey* SortedKeys(const BatchRun& run, int64_t block, IndexKey* keys) const {
    const int64_t there = run.InBlock(block);
    IndexKey* end = keys;
    for (int64_t i = 0; i < indices_; ++i) {
      const float* const indices = IndicesOf(block, i);
      for (int64_t l = 0; l < there; ++l) {
        const int64_t row = training::RowOfIndex(static_cast<double>(indices[l]), rows_);
        if (row >= 0) *end++ = KeyOf(row, l, i);
      }
    }
    std::sort(keys, end);
    return end;
  }

  // The gradient by the row that [from, to) names.
  void SumRow(int64_t block, const IndexKey* from, const IndexKey* to, int64_t slot,
              float* values) const {
    const int64_t row = RowOf(*from);
    for (int64_t first = 0; first < size_; first += kColumns) {
      const int64_t columns = std::min(kColumns, size_ - first);
      SumSamples(block, from, to, first, columns, values);
      if (offset_ < 0) {
        float* const dtable =
            places_.dx[0].data + ((block * rows_ + row) * size_ + first) * kSideBySide;
        places_.math->copy(columns * kSideBySide, values, dtable, /*add=*/true);
      } else {
        float* const sums = sums_ + (block * slots_ + slot) * size_ + first;
        places_.math->sum_samples(columns, values, sums);
      }
    }
    if (offset_ >= 0) named_[block * slots_ + slot] = static_cast<int32_t>(row);
  }

  // values[columns][16]: each sample's sum over its indices, in double; 0 for a sample without any.
  void SumSamples(int64_t block, const IndexKey* from, const IndexKey* to, int64_t first,
                  int64_t columns, float* values) const {
    std::fill_n(values, columns * kSideBySide, 0.0f);
    while (from < to) {
      const int64_t sample = SampleOf(*from);
      double sums[kColumns] = {};
      for (; from < to && SampleOf(*from) == sample; ++from) {
        const float* const dy =
            places_.dy + ((block * indices_ + PlaceOf(*from)) * size_ + first) * kSideBySide +
            sample;
        for (int64_t e = 0; e < columns; ++e) sums[e] += static_cast<double>(dy[e * kSideBySide]);
      }
      for (int64_t e = 0; e < columns; ++e) {
        values[e * kSideBySide + sample] = static_cast<float>(sums[e]);
      }
    }
  }

  // Adds what a block has of the numbers [first, first + size) of the table.
  void AddBlock(int64_t block, int64_t first, int64_t size, double* totals) const {
    const int32_t* const named = named_ + block * slots_;
    const int32_t* const end = named + named_count_[static_cast<size_t>(block)];
    const auto begin_row = static_cast<int32_t>(first / size_);
    for (const int32_t* at = std::lower_bound(named, end, begin_row); at < end; ++at) {
      const int64_t of_row = *at * size_;
      if (of_row >= first + size) break;
      const int64_t begin = std::max(first, of_row), last = std::min(first + size, of_row + size_);
      const float* const sums = sums_ + (block * slots_ + (at - named)) * size_ - of_row;
      for (int64_t i = begin; i < last; ++i) totals[i - first] += static_cast<double>(sums[i]);
    }
  }

  const int64_t rows_, size_;  // of the table
  const int64_t indices_;      // of a sample
  const int64_t offset_;       // of the table in the weights, or -1
  const NodePlaces places_;
  // By block, if the table is in the weights: the rows that it names, and their sums.
  int64_t slots_ = 0;
  float* sums_ = nullptr;     // [blocks][slots_][size_]
  int32_t* named_ = nullptr;  // [blocks][slots_], in rising order
  std::vector<int64_t> named_count_;
};

}  // namespace

absl::StatusOr<NodePhases> MakeGatherPhases(const training::Graph& graph, int node,
                                            const NodePlaces& places) {
  NodePhases phases;
  const auto kernel = std::make_shared<GatherKernel>(graph.instance(node), places);
  const absl::Status status = kernel->Make(phases, kernel);
  if (!status.ok()) return status;
  return phases;
}

}  // namespace capstan::engine
