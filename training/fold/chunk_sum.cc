#include "training/fold/chunk_sum.h"

#include <cstring>
#include <new>

#include "services/check/check.h"
#include "services/check/mutant.h"
#include "training/fold/add.h"

namespace capstan::training {
namespace {

constexpr std::align_val_t kAlign{64};

void Copy(absl::Span<const absl::string_view> pieces, float* out) {
  char* to = reinterpret_cast<char*>(out);
  for (const absl::string_view piece : pieces) {
    if (piece.empty()) continue;
    std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
}

void Add(absl::Span<const absl::string_view> pieces, float* out) {
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

}  // namespace

void ChunkSum::Free::operator()(float* p) const { ::operator delete[](p, kAlign); }

ChunkSum::ChunkSum(size_t size) : size_(size) { CAPSTAN_CHECK(size >= 1); }

float* ChunkSum::Buffer(int32_t slot) {
  CAPSTAN_CHECK(slot >= 0 && slot <= static_cast<int32_t>(buffers_.size()));
  if (slot == static_cast<int32_t>(buffers_.size())) {
    buffers_.emplace_back(static_cast<float*>(::operator new[](size_ * sizeof(float), kAlign)));
  }
  return buffers_[slot].get();
}

void ChunkSum::Do(const FoldCommands& commands, absl::Span<const absl::string_view> value) {
  size_t bytes = 0;
  for (const absl::string_view piece : value) bytes += piece.size();
  CAPSTAN_CHECK(bytes == size_ * sizeof(float));
  for (const FoldCommand& command : commands) {
    float* const here = Buffer(command.slot);
    switch (command.kind) {
      case FoldCommand::Kind::kTake:
        Copy(value, here);
        if (CAPSTAN_MUTANT("sum_in_arrival_order") && last_ >= 0 && last_ != command.slot) {
          AddInto(Buffer(last_), here, size_);
          std::memset(here, 0, size_ * sizeof(float));
        }
        break;
      case FoldCommand::Kind::kAdd:
        Add(value, here);
        break;
      case FoldCommand::Kind::kFold:
        AddInto(here, Buffer(command.from), size_);
        break;
    }
    last_ = command.slot;
  }
}

absl::Span<const float> ChunkSum::Value(int32_t slot) const {
  CAPSTAN_CHECK(slot >= 0 && slot < static_cast<int32_t>(buffers_.size()));
  return {buffers_[slot].get(), size_};
}

}  // namespace capstan::training
