#include "training/chunks/flat_layout.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/check/check.h"

namespace capstan::training {
namespace {

int64_t AlignUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

absl::string_view LayerOf(absl::string_view tensor_name) {
  const size_t dot = tensor_name.rfind('.');
  return dot == absl::string_view::npos ? tensor_name : tensor_name.substr(0, dot);
}

absl::Status TooLarge(absl::string_view what, absl::string_view got) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": ", got, " exceeds ", kMaxFlatFloats, " elements"));
}

// Never returns more than kMaxFlatFloats, so that products and sums stay far from overflow.
absl::StatusOr<int64_t> ElementsOf(const TensorSpec& spec) {
  int64_t elements = 1;
  for (size_t i = 0; i < spec.shape.size(); ++i) {
    if (spec.shape[i] < 1) {
      return absl::InvalidArgumentError(absl::StrCat("parameter ", spec.name, ": dimension ", i,
                                                     ": got ", spec.shape[i], ", want at least 1"));
    }
    if (spec.shape[i] > kMaxFlatFloats / elements) {
      return TooLarge(absl::StrCat("parameter ", spec.name), absl::StrJoin(spec.shape, "x"));
    }
    elements *= spec.shape[i];
  }
  return elements;
}

absl::Status CheckSpec(const TensorSpec& spec) {
  if (spec.name.empty()) {
    return absl::InvalidArgumentError("parameter: got an empty name, want one");
  }
  if (spec.init == TensorInit::kInitializer && (spec.fan_in < 1 || spec.fan_out < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("parameter ", spec.name,
                                                   ": fan_in and fan_out: got ", spec.fan_in,
                                                   " and ", spec.fan_out, ", want at least 1"));
  }
  if (spec.kind == TensorKind::kStat && !(spec.momentum >= 0 && spec.momentum <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter ", spec.name, ": momentum: got ", spec.momentum, ", want 0 to 1"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FlatLayout> FlatLayout::Create(std::vector<TensorSpec> forward_tensors,
                                              int64_t chunk_floats) {
  if (forward_tensors.empty()) {
    return absl::InvalidArgumentError("parameters: got none, want at least 1");
  }
  // Runs of tensors of one layer, in forward order.
  struct Layer {
    std::string name;
    std::vector<TensorSlot> slots;
  };
  std::vector<Layer> layers;
  std::set<std::string> tensor_names;
  std::set<std::string> layer_names;
  int64_t weights = 0;
  int64_t total = 0;
  for (size_t i = 0; i < forward_tensors.size(); ++i) {
    TensorSpec& spec = forward_tensors[i];
    if (absl::Status status = CheckSpec(spec); !status.ok()) return status;
    if (!tensor_names.insert(spec.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter ", spec.name, ": got the name twice, want it once"));
    }
    absl::StatusOr<int64_t> elements = ElementsOf(spec);
    if (!elements.ok()) return elements.status();
    total += AlignUp(*elements, kSlotAlignFloats);
    if (total > kMaxFlatFloats) {
      return TooLarge(absl::StrCat("parameter ", spec.name),
                      absl::StrCat("with those before it and padding ", total));
    }
    if (spec.kind == TensorKind::kWeight) weights += *elements;
    const std::string layer(LayerOf(spec.name));
    if (layers.empty() || layers.back().name != layer) {
      if (!layer_names.insert(layer).second) {
        return absl::InvalidArgumentError(absl::StrCat("parameter ", spec.name, ": got layer ",
                                                       layer, " in two places, want one"));
      }
      layers.push_back({layer, {}});
    }
    TensorSlot slot;
    slot.spec = std::move(spec);
    slot.index = static_cast<int32_t>(i);
    slot.size = *elements;
    layers.back().slots.push_back(std::move(slot));
  }

  FlatLayout layout;
  layout.chunk_floats_ = chunk_floats;
  for (const int64_t size : {kChunkFloats, kMediumChunkFloats, kSmallChunkFloats}) {
    if (chunk_floats != 0) break;
    layout.chunk_floats_ = size;
    if (weights >= kManyChunks * size) break;
  }
  if (layout.chunk_floats_ < kSlotAlignFloats || layout.chunk_floats_ % kSlotAlignFloats != 0 ||
      layout.chunk_floats_ * static_cast<int64_t>(sizeof(float)) > kDefaultMaxFramePayloadBytes) {
    return absl::InvalidArgumentError(absl::StrCat("chunks: got ", chunk_floats,
                                                   " floats each, want a multiple of ",
                                                   kSlotAlignFloats, " that fits into a frame"));
  }
  int64_t offset = 0;
  const auto place = [&](const Layer& layer, TensorKind kind) {
    for (const TensorSlot& slot : layer.slots) {
      if (slot.spec.kind != kind) continue;
      layout.slots_.push_back(slot);
      layout.slots_.back().offset = offset;
      offset += AlignUp(slot.size, kSlotAlignFloats);
    }
  };
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    const int64_t first = offset;
    place(*layer, TensorKind::kWeight);
    if (offset > first) layout.layers_.push_back({layer->name, {first, offset - first}});
  }
  layout.weight_floats_ = offset;
  layout.statistics_begin_ = offset;
  layout.total_floats_ = offset;
  if (std::any_of(layers.begin(), layers.end(), [](const Layer& layer) {
        return std::any_of(layer.slots.begin(), layer.slots.end(), [](const TensorSlot& slot) {
          return slot.spec.kind == TensorKind::kStat;
        });
      })) {
    offset = AlignUp(offset, layout.chunk_floats_);
    layout.statistics_begin_ = offset;
    for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
      place(*layer, TensorKind::kStat);
    }
    layout.total_floats_ = offset;
  }
  if (layout.total_floats_ > kMaxFlatFloats) {
    return TooLarge("parameters", absl::StrCat("with padding ", layout.total_floats_));
  }
  if (layout.total_floats_ > kMaxChunks * layout.chunk_floats_) {
    return absl::InvalidArgumentError(absl::StrCat("chunks: ", layout.chunk_floats_,
                                                   " floats each makes more than ", kMaxChunks));
  }

  layout.forward_.resize(layout.slots_.size());
  for (size_t i = 0; i < layout.slots_.size(); ++i) layout.forward_[i] = static_cast<int32_t>(i);
  std::sort(layout.forward_.begin(), layout.forward_.end(), [&](int32_t a, int32_t b) {
    const TensorSlot& left = layout.slots_[a];
    const TensorSlot& right = layout.slots_[b];
    if (left.spec.kind != right.spec.kind) return left.spec.kind == TensorKind::kWeight;
    return left.index < right.index;
  });
  return layout;
}

int64_t FlatLayout::ElementCount(TensorKind kind) const {
  int64_t count = 0;
  for (const TensorSlot& slot : slots_) {
    if (slot.spec.kind == kind) count += slot.size;
  }
  return count;
}

std::vector<const TensorSlot*> FlatLayout::forward_order() const {
  std::vector<const TensorSlot*> order;
  order.reserve(forward_.size());
  for (const int32_t slot : forward_) order.push_back(&slots_[slot]);
  return order;
}

const TensorSlot* FlatLayout::Find(absl::string_view name) const {
  for (const TensorSlot& slot : slots_) {
    if (slot.spec.name == name) return &slot;
  }
  return nullptr;
}

int32_t FlatLayout::chunk_count() const {
  return static_cast<int32_t>((total_floats_ + chunk_floats_ - 1) / chunk_floats_);
}

FlatRange FlatLayout::ChunkRange(int32_t chunk) const {
  CAPSTAN_CHECK(chunk >= 0 && chunk < chunk_count());
  const int64_t offset = chunk * chunk_floats_;
  return {offset, std::min(chunk_floats_, total_floats_ - offset)};
}

TensorKind FlatLayout::ChunkKind(int32_t chunk) const {
  return ChunkRange(chunk).offset < weight_floats_ ? TensorKind::kWeight : TensorKind::kStat;
}

}  // namespace capstan::training
