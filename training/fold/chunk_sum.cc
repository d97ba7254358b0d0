#include "training/fold/chunk_sum.h"

#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/check/check.h"
#include "services/check/mutant.h"
#include "training/fold/add.h"

namespace capstan::training {
namespace {

constexpr std::align_val_t kAlign{64};

// The two ways in which a value arrives: as floats, or as bytes in pieces.
struct Floats {
  absl::Span<const float> value;

  void CopyTo(float* out) const { std::memcpy(out, value.data(), value.size() * sizeof(float)); }
  void AddTo(float* out) const { AddInto(out, value.data(), value.size()); }
};

struct Pieces {
  absl::Span<const absl::string_view> pieces;

  void CopyTo(float* out) const {
    char* to = reinterpret_cast<char*>(out);
    for (const absl::string_view piece : pieces) {
      if (piece.empty()) continue;
      std::memcpy(to, piece.data(), piece.size());
      to += piece.size();
    }
  }

  void AddTo(float* out) const {
    char split[sizeof(float)];  // a float that the border of two pieces cuts
    size_t split_size = 0;
    for (absl::string_view piece : pieces) {
      if (split_size > 0) {
        while (split_size < sizeof(float) && !piece.empty()) {
          split[split_size++] = piece.front();
          piece.remove_prefix(1);
        }
        if (split_size < sizeof(float)) continue;
        AddBytesInto(out++, absl::string_view(split, sizeof(split)));
      }
      split_size = piece.size() % sizeof(float);
      const size_t whole = piece.size() - split_size;
      AddBytesInto(out, piece.substr(0, whole));
      out += whole / sizeof(float);
      if (split_size > 0) std::memcpy(split, piece.data() + whole, split_size);
    }
  }
};

}  // namespace

void ChunkSum::Free::operator()(float* p) const { ::operator delete[](p, kAlign); }

template <typename Source>
struct ChunkSum::Values {
  ChunkSum& sum;
  const Source& source;

  void Drop(int32_t slot) { sum.free_slots_.push_back(slot); }
  void FoldNew(int32_t slot) { source.AddTo(sum.buffers_[slot].get()); }
  void Fold(int32_t left, int32_t right) {
    AddInto(sum.buffers_[left].get(), sum.buffers_[right].get(), sum.size_);
    Drop(right);
  }
  int32_t StoreNew() {
    const int32_t slot = sum.TakeSlot();
    source.CopyTo(sum.buffers_[slot].get());
    if (CAPSTAN_MUTANT("sum_in_arrival_order") && !sum.held_.entries().empty()) {
      float* const here = sum.buffers_[slot].get();
      AddInto(sum.buffers_[sum.held_.entries()[0].slot].get(), here, sum.size_);
      std::memset(here, 0, sum.size_ * sizeof(float));
    }
    return slot;
  }
};

ChunkSum::ChunkSum(LaneTree lanes, size_t size, ChunkSumOptions options)
    : held_(std::move(lanes), options.max_ahead_nodes), size_(size) {
  CAPSTAN_CHECK(size >= 1);
}

int32_t ChunkSum::TakeSlot() {
  if (free_slots_.empty()) {
    std::unique_ptr<float[], Free> buffer(
        static_cast<float*>(::operator new[](size_ * sizeof(float), kAlign)));
    buffers_.push_back(std::move(buffer));
    return static_cast<int32_t>(buffers_.size()) - 1;
  }
  const int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

template <typename Source>
absl::StatusOr<Outcome> ChunkSum::AddFrom(const Node& node, const Source& source) {
  absl::StatusOr<Outcome> outcome = held_.Check(node);
  if (outcome.ok() && *outcome == Outcome::kStored) {
    held_.Store(node, Values<Source>{*this, source});
  } else if (CAPSTAN_MUTANT("no_dedupe") && outcome.ok()) {
    source.AddTo(buffers_[held_.entries()[held_.FindCovering(node)].slot].get());
    return Outcome::kStored;
  }
  return outcome;
}

absl::StatusOr<Outcome> ChunkSum::Add(const Node& node, absl::Span<const float> value) {
  if (value.size() != size_) {
    return absl::InvalidArgumentError(absl::StrCat("value of node ", ToString(node), ": got ",
                                                   value.size(), " floats, want ", size_));
  }
  return AddFrom(node, Floats{value});
}

absl::StatusOr<Outcome> ChunkSum::AddBytes(const Node& node,
                                           absl::Span<const absl::string_view> pieces) {
  size_t bytes = 0;
  for (const absl::string_view piece : pieces) bytes += piece.size();
  if (bytes != size_ * sizeof(float)) {
    return absl::InvalidArgumentError(absl::StrCat("value of node ", ToString(node), ": got ",
                                                   bytes, " bytes, want ", size_ * sizeof(float)));
  }
  return AddFrom(node, Pieces{pieces});
}

absl::Span<const float> ChunkSum::Root() const {
  CAPSTAN_CHECK(complete());
  return {buffers_[held_.entries()[0].slot].get(), size_};
}

std::vector<Node> ChunkSum::Held() const {
  std::vector<Node> nodes;
  for (const HeldNodes::Entry& entry : held_.entries()) nodes.push_back(entry.node);
  return nodes;
}

absl::Span<const float> ChunkSum::Value(const Node& held) const {
  const int32_t at = held_.FindCovering(held);
  CAPSTAN_CHECK(at >= 0 && held_.entries()[at].node == held);
  return {buffers_[held_.entries()[at].slot].get(), size_};
}

void ChunkSum::Reset(const LaneTree& lanes) {
  CAPSTAN_CHECK(lanes.lane_count() == held_.lanes().lane_count());
  for (const HeldNodes::Entry& entry : held_.entries()) free_slots_.push_back(entry.slot);
  held_.Reset(lanes);
}

}  // namespace capstan::training
